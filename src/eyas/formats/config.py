"""config.json of a head, whoever wrote it.

    layout           sizes stand               layers stand              seen by
    eyas             at the top                top and eagle_config      "eyas"
    speculators      transformer_layer_config  top                       "speculators_model_type"
    ModelOpt         at the top                eagle_config              "use_last_layernorm" under eagle_config
    SpecForge, ...   at the top                eagle_config              nothing else (TorchSpec writes the same)
    official EAGLE   at the top                nowhere                   nothing else

The rules go by what is written, not by who wrote it; the layout is for the reader of a message (facts B.4-B.6).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from eyas.formats.aux_layers import KEY, read_layers, sglang_ids
from eyas.formats.finding import Finding
from eyas.model.dtypes import DTYPES
from eyas.model.head import ROPE_TYPES, VARIANTS, HeadConfig

ARCHITECTURE = "LlamaForCausalLMEagle3"
ARCHITECTURES = (ARCHITECTURE, "Eagle3LlamaForCausalLM", "Eagle3DraftModel", "Eagle3Speculator")
PLAIN = "LlamaForCausalLM"
"""What the first official heads call themselves: told from a model by `draft_vocab_size`."""
FILE_DTYPES = DTYPES | {"float16": torch.float16, "float64": torch.float64}  # heads from elsewhere
# What must hold for our graph to be the one that was trained: other values mean another graph.
FIXED = {
    "model_type": "llama",
    "hidden_act": "silu",
    "num_hidden_layers": 1,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
# What older heads call `fc_norm`; SGLang still reads both (facts B.4). We write the new names alone.
OLD_FC_NORM = "use_aux_norm"
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
# What speculators leaves out where it is what transformers' LlamaConfig says of itself; tensors of another shape show.
UNSAID: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
MODELOPT_KEYS = ("use_input_layernorm_in_first_layer", "use_last_layernorm", "next_layer_regular")
OWN_KEYS = ("target_name", "target_digest", "trained_context", "tokenizer_digest", "template_digest")


@dataclass(frozen=True)
class HeadOrigin:
    """What the head was trained for; None where a head from elsewhere does not say."""

    target_name: str | None = None
    target_digest: str | None = None
    trained_context: int | None = None
    """The longest row of training, in tokens."""
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    tokenizer_digest: str | None = None
    template_digest: str | None = None


@dataclass(frozen=True)
class ReadConfig:
    """config None: the findings say why not. dtype None: the file names none that is known."""

    layout: str
    config: HeadConfig | None
    origin: HeadOrigin
    dtype: torch.dtype | None
    findings: tuple[Finding, ...]


def config_json(config: HeadConfig, origin: HeadOrigin, dtype: torch.dtype) -> dict[str, Any]:
    """The object in config.json: what SGLang and vLLM read, and under "eyas" what they do not."""
    ids = [int(i) for i in config.aux_layer_ids]
    eos = list(origin.eos_ids)
    nested = sglang_ids(config.aux_layer_ids) or [i - 1 for i in ids]
    return {
        "architectures": [ARCHITECTURE],
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        **FIXED,
        "rope_scaling": None if config.rope_scaling is None else dict(config.rope_scaling),
        "torch_dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": origin.bos_id,
        "eos_token_id": None if not eos else eos[0] if len(eos) == 1 else eos,
        **{flag: getattr(config, flag) for flag in VARIANTS},
        KEY: ids,
        "eagle_config": {KEY: nested, "use_aux_hidden_state": True},
        "eyas": {key: getattr(origin, key) for key in OWN_KEYS},
    }


def is_head(raw: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of an EAGLE-3 head, and not of a model."""
    named = raw.get("architectures") or []
    return bool(set(named) & set(ARCHITECTURES)) or "speculators_model_type" in raw or "draft_vocab_size" in raw


