"""Which layers of the target the head listens to, in the one convention of this package.

    ids -> embed -> [layer 0] -> [layer 1] -> [layer 2] -> ... -> [layer n-1] -> norm -> logits
                 ^            ^            ^                                   ^
     HFIndex     0            1            2              ...                  n is taken after the norm

HFIndex i is the entry i of transformers' `hidden_states`: the input of layer i, and for i = n the final hidden state,
which transformers returns after the final norm. Other projects count layer outputs (i - 1) or take entry n before the
norm; only the room `formats` translates.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NewType

from eyas.base.errors import InputError

HFIndex = NewType("HFIndex", int)


def default_aux_layers(num_layers: int) -> tuple[HFIndex, ...]:
    """Low, middle and high as in EAGLE-3: 2, n // 2, n - 3. `InputError` if the target has too few layers for that."""
    ids = (2, num_layers // 2, num_layers - 3)
    if not ids[0] < ids[1] < ids[2]:
        raise InputError(
            f"a target of {num_layers} layers",
            "at least 7 layers, so that 2, n // 2 and n - 3 are three different ones in ascending order",
            "name the layers to capture yourself",
        )
    return tuple(HFIndex(i) for i in ids)


def check_aux_layers(ids: Sequence[int], num_layers: int) -> tuple[HFIndex, ...]:
    """The ids, typed. `InputError` unless they are ascending, different and in 0..num_layers."""
    found = f"captured layers {list(ids)} for a target of {num_layers} layers"
    if not ids or any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise InputError(found, "a list of whole numbers", "name at least one layer by its hidden_states index")
    if any(not 0 <= i <= num_layers for i in ids):
        raise InputError(
            found, f"ids from 0 to {num_layers}", "use hidden_states indices: id i is the input of layer i"
        )
    if any(low >= high for low, high in pairwise(ids)):
        raise InputError(found, "ids in ascending order without repeats", "order them low, middle, high")
    return tuple(HFIndex(i) for i in ids)
