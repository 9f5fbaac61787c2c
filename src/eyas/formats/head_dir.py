"""A head directory, `config.json` and `model.safetensors`: ours written, anybody's read.

The captured layers are written twice because the readers disagree: vLLM takes the top-level list literally (our
HFIndex), SGLang takes the nested one as outputs of layers (`formats.aux_layers`). `d2t` is an offset. The embedding is
the target's and is not stored. What is read from elsewhere becomes the same: docs/formats.md has the conventions.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_safetensors
from torch import Tensor

from eyas.base.errors import Finding, InputError, raise_misfits
from eyas.base.provenance import digest_file, digest_json
from eyas.base.storage import write_atomic
from eyas.formats.config import HeadMetadata, ParsedConfig, build_config_json, parse_config
from eyas.formats.weights import WEIGHTS_FILE, DamagedError, LoadedWeights, load_weights, weight_files
from eyas.model.head import Head, HeadConfig
from eyas.model.vocab import DraftVocab

CONFIG_FILE = "config.json"
FIX_HEAD = "export the head again, or point to another one"


@dataclass(frozen=True)
class StoredHead:
    """A head directory in memory.

    layout: whose conventions the files follow. findings: what reading it came across, no misfit among it.
    embedding_WD: rows that the file holds, where it does; the head is run with the target's own.
    """

    head: Head
    vocab: DraftVocab
    config: HeadConfig
    metadata: HeadMetadata
    digest: str
    layout: str = "eyas"
    findings: tuple[Finding, ...] = ()
    embedding_WD: Tensor | None = None


def write_head(directory: Path, head: Head, vocab: DraftVocab, metadata: HeadMetadata, dtype: torch.dtype) -> str:
    """Write the directory in this precision and return its digest. config.json comes last: without it, unfinished."""
    vocab.check()
    assert (vocab.size, vocab.target_size) == (head.config.draft_vocab_size, head.config.vocab_size)
    (directory / CONFIG_FILE).unlink(missing_ok=True)
    write_atomic(directory / WEIGHTS_FILE, to_safetensors(head_tensors(head, vocab, dtype)))
    text = json.dumps(build_config_json(head.config, metadata, dtype), indent=2) + "\n"
    write_atomic(directory / CONFIG_FILE, text)
    return digest_head(directory)


def head_tensors(head: Head, vocab: DraftVocab, dtype: torch.dtype) -> dict[str, Tensor]:
    """What the file holds, by name."""
    tensors = {
        name: weight.detach().to("cpu", dtype).clone(memory_format=torch.contiguous_format)
        for name, weight in head.state_dict().items()
    }
    return tensors | {"d2t": vocab.d2t_V.cpu().contiguous(), "t2d": vocab.t2d_W.cpu().contiguous()}


def to_safetensors(tensors: dict[str, Tensor]) -> bytes:
    """A safetensors file; equal tensors give equal bytes."""
    return save_safetensors(tensors, metadata={"format": "pt"})


def digest_head(directory: Path) -> str:
    """Digest over config.json and the weights. `InputError` where they are not there."""
    names = [CONFIG_FILE, *([path.name for path in weight_files(directory)] or [WEIGHTS_FILE])]
    return digest_json({name: digest_file(directory / name) for name in names})


def resolve_head(name: str | Path) -> Path:
    """The directory of a head: "embedded" (shipped with the package) or a local directory. InputError."""
    if str(name) == "embedded":
        return Path(__file__).parent.parent / "embedded" / "head"
    path = Path(name)
    if not path.is_dir():
        raise InputError(f"no directory {name}", "a head directory, or 'embedded'", "correct the head's path")
    return path


def read_head(directory: str | Path, dtype: torch.dtype | None = None, num_layers: int | None = None) -> StoredHead:
    """Read a head directory in this precision (None: the stored one).

    num_layers: of its target, for heads that do not name the layers they read.

    `InputError` naming everything wrong: a missing or damaged file, an unknown graph, a missing, unexpected or
    misshapen tensor, a value that is not finite, d2t and t2d that disagree, layers that may mean two things.
    """
    directory = Path(directory)
    read, weights = inspect_head(directory, num_layers)
    findings = [*read.findings, *([] if weights is None else weights.findings)]
    if read.dtype is None and dtype is None:
        findings.append(Finding("misfit", "no torch_dtype that is known", "float32, bfloat16 or float16"))
    raise_misfits([_add_directory(finding, directory) for finding in findings], FIX_HEAD)
    assert read.config is not None, "what is missing is a misfit"
    assert weights is not None, "a configuration was read"
    assert weights.vocab is not None, "the same of the vocabulary"
    head, wanted = Head(read.config), dtype or read.dtype
    head.load_state_dict({name: tensor.to(wanted) for name, tensor in weights.tensors.items()}, assign=True)
    return StoredHead(
        head.to(wanted),
        weights.vocab,
        read.config,
        read.metadata,
        digest_head(directory),
        read.layout,
        tuple(findings),
        weights.embedding_WD,
    )


def inspect_head(directory: Path, num_layers: int | None = None) -> tuple[ParsedConfig, LoadedWeights | None]:
    """Everything that there is to say of a head directory; no weights where its configuration is no head's.

    `InputError` for files that are missing or damaged.
    """
    read = parse_config(read_json(directory / CONFIG_FILE), num_layers)
    if read.config is None:
        return read, None
    try:
        weights = load_weights(directory, read.config)
    except DamagedError as error:
        raise InputError(str(error), "a head directory with its weights", "fetch or export it again") from error
    others = {tensor.dtype for tensor in weights.tensors.values()} - {read.dtype}
    if read.dtype is not None and others:
        named = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in others))
        said = f"{str(read.dtype).removeprefix('torch.')}, as config.json says"
        weights.findings.append(Finding("warning", f"tensors in {named}", said))
    return read, weights


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object. `InputError`."""
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(
            f"no {path}", "a head directory with config.json and model.safetensors", "correct the head's path"
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"text that is not JSON ({error}) in {path}", "one JSON object", FIX_HEAD) from error
    if not isinstance(raw, dict):
        raise InputError(f"no JSON object in {path}", "one JSON object", FIX_HEAD)
    return raw


def _add_directory(finding: Finding, directory: Path) -> Finding:
    return Finding(finding.weight, f"{finding.found} in {directory}", finding.expected, finding.do)
