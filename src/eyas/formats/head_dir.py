"""A head directory, `config.json` and `model.safetensors`, as SGLang and vLLM load it.

The captured layers are written twice because the readers disagree: vLLM takes the top-level list literally (our
HFIndex), SGLang takes the nested one as outputs of layers, which is one less. Both lists must agree when read.
`d2t` is an offset. The embedding is the target's and is not stored.
"""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from eyas.base.atomic import write_atomic
from eyas.base.errors import InputError
from eyas.base.provenance import digest_file, digest_json
from eyas.model.dtypes import DTYPES
from eyas.model.facts import TargetFacts
from eyas.model.head import Head, HeadConfig
from eyas.model.layer_ids import HFIndex, default_layers
from eyas.model.vocab import DraftVocab

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
ARCHITECTURE = "LlamaForCausalLMEagle3"
LAYERS_KEY = "eagle_aux_hidden_state_layer_ids"
FILE_DTYPES = DTYPES | {"float16": torch.float16, "float64": torch.float64}  # heads from elsewhere
USE_ITS_OWN = "use the head that was trained for this target"
# What must hold for our graph to be the one that was trained: other values mean another graph.
FIXED = {
    "hidden_act": "silu",
    "num_hidden_layers": 1,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "norm_before_residual": False,
    "rope_scaling": None,
}
# What older heads call `fc_norm`; SGLang still reads both (facts B.4). We write the new names alone.
OLD_FC_NORM = "use_aux_norm"
OLD_NORMS = ("aux_norm_low.weight", "aux_norm_mid.weight", "aux_norm_high.weight")
# Our names on the left, those of the file on the right.
SIZES = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "draft_vocab_size": "draft_vocab_size",
    "max_position_embeddings": "max_position_embeddings",
    "target_hidden_size": "target_hidden_size",
}


