"""Every confidence interval of eyas, and percentiles. Evaluation, bench, drift and the canary experiment use them.

ratio_interval           percentile bootstrap of sum / sum over items (acceptance length over prompts)
median_interval          percentile bootstrap of a median (speed-ups over paired measurements)
log_scale_interval        normal or Student's t on the logarithm of a positive figure whose variance is known
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True)
class Interval:
    """A confidence interval, both ends included."""

    low: float
    high: float


def ratio_interval(
    numerators: np.ndarray, denominators: np.ndarray, seed: int, *, level: float = 0.95, resamples: int = 2000
) -> Interval:
    """Bootstraps the percentile interval of sum(numerators) / sum(denominators) over paired items.

    Args:
        numerators: One value an item (a prompt, an answer), shape [N].
        denominators: One positive value an item, shape [N].
        seed: Seed of the resampling; the same seed gives the same interval.
        level: Confidence level.
        resamples: Number of bootstrap samples.
    """
    count = len(numerators)
    assert count > 0, "at least one item"
    assert len(denominators) == count, "one denominator an item"
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1.0 / count), size=resamples)
    return _percentile_interval((weights @ numerators) / (weights @ denominators), level)


def median_interval(
    values: Sequence[float], seed: int, *, level: float = 0.95, resamples: int = 2000
) -> tuple[float, Interval]:
    """Returns the median and its bootstrapped percentile interval; arguments as in `ratio_interval`."""
    table = np.asarray(values, dtype=np.float64)
    assert table.size > 0, "at least one value"
    picks = np.random.default_rng(seed).integers(table.size, size=(resamples, table.size))
    return float(np.median(table)), _percentile_interval(np.median(table[picks], axis=1), level)


def log_scale_interval(
    value: float, log_variance: float, *, level: float = 0.95, degrees_of_freedom: float = math.inf
) -> Interval:
    """Returns the interval of a positive figure whose logarithm is about normal: value / reach to value * reach.

    Args:
        value: The figure, for example a ratio of two rates.
        log_variance: Variance of its logarithm, for example by the delta method.
        level: Confidence level.
        degrees_of_freedom: Of Student's t; infinite for the normal distribution. The t quantile is Fisher's expansion:
            2% short at 3 degrees of freedom, exact in the limit.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    quantile = z + first / degrees_of_freedom + second / degrees_of_freedom**2
    reach = math.exp(quantile * math.sqrt(log_variance))
    return Interval(value / reach, value * reach)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Returns {"p50", "p90", "p99"}, linear between two values (numpy's default, as in SGLang and vLLM)."""
    assert len(values) > 0, "at least one value"
    return {f"p{percent}": float(np.percentile(values, percent)) for percent in (50, 90, 99)}


def _percentile_interval(samples: np.ndarray, level: float) -> Interval:
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))
