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

from eyas.base.errors import Finding
from eyas.model.head import Head, HeadConfig
from eyas.model.vocab import DraftVocab

OFFSET, ABSOLUTE = "offsets", "target ids"


@dataclass(frozen=True)
class ParsedVocab:
    """vocab None: the findings say why not. order_V: how the rows of lm_head have to be sorted; None: they are."""

    vocab: DraftVocab | None
    findings: tuple[Finding, ...] = ()
    order_V: Tensor | None = None


def parse_vocab(d2t: Tensor | None, t2d: Tensor | None, num_draft: int, num_target: int) -> ParsedVocab:
    """The draft vocabulary that the two tensors mean, as far as they are there."""
    for name, found, size in (("d2t", d2t, num_draft), ("t2d", t2d, num_target)):
        if found is not None and found.shape != (size,):
            return _misfit(f"{name} of shape {list(found.shape)}", f"shape [{size}]")
    if d2t is None and t2d is None:
        if num_draft == num_target:
            return ParsedVocab(_build_vocab(torch.arange(num_target), num_target))
        return _misfit("no tensor d2t", f"d2t of shape [{num_draft}], or t2d of shape [{num_target}]")
    if t2d is not None:
        return _with_t2d(d2t, t2d.bool(), num_draft)
    assert d2t is not None, "one of them is there"
    return _without_t2d(d2t.long(), num_draft, num_target)


def _with_t2d(d2t: Tensor | None, t2d_W: Tensor, num_draft: int) -> ParsedVocab:
    chosen_V = t2d_W.nonzero()[:, 0]
    if len(chosen_V) != num_draft:
        return _misfit(f"t2d that marks {len(chosen_V)} tokens", f"{num_draft}, the draft vocabulary")
    vocab = _build_vocab(chosen_V, len(t2d_W))
    if d2t is None:
        return ParsedVocab(vocab, (Finding("warning", "no tensor d2t", "offsets: SGLang and vLLM draft wrong tokens"),))
    d2t = d2t.long()
    targets_V = d2t + torch.arange(num_draft)
    for meaning, ids_V in ((OFFSET, targets_V), (ABSOLUTE, d2t)):
        if torch.equal(ids_V.sort().values, chosen_V):
            order_V = None if torch.equal(ids_V, chosen_V) else ids_V.argsort()
            return ParsedVocab(vocab, _layout_findings(meaning, order_V), order_V)
    wrong = int((targets_V != chosen_V).nonzero()[0, 0])
    found = f"d2t that sends draft token {wrong} to target token {int(targets_V[wrong])}"
    return _misfit(found, f"target token {int(chosen_V[wrong])}, which t2d says")


def _without_t2d(d2t_V: Tensor, num_draft: int, num_target: int) -> ParsedVocab:
    meant = {OFFSET: d2t_V + torch.arange(num_draft), ABSOLUTE: d2t_V}
    problems = {meaning: _find_problem(ids_V, num_target) for meaning, ids_V in meant.items()}
    possible = [meaning for meaning, problem in problems.items() if problem is None]
    if len(possible) == 2:
        found = "d2t without t2d whose numbers may be offsets or target ids"
        return _misfit(found, "numbers that only one of them can be, or t2d", "add t2d from the training run")
    if not possible:
        said = " and ".join(f"{problem} as {meaning}" for meaning, problem in problems.items())
        return _misfit(f"d2t with {said}", f"different target tokens below {num_target}")
    ids_V = meant[possible[0]]
    order_V = None if bool((ids_V[1:] > ids_V[:-1]).all()) else ids_V.argsort()
    derived = Finding("ok", "no tensor t2d", "made from d2t, as the engines do without it")
    findings = (derived, *_layout_findings(possible[0], order_V))
    if num_draft < num_target and not d2t_V.any():
        findings += (Finding("warning", f"d2t of zeros, the first {num_draft} target tokens", "frequent tokens"),)
    return ParsedVocab(_build_vocab(ids_V.sort().values, num_target), findings, order_V)


