"""What of a target is needed to talk to it where a server runs it: its words and its digests, no weights loaded."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
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


def forced_ids(tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int], counts_W: Tensor) -> tuple[int, ...]:
    """Tokens that a draft vocabulary always has, ascending: what the data may be too small to show.

    The ends of a turn; and of the tokenizer's added tokens (control tokens, which no text is made of: marks of roles,
    tools, thinking) those that the chat template writes out and those that were generated. A template names the marks
    that its target writes, such as a tool call's; that it names some which only users' turns have costs a row of the
    head each. The hundreds that a vocabulary holds in reserve are in no template and never generated.

    counts_W: how often each of the W target tokens was generated.
    """
    template = tokenizer.chat_template
    texts = list(template.values()) if isinstance(template, dict) else [template or ""]
    named = {
        token_id
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token_id < counts_W.shape[0]
        and (bool(counts_W[token_id] > 0) or any(token.content in text for text in texts))
    }
    return tuple(sorted({*eos_ids, *named}))
