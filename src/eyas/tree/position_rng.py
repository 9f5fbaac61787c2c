"""One coin for each position of a text: a hash of (seed, position), and nothing else.

Legend: R any rows.

    seed 7   ->  .31  .88  .02  .57  ...      coin of position 0, 1, 2, 3, ...
    seed 8   ->  .74  .10  .66  .93  ...

A generator object would make a token depend on how many numbers were taken before it: on the tree that was drafted and
on the requests beside it. A hash depends on neither, needs no state, and gives the same number on every device.
"""

import torch
from torch import Tensor

# SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants of Java 8).
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def coins(seeds_R: Tensor, positions_R: Tensor) -> Tensor:
    """float64, uniform in (0, 1), never 0 or 1. Shapes broadcast; any integer dtype.

    The stream of a seed is SplitMix64, started at the finaliser of the seed so that neighbouring seeds are strangers,
    and jumped to the position. All arithmetic is modulo 2**64, in int64.
    """
    states_R = _finalise(seeds_R.long() + _signed(_GOLDEN)) + (positions_R.long() + 1) * _signed(_GOLDEN)
    # 52 bits and a half: with 53 the largest sum would round up to 1.
    return (_shift(_finalise(states_R), 12).double() + 0.5) * 2.0**-52


def _finalise(z_R: Tensor) -> Tensor:
    z_R = (z_R ^ _shift(z_R, 30)) * _signed(_FIRST)
    z_R = (z_R ^ _shift(z_R, 27)) * _signed(_SECOND)
    return z_R ^ _shift(z_R, 31)


def _shift(z_R: Tensor, num_bits: int) -> Tensor:
    """Logical shift to the right; >> of a signed number fills with its sign."""
    return torch.bitwise_and(z_R >> num_bits, (1 << (64 - num_bits)) - 1)


def _signed(constant: int) -> int:
    """The int64 with these 64 bits."""
    return constant - (constant >> 63 << 64)
