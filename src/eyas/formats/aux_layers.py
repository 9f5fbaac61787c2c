"""Which captured layers a file means: four projects write three things under two names.

    hidden_states of the target   0        1        2        3    ...    n
                              embed -> [0] -> [1] -> [2] -> ...  -> [n-1] -> norm

    where                       who reads it       a stored i means      the usual three
    top level                   vLLM, speculators  hidden_states[i]      2, n // 2, n - 3
    eagle_config, first is 1    SGLang             hidden_states[i + 1]  1, n // 2 - 1, n - 4
    eagle_config, first is not  SGLang             hidden_states[i]      (before sglang #25454: i + 1)
    eagle_config                SpecForge, TorchSpec, ModelOpt train on hidden_states[i + 1]
    nowhere                     all                                      hidden_states 2, n // 2, n - 3

Inside this package there is one meaning, `HFIndex`: hidden_states[i], the input of layer i (facts B.5).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from eyas.base.errors import Finding
from eyas.model.layer_ids import HFIndex, default_aux_layers

AUX_LAYERS_KEY = "eagle_aux_hidden_state_layer_ids"
FIX_LIST_LAYERS = (
    f"write the layers into config.json at its top level as {AUX_LAYERS_KEY}, counted as hidden_states are"
)


@dataclass(frozen=True)
class AuxLayers:
    """ids None: the findings say why not."""

    ids: tuple[HFIndex, ...] | None
    findings: tuple[Finding, ...] = ()


def to_sglang_ids(ids: Sequence[HFIndex]) -> list[int] | None:
    """What to write under `eagle_config`; None where SGLang can be told so by no list.

    A list that begins with 1 is shifted by one, any other is taken as it is: so layer 2 as the lowest is written as 1,
    and layer 1 as the lowest cannot be written.
    """
    if ids[0] == 1:
        return None
    return [i - 1 for i in ids] if ids[0] == 2 else [int(i) for i in ids]


def default_layers_as_outputs(num_layers: int) -> list[int]:
    """The usual three, counted as outputs of layers: in the place of hidden_states ids a sign of a mistake."""
    return [i - 1 for i in default_aux_layers(num_layers)] if num_layers >= 7 else []


def read_aux_layers(top_level: Any, nested: Any, num_layers: int | None) -> AuxLayers:
    """The layers that both lists of a config.json mean. num_layers: of the target, where it is known."""
    top_level, nested = (
        None if ids in (None, []) else ids for ids in (top_level, nested)
    )  # ModelOpt writes [] for the usual ones
    for ids in (top_level, nested):
        if ids is not None and not (isinstance(ids, list) and all(type(i) is int for i in ids)):
            return _misfit(f"{AUX_LAYERS_KEY} {ids!r}", "a list of whole numbers")
    if top_level is None and nested is None:
        return _default_layers(num_layers)
    meanings = [] if nested is None else _meanings(nested, num_layers if top_level is None else None)
    if top_level is not None:
        if nested is not None and top_level not in meanings:
            return _misfit(
                f"{AUX_LAYERS_KEY} {top_level} and, nested, {nested}",
                f"{[i - 1 for i in top_level]} as the nested list",
            )
        meanings = [top_level]
    ordered = [ids for ids in meanings if ids[0] >= 0 and all(low < high for low, high in pairwise(ids))]
    if not ordered:
        return _misfit(f"{AUX_LAYERS_KEY} {top_level or nested}", "ids from 0 in ascending order")
    if len(ordered) > 1:
        named = " or ".join(str(ids) for ids in ordered)
        return _misfit(
            f"{AUX_LAYERS_KEY} {nested} under eagle_config alone, which may mean {named}",
            "one meaning",
            FIX_LIST_LAYERS,
        )
    return AuxLayers(tuple(HFIndex(i) for i in ordered[0]))


def _meanings(nested: list[int], num_layers: int | None) -> list[list[int]]:
    """As hidden_states ids, what the readers of a nested list take it for; fewer where the target decides it."""
    outputs = [i + 1 for i in nested]
    if nested[0] == 1:
        return [outputs]
    both = [nested, outputs]
    if num_layers is None:
        return both
    usual = [ids for ids in both if num_layers >= 7 and ids == list(default_aux_layers(num_layers))]
    return usual or [ids for ids in both if ids[-1] < num_layers]


def _default_layers(num_layers: int | None) -> AuxLayers:
    if num_layers is None:
        return _misfit(
            f"no {AUX_LAYERS_KEY}",
            "the layers that the head reads",
            "name its target, whose usual layers these then are",
        )
    if num_layers < 7:
        return _misfit(
            f"no {AUX_LAYERS_KEY}", f"the layers that the head reads of a target of {num_layers}", FIX_LIST_LAYERS
        )
    ids = default_aux_layers(num_layers)
    told = Finding("ok", "a head that names no layers", f"it reads the usual ones of its target, {list(map(int, ids))}")
    return AuxLayers(ids, (told,))


def _misfit(found: str, expected: str, do: str | None = None) -> AuxLayers:
    return AuxLayers(None, (Finding("misfit", found, expected, do),))