def _find_problem(ids_V: Tensor, num_target: int) -> str | None:
    low, high = int(ids_V.min()), int(ids_V.max())
    if low < 0 or high >= num_target:
        return f"target token {low if low < 0 else high} of {num_target}"
    num_twice = len(ids_V) - len(ids_V.unique())
    return f"{num_twice} target tokens that come twice" if num_twice else None


def _layout_findings(meaning: str, order_V: Tensor | None) -> tuple[Finding, ...]:
    found: list[Finding] = []
    if meaning == ABSOLUTE:
        expected = "offsets (target id - draft id), for SGLang and vLLM add the draft id to them"
        found.append(Finding("warning", "d2t that holds target ids", expected, "`eyas export` writes offsets"))
    if order_V is not None:
        found.append(Finding("warning", "d2t that is not in ascending order", "ascending target ids, as t2d has them"))
    return tuple(found)


def _build_vocab(chosen_V: Tensor, num_target: int) -> DraftVocab:
    t2d_W = torch.zeros(num_target, dtype=torch.bool)
    t2d_W[chosen_V] = True
    return DraftVocab(chosen_V - torch.arange(len(chosen_V)), t2d_W)


def _misfit(found: str, expected: str, do: str | None = None) -> ParsedVocab:
    return ParsedVocab(None, (Finding("misfit", found, expected, do),))


WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TORCH_FILE = "pytorch_model.bin"  # the official heads; read without running what it may hold
OLD_NORM_NAMES = ("aux_norm_low.weight", "aux_norm_mid.weight", "aux_norm_high.weight")
IGNORED_TENSORS = re.compile(r"verifier_lm_head\.weight|verifier_norm\.weight|.*rotary_emb\.inv_freq")
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
class LoadedWeights:
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
            shards = sorted(set(_read_index(path).values())) if name == INDEX_FILE else []
            return [path, *(directory / shard for shard in shards)]
    return []


def load_weights(directory: Path, config: HeadConfig) -> LoadedWeights:
    """The tensors that this head needs. `DamagedError`."""
    read = LoadedWeights(_load_files(directory))
    read.tensors = _rename_tensors(read.tensors, config, read.findings)
    read.embedding_WD = read.tensors.pop(EMBEDDING, None)
    d2t, t2d = read.tensors.pop("d2t", None), read.tensors.pop("t2d", None)
    mapped = parse_vocab(d2t, t2d, config.draft_vocab_size, config.vocab_size)
    read.vocab, read.findings = mapped.vocab, [*read.findings, *mapped.findings]
    _check_tensors(read, config)
    order_V = mapped.order_V
    if order_V is not None and (rows_VD := read.tensors.get("lm_head.weight")) is not None:
        read.tensors["lm_head.weight"] = rows_VD[order_V] if len(rows_VD) == len(order_V) else rows_VD
    return read


def _read_index(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_bytes())["weight_map"]
        if all(isinstance(name, str) and Path(name).name == name for name in found.values()):
            return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise DamagedError(f"{path.name} that names no files of weights")


def _load_files(directory: Path) -> dict[str, Tensor]:
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


def _rename_tensors(tensors: Mapping[str, Tensor], config: HeadConfig, findings: list[Finding]) -> dict[str, Tensor]:
    ours: dict[str, Tensor] = {}
    for theirs, tensor in tensors.items():
        name = re.sub(r"^(draft_model\.)?(model\.)?", "", theirs)
        name = re.sub(r"^layers\.0\.", "midlayer.", name).replace("draft_id_to_target_id", "d2t")
        if name in OLD_NORM_NAMES:
            name = f"fc_norm.{OLD_NORM_NAMES.index(name)}.weight"
        if IGNORED_TENSORS.fullmatch(name):
            continue
        for part, split in _split_packed(name, tensor, config).items():
            if part in ours:
                findings.append(Finding("misfit", f"two tensors for {part}", "one"))
            ours[part] = split
    return ours


def _split_packed(name: str, tensor: Tensor, config: HeadConfig) -> dict[str, Tensor]:
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


def _check_tensors(read: LoadedWeights, config: HeadConfig) -> None:
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
