"""Acceptance length and the figures around it, defined once. Evaluation, generation, bench and drift use them.

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
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from eyas.tree.intervals import Interval, ratio_interval

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


def context_bucket(context: int, first: int) -> int:
    """Returns the bucket of a context length in tokens: 0 below `first`, then one bucket for each doubling."""
    return (context // first).bit_length()


def context_label(position: int) -> str:
    """Returns the key of `by_context` for a round whose root stands at `position`: "<=256", "<=512", "<=1024" ..."""
    return f"<={FIRST_CONTEXT << context_bucket(max(0, position - 1), FIRST_CONTEXT)}"


def _sums(requests: Iterable[RequestRounds]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the accepted tokens and the rounds of each request, both int64 [N]."""
    pairs = [(sum(request.accepted), len(request.accepted)) for request in requests]
    table = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
