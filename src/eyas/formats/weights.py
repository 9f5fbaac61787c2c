"""Loads the tensors of a head in any project's layout and renames them to eyas's names.

name in the file                                name in eyas
model.X, draft_model.X                          X
layers.0.X                                      midlayer.X
draft_id_to_target_id                           d2t
aux_norm_low|mid|high.weight                    fc_norm.0|1|2.weight
qkv_proj, gate_up_proj                          q_proj, k_proj, v_proj; gate_proj, up_proj
embed_tokens.weight                             none; `formats.fit` compares it with the target's embedding
verifier_lm_head.weight, verifier_norm.weight   none; ignored copies of the target's weights

V draft vocabulary, W target vocabulary, D hidden size.
"""

import contextlib
import json
import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor

from eyas.base.errors import Finding, InputError
from eyas.formats.config import TABLES
from eyas.model.block_head import BlockConfig
from eyas.model.head import HeadConfig
from eyas.model.vocab import DraftVocab

FIX_HEAD = "Export or download the head again"
FIX_EXPORT = "Run `eyas export`, which writes d2t as ascending offsets"
OFFSETS, TARGET_IDS = "offsets", "target ids"


@dataclass(frozen=True)
class ParsedVocab:
    """The draft vocabulary of a file.

    Attributes:
        vocab: The vocabulary; None if the findings have a misfit.
        findings: Everything noticed while reading.
        order_V: The order that sorts the rows of lm_head by target id; None if they are sorted.
    """

    vocab: DraftVocab | None
    findings: tuple[Finding, ...] = ()
    order_V: Tensor | None = None


def parse_vocab(d2t: Tensor | None, t2d: Tensor | None, num_draft: int, num_target: int) -> ParsedVocab:
    """Returns the draft vocabulary that the tensors d2t and t2d of a file describe.

    Args:
        d2t: For each draft token its target id, or the offset target id - draft id; None if the file lacks it.
        t2d: For each target token True if it is in the draft vocabulary; None if the file lacks it.
        num_draft: V, the draft_vocab_size of config.json.
        num_target: W, the vocab_size of config.json.
    """
    for name, tensor, size in (("d2t", d2t, num_draft), ("t2d", t2d, num_target)):
        if tensor is not None and tensor.shape != (size,):
            return _misfit(f"Tensor {name} has shape {list(tensor.shape)}, but config.json says [{size}]")
    if t2d is not None:
        return _parse_with_t2d(d2t, t2d.bool(), num_draft)
    if d2t is not None:
        return _parse_d2t(d2t.long(), num_draft, num_target)
    if num_draft != num_target:
        return _misfit(f"The file has no tensor d2t, but only {num_draft} of {num_target} tokens are in the vocabulary")
    return ParsedVocab(DraftVocab.from_chosen(torch.ones(num_target, dtype=torch.bool)))


def _parse_with_t2d(d2t_V: Tensor | None, t2d_W: Tensor, num_draft: int) -> ParsedVocab:
    chosen_V = t2d_W.nonzero()[:, 0]
    if len(chosen_V) != num_draft:
        return _misfit(f"Tensor t2d marks {len(chosen_V)} tokens, but draft_vocab_size is {num_draft}")
    vocab = DraftVocab.from_chosen(t2d_W)
    if d2t_V is None:
        problem = "The file has no tensor d2t, without which SGLang and vLLM draft wrong tokens"
        return ParsedVocab(vocab, (Finding("warning", problem, FIX_EXPORT),))
    meanings = _possible_ids(d2t_V.long())
    for meaning, ids_V in meanings.items():
        if torch.equal(ids_V.sort().values, chosen_V):
            order_V = None if torch.equal(ids_V, chosen_V) else ids_V.argsort()
            return ParsedVocab(vocab, _order_findings(meaning, order_V), order_V)
    ids_V = meanings[OFFSETS]
    wrong = int((ids_V != chosen_V).nonzero()[0, 0])
    problem = f"Tensor d2t maps draft token {wrong} to target token {int(ids_V[wrong])}"
    return _misfit(f"{problem}, but t2d marks {int(chosen_V[wrong])}")