def read_config(raw: Mapping[str, Any], num_layers: int | None) -> ReadConfig:
    """All that is wrong at once. num_layers: of the target, where it is known."""
    reader = _Reader(_flat(raw), _layout(raw))
    config, origin = reader.config(num_layers), reader.origin()
    name = str(reader.raw.get("torch_dtype", reader.raw.get("dtype")))  # transformers 5 renamed the key
    return ReadConfig(reader.layout, config, origin, FILE_DTYPES.get(name.removeprefix("torch.")), tuple(reader.found))


def _layout(raw: Mapping[str, Any]) -> str:
    if "speculators_model_type" in raw:
        return "speculators"
    if "eyas" in raw:
        return "eyas"
    nested = raw.get("eagle_config")
    if isinstance(nested, dict):
        return "ModelOpt" if any(key in nested for key in MODELOPT_KEYS) else "SpecForge or TorchSpec"
    return "official EAGLE"


def _flat(raw: Mapping[str, Any]) -> dict[str, Any]:
    """One level, with the names of a Llama configuration as transformers 4 wrote it."""
    layer = raw.get("transformer_layer_config")
    flat = {**UNSAID, **layer} if isinstance(layer, dict) else {}
    flat |= {key: value for key, value in raw.items() if key not in flat or value is not None}
    rope = flat.get("rope_parameters")
    if isinstance(rope, dict):
        flat["rope_theta"] = rope.get("rope_theta", flat.get("rope_theta"))
        if flat.get("rope_scaling") is None:
            flat["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    scaling = flat.get("rope_scaling")
    if isinstance(scaling, dict):
        scaling = {"rope_type": scaling.get("type"), **{k: v for k, v in scaling.items() if k not in ("type",)}}
        flat["rope_scaling"] = None if scaling["rope_type"] in ("default", None) else scaling
    heads = flat.get("num_attention_heads")
    if flat.get("num_key_value_heads") is None:
        flat["num_key_value_heads"] = heads
    if flat.get("head_dim") is None and type(heads) is int and type(flat.get("hidden_size")) is int:
        flat["head_dim"] = flat["hidden_size"] // max(heads, 1)
    if flat.get("target_hidden_size") is None:
        flat["target_hidden_size"] = flat.get("hidden_size")
    if "draft_vocab_size" not in flat:
        flat["draft_vocab_size"] = flat.get("vocab_size")
    return flat


class _Reader:
    """Goes over one flat configuration and writes down what is wrong."""

    def __init__(self, raw: dict[str, Any], layout: str) -> None:
        self.raw, self.layout = raw, layout
        self.found: list[Finding] = []

    def bad(self, found: str, expected: str, do: str | None = None) -> None:
        self.found.append(Finding("misfit", found, expected, do))

    def config(self, num_layers: int | None) -> HeadConfig | None:
        self._graph()
        sizes = {ours: self._number(theirs, whole=True) for ours, theirs in SIZES.items()}
        numbers = {key: self._number(key, whole=False) for key in ("rms_norm_eps", "rope_theta")}
        flags = self._flags()
        scaling = self._scaling()
        nested = self.raw.get("eagle_config")
        layers = read_layers(self.raw.get(KEY), nested.get(KEY) if isinstance(nested, dict) else None, num_layers)
        self.found += layers.findings
        if layers.ids is None or any(finding.weight == "misfit" for finding in self.found):
            return None
        values: dict[str, Any] = {**sizes, **numbers, **flags}
        config = HeadConfig(**values, aux_layer_ids=layers.ids, rope_scaling=scaling)
        if (problem := config.problem()) is not None:
            self.bad(problem, "sizes that make a head")
            return None
        return config

    def _graph(self) -> None:
        kind = self.raw.get("speculators_model_type", "eagle3")
        named = self.raw.get("architectures")
        plain = named == [PLAIN] and "draft_vocab_size" in self.raw and self.raw["draft_vocab_size"] is not None
        if kind != "eagle3":
            self.bad(f"speculators_model_type {kind!r}", "'eagle3'")
        elif not plain and not (isinstance(named, list) and len(named) == 1 and named[0] in ARCHITECTURES):
            self.bad(f"architectures {named!r}", f"one of {', '.join(ARCHITECTURES)}")
        for key, wanted in FIXED.items():
            if self.raw.get(key, wanted) not in (wanted, None):
                self.bad(f"{key} {self.raw[key]!r}", f"{wanted!r}, the only graph known here")
        nested = self.raw.get("eagle_config")
        if isinstance(nested, dict) and nested.get("use_aux_hidden_state") is False:
            self.bad("use_aux_hidden_state False", "True: a head of EAGLE-3 reads three layers")
        windows = self.raw.get("layer_types") or []
        if "sliding_attention" in windows:
            window = self.raw.get("sliding_window")
            self.found.append(
                Finding("warning", f"a head trained with a window of {window} tokens", "one that sees the whole text")
            )

    def _number(self, key: str, whole: bool) -> Any:
        value = self.raw.get(key)
        kinds = int if whole else int | float
        if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
            self.bad(f"{key} {value!r}", "a whole number above 0" if whole else "a number above 0")
        return value if whole or isinstance(value, bool) or not isinstance(value, int) else float(value)

    def _flags(self) -> dict[str, bool]:
        flags: dict[str, bool] = {}
        for key in (*VARIANTS, OLD_FC_NORM):
            value = self.raw.get(key, False)
            if not isinstance(value, bool):
                self.bad(f"{key} {value!r}", "true or false")
            flags[key] = value is True
        flags["fc_norm"] |= flags.pop(OLD_FC_NORM)
        if self.layout == "speculators" and "norm_before_residual" not in self.raw:
            # vLLM takes it for true here and for false in every other layout, speculators for false.
            self.bad("no norm_before_residual in a speculators head", "true or false", "write how it was trained")
        if self.layout == "SpecForge or TorchSpec" and "norm_output" in self.raw:
            found = f"norm_output {str(flags['norm_output']).lower()} in a head of SpecForge"
            expected = "no such flag: some of its versions trained another graph than it announces (SpecForge #879)"
            self.found.append(Finding("warning", found, expected))
        return flags

    def _scaling(self) -> dict[str, Any] | None:
        scaling = self.raw.get("rope_scaling")
        if scaling is None:
            return None
        if not isinstance(scaling, dict) or scaling.get("rope_type") not in ROPE_TYPES:
            self.bad(f"rope_scaling {scaling!r}", f"none, or one of type {', '.join(ROPE_TYPES)}")
            return None
        needed = {
            "linear": ("factor",),
            "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
            "yarn": ("factor", "original_max_position_embeddings"),
        }[scaling["rope_type"]]
        if lacking := [key for key in needed if not isinstance(scaling.get(key), int | float)]:
            self.bad(f"rope_scaling without {', '.join(lacking)}", "the numbers of its type")
        return scaling

    def origin(self) -> HeadOrigin:
        own = self.raw.get("eyas", {})
        if not isinstance(own, dict) or set(own) - set(OWN_KEYS):
            self.bad(f"'eyas' {own!r}", f"an object with {', '.join(OWN_KEYS)}")
            own = {}
        for key in own:
            kind = int if key == "trained_context" else str
            if own[key] is not None and not isinstance(own[key], kind):
                self.bad(f"eyas.{key} {own[key]!r}", "text" if kind is str else "a whole number")
        verifier = self.raw.get("speculators_config")
        verifier = verifier.get("verifier") if isinstance(verifier, dict) else None
        if isinstance(verifier, dict) and isinstance(verifier.get("name_or_path"), str):
            own = {"target_name": verifier["name_or_path"], **own}
        eos, bos = self.raw.get("eos_token_id"), self.raw.get("bos_token_id")
        eos_ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
        if any(type(i) is not int for i in eos_ids):
            self.bad(f"eos_token_id {eos!r}", "a whole number, a list of them, or null")
        if bos is not None and type(bos) is not int:
            self.bad(f"bos_token_id {bos!r}", "a whole number or null")
        return HeadOrigin(**own, bos_id=bos, eos_ids=tuple(eos_ids))
