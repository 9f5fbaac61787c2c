"""Finds and checks the directory of a target, loads its tokenizer and computes its digests. Loads no weights."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from eyas.base.errors import InputError
from eyas.base.fetch import is_url
from eyas.base.provenance import Provenance, check_recorded, digest_bytes, digest_file, digest_json
from eyas.base.storage import StoragePath

EMBEDDED = "embedded"
VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
TOKENIZER_FILES = (*VOCABULARY_FILES, "tokenizer_config.json", "special_tokens_map.json")
TOKENIZER_FILES += ("added_tokens.json", "merges.txt")
OTHER_FILES = ("chat_template.jinja", "generation_config.json", "model.safetensors.index.json")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "vocab.txt", "merges.txt"]
HUB_FILES += ["README.md", "LICEN[SC]E*", "COPYING*", "USE_POLICY*", "NOTICE*"]  # read by the license gate
LOCAL_FILES: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}


class TargetDir:
    """A target whose weights are not loaded: its directory, tokenizer and digests."""

    def __init__(self, directory: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        self.directory = directory
        self.tokenizer = tokenizer

    @staticmethod
    def open(name: str | Path) -> "TargetDir":
        """Loads the tokenizer of a target. Raises InputError if the target, tokenizer or chat template is missing."""
        directory = resolve_target(name)
        target_dir = TargetDir(directory, load_tokenizer(directory))
        target_dir.require_chat_template()
        return target_dir

    @cached_property
    def max_positions(self) -> int:
        """The longest text that the target supports, in tokens."""
        return load_config(self.directory).get_text_config(decoder=True).max_position_embeddings

    @cached_property
    def digest(self) -> str:
        """The digest of the configuration and the weights (`digest_target`). Computing it reads the weight files."""
        return digest_target(self.directory)

    @cached_property
    def tokenizer_digest(self) -> str:
        """The digest of the tokenizer's files."""
        return digest_json(_digest_files(self.directory, (), TOKENIZER_FILES))

    @cached_property
    def template_digest(self) -> str:
        """The digest of the chat template. Raises InputError if there is none."""
        return digest_bytes(self.require_chat_template().encode())

    @property
    def text_digests(self) -> dict[str, str | None]:
        """The digests by name: "tokenizer" and "chat template", which is None if the tokenizer has no template."""
        template = self.template_digest if self.tokenizer.chat_template else None
        return {"tokenizer": self.tokenizer_digest, "chat template": template}

    def require_chat_template(self) -> str:
        """Returns the chat template. Raises InputError if the tokenizer has none."""
        template = self.tokenizer.chat_template
        if not isinstance(template, str) or not template.strip():
            fix = "Use an instruction-tuned target, or add its chat_template.jinja to the directory"
            raise InputError(f"Target {self.directory} has no chat template", fix)
        return template


def digest_target(directory: Path) -> str:
    """Returns one digest of the names and contents of config.json and all *.safetensors files of a directory.

    Raises InputError as `verify_target` does.
    """
    return verify_target(directory)[0]


def verify_target(directory: Path) -> tuple[str, Provenance | None]:
    """Digests every file that eyas loads from a target, and compares the digests with provenance.json.

    Returns:
        The digest of `digest_target`, and the provenance that records the files; None if no provenance.json does.

    Raises:
        InputError: provenance.json records another digest of a file, or a file is missing.
    """
    weights = ["config.json", *sorted(path.name for path in directory.glob("*.safetensors"))]
    digests = _digest_files(directory, weights, (*TOKENIZER_FILES, *OTHER_FILES))
    return digest_json({name: digests[name] for name in weights}), check_recorded(directory, digests)


def _digest_files(directory: Path, required: Sequence[str], optional: Sequence[str]) -> dict[str, str]:
    """Returns the digests by name of the required files and of the optional ones that exist."""
    names = [*required, *(name for name in optional if (directory / name).is_file())]
    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter's lock
        return dict(zip(names, pool.map(digest_file, [directory / name for name in names]), strict=True))


def resolve_target(name: str | Path) -> Path:
    """Returns the directory of a target. A hub id is downloaded if it is not in the hub's cache.

    Args:
        name: A local directory, a hub id such as "Qwen/Qwen3-8B", or "embedded", the small target that ships with eyas.

    Raises:
        InputError: The directory does not exist, or the hub does not provide the model.
    """
    if str(name) == EMBEDDED:
        return Path(__file__).parent.parent / "embedded" / "target"
    path = Path(name)
    if path.is_dir():
        return path
    is_hub_id = isinstance(name, str) and name.count("/") == 1 and name[0] not in "./~"
    if not is_hub_id:
        raise InputError(f"No directory {name}", "Name a local directory, a hub id, or 'embedded' as the target")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name), allow_patterns=HUB_FILES))
    except Exception as error:  # the hub client raises many unrelated classes, all meaning "not available"
        problem = f"Target {name} is not a local directory, and the hub does not provide it ({type(error).__name__})"
        fix = "Check the name and the connection, or download the model and name its directory"
        raise InputError(problem, fix) from error


def public_name(name: str | Path) -> str:
    """Returns the name of a target for other machines: the last part of a directory or URL, else the name itself."""
    if is_url(str(name)):
        return StoragePath(str(name)).name
    return Path(name).resolve().name if Path(name).is_dir() else str(name)


def check_target_files(directory: Path) -> None:
    """Raises InputError if a target directory lacks a file. The error names the first missing one."""
    missing = None
    if not (directory / "config.json").is_file():
        missing = "config.json"
    elif not any(directory.glob("*.safetensors")):
        missing = "*.safetensors file (other weight files may carry code, so eyas does not read them)"
    elif not any((directory / name).is_file() for name in VOCABULARY_FILES):
        missing = f"tokenizer ({', '.join(VOCABULARY_FILES)})"
    if missing:
        raise InputError(f"Target {directory} has no {missing}", "Name a complete model directory")


def load_config(directory: Path) -> PreTrainedConfig:
    """Loads the configuration of a target. Raises InputError if transformers cannot load it."""
    with convert_load_errors(directory):
        return AutoConfig.from_pretrained(directory, **LOCAL_FILES)


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a target. Raises InputError if transformers cannot load it."""
    with convert_load_errors(directory):
        return AutoTokenizer.from_pretrained(directory, **LOCAL_FILES)


def load_hub_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a directory or a hub id, without its weights. Raises InputError if it is not available."""
    if isinstance(name, Path):
        return load_tokenizer(name)
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # the hub client raises many unrelated classes, all meaning "not available"
        problem = f"The tokenizer of {name} is not available ({type(error).__name__})"
        raise InputError(problem, "Check the name and the connection") from error


def read_num_layers(name: str | Path) -> int:
    """Returns the number of layers of a target. Reads no weights. Raises InputError if files are missing."""
    directory = resolve_target(name)
    check_target_files(directory)
    return load_config(directory).get_text_config(decoder=True).num_hidden_layers


@contextlib.contextmanager
def convert_load_errors(directory: Path) -> Iterator[None]:
    """Converts every exception of the `with` body, which loads a target with transformers, to InputError."""
    try:
        yield
    except Exception as error:  # transformers and safetensors raise many classes for a file they cannot use
        try:
            model_type = f"model_type {json.loads((directory / 'config.json').read_bytes())['model_type']!r}"
        except (OSError, ValueError, KeyError, TypeError):
            model_type = "no readable model_type"
        problem = f"transformers {transformers.__version__} cannot load target {directory} with {model_type}"
        fix = "Check that this version supports the model and that its files are complete"
        raise InputError(f"{problem} ({type(error).__name__})", fix) from error
