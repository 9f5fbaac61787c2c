"""Confidence intervals and percentiles. Evaluation, bench, drift and the canary experiment use them.

function             figure                                            method
ratio_interval       sum / sum, such as the acceptance length          percentile bootstrap
median_interval      median, such as that of speed-ups                 percentile bootstrap
log_scale_interval   a positive figure with a known variance           normal or Student's t, on its logarithm
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

RESAMPLES = 2000  # bootstrap samples


@dataclass(frozen=True)
class Interval:
    """A confidence interval from `low` to `high`, both included."""

    low: float
    high: float


def ratio_interval(
    numerators: np.ndarray, denominators: np.ndarray, seed: int, before: tuple[np.ndarray, np.ndarray] | None = None
) -> Interval:
    """Returns the 95% bootstrap interval of sum(numerators) / sum(denominators). It resamples the items.

    Args:
        numerators: One value for each of the N items, which are prompts or answers; shape [N].
        denominators: One positive value for each item; shape [N].
        seed: Seed of the resampling; the same seed gives the same interval.
        before: Numerators and denominators of a second ratio by which the first is divided, for the same items.
    """
    count = len(numerators)
    assert count > 0, "at least one item"
    assert len(denominators) == count, "each item has one denominator"
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1.0 / count), size=RESAMPLES)
    divisor = 1.0 if before is None else (weights @ before[0]) / (weights @ before[1])
    return _percentile_interval((weights @ numerators) / (weights @ denominators) / divisor)


def median_interval(values: Sequence[float], seed: int) -> tuple[float, Interval]:
    """Returns the median of the values and its 95% bootstrap interval. Equal seeds give equal intervals."""
    table = np.asarray(values, dtype=np.float64)
    assert table.size > 0, "at least one value"
    picks = np.random.default_rng(seed).integers(table.size, size=(RESAMPLES, table.size))
    return float(np.median(table)), _percentile_interval(np.median(table[picks], axis=1))


def log_scale_interval(
    value: float, log_variance: float, *, level: float = 0.95, degrees_of_freedom: float = math.inf
) -> Interval:
    """Returns the interval of a positive figure whose logarithm has about a normal distribution.

    Args:
        value: The figure, for example a ratio of two rates.
        log_variance: The variance of the figure's logarithm, for example by the delta method.
        level: Confidence level.
        degrees_of_freedom: The degrees of freedom of Student's t. `math.inf` means the normal distribution. The t
            quantile is computed by Fisher's expansion, which is 2% too small at 3 degrees of freedom.

    Returns:
        The interval from value / factor to value * factor, where factor = exp(quantile * sqrt(log_variance)).
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    quantile = z + first / degrees_of_freedom + second / degrees_of_freedom**2
    factor = math.exp(quantile * math.sqrt(log_variance))
    return Interval(value / factor, value * factor)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Returns the percentiles as {"p50": ..., "p90": ..., "p99": ...}, interpolated linearly (numpy's default)."""
    assert len(values) > 0, "at least one value"
    return {f"p{percent}": float(np.percentile(values, percent)) for percent in (50, 90, 99)}


def _percentile_interval(samples: np.ndarray) -> Interval:
    low, high = np.quantile(samples, [0.025, 0.975])
    return Interval(float(low), float(high))
