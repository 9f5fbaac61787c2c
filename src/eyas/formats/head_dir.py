"""Reads and writes head directories: `config.json` and `model.safetensors`. Heads of other projects are converted.

config.json has two lists of the captured layers: vLLM reads the list at the top level, and SGLang reads the list in
eagle_config, which counts differently (`formats.aux_layers`). The tensor d2t holds offsets. The embedding is not
stored, because a head uses the embedding of its target. docs/formats.md has the conventions of all projects.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_safetensors
from torch import Tensor

from eyas.base.errors import Finding, InputError, raise_misfits
from eyas.base.provenance import Provenance, check_recorded, digest_file, digest_json, has_provenance, read_provenance
from eyas.base.storage import read_json_file, write_atomic
from eyas.formats.config import HeadMetadata, ParsedConfig, build_config_json, parse_config
from eyas.formats.weights import FIX_HEAD, WEIGHTS_FILE, LoadedWeights, load_weights, weight_files
from eyas.model.block_head import BlockHead
from eyas.model.head import DraftHead, HeadConfig
from eyas.model.vocab import DraftVocab

CONFIG_FILE = "config.json"
ACCEPTANCE_FILE = "acceptance.json"
FIX_DTYPE = 'Set "torch_dtype" to "float32", "bfloat16" or "float16"'


@dataclass(frozen=True)
class StoredHead:
    """A head directory in memory.

    Attributes:
        head: The module with its weights.
        vocab: The draft vocabulary.
        config: The sizes and flags.
        metadata: The target that it was trained for.
        digest: The digest of config.json and the weights.
        layout: The project whose conventions the files follow.
        findings: Warnings and remarks from reading the files; no misfit.
        embedding_WD: The embedding in the file; None if there is none. The head does not use it.
        provenance: The record of the stage that wrote the files; None if there is none. The files equal the record.
        acceptance: The content of acceptance.json of the evaluation of this head; None if there is none.
    """

    head: DraftHead
    vocab: DraftVocab
    config: HeadConfig
    metadata: HeadMetadata
    digest: str
    layout: str = "eyas"
    findings: tuple[Finding, ...] = ()
    embedding_WD: Tensor | None = None
    provenance: Provenance | None = None
    acceptance: dict[str, Any] | None = None


def write_head(directory: Path, head: DraftHead, vocab: DraftVocab, metadata: HeadMetadata, dtype: torch.dtype) -> str:
    """Writes a head directory with weights of this dtype and returns its digest."""
    vocab.check()
    assert (vocab.size, vocab.target_size) == (head.config.draft_vocab_size, head.config.vocab_size)
    write_files(directory, build_config_json(head.config, metadata, dtype), head_tensors(head, vocab, dtype))
    return digest_head(directory)


def write_files(directory: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes the weights and then config.json, so that a directory with config.json is complete."""
    (directory / CONFIG_FILE).unlink(missing_ok=True)
    write_atomic(directory / WEIGHTS_FILE, save_safetensors(tensors, metadata={"format": "pt"}))
    write_atomic(directory / CONFIG_FILE, json.dumps(config, indent=2) + "\n")


def head_tensors(head: DraftHead, vocab: DraftVocab, dtype: torch.dtype) -> dict[str, Tensor]:
    """Returns the tensors of model.safetensors by name: the weights in this dtype, and d2t and t2d of EAGLE-3."""
    tensors = {
        name: weight.detach().to("cpu", dtype).clone(memory_format=torch.contiguous_format)
        for name, weight in head.state_dict().items()
    }
    if isinstance(head, BlockHead):
        return tensors
    return tensors | {"d2t": vocab.d2t_V.cpu().contiguous(), "t2d": vocab.t2d_W.cpu().contiguous()}


def digest_head(directory: Path) -> str:
    """Returns the digest of config.json and the weights. Raises InputError if one of these files is missing."""
    return digest_json(_digest_files(directory))


def _digest_files(directory: Path) -> dict[str, str]:
    names = [CONFIG_FILE, *([path.name for path in weight_files(directory)] or [WEIGHTS_FILE])]
    return {name: digest_file(directory / name) for name in names}


