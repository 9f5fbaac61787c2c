"""Predicts how many tokens each arm would accept, for the budget. It learns from the rounds of all arms.

F families, D depths, A arms. A family is a group of arms that share estimates: all chains are one family, and each tree
is a family. There is one table of estimates for each context bucket (a range of context lengths).

    hazard[f, d]   of the rounds that accepted depth d, the share that also accepted depth d + 1
    E[tokens]      1 + h0 + h0 h1 + h0 h1 h2 + ...       down to the depth of the arm

A round of tree16 shows exactly what tree8 would have accepted (see `acceptance_trace`). It also shows what a chain
would have accepted, as far as the verified tree contains the most likely path. A round cannot show what larger trees or
deeper levels would have accepted. Their estimates are shifted in log-odds: by the change of the largest arm that ran,
at the same depth. So harder traffic also lowers the estimates of arms that do not run, and the measured differences
between two arms stay.

The weight of old rounds halves every HALF_LIFE rounds, but does not fall below MIN_WEIGHT. So an arm that has not run
for a long time keeps its estimate until a few rounds contradict it.

The estimates start from the head's acceptance.json (`AcceptancePrior`), or else from PRIOR_CHAIN and PRIOR_TREE.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eyas.base.errors import InputError
from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.speculation.arms import Arm, largest_arms
from eyas.tree.acceptance_length import context_bucket

HALF_LIFE = 400  # rounds
FIRST_ROUNDS, LEARN_ROUNDS = 64, 8
MIN_WEIGHT = 8.0  # rounds
PRIOR_WEIGHT = 4.0
PRIOR_CHAIN, PRIOR_TREE = 0.6, 0.7  # for a head without acceptance.json: between a good and a useless head
MEASURED_WEIGHT = 8.0  # weight of acceptance.json in rounds; small, because the server's texts may differ
FIRST_BUCKET = 512  # tokens: shorter contexts are one bucket, then one for each doubling
BOUNDS = (0.005, 0.995)  # log-odds stay finite


@dataclass(frozen=True)
class AcceptancePrior:
    """The acceptance of a head on its held-out answers. The estimates start from it.

    Attributes:
        by_depth: The name of an arm -> for each depth, the share of the rounds that accepted the depth before and also
            accepted this one. It has the longest chain and the trees.
    """

    by_depth: Mapping[str, tuple[float, ...]]

    @classmethod
    def from_json(cls, acceptance: Mapping[str, Any] | None) -> "AcceptancePrior":
        """Returns the prior from the content of acceptance.json. It is empty if there is no such file or an old one.

        Raises:
            InputError: The key `arms` does not have the form that `eyas eval` writes.
        """
        arms = (acceptance or {}).get("arms", {})
        fix = "Run `eyas eval` again, or remove it"
        problem = InputError("The key `arms` of acceptance.json has a wrong form", fix)
        try:
            by_depth = {name: tuple(map(float, arm["by_depth"])) for name, arm in arms.items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            raise problem from None
        if not all(0 <= share <= 1 for shares in by_depth.values() for share in shares):
            raise problem
        return cls(by_depth)


DEFAULT_PRIOR = AcceptancePrior({})


@dataclass(frozen=True)
class ExpectedTokens:
    """The expected tokens of some requests in one round, bonus tokens included.

    Attributes:
        tokens: The estimate for each arm.
        optimistic: The estimate for each arm if all acceptance rates were one standard deviation higher.
    """

    tokens: list[float]
    optimistic: list[float]


@dataclass
class _Table:
    """The estimates of one context bucket.

    Attributes:
        hazards_FD: The hazards by family and depth.
        weights_FD: The weighted number of rounds behind each hazard.
        round: The number of the round of the last update.
        expected: The expected tokens of one request, computed from the hazards; None before they are needed.
    """

    hazards_FD: np.ndarray
    weights_FD: np.ndarray
    round: int
    expected: ExpectedTokens | None = None


@dataclass(frozen=True)
class _Family:
    """A group of arms that share hazards: one tree, or all chains (top_k 1, with the size of the longest chain)."""

    top_k: int
    nodes: int
    depth: int


@dataclass
class _Counts:
    """Counts from rounds of one arm in one context bucket.

    Attributes:
        trials_FD: The number of rounds that accepted depth d and had a node at depth d + 1.
        hits_FD: The number of these rounds that accepted depth d + 1.
        reach_F: The deepest level that the rounds covered, by family.
        lead: The family of the deepest arm that ran; its changes shift the estimates that were not covered.
        lead_depth: The depth of that arm.
    """

    trials_FD: np.ndarray
    hits_FD: np.ndarray
    reach_F: list[int]
    lead: int = 0
    lead_depth: int = 0


class AcceptanceModel:
    """The estimator of expected tokens by arm and context. It learns from acceptance traces, on the host."""

    def __init__(self, arms: Sequence[Arm], prior: AcceptancePrior = DEFAULT_PRIOR) -> None:
        """Initializes the estimates with the prior. Requirement: the first of `arms` is the arm `off`."""
        largest = largest_arms(arms)  # of each family
        self._place: dict[Arm, tuple[int, int] | None] = {
            arm: None if arm.shape is None else (0 if arm.is_chain else largest.index(arm), arm.depth) for arm in arms
        }
        self._families = [_Family(arm.shape.top_k, arm.nodes, arm.depth) for arm in largest if arm.shape is not None]
        self._prior = _build_prior(largest, prior)
        self._tables: dict[int, _Table] = {}
        self._round = 0
        self._counted: dict[int, _Counts] = {}  # rounds that are not learned yet, all of one arm
        self._counted_arm: Arm | None = None
        self._learned_round = 0

    def expected(self, contexts: Sequence[int]) -> ExpectedTokens:
        """Returns the sums over requests with these numbers of tokens before the root; zeros without a request.

        The estimates of a request come from the nearest context bucket with data, or from the prior if there is no
        data.
        """
        if len(contexts) == 1:
            return self._expected_of(context_bucket(contexts[0], FIRST_BUCKET))
        tokens_A = optimistic_A = np.zeros(len(self._place))
        for bucket, count in Counter(context_bucket(context, FIRST_BUCKET) for context in contexts).items():
            one = self._expected_of(bucket)
            tokens_A = tokens_A + np.multiply(count, one.tokens)
            optimistic_A = optimistic_A + np.multiply(count, one.optimistic)
        return ExpectedTokens(tokens_A.tolist(), optimistic_A.tolist())

    def _expected_of(self, bucket: int) -> ExpectedTokens:
        table = self._nearest(bucket)
        if table.expected is None:
            hazards_FD, weights_FD = table.hazards_FD, table.weights_FD
            # The term 1 / 4n keeps a spread after a few rounds without a hit.
            spread_FD = np.sqrt((hazards_FD * (1 - hazards_FD) + 0.25 / weights_FD) / weights_FD)
            optimistic = self._by_arm(np.minimum(hazards_FD + spread_FD, 1.0))
            table.expected = ExpectedTokens(self._by_arm(hazards_FD), optimistic)
        return table.expected

    def observe(self, traces: Sequence[AcceptanceTrace]) -> None:
        """Learns from the acceptance traces of one round. Requirement: all traces are of the same arm.

        A round without traces only ages the earlier rounds. After the first FIRST_ROUNDS rounds, the estimates are
        updated once for up to LEARN_ROUNDS rounds of one arm, because an update takes longer than counting.
        """
        self._round += 1
        if traces and traces[0].arm != self._counted_arm:
            self._learn_counted()
            self._counted_arm = traces[0].arm
        shape = self._prior.hazards_FD.shape
        for item in traces:
            bucket = context_bucket(item.context, FIRST_BUCKET)
            if bucket not in self._counted:
                self._counted[bucket] = _Counts(np.zeros(shape), np.zeros(shape), [0] * shape[0])
            self._count(item, self._counted[bucket])
        if self._round >= self._learned_round + LEARN_ROUNDS or self._round <= FIRST_ROUNDS:
            self._learn_counted()

    def _learn_counted(self) -> None:
        for bucket, found in self._counted.items():
            self._learn(bucket, found)
        if self._counted:
            self._counted, self._learned_round = {}, self._round

    def _count(self, item: AcceptanceTrace, counts: _Counts) -> None:
        """Adds the trace of one request to the counts of each family whose acceptance the trace shows."""
        ran = item.arm
        place = self._place[ran]
        assert place is not None, "the arm `off` drafts nothing"
        if place[1] >= counts.lead_depth:
            counts.lead, counts.lead_depth = place
        for number, family in enumerate(self._families):
            if family.top_k == 1:
                # Where the most likely path ran out of rows, nothing was rejected: the rest of it is unknown.
                depth = min(family.depth, ran.depth)
                kept, refused = min(item.chain_accepted, depth), item.chain_accepted < min(item.chain_offered, depth)
            elif ran.shape is not None and family.top_k == ran.shape.top_k and _contains(ran, family):
                depth = family.depth
                kept = item.num_accepted_within(family.nodes, depth)
                refused = kept < depth
            else:
                continue
            counts.hits_FD[number, :kept] += 1
            counts.trials_FD[number, : kept + refused] += 1
            counts.reach_F[number] = max(counts.reach_F[number], depth)

    def _learn(self, bucket: int, counts: _Counts) -> None:
        table = self._tables.get(bucket)
        if table is None:
            # The estimates of the neighboring bucket count for little here.
            near = self._nearest(bucket)
            weights_FD = np.minimum(near.weights_FD, MIN_WEIGHT)
            table = self._tables[bucket] = _Table(near.hazards_FD, weights_FD, self._round)
        old_FD, weights_FD = table.hazards_FD, table.weights_FD
        fade = 0.5 ** ((self._round - table.round) / HALF_LIFE)
        faded_FD = np.maximum(weights_FD * fade, np.minimum(weights_FD, MIN_WEIGHT))
        weights_FD = faded_FD + counts.trials_FD
        new_FD = np.clip(old_FD + (counts.hits_FD - counts.trials_FD * old_FD) / weights_FD, *BOUNDS)

        # Unreached estimates move as those of the arm that ran; below its depth, as at its last depth.
        lead, last = counts.lead, counts.lead_depth - 1
        shift_D = _log_odds(new_FD[lead]) - _log_odds(old_FD[lead])
        shift_D[last + 1 :] = shift_D[last]
        depths_D = np.arange(len(shift_D))
        unreached_FD = depths_D >= np.array(counts.reach_F)[:, None]
        shifted_FD = 1.0 / (1.0 + np.exp(-(_log_odds(old_FD) + shift_D)))
        table.hazards_FD = np.where(unreached_FD, np.clip(shifted_FD, *BOUNDS), new_FD)
        table.weights_FD, table.round, table.expected = weights_FD, self._round, None

    def _nearest(self, bucket: int) -> _Table:
        """Returns the table of the bucket, else of the nearest bucket with data, else the prior.

        Of two buckets at the same distance, the one with shorter contexts is used.
        """
        if not self._tables:
            return self._prior
        return self._tables[min(self._tables, key=lambda other: (abs(other - bucket), other))]

    def _by_arm(self, hazards_FD: np.ndarray) -> list[float]:
        """Returns the expected tokens 1 + h0 + h0 h1 + ... of each arm; 1 for the arm `off`."""
        reached_FD = hazards_FD.cumprod(axis=1).cumsum(axis=1)
        return [
            1.0 if place is None else 1.0 + float(reached_FD[place[0], place[1] - 1]) for place in self._place.values()
        ]


def _build_prior(largest: Sequence[Arm], prior: AcceptancePrior) -> _Table:
    """Returns the table before the first round. largest: the largest arm of each family."""
    depth = max((arm.depth for arm in largest), default=1)
    hazards_FD, weights_FD = np.empty((len(largest), depth)), np.full((len(largest), depth), PRIOR_WEIGHT)
    for number, arm in enumerate(largest):
        hazards_FD[number] = PRIOR_CHAIN if arm.is_chain else PRIOR_TREE
        if measured := prior.by_depth.get(arm.name):
            # Depths beyond the measured ones are as the last.
            hazards_FD[number] = (*measured, *[measured[-1]] * depth)[:depth]
            weights_FD[number] = MEASURED_WEIGHT
    return _Table(hazards_FD.clip(*BOUNDS), weights_FD, 0)


def _contains(ran: Arm, family: _Family) -> bool:
    """Returns True if the tree of the family is no larger than the tree of the arm that ran."""
    return family.nodes <= ran.nodes and family.depth <= ran.depth


def _log_odds(shares: np.ndarray) -> np.ndarray:
    return np.log(shares / (1.0 - shares))
