"""Predicts how many tokens each arm would accept, for the budget. It learns from the rounds of all arms.

F families (all chains are one, each tree one), D depths, A arms. One table for each context bucket.

    hazard[f, d]   share of the rounds that accept depth d + 1 among those that accepted depth d
    E[tokens]      1 + h0 + h0 h1 + h0 h1 h2 + ...       down to the depth of the arm

A round of tree16 shows exactly what tree8 would have accepted (see `acceptance_trace`), and what a chain would have
accepted as far as the most likely path had rows. The estimates that a round cannot show (larger trees, deeper levels)
keep their last value, shifted in log-odds by as much as the largest arm that ran has moved at that depth. So harder
traffic also lowers the estimates of arms that do not run, and measured differences between two arms are kept.

The weight of old rounds halves every HALF_LIFE rounds, but not below MIN_WEIGHT: an arm that has not run for long keeps
its estimate until a few rounds contradict it. It does not return to the prior.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.speculation.arms import Arm
from eyas.tree.acceptance_length import context_bucket

HALF_LIFE = 400  # rounds
FIRST_ROUNDS, LEARN_ROUNDS = 64, 8
MIN_WEIGHT = 8.0  # rounds
PRIOR_WEIGHT = 4.0
# Those of a very good head: a large arm is tried first, and a few of its rounds show the acceptance of all others.
PRIOR_CHAIN, PRIOR_TREE = 0.8, 0.9
FIRST_BUCKET = 512  # tokens: shorter contexts are one bucket, then one for each doubling
BOUNDS = (0.005, 0.995)  # log-odds stay finite


@dataclass(frozen=True)
class ExpectedTokens:
    """Tokens of one request in one round by arm, bonus token included; and an upper estimate, for exploration."""

    tokens: tuple[float, ...]
    optimistic: tuple[float, ...]


@dataclass
class _Table:
    """The estimates of one context bucket: hazards, their numbers of rounds, and the round of the last update."""

    hazards_FD: np.ndarray
    weights_FD: np.ndarray
    round: int
    expected: ExpectedTokens | None = None


@dataclass(frozen=True)
class _Family:
    """Arms that share hazards. top_k 1: all chains; `nodes` and `depth` are those of the longest."""

    top_k: int
    nodes: int
    depth: int


@dataclass
class _Counts:
    """Counts from rounds of one arm in one bucket. reach_F: the deepest level that they cover, by family."""

    trials_FD: np.ndarray
    hits_FD: np.ndarray
    reach_F: list[int]
    lead: int = 0
    lead_depth: int = field(default=0)


class AcceptanceModel:
    """Expected tokens by arm and context, estimated from acceptance traces on the host."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        """Initializes the estimates with the prior. arms: the first one is off."""
        chains = [arm for arm in arms if arm.is_chain]
        families = [_Family(1, max(a.nodes for a in chains), max(a.depth for a in chains))] if chains else []
        self._place: dict[Arm, tuple[int, int] | None] = {}
        for arm in arms:
            if arm.shape is None:
                self._place[arm] = None
            elif arm.is_chain:
                self._place[arm] = (0, arm.depth)
            else:
                self._place[arm] = (len(families), arm.depth)
                families.append(_Family(arm.shape.top_k, arm.nodes, arm.depth))
        self._families = families
        depth = max((family.depth for family in families), default=1)
        priors_F = np.array([PRIOR_CHAIN if family.top_k == 1 else PRIOR_TREE for family in families])
        self._prior = _Table(
            np.repeat(priors_F[:, None], depth, axis=1), np.full((len(families), depth), PRIOR_WEIGHT), 0
        )
        self._tables: dict[int, _Table] = {}
        self._round = 0
        self._counted: dict[int, _Counts] = {}  # rounds that are not learned yet, all of one arm
        self._counted_arm: Arm | None = None
        self._learned_round = 0

    def expected(self, context: int) -> ExpectedTokens:
        """Returns the estimates for `context` tokens before the root, from the nearest bucket with data."""
        table = self._nearest(context_bucket(context, FIRST_BUCKET))
        if table.expected is None:
            hazards_FD, weights_FD = table.hazards_FD, table.weights_FD
            # The term 1 / 4n keeps a spread after a few rounds without a hit.
            spread_FD = np.sqrt((hazards_FD * (1 - hazards_FD) + 0.25 / weights_FD) / weights_FD)
            tokens = self._by_arm(hazards_FD)
            table.expected = ExpectedTokens(tokens, self._by_arm(np.minimum(hazards_FD + spread_FD, 1.0)))
        return table.expected

    def observe(self, traces: Sequence[AcceptanceTrace]) -> None:
        """Learns from the traces of one round; a round that drafted nothing only counts as a round.

        After the first FIRST_ROUNDS, up to LEARN_ROUNDS rounds of one arm are learned together, because an update takes
        longer than counting.
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
        """Counts the trace of one request for each family that its arm contains."""
        ran = item.arm
        place = self._place[ran]
        assert place is not None, "off drafts nothing"
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
        """Returns the table of the bucket, else of the nearest with data (shorter contexts first), else the prior."""
        if not self._tables:
            return self._prior
        return self._tables[min(self._tables, key=lambda other: (abs(other - bucket), other))]

    def _by_arm(self, hazards_FD: np.ndarray) -> tuple[float, ...]:
        """Computes 1 + h0 + h0 h1 + ... for each arm."""
        reached_FD = hazards_FD.cumprod(axis=1).cumsum(axis=1)
        return tuple(
            1.0 if place is None else 1.0 + float(reached_FD[place[0], place[1] - 1]) for place in self._place.values()
        )


def _contains(ran: Arm, family: _Family) -> bool:
    """Returns True if every tree of the family is a part of the tree that ran."""
    return family.nodes <= ran.nodes and family.depth <= ran.depth


def _log_odds(shares: np.ndarray) -> np.ndarray:
    return np.log(shares / (1.0 - shares))
