"""The directory of a target: its files, its tokenizer and its digests, without its weights."""

from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from eyas.base.errors import InputError
from eyas.base.provenance import digest_bytes, digest_file, digest_json

EMBEDDED = "embedded"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)
VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "vocab.txt", "merges.txt"]
HUB_FILES += ["README.md", "LICEN[SC]E*", "COPYING*", "USE_POLICY*", "NOTICE*"]  # what the licence gate reads


def resolve_target(name: str | Path) -> Path:
    """The directory of a target: "embedded" (shipped with the package), a local directory, or a hub id.

    `InputError` if there is no such directory, or if the hub does not give it.
    """
    if str(name) == EMBEDDED:
        return Path(__file__).parent.parent / "embedded" / "target"
    path = Path(name)
    if path.is_dir():
        return path
    is_hub_id = isinstance(name, str) and name.count("/") == 1 and name[0] not in "./~"
    if not is_hub_id:
        raise InputError(
            f"no directory {name}", "a local directory, a hub id or 'embedded' as target", "correct the target's path"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name), allow_patterns=HUB_FILES))
    except Exception as error:  # the hub client raises many unrelated classes, all meaning "not available"
        raise InputError(
            f"no directory {name}, and the hub does not give it ({type(error).__name__})",
            "a local directory, a hub id or 'embedded' as target",
            "correct the name, or download the target first",
        ) from error


def check_target_files(directory: Path) -> None:
    """`InputError` naming the first file without which the directory is no target."""
    missing = None
    if not (directory / "config.json").is_file():
        missing = ("config.json", "the configuration of a causal language model")
    elif not any(directory.glob("*.safetensors")):
        missing = ("*.safetensors", "weights as safetensors (other weight files may carry code and are not read)")
    elif not any((directory / name).is_file() for name in VOCABULARY_FILES):
        missing = ("tokenizer", f"one of {', '.join(VOCABULARY_FILES)}")
    if missing:
        raise InputError(f"target {directory} without {missing[0]}", missing[1], "point to a complete model directory")


def read_num_layers(name: str | Path) -> int:
    """How many layers a target has, without its weights. `InputError` as `Target.load`."""
    directory = resolve_target(name)
    check_target_files(directory)
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
        return config.get_text_config(decoder=True).num_hidden_layers
    except Exception as error:  # transformers raises many classes for a file it cannot use
        raise load_error(directory, error) from error


def digest_target(directory: Path) -> str:
    """Digest over config.json and all safetensors of a target directory, by name and content."""
    return _digest_files(directory, ["config.json", *sorted(path.name for path in directory.glob("*.safetensors"))])


def digest_tokenizer(directory: Path) -> str:
    """Digest over the tokenizer's files of a target directory."""
    return _digest_files(directory, [name for name in TOKENIZER_FILES if (directory / name).is_file()])


def _digest_files(directory: Path, names: list[str]) -> str:
    return digest_json({name: digest_file(directory / name) for name in names})


def require_chat_template(tokenizer: PreTrainedTokenizerBase, directory: Path) -> str:
    """The chat template; `InputError` that names the directory if the tokenizer has none."""
    template = tokenizer.chat_template
    if not isinstance(template, str) or not template.strip():
        raise InputError(
            f"target {directory} without a chat template",
            "chat_template.jinja, or chat_template in tokenizer_config.json",
            "use an instruction-tuned target, or add the template it was trained with",
        )
    return template


def load_error(directory: Path, error: Exception) -> InputError:
    """What transformers raised, in our words."""
    return InputError(
        f"target {directory} that transformers cannot load ({type(error).__name__}: {_first_line(error)})",
        "a causal language model in Hugging Face format with safetensors",
        "check the directory, or fetch it again",
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


@dataclass(frozen=True)
class TokenizerInfo:
    """The same values as those of `Target.load(name)`."""

    tokenizer: PreTrainedTokenizerBase
    max_positions: int
    digest: str
    tokenizer_digest: str
    template_digest: str

    @staticmethod
    def load(name: str | Path) -> "TokenizerInfo":
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
        template = require_chat_template(tokenizer, directory)
        return TokenizerInfo(
            tokenizer,
            max_positions,
            digest_target(directory),
            digest_tokenizer(directory),
            digest_bytes(template.encode()),
        )
