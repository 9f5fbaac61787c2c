"""Converts the layer ids in a head's config.json to hidden_states ids. Projects store and count them differently.

    embed -> [layer 0] -> [layer 1] -> [layer 2] -> ... -> [layer n-1] -> norm
           ^            ^            ^            ^                           ^
           0            1            2            3       hidden_states id    n

    The list of ids is          read by            an id i means         list for the default layers
    at the top level            vLLM, speculators  hidden_states[i]      2, n // 2, n - 3
    in eagle_config, 1 first    SGLang             hidden_states[i + 1]  1, n // 2 - 1, n - 4
    in eagle_config, other      SGLang             hidden_states[i]      (before sglang #25454: i + 1)
    missing                     all                                      the default layers are used

SpecForge, TorchSpec and ModelOpt write the list in eagle_config and train on hidden_states[i + 1]. Code of eyas uses
`HFIndex`, where i means hidden_states[i], the input of layer i. docs/formats.md has the same tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from eyas.base.errors import Finding
from eyas.model.layer_ids import HFIndex, default_aux_layers, has_default_layers

AUX_LAYERS_KEY = "eagle_aux_hidden_state_layer_ids"
FIX_LIST_LAYERS = f"Write {AUX_LAYERS_KEY} at the top level of config.json, as indices of hidden_states"


@dataclass(frozen=True)
class AuxLayers:
    """The captured layers of a config.json.

    Attributes:
        ids: The hidden_states ids; None if the findings have a misfit.
        findings: Everything noticed while reading.
    """

    ids: tuple[HFIndex, ...] | None
    findings: tuple[Finding, ...] = ()


def to_sglang_ids(ids: Sequence[HFIndex]) -> list[int] | None:
    """Returns the list to write in `eagle_config`, or None if no list makes SGLang read these layers.

    SGLang adds 1 to each id if the first id is 1. Otherwise it does not change the ids. So [2, 6, 9] is written as
    [1, 5, 8], and a list for layers such as [1, 6, 9] is impossible.
    """
    if ids[0] == 1:
        return None
    return [i - 1 for i in ids] if ids[0] == 2 else [int(i) for i in ids]


def default_layers_as_outputs(num_layers: int) -> list[int]:
    """Returns the default layers with 1 subtracted: their ids if outputs of layers are counted.

    A head whose top-level list has these ids may have counted wrongly. Returns [] for a target of fewer than 7 layers,
    which has no default layers.
    """
    return [i - 1 for i in default_aux_layers(num_layers)] if has_default_layers(num_layers) else []


def read_aux_layers(top_level: Any, nested: Any, num_layers: int | None) -> AuxLayers:
    """Returns the captured layers that a config.json describes by one or two lists.

    Args:
        top_level: The list at the top level. None or [] means that there is none (ModelOpt writes [] for the default
            layers).
        nested: The list in eagle_config. None or [] means that there is none.
        num_layers: The number of layers of the target; None if it is unknown.
    """
    for ids in (top_level, nested):
        if ids is not None and not (isinstance(ids, list) and all(type(i) is int for i in ids)):
            return _misfit(f"{AUX_LAYERS_KEY} is {ids!r}, not a list of whole numbers", FIX_LIST_LAYERS)
    if not top_level and not nested:
        return _default_layers(num_layers)
    meanings = _meanings(nested, None if top_level else num_layers) if nested else []
    if top_level:
        if nested and top_level not in meanings:
            problem = f"The two lists {AUX_LAYERS_KEY} disagree: {top_level} at the top level, {nested} in eagle_config"
            return _misfit(problem, f"If the first is right, write {[i - 1 for i in top_level]} in eagle_config")
        meanings = [top_level]
    ordered = [ids for ids in meanings if ids[0] >= 0 and all(low < high for low, high in pairwise(ids))]
    if not ordered:
        problem = f"{AUX_LAYERS_KEY} is {top_level or nested}, not an ascending list of the target's layers"
        return _misfit(problem, FIX_LIST_LAYERS)
    if len(ordered) > 1:
        both = " or ".join(map(str, ordered))
        problem = f"{AUX_LAYERS_KEY} is {nested}, only in eagle_config, which may mean hidden_states {both}"
        return _misfit(problem, FIX_LIST_LAYERS)
    return AuxLayers(tuple(HFIndex(i) for i in ordered[0]))


def _meanings(nested: list[int], num_layers: int | None) -> list[list[int]]:
    """Returns the possible meanings of a list in eagle_config, each as hidden_states ids: one or two lists, or none."""
    outputs = [i + 1 for i in nested]
    if nested[0] == 1:
        return [outputs]
    both = [nested, outputs]
    if num_layers is None:
        return both
    default = [ids for ids in both if has_default_layers(num_layers) and ids == list(default_aux_layers(num_layers))]
    return default or [ids for ids in both if ids[-1] < num_layers]


def _default_layers(num_layers: int | None) -> AuxLayers:
    problem = f"config.json has no {AUX_LAYERS_KEY}"
    if num_layers is None:
        return _misfit(problem, "Name the head's target, for example with --target: its default layers are then used")
    if not has_default_layers(num_layers):
        return _misfit(f"{problem}, and a target of {num_layers} layers has no default layers", FIX_LIST_LAYERS)
    ids = default_aux_layers(num_layers)
    text = f"config.json names no layers, so the head reads the target's default layers {list(map(int, ids))}"
    return AuxLayers(ids, (Finding("ok", text),))


def _misfit(problem: str, fix: str) -> AuxLayers:
    return AuxLayers(None, (Finding("misfit", problem, fix),))
