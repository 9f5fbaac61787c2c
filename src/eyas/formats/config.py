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

from eyas.base.errors import Finding
from eyas.formats.aux_layers import AUX_LAYERS_KEY, read_aux_layers, to_sglang_ids
from eyas.model.devices import DTYPES
from eyas.model.head import ROPE_TYPES, VARIANT_FLAGS, HeadConfig

ARCHITECTURE = "LlamaForCausalLMEagle3"
ARCHITECTURES = (ARCHITECTURE, "Eagle3LlamaForCausalLM", "Eagle3DraftModel", "Eagle3Speculator")
GENERIC_ARCHITECTURE = "LlamaForCausalLM"
"""What the first official heads call themselves: told from a model by `draft_vocab_size`."""
FILE_DTYPES = DTYPES | {"float16": torch.float16, "float64": torch.float64}  # heads from elsewhere
# What must hold for our graph to be the one that was trained: other values mean another graph.
FIXED_VALUES = {
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
SIZE_KEYS = {
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
SPECULATORS_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
MODELOPT_KEYS = ("use_input_layernorm_in_first_layer", "use_last_layernorm", "next_layer_regular")
EYAS_KEYS = ("target_name", "target_digest", "trained_context", "tokenizer_digest", "template_digest")


@dataclass(frozen=True)
class HeadMetadata:
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
class ParsedConfig:
    """config None: the findings say why not. dtype None: the file names none that is known."""

    layout: str
    config: HeadConfig | None
    metadata: HeadMetadata
    dtype: torch.dtype | None
    findings: tuple[Finding, ...]


def build_config_json(config: HeadConfig, metadata: HeadMetadata, dtype: torch.dtype) -> dict[str, Any]:
    """The object in config.json: what SGLang and vLLM read, and under "eyas" what they do not."""
    ids = [int(i) for i in config.aux_layer_ids]
    eos = list(metadata.eos_ids)
    nested = to_sglang_ids(config.aux_layer_ids) or [i - 1 for i in ids]
    return {
        "architectures": [ARCHITECTURE],
        **{theirs: getattr(config, ours) for ours, theirs in SIZE_KEYS.items()},
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        **FIXED_VALUES,
        "rope_scaling": None if config.rope_scaling is None else dict(config.rope_scaling),
        "torch_dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": metadata.bos_id,
        "eos_token_id": None if not eos else eos[0] if len(eos) == 1 else eos,
        **{flag: getattr(config, flag) for flag in VARIANT_FLAGS},
        AUX_LAYERS_KEY: ids,
        "eagle_config": {AUX_LAYERS_KEY: nested, "use_aux_hidden_state": True},
        "eyas": {key: getattr(metadata, key) for key in EYAS_KEYS},
    }


def is_head_config(raw: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of an EAGLE-3 head, and not of a model."""
    named = raw.get("architectures") or []
    return bool(set(named) & set(ARCHITECTURES)) or "speculators_model_type" in raw or "draft_vocab_size" in raw


def parse_config(raw: Mapping[str, Any], num_layers: int | None) -> ParsedConfig:
    """All that is wrong at once. num_layers: of the target, where it is known."""
    reader = _ConfigParser(_flatten(raw), _detect_layout(raw))
    config, origin = reader.parse_config(num_layers), reader.parse_metadata()
    name = str(reader.raw.get("torch_dtype", reader.raw.get("dtype")))  # transformers 5 renamed the key
    return ParsedConfig(
        reader.layout, config, origin, FILE_DTYPES.get(name.removeprefix("torch.")), tuple(reader.findings)
    )


def _detect_layout(raw: Mapping[str, Any]) -> str:
    if "speculators_model_type" in raw:
        return "speculators"
    if "eyas" in raw:
        return "eyas"
    nested = raw.get("eagle_config")
    if isinstance(nested, dict):
        return "ModelOpt" if any(key in nested for key in MODELOPT_KEYS) else "SpecForge or TorchSpec"
    return "official EAGLE"


def _flatten(raw: Mapping[str, Any]) -> dict[str, Any]:
    """One level, with the names of a Llama configuration as transformers 4 wrote it."""
    layer = raw.get("transformer_layer_config")
    flat = {**SPECULATORS_DEFAULTS, **layer} if isinstance(layer, dict) else {}
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


class _ConfigParser:
    """Goes over one flat configuration and writes down what is wrong."""

    def __init__(self, raw: dict[str, Any], layout: str) -> None:
        self.raw, self.layout = raw, layout
        self.findings: list[Finding] = []

    def add_misfit(self, found: str, expected: str, do: str | None = None) -> None:
        self.findings.append(Finding("misfit", found, expected, do))

    def parse_config(self, num_layers: int | None) -> HeadConfig | None:
        self._check_graph()
        sizes = {ours: self._parse_number(theirs, whole=True) for ours, theirs in SIZE_KEYS.items()}
        numbers = {key: self._parse_number(key, whole=False) for key in ("rms_norm_eps", "rope_theta")}
        flags = self._parse_flags()
        scaling = self._parse_rope_scaling()
        nested = self.raw.get("eagle_config")
        layers = read_aux_layers(
            self.raw.get(AUX_LAYERS_KEY), nested.get(AUX_LAYERS_KEY) if isinstance(nested, dict) else None, num_layers
        )
        self.findings += layers.findings
        if layers.ids is None or any(finding.weight == "misfit" for finding in self.findings):
            return None
        values: dict[str, Any] = {**sizes, **numbers, **flags}
        config = HeadConfig(**values, aux_layer_ids=layers.ids, rope_scaling=scaling)
        if (problem := config.find_problem()) is not None:
            self.add_misfit(problem, "sizes that make a head")
            return None
        return config

    def _check_graph(self) -> None:
        kind = self.raw.get("speculators_model_type", "eagle3")
        named = self.raw.get("architectures")
        plain = (
            named == [GENERIC_ARCHITECTURE]
            and "draft_vocab_size" in self.raw
            and self.raw["draft_vocab_size"] is not None
        )
        if kind != "eagle3":
            self.add_misfit(f"speculators_model_type {kind!r}", "'eagle3'")
        elif not plain and not (isinstance(named, list) and len(named) == 1 and named[0] in ARCHITECTURES):
            self.add_misfit(f"architectures {named!r}", f"one of {', '.join(ARCHITECTURES)}")
        for key, wanted in FIXED_VALUES.items():
            if self.raw.get(key, wanted) not in (wanted, None):
                self.add_misfit(f"{key} {self.raw[key]!r}", f"{wanted!r}, the only graph known here")
        nested = self.raw.get("eagle_config")
        if isinstance(nested, dict) and nested.get("use_aux_hidden_state") is False:
            self.add_misfit("use_aux_hidden_state False", "True: a head of EAGLE-3 reads three layers")
        windows = self.raw.get("layer_types") or []
        if "sliding_attention" in windows:
            window = self.raw.get("sliding_window")
            self.findings.append(
                Finding("warning", f"a head trained with a window of {window} tokens", "one that sees the whole text")
            )

    def _parse_number(self, key: str, whole: bool) -> Any:
        value = self.raw.get(key)
        kinds = int if whole else int | float
        if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
            self.add_misfit(f"{key} {value!r}", "a whole number above 0" if whole else "a number above 0")
        return value if whole or isinstance(value, bool) or not isinstance(value, int) else float(value)

    def _parse_flags(self) -> dict[str, bool]:
        flags: dict[str, bool] = {}
        for key in (*VARIANT_FLAGS, OLD_FC_NORM):
            value = self.raw.get(key, False)
            if not isinstance(value, bool):
                self.add_misfit(f"{key} {value!r}", "true or false")
            flags[key] = value is True
        flags["fc_norm"] |= flags.pop(OLD_FC_NORM)
        if self.layout == "speculators" and "norm_before_residual" not in self.raw:
            # vLLM takes it for true here and for false in every other layout, speculators for false.
            self.add_misfit(
                "no norm_before_residual in a speculators head", "true or false", "write how it was trained"
            )
        if self.layout == "SpecForge or TorchSpec" and "norm_output" in self.raw:
            found = f"norm_output {str(flags['norm_output']).lower()} in a head of SpecForge"
            expected = "no such flag: some of its versions trained another graph than it announces (SpecForge #879)"
            self.findings.append(Finding("warning", found, expected))
        return flags

    def _parse_rope_scaling(self) -> dict[str, Any] | None:
        scaling = self.raw.get("rope_scaling")
        if scaling is None:
            return None
        if not isinstance(scaling, dict) or scaling.get("rope_type") not in ROPE_TYPES:
            self.add_misfit(f"rope_scaling {scaling!r}", f"none, or one of type {', '.join(ROPE_TYPES)}")
            return None
        needed = {
            "linear": ("factor",),
            "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
            "yarn": ("factor", "original_max_position_embeddings"),
        }[scaling["rope_type"]]
        if lacking := [key for key in needed if not isinstance(scaling.get(key), int | float)]:
            self.add_misfit(f"rope_scaling without {', '.join(lacking)}", "the numbers of its type")
        return scaling

    def parse_metadata(self) -> HeadMetadata:
        own = self.raw.get("eyas", {})
        if not isinstance(own, dict) or set(own) - set(EYAS_KEYS):
            self.add_misfit(f"'eyas' {own!r}", f"an object with {', '.join(EYAS_KEYS)}")
            own = {}
        for key in own:
            kind = int if key == "trained_context" else str
            if own[key] is not None and not isinstance(own[key], kind):
                self.add_misfit(f"eyas.{key} {own[key]!r}", "text" if kind is str else "a whole number")
        verifier = self.raw.get("speculators_config")
        verifier = verifier.get("verifier") if isinstance(verifier, dict) else None
        if isinstance(verifier, dict) and isinstance(verifier.get("name_or_path"), str):
            own = {"target_name": verifier["name_or_path"], **own}
        eos, bos = self.raw.get("eos_token_id"), self.raw.get("bos_token_id")
        eos_ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
        if any(type(i) is not int for i in eos_ids):
            self.add_misfit(f"eos_token_id {eos!r}", "a whole number, a list of them, or null")
        if bos is not None and type(bos) is not int:
            self.add_misfit(f"bos_token_id {bos!r}", "a whole number or null")
        return HeadMetadata(**own, bos_id=bos, eos_ids=tuple(eos_ids))
