"""Acceptance length and the figures around it, defined once. Evaluation, generation, bench and drift use them.

A round is one target forward over the draft tree of one request, or over its root alone. The prefill is not a round.
The *accepted* tokens of a round are the tokens that the round adds to the answer. They include the bonus token. Tokens
that a stop token or a length limit cuts off do not count. The *offered* depth of a round is the depth of the deepest
node whose parent was accepted. The root has depth 0 and is always accepted.

    draft tree   root ─┬─ a ─── b
                       └─ c

    tokens of the target, the last is the bonus token    accepted    offered
    x                                                    1           1, a and c were rejected
    a, x                                                 2           2, b was rejected
    c, x                                                 2           1, c has no child
    a, b, x                                              3           2, b has no child

Acceptance length: the accepted tokens of all rounds of all requests, divided by the number of these rounds. Long
answers have more rounds, so they have more weight. Without a head the acceptance length is 1.

Conditional acceptance at depth d: the rounds that accepted a node at depth d, divided by the rounds that offered one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from eyas.tree.intervals import Interval, ratio_interval

FIRST_CONTEXT = 256  # upper bound of the first bucket of `context_label`, a position


@dataclass(frozen=True)
class RequestRounds:
    """The rounds of one request, in order.

    Attributes:
        accepted: The number of accepted tokens of each round, the bonus token included; at least 1.
        offered: The offered depth of each round: `accepted - 1 + verify.has_rejected_child(...)`. For a round whose
            tokens were cut by a stop token or a length limit it is `accepted - 1`.
    """

    accepted: tuple[int, ...]
    offered: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.accepted) == len(self.offered), "each round has one offered depth"
        for accepted, offered in zip(self.accepted, self.offered, strict=True):
            assert accepted >= 1, "every round accepts the bonus at least"
            assert offered in (accepted - 1, accepted), (accepted, offered)


@dataclass(frozen=True)
class AcceptanceStats:
    """The acceptance figures of one group of prompts.

    Attributes:
        prompts: The number of prompts.
        rounds: The number of rounds.
        accepted: The number of accepted tokens.
        acceptance_length: accepted / rounds.
        ci95: The 95% confidence interval of the acceptance length.
        by_depth: The conditional acceptance at each depth, from depth 1.
    """

    prompts: int
    rounds: int
    accepted: int
    acceptance_length: float
    ci95: Interval
    by_depth: tuple[float, ...]


def join_rounds(requests: Iterable[RequestRounds]) -> RequestRounds:
    """Returns the rounds of several requests in order, as if they were one."""
    pairs = [pair for request in requests for pair in zip(request.accepted, request.offered, strict=True)]
    return RequestRounds(tuple(accepted for accepted, _ in pairs), tuple(offered for _, offered in pairs))


def acceptance_length(requests: Iterable[RequestRounds]) -> float:
    """Returns the accepted tokens divided by the rounds. Requirement: the requests have at least one round."""
    accepted, rounds = _sums(requests)
    assert rounds.sum() > 0, "no round was run"
    return float(accepted.sum() / rounds.sum())


def by_depth(requests: Iterable[RequestRounds]) -> tuple[float, ...]:
    """Returns the conditional acceptance at depths 1, 2, ... to the largest offered depth of all rounds."""
    pairs = [pair for request in requests for pair in zip(request.accepted, request.offered, strict=True)]
    deepest = max((offered for _, offered in pairs), default=0)
    return tuple(
        sum(accepted > depth for accepted, _ in pairs) / sum(offered >= depth for _, offered in pairs)
        for depth in range(1, deepest + 1)
    )


def summarize(requests: Sequence[RequestRounds], seed: int = 0) -> AcceptanceStats:
    """Computes every acceptance figure of one group of prompts."""
    accepted, rounds = _sums(requests)
    return AcceptanceStats(
        prompts=len(requests),
        rounds=int(rounds.sum()),
        accepted=int(accepted.sum()),
        acceptance_length=acceptance_length(requests),
        ci95=acceptance_interval(requests, seed),
        by_depth=by_depth(requests),
    )


def acceptance_interval(requests: Sequence[RequestRounds], seed: int) -> Interval:
    """Returns the 95% bootstrap interval of the acceptance length.

    It resamples whole prompts, because the rounds of one prompt are not independent. The same seed gives the same
    interval. With fewer than about ten prompts the interval is too narrow. With one prompt its width is 0.
    """
    accepted, rounds = _sums(requests)
    has_rounds = rounds > 0
    return ratio_interval(accepted[has_rounds], rounds[has_rounds], seed)


def context_bucket(context: int, first: int) -> int:
    """Returns the number of the bucket that holds a context length.

    Args:
        context: The context length in tokens.
        first: The upper bound of bucket 0, exclusive. Each further bucket ends at twice the bound before it.
    """
    return (context // first).bit_length()


def context_label(position: int) -> str:
    """Returns the key of `by_context` in acceptance.json for a root at this position: "<=256", "<=512", "<=1024"."""
    return f"<={FIRST_CONTEXT << context_bucket(max(0, position - 1), FIRST_CONTEXT)}"


def turn_label(turn: int) -> str:
    """Returns "1", "2", "3-5" or "6+" for the number of an answer in its conversation, from 1."""
    return str(turn) if turn <= 2 else "3-5" if turn <= 5 else "6+"


def _sums(requests: Iterable[RequestRounds]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number of accepted tokens and of rounds of each of N requests, both int64 [N]."""
    pairs = [(sum(request.accepted), len(request.accepted)) for request in requests]
    table = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
