"""Reads and writes config.json of a head. It reads the layouts of several projects.

    layout                  place of the sizes        place of the layer ids    recognized by the key
    eyas                    top level                 top level, eagle_config   "eyas"
    speculators             transformer_layer_config  top level                 "speculators_model_type"
    ModelOpt                top level                 eagle_config              "use_last_layernorm" in eagle_config
    SpecForge or TorchSpec  top level                 eagle_config              "eagle_config"
    official EAGLE          top level                 none                      none of these

Block heads (model.block_head) have these layouts. target_layer_ids counts the outputs of layers, so its ids are one
less than eyas's. speculators counts as eyas does.

    layout        architecture        place of the sizes         place of the layer ids
    eyas          as DeepSpec, z-lab  as DeepSpec, z-lab         as DeepSpec, z-lab
    DeepSpec      Qwen3DSparkModel    top level                  target_layer_ids
    SGLang        DSparkDraftModel    top level, dspark_config   target_layer_ids, also in dspark_config
    z-lab         DFlashDraftModel    top level, dflash_config   target_layer_ids in dflash_config
    speculators   any                 transformer_layer_config   aux_hidden_state_layer_ids

block_size counts the rows of a block. A DFlash head has one slot fewer than rows.

Each key is read wherever it is. The name of the layout is used in messages and for a few defaults. docs/formats.md has
the conventions and their sources.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyas.base.errors import Finding
from eyas.formats.aux_layers import AUX_LAYERS_KEY, read_aux_layers, to_sglang_ids
from eyas.model.block_head import BlockConfig
from eyas.model.devices import DTYPES
from eyas.model.head import ROPE_TYPES, VARIANT_FLAGS, HeadConfig
from eyas.model.layer_ids import HFIndex

ARCHITECTURE = "LlamaForCausalLMEagle3"
ARCHITECTURES = (ARCHITECTURE, "Eagle3LlamaForCausalLM", "Eagle3DraftModel", "Eagle3Speculator")
BLOCK_ARCHITECTURE = "Qwen3DSparkModel"
BLOCK_ARCHITECTURES = (BLOCK_ARCHITECTURE, "DSparkDraftModel", "DSparkSpeculator")
FILL_IN_ARCHITECTURE = "DFlashDraftModel"
FILL_IN_ARCHITECTURES = (FILL_IN_ARCHITECTURE, "DFlashSpeculator")
OTHER_BLOCKS = ("DFlash2DraftModel", "DFlash2Speculator", "LiLiCorrDraftModel", "dflash2")
# The first official heads have the architecture of a plain model. Only `draft_vocab_size` marks them as heads.
GENERIC_ARCHITECTURE = "LlamaForCausalLM"
FILE_DTYPES = DTYPES | {"float16": torch.float16, "float64": torch.float64}  # other projects write these two
TABLES = tomllib.loads(Path(__file__).with_name("head_config.toml").read_text(encoding="utf-8"))
FIXED_VALUES, SIZE_KEYS = TABLES["fixed"], TABLES["sizes"]
BLOCK_VALUES, BLOCK_KEYS = TABLES["block"], TABLES["block_sizes"]
CORRECTION, NO_CORRECTION = TABLES["correction"], {"enable_confidence_head": False}
FIX_CONFIG = "Correct config.json, or export the head again"
FIX_BLOCK = "Use a block head that DeepSpec's DSpark code, z-lab's DFlash code or eyas has trained"
FIX_SLOTS = "Use a DFlash head or one of the shift convention (DSpark), or serve this head with vLLM or SGLang"
FILL_IN = "the fill-in convention (row k predicts the token k after the anchor). eyas runs it only with markov_rank 0"
TARGET_LAYERS_KEY = "target_layer_ids"
SPECULATORS_LAYERS_KEY = "aux_hidden_state_layer_ids"
BLOCK_KINDS = ("dspark", "dflash", "dflash2")  # of "speculators_model_type"
BLOCK_LAYOUTS = {BLOCK_ARCHITECTURE: "DeepSpec", FILL_IN_ARCHITECTURE: "z-lab"}
FIX_GRAPH = "Use an EAGLE-3 head with one Llama layer: eyas runs no other graph"
# The name of `fc_norm` in older heads. SGLang still reads both; eyas writes only the new name.
OLD_FC_NORM = "use_aux_norm"
MODELOPT_KEYS = ("use_input_layernorm_in_first_layer", "use_last_layernorm", "next_layer_regular")
EYAS_KEYS = ("target_name", "target_digest", "trained_context", "tokenizer_digest", "template_digest")


@dataclass(frozen=True)
class HeadMetadata:
    """The target and tokenizer that a head was trained for. A value is None if the head's files do not have it.

    Attributes:
        trained_context: The longest row of training, in tokens.
    """

    target_name: str | None = None
    target_digest: str | None = None
    trained_context: int | None = None
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    tokenizer_digest: str | None = None
    template_digest: str | None = None


@dataclass(frozen=True)
class ParsedConfig:
    """The content of a config.json.

    Attributes:
        layout: The project whose conventions the file follows.
        config: The sizes; None if the findings have a misfit.
        metadata: The target that the head was trained for.
        dtype: The precision; None if the file names none that eyas knows.
        findings: Everything noticed while reading.
    """

    layout: str
    config: HeadConfig | None
    metadata: HeadMetadata
    dtype: torch.dtype | None
    findings: tuple[Finding, ...]


def build_config_json(config: HeadConfig, metadata: HeadMetadata, dtype: torch.dtype) -> dict[str, Any]:
    """Returns the content of config.json: the keys that SGLang and vLLM read, and the metadata of eyas in "eyas"."""
    ids = [int(i) for i in config.aux_layer_ids]
    eos = list(metadata.eos_ids)
    if isinstance(config, BlockConfig):
        architecture = FILL_IN_ARCHITECTURE if config.fill_in else BLOCK_ARCHITECTURE
        graph = BLOCK_VALUES | {key: getattr(config, field) for field, key in BLOCK_KEYS.items()}
        graph |= {"block_size": config.num_rows, "sample_from_anchor": not config.fill_in}
        own = {"layer_types": ["full_attention"] * config.num_layers, TARGET_LAYERS_KEY: [i - 1 for i in ids]}
        if not config.fill_in:
            graph |= CORRECTION if config.markov_rank else NO_CORRECTION
        else:
            del graph["markov_rank"]
            nested = {"mask_token_id": config.mask_id, "causal": False, "use_swa": False}
            own["dflash_config"] = nested | {TARGET_LAYERS_KEY: own[TARGET_LAYERS_KEY]}
    else:
        architecture = ARCHITECTURE
        nested = to_sglang_ids(config.aux_layer_ids) or [i - 1 for i in ids]
        graph = FIXED_VALUES
        own = {
            **{flag: getattr(config, flag) for flag in VARIANT_FLAGS},
            AUX_LAYERS_KEY: ids,
            "eagle_config": {AUX_LAYERS_KEY: nested, "use_aux_hidden_state": True},
        }
    return {
        "architectures": [architecture],
        **{key: getattr(config, field) for field, key in SIZE_KEYS.items()},
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        **graph,
        "rope_scaling": None if config.rope_scaling is None else dict(config.rope_scaling),
        "torch_dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": metadata.bos_id,
        "eos_token_id": None if not eos else eos[0] if len(eos) == 1 else eos,
        **own,
        "eyas": {key: getattr(metadata, key) for key in EYAS_KEYS},
    }


def is_head_config(raw: Mapping[str, Any]) -> bool:
    """Returns True if a config.json belongs to a head, False if it belongs to a model."""
    marks = {"speculators_model_type", "draft_vocab_size"} & set(raw)
    return bool(marks or set(raw.get("architectures") or []) & {*ARCHITECTURES}) or _is_block(raw)


def _is_block(raw: Mapping[str, Any]) -> bool:
    """Returns True if a config.json describes a head that drafts blocks, of either convention of the slots."""
    named, kind = set(raw.get("architectures") or []), raw.get("speculators_model_type")
    return bool(named & {*BLOCK_ARCHITECTURES, *FILL_IN_ARCHITECTURES, *OTHER_BLOCKS}) or kind in BLOCK_KINDS


def parse_config(raw: Mapping[str, Any], num_layers: int | None) -> ParsedConfig:
    """Parses a config.json and collects all problems as findings.

    Args:
        raw: The content of config.json, in any of the layouts above.
        num_layers: The number of layers of the target; None if it is unknown.
    """
    parser = (_BlockConfigParser if _is_block(raw) else _ConfigParser)(_flatten(raw), _detect_layout(raw))
    config, metadata = parser.parse_config(num_layers), parser.parse_metadata()
    name = str(parser.raw.get("torch_dtype", parser.raw.get("dtype")))  # transformers 5 renamed the key
    dtype = FILE_DTYPES.get(name.removeprefix("torch."))
    return ParsedConfig(parser.layout, config, metadata, dtype, tuple(parser.findings))


def _detect_layout(raw: Mapping[str, Any]) -> str:
    if "speculators_model_type" in raw:
        return "speculators"
    if "eyas" in raw:
        return "eyas"
    if _is_block(raw):
        return BLOCK_LAYOUTS.get(raw["architectures"][0], "SGLang")
    nested = raw.get("eagle_config")
    if isinstance(nested, dict):
        return "ModelOpt" if any(key in nested for key in MODELOPT_KEYS) else "SpecForge or TorchSpec"
    return "official EAGLE"


def _flatten(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration without nested tables of sizes, with the key names of transformers 4 for Llama."""
    layer = raw.get("transformer_layer_config")
    defaults = TABLES["speculators_block_defaults" if _is_block(raw) else "speculators_defaults"]
    flat = {**defaults, **layer} if isinstance(layer, dict) else {}
    for key in ("dflash_config", "dspark_config"):
        flat |= raw[key] if isinstance(raw.get(key), dict) else {}
    flat |= {key: value for key, value in raw.items() if key not in flat or value is not None}
    rope = flat.get("rope_parameters")
    if isinstance(rope, dict):
        flat["rope_theta"] = rope.get("rope_theta", flat.get("rope_theta"))
        if flat.get("rope_scaling") is None:
            flat["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    scaling = flat.get("rope_scaling")
    if isinstance(scaling, dict):
        scaling = {"rope_type": scaling.get("type"), **{k: v for k, v in scaling.items() if k != "type"}}
        flat["rope_scaling"] = None if scaling["rope_type"] in ("default", None) else scaling
    heads, width = flat.get("num_attention_heads"), flat.get("hidden_size")
    defaults = {"num_key_value_heads": heads, "target_hidden_size": width}
    if type(heads) is int and type(width) is int:
        defaults["head_dim"] = width // max(heads, 1)
    flat |= {key: value for key, value in defaults.items() if flat.get(key) is None}
    return {"draft_vocab_size": flat.get("vocab_size"), **flat}


class _ConfigParser:
    """A parser of one configuration from `_flatten`. It appends every problem to `findings`."""

    def __init__(self, raw: dict[str, Any], layout: str) -> None:
        self.raw, self.layout = raw, layout
        self.eagle_config: dict[str, Any] = raw["eagle_config"] if isinstance(raw.get("eagle_config"), dict) else {}
        self.findings: list[Finding] = []

    def add_misfit(self, key: str, value: Any, wanted: str, fix: str = FIX_CONFIG) -> None:
        shown = "missing" if value is None else json.dumps(value)
        self.findings.append(Finding("misfit", f"{key} is {shown} in config.json, but must be {wanted}", fix))

    def parse_config(self, num_layers: int | None) -> HeadConfig | None:
        self._check_graph()
        sizes = {field: self._parse_number(key, whole=True) for field, key in SIZE_KEYS.items()}
        numbers = {key: self._parse_number(key, whole=False) for key in ("rms_norm_eps", "rope_theta")}
        values: dict[str, Any] = {**sizes, **numbers, **self._parse_flags()}
        scaling = self._parse_rope_scaling()
        layers = read_aux_layers(self.raw.get(AUX_LAYERS_KEY), self.eagle_config.get(AUX_LAYERS_KEY), num_layers)
        self.findings += layers.findings
        return self._build(HeadConfig, values | {"aux_layer_ids": layers.ids, "rope_scaling": scaling})

    def _build(self, config_class: type[HeadConfig], values: dict[str, Any]) -> HeadConfig | None:
        if any(finding.weight == "misfit" for finding in self.findings):
            return None
        config = config_class(**values)
        if (problem := config.find_problem()) is not None:
            self.findings.append(Finding("misfit", f"config.json describes no valid head: {problem}", FIX_CONFIG))
            return None
        return config

    def _check_graph(self) -> None:
        kind, named = self.raw.get("speculators_model_type", "eagle3"), self.raw.get("architectures")
        is_generic = named == [GENERIC_ARCHITECTURE] and self.raw.get("draft_vocab_size") is not None
        if kind != "eagle3":
            self.add_misfit("speculators_model_type", kind, '"eagle3"', FIX_GRAPH)
        elif not is_generic and not (isinstance(named, list) and len(named) == 1 and named[0] in ARCHITECTURES):
            self.add_misfit("architectures", named, f"one of {', '.join(ARCHITECTURES)}", FIX_GRAPH)
        for key, wanted in FIXED_VALUES.items():
            if self.raw.get(key, wanted) not in (wanted, None):
                self.add_misfit(key, self.raw[key], json.dumps(wanted), FIX_GRAPH)
        if self.eagle_config.get("use_aux_hidden_state") is False:
            self.add_misfit("use_aux_hidden_state", False, "true, because EAGLE-3 reads three layers", FIX_GRAPH)
        if "sliding_attention" in (self.raw.get("layer_types") or []):
            text = f"The head was trained with a window of {self.raw.get('sliding_window')} tokens, but eyas runs it"
            self.findings.append(Finding("warning", f"{text} with full attention", "Measure it with `eyas eval`"))

    def _parse_number(self, key: str, whole: bool) -> Any:
        value = self.raw.get(key)
        kinds = int if whole else int | float
        if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
            self.add_misfit(key, value, "a whole number above 0" if whole else "a number above 0")
        return value if whole or isinstance(value, bool) or not isinstance(value, int) else float(value)

    def _parse_flags(self) -> dict[str, bool]:
        flags: dict[str, bool] = {}
        for key in (*VARIANT_FLAGS, OLD_FC_NORM):
            value = self.raw.get(key, False)
            if not isinstance(value, bool):
                self.add_misfit(key, value, "true or false")
            flags[key] = value is True
        flags["fc_norm"] |= flags.pop(OLD_FC_NORM)
        if self.layout == "speculators" and "norm_before_residual" not in self.raw:
            # For a file of speculators without the key, vLLM assumes true and speculators false.
            # For all other layouts, vLLM assumes false.
            fix = "Write the value that the head was trained with: vLLM and speculators assume different ones"
            self.add_misfit("norm_before_residual", None, "true or false in a speculators head", fix)
        if self.layout == "SpecForge or TorchSpec" and "norm_output" in self.raw:
            problem = f"norm_output is {json.dumps(flags['norm_output'])} in a SpecForge head, whose meaning is unsure:"
            problem += " some versions of SpecForge trained another graph than the flag says (SpecForge #879)"
            self.findings.append(Finding("warning", problem, "Measure the head with `eyas eval`"))
        return flags

    def _parse_rope_scaling(self) -> dict[str, Any] | None:
        scaling = self.raw.get("rope_scaling")
        if scaling is None:
            return None
        if not isinstance(scaling, dict) or scaling.get("rope_type") not in ROPE_TYPES:
            self.add_misfit("rope_scaling", scaling, f"null or of type {', '.join(ROPE_TYPES)}", FIX_GRAPH)
            return None
        for key in TABLES["rope"][scaling["rope_type"]]:
            if not isinstance(scaling.get(key), int | float):
                self.add_misfit(f"rope_scaling.{key}", scaling.get(key), f"a number for type {scaling['rope_type']}")
        return scaling

    def parse_metadata(self) -> HeadMetadata:
        own = self.raw.get("eyas", {})
        if not isinstance(own, dict) or set(own) - set(EYAS_KEYS):
            self.add_misfit("eyas", own, f"an object with the keys {', '.join(EYAS_KEYS)}")
            own = {}
        for key, value in own.items():
            is_count = key == "trained_context"
            if value is not None and not (type(value) is int and value > 0 if is_count else isinstance(value, str)):
                self.add_misfit(f"eyas.{key}", value, "a whole number above 0" if is_count else "a string")
        verifier = self.raw.get("speculators_config")
        verifier = verifier.get("verifier") if isinstance(verifier, dict) else None
        if isinstance(verifier, dict) and isinstance(verifier.get("name_or_path"), str):
            own = {"target_name": verifier["name_or_path"], **own}
        eos, bos = self.raw.get("eos_token_id"), self.raw.get("bos_token_id")
        eos_ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
        if any(type(i) is not int for i in eos_ids):
            self.add_misfit("eos_token_id", eos, "a whole number, a list of them, or null")
        if bos is not None and type(bos) is not int:
            self.add_misfit("bos_token_id", bos, "a whole number or null")
        return HeadMetadata(**own, bos_id=bos, eos_ids=tuple(eos_ids))


class _BlockConfigParser(_ConfigParser):
    """A parser of the configuration of a block head."""

    def parse_config(self, num_layers: int | None) -> HeadConfig | None:
        names = {*(self.raw.get("architectures") or []), self.raw.get("speculators_model_type")}
        is_dflash = bool(names & {*FILL_IN_ARCHITECTURES, "dflash"})
        if is_dflash and self.raw.get("markov_rank") is None:
            self.raw["markov_rank"] = 0  # DFlash has no such key
        fill_in, rank = self._reads_fill_in(is_dflash), self.raw.get("markov_rank")
        if (problem := self._find_graph_problem(names, fill_in)) is not None:
            self.findings.append(Finding("misfit", problem, FIX_SLOTS))
            return None
        values = BLOCK_VALUES | TABLES["block_others"] | (CORRECTION if rank != 0 else NO_CORRECTION)
        del values["tie_word_embeddings"]  # a block head has no output matrix
        for key, wanted in values.items():
            if self.raw.get(key) not in (wanted, None):
                self.add_misfit(key, self.raw[key], json.dumps(wanted), FIX_BLOCK)
        if "sliding_attention" in (self.raw.get("layer_types") or []):
            self.add_misfit("layer_types", self.raw["layer_types"], "full_attention for all layers", FIX_BLOCK)
        keys = SIZE_KEYS | {field: key for field, key in BLOCK_KEYS.items() if key != "markov_rank" or rank != 0}
        whole = {"markov_rank": 0} | {field: self._parse_number(key, whole=True) for field, key in keys.items()}
        numbers = {key: self._parse_number(key, whole=False) for key in ("rms_norm_eps", "rope_theta")}
        shared = {"aux_layer_ids": self._parse_layers(), "rope_scaling": self._parse_rope_scaling()}
        if fill_in and type(whole["block_size"]) is int:
            whole["block_size"] -= 1  # the anchor's row predicts nothing
        return self._build(BlockConfig, whole | numbers | shared | {"fill_in": fill_in})

    def _reads_fill_in(self, is_dflash: bool) -> bool:
        """Returns True if the slots are those of the fill-in convention, False if those of the shift convention.

        Apart from these keys, the files of both conventions look alike.
        """
        is_shift = self.raw.get("sample_from_anchor")
        if is_shift is None:
            is_shift = not is_dflash and self.layout != "speculators"
        return self.raw.get("dspark_bonus_anchor") is True or not is_shift

    def _find_graph_problem(self, names: set[str | None], fill_in: bool) -> str | None:
        """Returns a sentence if the head is a block head that eyas does not run; None if it may run."""
        if other := next((name for name in OTHER_BLOCKS if name in names), None):
            return f"The head is a {other}, which has layers that eyas does not run"
        if not fill_in or self.raw.get("markov_rank") == 0:
            return None
        if self.raw.get("sample_from_anchor") is False:
            return f"sample_from_anchor is false in config.json, so this head follows {FILL_IN}"
        if self.raw.get("dspark_bonus_anchor") is True:
            return f"dspark_bonus_anchor is true in config.json, so this head follows {FILL_IN}"
        if names & {*FILL_IN_ARCHITECTURES}:
            return f"DFlash heads follow {FILL_IN}"
        return f"config.json has no sample_from_anchor, so this head follows {FILL_IN}"

    def _parse_layers(self) -> tuple[HFIndex, ...]:
        key, shift = (SPECULATORS_LAYERS_KEY, 0) if self.layout == "speculators" else (TARGET_LAYERS_KEY, 1)
        ids = self.raw.get(key)
        if isinstance(ids, list) and ids and all(type(i) is int and i + shift >= 0 for i in ids):
            return tuple(HFIndex(i + shift) for i in ids)
        self.add_misfit(key, ids, "a list of layers")
        return ()