def _parse_d2t(d2t_V: Tensor, num_draft: int, num_target: int) -> ParsedVocab:
    meanings = _possible_ids(d2t_V)
    problems = {meaning: _find_problem(ids_V, num_target) for meaning, ids_V in meanings.items()}
    possible = [meaning for meaning, problem in problems.items() if problem is None]
    if len(possible) == 2:
        problem = "The numbers in d2t may be offsets or target ids, and the file has no t2d that decides it"
        return _misfit(problem, "Add the tensor t2d from the training run")
    if not possible:
        reasons = ", and ".join(f"as {meaning} they {problem}" for meaning, problem in problems.items())
        return _misfit(f"The numbers in d2t are no vocabulary: {reasons}")
    ids_V = meanings[possible[0]]
    order_V = None if bool((ids_V[1:] > ids_V[:-1]).all()) else ids_V.argsort()
    derived = Finding("ok", "The file has no tensor t2d, so eyas derives it from d2t, as the engines do")
    findings = (derived, *_order_findings(possible[0], order_V))
    if num_draft < num_target and not d2t_V.any():
        problem = f"All numbers in d2t are 0: the draft vocabulary is the first {num_draft} target tokens"
        findings += (Finding("warning", problem, "Check the export: a trained head has the most frequent tokens"),)
    t2d_W = torch.zeros(num_target, dtype=torch.bool).index_fill(0, ids_V, True)
    return ParsedVocab(DraftVocab.from_chosen(t2d_W), findings, order_V)


def _possible_ids(d2t_V: Tensor) -> dict[str, Tensor]:
    """Returns the target ids under both possible meanings of d2t, by meaning: OFFSETS and TARGET_IDS."""
    return {OFFSETS: d2t_V + torch.arange(len(d2t_V)), TARGET_IDS: d2t_V}


def _find_problem(ids_V: Tensor, num_target: int) -> str | None:
    """Returns a clause that says why these ids are not a vocabulary: out of range or repeated; None if they are one."""
    low, high = int(ids_V.min()), int(ids_V.max())
    if low < 0 or high >= num_target:
        return f"name token {low if low < 0 else high} of {num_target}"
    num_repeated = len(ids_V) - len(ids_V.unique())
    return f"repeat {num_repeated} target tokens" if num_repeated else None


def _order_findings(meaning: str, order_V: Tensor | None) -> tuple[Finding, ...]:
    problems: list[str] = []
    if meaning == TARGET_IDS:
        problems.append("Tensor d2t holds target ids, but SGLang and vLLM read offsets (target id - draft id)")
    if order_V is not None:
        problems.append("Tensor d2t is not in ascending order of target ids, as t2d is")
    return tuple(Finding("warning", problem, FIX_EXPORT) for problem in problems)


def _misfit(problem: str, fix: str = FIX_HEAD) -> ParsedVocab:
    return ParsedVocab(None, (Finding("misfit", problem, fix),))


WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TORCH_FILE = "pytorch_model.bin"  # the official heads; loaded without executing the code it may contain
MASK_FILE = "mask_embedding.pt"
OLD_NORM_NAMES = ("aux_norm_low.weight", "aux_norm_mid.weight", "aux_norm_high.weight")
IGNORED_TENSORS = re.compile(r"verifier_lm_head\.weight|verifier_norm\.weight|.*rotary_emb\.inv_freq")
EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True)
class LoadedWeights:
    """The tensors of a head, by eyas's names.

    Attributes:
        tensors: The weights of the head.
        vocab: The draft vocabulary; None if the findings have a misfit about it.
        embedding_WD: The embedding in the file, if there is one.
        findings: Everything noticed while reading.
    """

    tensors: dict[str, Tensor]
    vocab: DraftVocab | None
    embedding_WD: Tensor | None
    findings: list[Finding]


def weight_files(directory: Path) -> list[Path]:
    """Returns the files with the weights. If there is an index file, it is the first. Returns [] without weights."""
    for name in (WEIGHTS_FILE, INDEX_FILE, TORCH_FILE):
        path = directory / name
        if path.is_file():
            shards = sorted(set(_read_index(path).values())) if name == INDEX_FILE else []
            return [path, *(directory / shard for shard in shards)]
    return []


