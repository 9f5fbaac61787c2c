"""Figures of a JSON report: looked up where they may be missing, and written for people."""

import math
from collections.abc import Mapping
from html import escape
from typing import Any

MISSING = "–"


def lookup(value: Any, *keys: str) -> Any:
    """value[key1][key2]..., or None where a key is missing."""
    for key in keys:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def read_number(value: Any, *keys: str) -> float | int | None:
    """`lookup` of a finite number; anything else is None."""
    found = lookup(value, *keys)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return found


def read_interval(value: Any, *keys: str) -> tuple[float, float] | None:
    """`lookup` of a [low, high] pair; None where it is missing or not two finite numbers in order."""
    found = lookup(value, *keys)
    if not isinstance(found, list | tuple) or len(found) != 2:
        return None
    low, high = read_number({"end": found[0]}, "end"), read_number({"end": found[1]}, "end")
    return (low, high) if low is not None and high is not None and low <= high else None


def data(value: float, text: str) -> str:
    """HTML: the rounded text, with the exact value for machines."""
    return f'<data value="{value!r}">{escape(text)}</data>'


def times(value: float) -> str:
    """A ratio for the headline: one decimal; two where one would hide on which side of 1 it lies."""
    text = f"{value:.1f}×"
    return f"{value:.2f}×" if text == "1.0×" else text


def streams(count: float) -> str:
    """Of a closed loop; 0: a file of another's figures does not say."""
    return {0: "an unknown load", 1: "one stream"}.get(int(count), f"{count:g} streams")


def bytes_text(value: float) -> str:
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} B"


def duration(seconds: float) -> str:
    """45 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