@dataclass(frozen=True)
class HeadOrigin:
    """What the head was trained for; None where a head from elsewhere does not say."""

    target_name: str | None = None
    target_digest: str | None = None
    trained_context: int | None = None
    """The longest row of training, in tokens."""
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class StoredHead:
    """A head directory in memory."""

    head: Head
    vocab: DraftVocab
    config: HeadConfig
    origin: HeadOrigin
    digest: str


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. A "misfit" is unusable, a "warning" costs acceptance at most, an "ok" is right.

    do: what mends it, where that is known.
    """

    weight: Literal["misfit", "warning", "ok"]
    found: str
    expected: str
    do: str | None = None

    def __str__(self) -> str:
        if self.weight == "ok":
            return f"ok: {self.found}; {self.expected}"
        return f"{self.weight}: found {self.found}; expected {self.expected}" + (f"; do {self.do}" if self.do else "")


def write_head(directory: Path, head: Head, vocab: DraftVocab, origin: HeadOrigin, dtype: torch.dtype) -> str:
    """Write the directory in this precision and return its digest. config.json comes last: without it, unfinished."""
    vocab.check()
    assert (vocab.size, vocab.target_size) == (head.config.draft_vocab_size, head.config.vocab_size)
    tensors = {
        name: weight.detach().to("cpu", dtype).clone(memory_format=torch.contiguous_format)
        for name, weight in head.state_dict().items()
    }
    tensors["d2t"] = vocab.d2t_V.cpu().contiguous()
    tensors["t2d"] = vocab.t2d_W.cpu().contiguous()
    (directory / CONFIG_FILE).unlink(missing_ok=True)
    write_atomic(directory / WEIGHTS_FILE, save_safetensors(tensors, metadata={"format": "pt"}))
    text = json.dumps(config_json(head.config, origin, dtype), indent=2) + "\n"
    write_atomic(directory / CONFIG_FILE, text)
    return digest_head(directory)


def digest_head(directory: Path) -> str:
    """Digest over both files."""
    return digest_json({name: digest_file(directory / name) for name in (CONFIG_FILE, WEIGHTS_FILE)})


def resolve_head(name: str | Path) -> Path:
    """The directory of a head: "embedded" (shipped with the package) or a local directory. InputError."""
    if str(name) == "embedded":
        return Path(__file__).parent.parent / "embedded" / "head"
    path = Path(name)
    if not path.is_dir():
        raise InputError(f"no directory {name}", "a head directory, or 'embedded'", "correct the head's path")
    return path


def config_json(config: HeadConfig, origin: HeadOrigin, dtype: torch.dtype) -> dict[str, Any]:
    """The object in config.json."""
    ids = [int(i) for i in config.aux_layer_ids]
    eos = list(origin.eos_ids)
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        **FIXED,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": origin.bos_id,
        "eos_token_id": None if not eos else eos[0] if len(eos) == 1 else eos,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        LAYERS_KEY: ids,
        "eagle_config": {LAYERS_KEY: [i - 1 for i in ids], "use_aux_hidden_state": True},
        "eyas": {
            "target_name": origin.target_name,
            "target_digest": origin.target_digest,
            "trained_context": origin.trained_context,
        },
    }


def read_head(directory: str | Path, dtype: torch.dtype | None = None) -> StoredHead:
    """Read a head directory in this precision (None: the stored one).

    `InputError` naming the first thing wrong: a missing or damaged file, an unknown graph, a missing, unexpected or
    misshapen tensor, a value that is not finite, d2t and t2d that disagree.
    """
    directory = Path(directory)
    raw = _read_json(directory / CONFIG_FILE)
    config, origin = _parse_config(raw, directory / CONFIG_FILE)
    stored = FILE_DTYPES.get(str(raw.get("torch_dtype", raw.get("dtype"))))  # transformers 5 renamed the key
    if stored is None and dtype is None:
        raise _bad(
            directory / CONFIG_FILE, f"torch_dtype {raw.get('torch_dtype')!r}", f"one of {', '.join(FILE_DTYPES)}"
        )
    tensors = _read_tensors(directory / WEIGHTS_FILE)
    for i, name in enumerate(OLD_NORMS):
        if name in tensors:
            tensors.setdefault(f"fc_norm.{i}.weight", tensors.pop(name))
    vocab = _take_vocab(tensors, config, directory / WEIGHTS_FILE)
    head = Head(config)
    _check_tensors(tensors, head, directory / WEIGHTS_FILE)
    wanted = dtype or stored
    head.load_state_dict({name: tensor.to(wanted) for name, tensor in tensors.items()}, assign=True)
    return StoredHead(head.to(wanted), vocab, config, origin, digest_head(directory))


def check_fit(stored: StoredHead, facts: TargetFacts, target_digest: str | None = None) -> list[Finding]:
    """Everything in which this head and this target do not fit, misfits first; empty if they do."""
    config, found = stored.config, []

    def compare(weight: Literal["misfit", "warning"], name: str, ours: object, theirs: object) -> None:
        if ours != theirs:
            have = f"{theirs}, as target {facts.name} has"
            found.append(
                Finding(weight, f"a head for {name} {ours}", have, USE_ITS_OWN if weight == "misfit" else None)
            )

    compare("misfit", "hidden size", config.target_hidden_size, facts.hidden_size)
    compare("misfit", "a vocabulary of", config.vocab_size, facts.vocab_size)
    ids = list(config.aux_layer_ids)
    if any(i > facts.num_layers for i in ids):
        have = f"ids up to {facts.num_layers}, the layers of target {facts.name}"
        found.append(Finding("misfit", f"a head that reads layers {ids}", have, USE_ITS_OWN))
    elif facts.num_layers >= 7 and ids != list(default_layers(facts.num_layers)):
        usual = list(default_layers(facts.num_layers))
        found.append(Finding("warning", f"a head that reads layers {ids}", f"{usual}, the usual ones of this target"))
    if config.rope_theta != facts.rope_theta:
        # The base alone: a head turns plainly, also where the target scales its positions (`HeadConfig.for_target`).
        base = "no rotary positions" if facts.rope_theta is None else facts.rope_theta
        scaled = "" if facts.rope_type in (None, "default") else f" before scaling of type {facts.rope_type}"
        have = f"{base}, as target {facts.name} has{scaled}"
        found.append(Finding("warning", f"a head for rope_theta {config.rope_theta}", have))
    if config.max_position_embeddings < facts.max_positions:
        compare("warning", "max_position_embeddings", config.max_position_embeddings, facts.max_positions)
    if target_digest is not None and stored.origin.target_digest is not None:
        compare("warning", "the target with digest", stored.origin.target_digest, target_digest)
    return sorted(found, key=lambda finding: finding.weight != "misfit")


def require_fit(stored: StoredHead, facts: TargetFacts, target_digest: str | None = None) -> list[Finding]:
    """The warnings of `check_fit`; `InputError` naming every misfit if there is one."""
    findings = check_fit(stored, facts, target_digest)
    misfits = [finding for finding in findings if finding.weight == "misfit"]
    if misfits:
        raise InputError(
            " and ".join(finding.found for finding in misfits),
            " and ".join(finding.expected for finding in misfits),
            USE_ITS_OWN,
        )
    return findings


def _bad(path: Path, found: str, expected: str) -> InputError:
    return InputError(f"{found} in {path}", expected, "export the head again, or point to another one")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(
            f"no {path}", "a head directory with config.json and model.safetensors", "correct the head's path"
        ) from error
    except (OSError, ValueError) as error:
        raise _bad(path, f"text that is not JSON ({error})", "one JSON object") from error
    if not isinstance(raw, dict):
        raise _bad(path, "no JSON object", "one JSON object")
    return raw


def _parse_config(raw: dict[str, Any], path: Path) -> tuple[HeadConfig, HeadOrigin]:
    if raw.get("architectures") != [ARCHITECTURE]:
        raise _bad(path, f"architectures {raw.get('architectures')!r}", f"[{ARCHITECTURE!r}]")
    for key, wanted in FIXED.items():
        if raw.get(key, wanted) != wanted:
            raise _bad(path, f"{key} {raw[key]!r}", f"{wanted!r}, the only graph known here")
    sizes: dict[str, int] = {}
    for ours, theirs in SIZES.items():
        value = raw.get(theirs)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise _bad(path, f"{theirs} {value!r}", "a whole number above 0")
        sizes[ours] = value
    numbers: dict[str, float] = {}
    for key in ("rms_norm_eps", "rope_theta"):
        value = raw.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise _bad(path, f"{key} {value!r}", "a number above 0")
        numbers[key] = float(value)
    flags: dict[str, bool] = {}
    for key in ("fc_norm", "norm_output", OLD_FC_NORM):
        value = raw.get(key, False)
        if not isinstance(value, bool):
            raise _bad(path, f"{key} {value!r}", "true or false")
        flags[key] = value
    flags["fc_norm"] |= flags.pop(OLD_FC_NORM)
    ids = _parse_layers(raw, path)
    config = HeadConfig(**sizes, **numbers, **flags, aux_layer_ids=ids)
    if (problem := config.problem()) is not None:
        raise _bad(path, problem, "sizes that make a head")
    return config, _parse_origin(raw, path)


def _parse_layers(raw: dict[str, Any], path: Path) -> tuple[HFIndex, ...]:
    """The captured layers from either list; both must name the same layers."""
    nested = raw.get("eagle_config")
    nested = nested.get(LAYERS_KEY) if isinstance(nested, dict) else None
    top = raw.get(LAYERS_KEY)
    for ids in (top, nested):
        if ids is not None and not (isinstance(ids, list) and all(type(i) is int for i in ids)):
            raise _bad(path, f"{LAYERS_KEY} {ids!r}", "a list of whole numbers")
    from_nested = None if nested is None else [i + 1 for i in nested]
    if top is None and from_nested is None:
        raise _bad(path, f"no {LAYERS_KEY}", "the layers that the head reads")
    if top is not None and from_nested is not None and top != from_nested:
        raise _bad(path, f"{LAYERS_KEY} {top} and, nested, {nested}", f"{[i - 1 for i in top]} as the nested list")
    ids = top if top is not None else from_nested
    assert ids is not None
    if any(low >= high for low, high in pairwise(ids)) or any(i < 0 for i in ids):
        raise _bad(path, f"{LAYERS_KEY} {ids}", "ids from 0 in ascending order")
    return tuple(HFIndex(i) for i in ids)


def _parse_origin(raw: dict[str, Any], path: Path) -> HeadOrigin:
    own = raw.get("eyas", {})
    kinds = {"target_name": str, "target_digest": str, "trained_context": int}
    if not isinstance(own, dict) or set(own) - set(kinds):
        raise _bad(path, f"'eyas' {own!r}", f"an object with {', '.join(kinds)}")
    for key, kind in kinds.items():
        if own.get(key) is not None and not isinstance(own[key], kind):
            raise _bad(path, f"eyas.{key} {own[key]!r}", "text" if kind is str else "a whole number")
    eos, bos = raw.get("eos_token_id"), raw.get("bos_token_id")
    eos_ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if any(type(i) is not int for i in eos_ids):
        raise _bad(path, f"eos_token_id {eos!r}", "a whole number, a list of them, or null")
    if bos is not None and type(bos) is not int:
        raise _bad(path, f"bos_token_id {bos!r}", "a whole number or null")
    return HeadOrigin(**own, bos_id=bos, eos_ids=tuple(eos_ids))


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_safetensors(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"no {path}", "the weights of the head", "correct the head's path") from error
    except (OSError, SafetensorError) as error:
        raise _bad(path, f"a damaged file ({error})", "a whole safetensors file") from error


def _take_vocab(tensors: dict[str, Tensor], config: HeadConfig, path: Path) -> DraftVocab:
    """Remove d2t and t2d from the tensors and return them checked."""
    for name, size in (("d2t", config.draft_vocab_size), ("t2d", config.vocab_size)):
        if name not in tensors:
            raise _bad(path, f"no tensor {name}", f"{name} of shape [{size}]")
        if tensors[name].shape != (size,):
            raise _bad(path, f"{name} of shape {list(tensors[name].shape)}", f"shape [{size}]")
    vocab = DraftVocab(tensors.pop("d2t"), tensors.pop("t2d"))
    if (problem := vocab.problem()) is not None:
        raise _bad(path, problem, "d2t and t2d that agree")
    return vocab


def _check_tensors(tensors: dict[str, Tensor], head: Head, path: Path) -> None:
    wanted = head.state_dict()
    for name, weight in wanted.items():
        if name not in tensors:
            raise _bad(path, f"no tensor {name}", f"{name} of shape {list(weight.shape)}")
        if tensors[name].shape != weight.shape:
            raise _bad(path, f"{name} of shape {list(tensors[name].shape)}", f"shape {list(weight.shape)}")
        if not tensors[name].is_floating_point() or not torch.isfinite(tensors[name]).all():
            raise _bad(path, f"{name} with values that are not finite numbers", "finite numbers")
    for name in tensors:
        if name not in wanted:
            raise _bad(path, f"an unexpected tensor {name}", f"only {', '.join([*wanted, 'd2t', 't2d'])}")