def resolve_head(name: str | Path) -> Path:
    """Returns the directory of a head: a local directory, or for "embedded" the head that ships with eyas.

    Raises:
        InputError: The directory does not exist.
    """
    if str(name) == "embedded":
        return Path(__file__).parent.parent / "embedded" / "head"
    path = Path(name)
    if not path.is_dir():
        raise InputError(f"No head directory {name}", "Name a local directory with config.json, or 'embedded'")
    return path


def read_head(directory: str | Path, dtype: torch.dtype | None = None, num_layers: int | None = None) -> StoredHead:
    """Reads a head directory.

    Args:
        directory: The directory, in any of the layouts of `formats.config`.
        dtype: The dtype of the head in memory; None for the dtype that config.json names.
        num_layers: The number of layers of the target. Heads whose config.json names no captured layers need it.

    Raises:
        InputError: A file is missing or damaged, the graph is unknown, a tensor is missing, unexpected, not finite or
            of a wrong shape, d2t and t2d disagree, or the list of layers has two possible meanings. The error names all
            problems. Or a file has changed since provenance.json was written.
    """
    directory = Path(directory)
    read_json(directory / CONFIG_FILE)  # a missing or damaged file has an error of its own
    digests = _digest_files(directory)
    provenance = check_recorded(directory, digests)
    parsed, weights = inspect_head(directory, num_layers)
    findings = [*parsed.findings, *([] if weights is None else weights.findings)]
    if parsed.dtype is None and dtype is None:
        findings.append(Finding("misfit", "config.json has no torch_dtype that eyas knows", FIX_DTYPE))
    raise_misfits(f"The head in {directory} cannot be loaded", findings)
    assert parsed.config is not None, "a missing configuration is a misfit"
    assert weights is not None, "the weights are read where there is a configuration"
    assert weights.vocab is not None, "a missing vocabulary is a misfit"
    head, dtype = parsed.config.head_class(parsed.config), dtype or parsed.dtype
    head.load_state_dict({name: tensor.to(dtype) for name, tensor in weights.tensors.items()}, assign=True)
    named = tuple(replace(finding, problem=f"{directory}: {finding.problem}") for finding in findings)
    digest = digest_json(digests)
    return StoredHead(
        head.to(dtype),
        weights.vocab,
        parsed.config,
        parsed.metadata,
        digest,
        parsed.layout,
        named,
        weights.embedding_WD,
        provenance,
        _read_acceptance(directory, digest),
    )


def _read_acceptance(directory: Path, digest: str) -> dict[str, Any] | None:
    """Returns acceptance.json from the directory of a head, or from its run directory. None if neither has one."""
    if (directory / ACCEPTANCE_FILE).is_file():
        return read_json(directory / ACCEPTANCE_FILE)
    stage = directory.resolve().parent / "eval"
    is_evaluated = has_provenance(stage) and read_provenance(stage).parents.get("head") == digest
    return read_json(stage / ACCEPTANCE_FILE) if is_evaluated else None


def inspect_head(directory: Path, num_layers: int | None = None) -> tuple[ParsedConfig, LoadedWeights | None]:
    """Reads the configuration and the weights of a head. Their `findings` list all problems.

    Returns None for the weights if the configuration has a misfit. Raises InputError for missing or damaged files.
    """
    parsed = parse_config(read_json(directory / CONFIG_FILE), num_layers)
    if parsed.config is None:
        return parsed, None
    weights = load_weights(directory, parsed.config)
    others = {tensor.dtype for tensor in weights.tensors.values()} - {parsed.dtype}
    if parsed.dtype is not None and others:
        actual = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in others))
        problem = f"The file holds tensors in {actual}, but config.json says {str(parsed.dtype).removeprefix('torch.')}"
        weights.findings.append(Finding("warning", problem, "Correct torch_dtype in config.json"))
    return parsed, weights


def read_json(path: Path) -> dict[str, Any]:
    """Reads a file that contains one JSON object. Raises InputError if it is missing or contains something else."""
    read_fix = f"Check the path: a head directory holds {CONFIG_FILE} and {WEIGHTS_FILE}"
    raw = read_json_file(path, read_fix, FIX_HEAD)
    if not isinstance(raw, dict):
        raise InputError(f"{path} does not contain a JSON object", FIX_HEAD)
    return raw
