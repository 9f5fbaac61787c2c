"""The ids of the target's captured layers, which the head reads. All packages except `formats` count them as follows.

    ids -> embed -> [layer 0] -> [layer 1] -> [layer 2] -> ... -> [layer n-1] -> norm -> logits
                 ^            ^            ^                                   ^
     HFIndex     0            1            2              ...                  n is taken after the norm

HFIndex i is entry i of transformers' `hidden_states`. For i < n it is the input of layer i. For i = n it is the final
hidden state after the final norm. Some other projects count the outputs of layers (i - 1), or take entry n before the
norm. The package `formats` converts their ids.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NewType

from eyas.base.errors import InputError

HFIndex = NewType("HFIndex", int)


def default_aux_layers(num_layers: int) -> tuple[HFIndex, ...]:
    """Returns the default layers of EAGLE-3: 2, n // 2 and n - 3. Raises InputError for fewer than 7 layers."""
    ids = (2, num_layers // 2, num_layers - 3)
    if not has_default_layers(num_layers):
        problem = f"A target of {num_layers} layers has no default layers to capture: 2, n // 2 and n - 3 need 7 layers"
        raise InputError(problem, "Name three layers, for example capture.aux_layer_ids=[0,1,2]")
    return tuple(HFIndex(i) for i in ids)


def has_default_layers(num_layers: int) -> bool:
    """Returns True if 2, n // 2 and n - 3 are three different layers."""
    return num_layers >= 7


def choose_aux_layers(num_layers: int) -> tuple[HFIndex, ...]:
    """Returns the default layers, or for a target of 3 to 6 layers three that it has. Raises InputError for fewer.

    No id is that of the last layer's output, which other engines take before the norm. None begins with 1, because
    SGLang cannot read such a list (`formats.aux_layers.to_sglang_ids`).
    """
    if num_layers < 3 or has_default_layers(num_layers):
        return default_aux_layers(num_layers)
    return tuple(map(HFIndex, (2, 3, 4) if num_layers >= 5 else (0, 2, 3) if num_layers == 4 else (0, 1, 2)))


def check_aux_layers(ids: Sequence[int], num_layers: int) -> tuple[HFIndex, ...]:
    """Returns the ids as HFIndex. Raises InputError unless they are ascending numbers from 0 to num_layers."""
    if not ids or any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise InputError(f"The captured layers {list(ids)} are not a list of whole numbers", "Name at least one layer")
    if any(not 0 <= i <= num_layers for i in ids):
        problem = f"The captured layers {list(ids)} are out of range: this target has ids 0 to {num_layers}"
        raise InputError(problem, "Use hidden_states indices: id i is the input of layer i")
    if any(low >= high for low, high in pairwise(ids)):
        raise InputError(f"The captured layers {list(ids)} are not in ascending order", "Order them low, middle, high")
    return tuple(HFIndex(i) for i in ids)
