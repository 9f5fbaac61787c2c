"""Acceptance, defined once: evaluation, generation and the bench all count with this file.

One round = one target forward over one request's tree (or its lone root). Its *accepted* tokens are those it added to
the answer, the bonus included; what a stop token or a length limit cut away does not count. The prefill is no round.

acceptance length             sum of accepted / sum of rounds, over all requests (a ratio of sums, so long answers weigh
                              more, as they do in time spent). Without a head it is 1.
conditional acceptance at d   among the rounds that accepted depth d - 1 *and* whose tree had a node below it: the share
                              that accepted one of these nodes. Depth 0 is the root, always accepted.

    tree       root -> a -> b       accepted 2 (a, bonus): b was offered and refused     accepted 2, offered 2
               root -> c            accepted 2 (c, bonus): nothing stood below c         accepted 2, offered 1
                                    accepted 3 (a, b, bonus): nothing stood below b      accepted 3, offered 2
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RequestRounds:
    """One request, its rounds in order.

    accepted  tokens of each round, the bonus included, at least 1
    offered   deepest depth at which the tree offered a continuation of the accepted path: accepted - 1 if the path
              ended at a leaf or the answer was cut there (nothing was refused), accepted if a node was refused.
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
        return self.accepted / self.offered


@dataclass(frozen=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True)
class AcceptanceStats:
    """What a report says about one group of prompts. histogram[n] = rounds that accepted n tokens (n = 0 never)."""

    prompts: int
    rounds: int
    accepted: int
    acceptance_length: float
    ci95: Interval
    by_depth: tuple[DepthAcceptance, ...]
    histogram: tuple[int, ...]


def acceptance_length(requests: Iterable[RequestRounds]) -> float:
    """Accepted tokens per target forward. Asserts at least one round."""
    accepted, rounds = _sums(requests)
    assert rounds.sum() > 0, "no round was run"
    return float(accepted.sum() / rounds.sum())


def by_depth(requests: Iterable[RequestRounds]) -> tuple[DepthAcceptance, ...]:
    """Conditional acceptance at depths 1, 2, ... as far as any round offered a node."""
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


def histogram(requests: Iterable[RequestRounds]) -> tuple[int, ...]:
    """Rounds by accepted tokens, index = accepted."""
    return tuple(np.bincount([accepted for request in requests for accepted in request.accepted], minlength=1).tolist())


def acceptance_interval(
    requests: Sequence[RequestRounds], seed: int, *, level: float = 0.95, resamples: int = 2000
) -> Interval:
    """Percentile bootstrap of the acceptance length over prompts (rounds of one prompt are not independent).

    Same seed, same interval. Too narrow below about ten prompts; with one prompt it has no width.
    """
    accepted, rounds = _sums(requests)
    has_rounds = rounds > 0
    return ratio_interval(accepted[has_rounds], rounds[has_rounds], seed, level=level, resamples=resamples)


def ratio_interval(
    numerators: np.ndarray, denominators: np.ndarray, seed: int, *, level: float = 0.95, resamples: int = 2000
) -> Interval:
    """The bootstrap itself, of sum(numerators) / sum(denominators) over prompts. Denominators are positive."""
    count = len(numerators)
    assert count > 0, "at least one prompt"
    assert len(denominators) == count, "one denominator a prompt"
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1.0 / count), size=resamples)
    ratios = (weights @ numerators) / (weights @ denominators)
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def summarize(requests: Sequence[RequestRounds], seed: int = 0) -> AcceptanceStats:
    """All of the above for one group of prompts."""
    accepted, rounds = _sums(requests)
    return AcceptanceStats(
        prompts=len(requests),
        rounds=int(rounds.sum()),
        accepted=int(accepted.sum()),
        acceptance_length=acceptance_length(requests),
        ci95=acceptance_interval(requests, seed),
        by_depth=by_depth(requests),
        histogram=histogram(requests),
    )


def _sums(requests: Iterable[RequestRounds]) -> tuple[np.ndarray, np.ndarray]:
    """Accepted tokens and rounds of each request."""
    pairs = [(sum(request.accepted), len(request.accepted)) for request in requests]
    table = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
