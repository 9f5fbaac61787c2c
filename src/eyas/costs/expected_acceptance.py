"""What acceptance length to expect of how much data: measured by others, until eyas has a curve of its own."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """Conversations to learn from -> tokens per target forward of a chain of 5, from `low` to `high`."""

    conversations: int
    low: float
    high: float
    source: str


POINTS = (
    Point(5_000, 1.45, 1.5, "vllm-project/speculators, examples: Llama-3-8B and Qwen3-8B, 5k conversations"),
    Point(50_000, 1.9, 1.95, "sgl-project/SpecForge issue 128: 1.94 on GSM8K after 50k of ShareGPT, 5 epochs"),
    Point(500_000, 2.8, 3.0, "vllm-project/speculators pull 610: 2.82 to 3.02, Qwen3-8B, 508k answers of its own"),
)
"""All on chat in natural language by targets of 8 billion parameters, and by other trainers than this one."""


@dataclass(frozen=True)
class Expectation:
    """inside: the number of conversations lies among those that somebody measured; else the nearest point's range."""

    low: float
    high: float
    inside: bool


def expected(conversations: float) -> Expectation:
    """On a straight line over the logarithm of the conversations, between the points; beyond them the last one's."""
    first, last = POINTS[0], POINTS[-1]
    if not first.conversations <= conversations <= last.conversations:
        end = first if conversations < first.conversations else last
        return Expectation(end.low, end.high, False)
    right = next(index for index in range(1, len(POINTS)) if conversations <= POINTS[index].conversations)
    a, b = POINTS[right - 1], POINTS[right]
    share = math.log(conversations / a.conversations) / math.log(b.conversations / a.conversations)
    return Expectation(a.low + share * (b.low - a.low), a.high + share * (b.high - a.high), True)
