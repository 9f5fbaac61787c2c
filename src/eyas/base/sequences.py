"""Compares sequences: texts, and lists of token ids."""

from collections.abc import Iterable
from itertools import takewhile


def count_equal(first: Iterable[object], second: Iterable[object]) -> int:
    """Returns the number of items at the beginning that are equal in both."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