def load_weights(directory: Path, config: HeadConfig) -> LoadedWeights:
    """Loads the tensors of a head and checks them against `config`. Raises InputError for missing or damaged files."""
    findings: list[Finding] = []
    tensors = _rename_tensors(_load_files(directory), config, findings)
    embedding_WD = tensors.pop(EMBEDDING, None)
    if isinstance(config, BlockConfig):  # it drafts with the target's output matrix and vocabulary
        for name in ("lm_head.weight", "d2t", "t2d"):
            tensors.pop(name, None)
        every_W = torch.ones(config.vocab_size, dtype=torch.bool)
        findings += _check_tensors(tensors, config)
        if (directory / MASK_FILE).exists():  # vLLM reads it
            problem = f"{MASK_FILE} replaces the embedding of the mask token, which eyas does not support"
            findings.append(Finding("misfit", problem, "Use a head without this file"))
        return LoadedWeights(tensors, DraftVocab.from_chosen(every_W), embedding_WD, findings)
    d2t, t2d = tensors.pop("d2t", None), tensors.pop("t2d", None)
    parsed = parse_vocab(d2t, t2d, config.draft_vocab_size, config.vocab_size)
    findings += [*parsed.findings, *_check_tensors(tensors, config)]
    rows_VD = tensors.get("lm_head.weight")
    if parsed.order_V is not None and rows_VD is not None and len(rows_VD) == len(parsed.order_V):
        tensors["lm_head.weight"] = rows_VD[parsed.order_V]
    return LoadedWeights(tensors, parsed.vocab, embedding_WD, findings)


def _read_index(path: Path) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        names = json.loads(path.read_bytes())["weight_map"]
        if all(isinstance(name, str) and Path(name).name == name for name in names.values()):
            return names
    raise InputError(f"{path} names no files of weights in the same directory", FIX_HEAD)


def _load_files(directory: Path) -> dict[str, Tensor]:
    files = weight_files(directory)
    if not files:
        raise InputError(f"No file {directory / WEIGHTS_FILE}", FIX_HEAD)
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
            raise InputError(f"No file {path}", FIX_HEAD) from None
        except (OSError, SafetensorError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
            raise InputError(f"{path} is damaged or holds something else than weights", FIX_HEAD) from error
    return tensors


def _rename_tensors(tensors: Mapping[str, Tensor], config: HeadConfig, findings: list[Finding]) -> dict[str, Tensor]:
    renamed: dict[str, Tensor] = {}
    for stored_name, tensor in tensors.items():
        name = re.sub(r"^(draft_model\.)?(model\.)?", "", stored_name)
        if not isinstance(config, BlockConfig):
            name = re.sub(r"^layers\.0\.", "midlayer.", name).replace("draft_id_to_target_id", "d2t")
        if name in OLD_NORM_NAMES:
            name = f"fc_norm.{OLD_NORM_NAMES.index(name)}.weight"
        if IGNORED_TENSORS.fullmatch(name):
            continue
        for part_name, part in _split_packed(name, tensor, config).items():
            if part_name in renamed:
                findings.append(Finding("misfit", f"The file has two tensors for {part_name}", FIX_HEAD))
            renamed[part_name] = part
    return renamed


def _split_packed(name: str, tensor: Tensor, config: HeadConfig) -> dict[str, Tensor]:
    """Splits a qkv_proj or gate_up_proj tensor into its projections. Returns every other tensor unchanged."""
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads, "v_proj": config.num_kv_heads}
    rows = {
        "qkv_proj": {part: count * config.head_dim for part, count in heads.items()},
        "gate_up_proj": {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size},
    }
    for joined, parts in rows.items():
        if f".{joined}." in name and tensor.shape[0] == sum(parts.values()):
            split = tensor.split(list(parts.values()))
            return {name.replace(joined, part): one for part, one in zip(parts, split, strict=True)}
    return {name: tensor}


def _check_tensors(tensors: Mapping[str, Tensor], config: HeadConfig) -> Iterator[Finding]:
    """Yields a misfit for each tensor that is missing, unknown, of a wrong shape or not finite."""
    expected = config.head_class(config).state_dict()
    for name, weight in expected.items():
        tensor, problem, fix = tensors.get(name), None, FIX_HEAD
        if tensor is None:
            problem = f"The file has no tensor {name}"
            if name == "lm_head.weight":
                fix = "Use a head with its own output matrix: eyas cannot draft with the target's"
        elif tensor.shape != weight.shape:
            problem = f"Tensor {name} has shape {list(tensor.shape)}, but config.json says {list(weight.shape)}"
        elif not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            problem = f"Tensor {name} has values that are not finite numbers"  # NaN: a loader did not set them
        if problem is not None:
            yield Finding("misfit", problem, fix)
    for name in sorted(set(tensors) - set(expected)):
        graph = next((f" ({graph})" for part, graph in TABLES["other_graphs"].items() if part in name), "")
        problem = f"The file has the unexpected tensor {name}{graph}"
        yield Finding("misfit", problem, "Use a head whose flags match its tensors")
