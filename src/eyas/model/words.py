"""What of a target is needed to talk to it where a server runs it: its words and its digests, no weights loaded."""

from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from eyas.base.errors import InputError
from eyas.base.provenance import digest_bytes
from eyas.model.target import digest_target, digest_tokenizer, require_template, resolve_target


@dataclass(frozen=True)
class TargetWords:
    """The same values as those of `Target.load(name)`."""

    tokenizer: PreTrainedTokenizerBase
    max_positions: int
    digest: str
    tokenizer_digest: str
    template_digest: str

    @staticmethod
    def load(name: str | Path) -> "TargetWords":
        """Reads the weight files once, for their digest. InputError for what is missing, a chat template too."""
        directory = resolve_target(name)
        try:
            config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
            max_positions: int = config.get_text_config(decoder=True).max_position_embeddings
            tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
        except Exception as error:  # transformers raises many classes for a file it cannot use
            raise InputError(
                f"target {directory} whose configuration or tokenizer cannot be loaded ({type(error).__name__})",
                "a causal language model in Hugging Face format",
                "check the directory, or fetch it again",
            ) from error
        template = require_template(tokenizer, directory)
        return TargetWords(
            tokenizer,
            max_positions,
            digest_target(directory),
            digest_tokenizer(directory),
            digest_bytes(template.encode()),
        )
