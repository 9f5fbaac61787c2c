"""Acceptance statistics and every confidence interval of eyas. Evaluation, generation, bench, drift and canary use it.

One round = one target forward over one request's tree (or its root alone). The *accepted* tokens of a round are those
it added to the answer, the bonus token included. Tokens cut by a stop token or a length limit do not count. The prefill
is not a round.

acceptance length             sum of accepted / sum of rounds, over all requests. It is a ratio of sums, so long answers
                              weigh more, as they do in time spent. Without a head it is 1.
conditional acceptance at d   among the rounds that accepted depth d - 1 *and* whose tree had a node below it: the share
                              that accepted one of these nodes. Depth 0 is the root, which is always accepted.

    tree       root -> a -> b       accepted 2 (a, bonus): b was offered and rejected    accepted 2, offered 2
               root -> c            accepted 2 (c, bonus): no node below c               accepted 2, offered 1
                                    accepted 3 (a, b, bonus): no node below b            accepted 3, offered 2

Intervals:

    ratio_interval           percentile bootstrap of sum / sum over items (acceptance length over prompts)
    median_interval          percentile bootstrap of a median (speed-ups over paired measurements)
    log_scale_interval        normal or Student's t on the logarithm of a positive figure whose variance is known
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

FIRST_CONTEXT = 256  # upper bound of the first bucket of `context_label`, a position


@dataclass(frozen=True)
class RequestRounds:
    """The rounds of one request, in order.

    accepted  tokens of each round, the bonus token included, at least 1
    offered   deepest depth at which the tree continued the accepted path: accepted - 1 if the path ended at a leaf or
              the answer was cut there (no node was rejected), accepted if a node was rejected. Computed as
              `accepted - 1 + verify.has_rejected_child`, and `accepted - 1` for a cut round.
    """

    accepted: tuple[int, ...]
    offered: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.accepted) == len(self.offered), "one offer a round"
        for accepted, offered in zip(self.accepted, self.offered, strict=True):
            assert accepted >= 1, "every round accepts the bonus at least"
            assert offered in (accepted - 1, accepted), (accepted, offered)


@dataclass(frozen=True)
class DepthAcceptance:
    """Rounds that offered a node at this depth on the accepted path, and rounds that accepted it."""

    depth: int
    offered: int
    accepted: int

    @property
    def rate(self) -> float:
        """The share of the offered nodes that were accepted."""
        return self.accepted / self.offered


@dataclass(frozen=True)
class Interval:
    """A confidence interval, both ends included."""

    low: float
    high: float


@dataclass(frozen=True)
class AcceptanceStats:
    """The acceptance figures of one group of prompts. histogram[n] = rounds that accepted n tokens (n = 0 never)."""

    prompts: int
    rounds: int
    accepted: int
    acceptance_length: float
    ci95: Interval
    by_depth: tuple[DepthAcceptance, ...]
    histogram: tuple[int, ...]


def acceptance_length(requests: Iterable[RequestRounds]) -> float:
    """Computes accepted tokens per target forward. Asserts at least one round."""
    accepted, rounds = _sums(requests)
    assert rounds.sum() > 0, "no round was run"
    return float(accepted.sum() / rounds.sum())


def by_depth(requests: Iterable[RequestRounds]) -> tuple[DepthAcceptance, ...]:
    """Computes the conditional acceptance at depths 1, 2, ... down to the deepest node that any round offered."""
    pairs = [pair for request in requests for pair in zip(request.accepted, request.offered, strict=True)]
    deepest = max((offered for _, offered in pairs), default=0)
    return tuple(
        DepthAcceptance(
            depth=depth,
            offered=sum(offered >= depth for _, offered in pairs),
            accepted=sum(accepted > depth for accepted, _ in pairs),
        )
        for depth in range(1, deepest + 1)
    )


def summarize(requests: Sequence[RequestRounds], seed: int = 0) -> AcceptanceStats:
    """Computes every acceptance figure of one group of prompts."""
    accepted, rounds = _sums(requests)
    histogram = np.bincount([tokens for request in requests for tokens in request.accepted], minlength=1)
    return AcceptanceStats(
        prompts=len(requests),
        rounds=int(rounds.sum()),
        accepted=int(accepted.sum()),
        acceptance_length=acceptance_length(requests),
        ci95=acceptance_interval(requests, seed),
        by_depth=by_depth(requests),
        histogram=tuple(histogram.tolist()),
    )


def acceptance_interval(requests: Sequence[RequestRounds], seed: int) -> Interval:
    """Bootstraps the 95% interval of the acceptance length over prompts; rounds of one prompt are not independent.

    The same seed gives the same interval. It is too narrow below about ten prompts, and has no width with one.
    """
    accepted, rounds = _sums(requests)
    has_rounds = rounds > 0
    return ratio_interval(accepted[has_rounds], rounds[has_rounds], seed)


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


def context_bucket(context: int, first: int) -> int:
    """Returns the bucket of a context length in tokens: 0 below `first`, then one bucket for each doubling."""
    return (context // first).bit_length()


def context_label(position: int) -> str:
    """Returns the key of `by_context` for a round whose root stands at `position`: "<=256", "<=512", "<=1024" ..."""
    return f"<={FIRST_CONTEXT << context_bucket(max(0, position - 1), FIRST_CONTEXT)}"


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Returns {"p50", "p90", "p99"}, linear between two values (numpy's default, as in SGLang and vLLM)."""
    assert len(values) > 0, "at least one value"
    return {f"p{percent}": float(np.percentile(values, percent)) for percent in (50, 90, 99)}


def _percentile_interval(samples: np.ndarray, level: float) -> Interval:
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def _sums(requests: Iterable[RequestRounds]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the accepted tokens and the rounds of each request, both int64 [N]."""
    pairs = [(sum(request.accepted), len(request.accepted)) for request in requests]
    table = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
