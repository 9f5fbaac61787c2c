"""The tensors of a head, whoever wrote them, under our names. V draft vocabulary, W target vocabulary, D hidden.

theirs                                          ours
model.X, draft_model.X                          X
layers.0.X                                      midlayer.X
draft_id_to_target_id                           d2t
aux_norm_low|mid|high.weight                    fc_norm.0|1|2.weight
qkv_proj, gate_up_proj                          q_proj, k_proj, v_proj; gate_proj, up_proj
embed_tokens.weight                             kept apart: the target's rows, where they are right
verifier_lm_head.weight, verifier_norm.weight   dropped: the target's, for speculators' training alone
"""

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor

from eyas.formats.draft_vocab import read_vocab
from eyas.formats.finding import Finding
from eyas.model.head import Head, HeadConfig
from eyas.model.vocab import DraftVocab

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TORCH_FILE = "pytorch_model.bin"  # the official heads; read without running what it may hold
OLD_NORMS = ("aux_norm_low.weight", "aux_norm_mid.weight", "aux_norm_high.weight")
DROPPED = re.compile(r"verifier_lm_head\.weight|verifier_norm\.weight|.*rotary_emb\.inv_freq")
EMBEDDING = "embed_tokens.weight"
# In words, what a tensor of another graph means.
OTHER_GRAPHS = {
    "q_norm": "the layer of a Qwen 3 draft",
    "k_norm": "the layer of a Qwen 3 draft",
    "layers.1.": "a draft of more than one layer",
    "mask_hidden": "P-EAGLE, which drafts in parallel",
    "kv_a_proj": "multi-head latent attention",
    "bias": "layers with a bias",
    "fc_norm": "norms before fc, without the flag fc_norm",
    "input_norm": "a norm before fc, without the flag norm_before_fc",
}


class DamagedError(Exception):
    """A file that is missing or cannot be read; the reason in words."""


@dataclass
class ReadWeights:
    """What could be read. vocab None: the findings say why not."""

    tensors: dict[str, Tensor]
    vocab: DraftVocab | None = None
    embedding_WD: Tensor | None = None
    findings: list[Finding] = field(default_factory=list)


def weight_files(directory: Path) -> list[Path]:
    """The files that hold the weights, index first; [] where there are none."""
    for name in (WEIGHTS_FILE, INDEX_FILE, TORCH_FILE):
        path = directory / name
        if path.is_file():
            shards = sorted(set(_index(path).values())) if name == INDEX_FILE else []
            return [path, *(directory / shard for shard in shards)]
    return []


def read_weights(directory: Path, config: HeadConfig) -> ReadWeights:
    """The tensors that this head needs. `DamagedError`."""
    read = ReadWeights(_load(directory))
    read.tensors = _renamed(read.tensors, config, read.findings)
    read.embedding_WD = read.tensors.pop(EMBEDDING, None)
    d2t, t2d = read.tensors.pop("d2t", None), read.tensors.pop("t2d", None)
    mapped = read_vocab(d2t, t2d, config.draft_vocab_size, config.vocab_size)
    read.vocab, read.findings = mapped.vocab, [*read.findings, *mapped.findings]
    _check(read, config)
    order_V = mapped.order_V
    if order_V is not None and (rows_VD := read.tensors.get("lm_head.weight")) is not None:
        read.tensors["lm_head.weight"] = rows_VD[order_V] if len(rows_VD) == len(order_V) else rows_VD
    return read


def _index(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_bytes())["weight_map"]
        if all(isinstance(name, str) and Path(name).name == name for name in found.values()):
            return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise DamagedError(f"{path.name} that names no files of weights")


def _load(directory: Path) -> dict[str, Tensor]:
    files = weight_files(directory)
    if not files:
        raise DamagedError(f"no {directory / WEIGHTS_FILE}")
    tensors: dict[str, Tensor] = {}
    for path in files:
        if path.name == INDEX_FILE:
            continue
        try:
            if path.name == TORCH_FILE:
                tensors |= torch.load(path, map_location="cpu", weights_only=True)
            else:
                tensors |= load_safetensors(path.read_bytes())
        except FileNotFoundError:
            raise DamagedError(f"no {path}") from None
        except (OSError, SafetensorError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
            first = (str(error).splitlines() or [""])[0][:200]
            raise DamagedError(f"a damaged file {path} ({first})") from error
    return tensors


def _renamed(tensors: Mapping[str, Tensor], config: HeadConfig, findings: list[Finding]) -> dict[str, Tensor]:
    ours: dict[str, Tensor] = {}
    for theirs, tensor in tensors.items():
        name = re.sub(r"^(draft_model\.)?(model\.)?", "", theirs)
        name = re.sub(r"^layers\.0\.", "midlayer.", name).replace("draft_id_to_target_id", "d2t")
        if name in OLD_NORMS:
            name = f"fc_norm.{OLD_NORMS.index(name)}.weight"
        if DROPPED.fullmatch(name):
            continue
        for part, split in _split(name, tensor, config).items():
            if part in ours:
                findings.append(Finding("misfit", f"two tensors for {part}", "one"))
            ours[part] = split
    return ours


def _split(name: str, tensor: Tensor, config: HeadConfig) -> dict[str, Tensor]:
    """Products that were joined, apart again; where the sizes do not fit, as it was."""
    rows = {
        "qkv_proj": {"q_proj": config.num_heads, "k_proj": config.num_kv_heads, "v_proj": config.num_kv_heads},
        "gate_up_proj": {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size},
    }
    for joined, parts in rows.items():
        if f".{joined}." in name:
            sizes = [count * (config.head_dim if joined == "qkv_proj" else 1) for count in parts.values()]
            if tensor.shape[0] == sum(sizes):
                split = tensor.split(sizes)
                return {name.replace(joined, part): one for part, one in zip(parts, split, strict=True)}
    return {name: tensor}


def _check(read: ReadWeights, config: HeadConfig) -> None:
    """Every tensor that is missing, misshapen, unknown or not finite."""
    wanted = Head(config).state_dict()
    known = ", ".join([*wanted, "d2t", "t2d"])
    for name, weight in wanted.items():
        found = read.tensors.get(name)
        if found is None:
            expected = f"{name} of shape {list(weight.shape)}"
            if name == "lm_head.weight":
                expected += " (a head that drafts with the target's own output matrix is not known here)"
            read.findings.append(Finding("misfit", f"no tensor {name}", expected))
        elif found.shape != weight.shape:
            read.findings.append(
                Finding("misfit", f"{name} of shape {list(found.shape)}", f"shape {list(weight.shape)}")
            )
        elif not found.is_floating_point() or not torch.isfinite(found).all():
            what = f"{name} with values that are not finite numbers"
            read.findings.append(Finding("misfit", what, "finite numbers: weights that a loader left unset are NaN"))
    for name in sorted(set(read.tensors) - set(wanted)):
        means = next((f" ({meaning})" for part, meaning in OTHER_GRAPHS.items() if part in name), "")
        read.findings.append(Finding("misfit", f"an unexpected tensor {name}{means}", f"only {known}"))
