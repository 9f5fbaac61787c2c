"""Figures over measured times. Acceptance is counted in tree.stats."""

from collections.abc import Sequence

import numpy as np

from eyas.tree.stats import Interval


def median_interval(
    values: Sequence[float], seed: int, *, level: float = 0.95, resamples: int = 2000
) -> tuple[float, Interval]:
    """The median and its percentile bootstrap interval. Same seed, same interval; one value gives no width."""
    table = np.asarray(values, dtype=np.float64)
    assert table.size > 0, "at least one value"
    picks = np.random.default_rng(seed).integers(table.size, size=(resamples, table.size))
    low, high = np.quantile(np.median(table[picks], axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(np.median(table)), Interval(float(low), float(high))


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """{"p50", "p90", "p99"}, between two values on the line that joins them (numpy's default, SGLang's and vLLM's)."""
    assert len(values) > 0, "at least one value"
    return {f"p{percent}": float(np.percentile(values, percent)) for percent in (50, 90, 99)}
