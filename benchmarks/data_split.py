"""Splits everything that the privacy filter is measured on into two halves: one for developing, one for reporting.

A group is what may not be torn apart: a template, or one sentence in all languages. Only the figures of the half
"report" are published, and nobody reads single texts of it while the filter is developed.
"""

import hashlib
from collections.abc import Iterable
from typing import Literal, get_args

Half = Literal["develop", "report"]
HALVES: tuple[Half, ...] = get_args(Half)


def half(group: str) -> Half:
    """Returns the half of a group, for example of "mgsm 17". It depends on the name of the group alone."""
    return "develop" if _digest(group)[0] % 2 == 0 else "report"


def balanced_half(groups: Iterable[str], part: Half) -> frozenset[str]:
    """Returns the groups of one half, where both halves of a short list must have the same size.

    The order of the digests of the groups decides. An odd list has one group more for reporting.
    """
    ordered = sorted(set(groups), key=_digest)
    middle = len(ordered) // 2
    return frozenset(ordered[:middle] if part == "develop" else ordered[middle:])


def _digest(group: str) -> bytes:
    return hashlib.sha256(f"eyas privacy {group}".encode()).digest()
