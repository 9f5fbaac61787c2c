"""A world with known truth for the budget: heads that guess well or badly, machines that are fast or slow.

S samples (states of a text), K top-k, C candidates of a tree, W nodes that are expanded in one level.

A sample is one place in a text: what the head believes there, and what the target says. The draft trees are grown here
by numpy, apart from `eyas.tree`, and each arm's accepted tokens are read off its own tree, not off a larger one.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.speculation.arms import Arm, default_arms
from eyas.speculation.batch_load import BatchLoad, RoundReport
from eyas.speculation.budget import Budget
from eyas.speculation.round_costs import CostTable, batch_sizes

TOP_K, DEPTH = 4, 8
ARMS = default_arms()


@dataclass(frozen=True)
class Sample:
    """What each arm would accept here, drafted tokens and bonus, and the evidence that a round of it would bring."""

    accepted: dict[str, int]
    evidence: dict[str, tuple[tuple[int, ...], int, int]]


@dataclass(frozen=True)
class Head:
    """A pool of samples, drawn with replacement: the means over it are the truth."""

    samples: tuple[Sample, ...]

    def tokens(self, arm: Arm) -> float:
        """Expected tokens of one request in one round."""
        return float(np.mean([sample.accepted[arm.name] for sample in self.samples]))


def head(sureness: float, truth: float, seed: int, num_samples: int = 1500) -> Head:
    """sureness: how much of its belief the head puts on its first guess, on average; it varies from place to place.

    truth: how far its belief is right. The target's token is the head's j-th guess with probability truth * belief[j].
    """
    rng = np.random.default_rng(seed)
    spread = rng.beta(3 * sureness, 3 * (1 - sureness), size=(num_samples, 1, 1))

    def guesses(width: int) -> tuple[np.ndarray, np.ndarray]:
        """Beliefs in the K best tokens after W nodes, [S, W, K], and which of them the target says (K: none)."""
        firsts = rng.beta(0.3 + 6 * spread, 0.3 + 6 * (1 - spread), size=(num_samples, width, 1))
        rest = (1 - firsts) * np.array([0.5, 0.25, 0.125])
        beliefs = -np.sort(-np.concatenate((firsts, rest), axis=2), axis=2)
        coins = rng.random((num_samples, width, 1))
        return np.log(beliefs), (coins > truth * beliefs.cumsum(axis=2)).sum(axis=2)

    rows_S1 = np.arange(num_samples)[:, None]
    beliefs, said = guesses(1)
    scores, true = beliefs[:, 0], said[:, :1] == np.arange(TOP_K)
    chain = np.zeros((num_samples, TOP_K), dtype=bool)
    chain[:, 0] = True
    chain_true = [true[:, 0]]  # by depth: whether the chain is right up to there
    levels = [(scores, true, chain)]
    for _ in range(1, DEPTH):
        order = np.argsort(-scores, axis=1, kind="stable")[:, :TOP_K]
        scores, true, chain = scores[rows_S1, order], true[rows_S1, order], chain[rows_S1, order]
        beliefs, said = guesses(TOP_K)
        hits = said[:, :, None] == np.arange(TOP_K)
        # Where the chain is no longer among the expanded nodes, its next guess is drawn apart.
        _, apart = guesses(1)
        in_tree = chain.any(axis=1)
        chain_true.append(chain_true[-1] & np.where(in_tree, (hits[:, :, 0] & chain).any(axis=1), apart[:, 0] == 0))
        first = np.zeros(TOP_K, dtype=bool)
        first[0] = True
        scores = (scores[:, :, None] + beliefs).reshape(num_samples, -1)
        true = (true[:, :, None] & hits).reshape(num_samples, -1)
        chain = (chain[:, :, None] & first).reshape(num_samples, -1)
        levels.append((scores, true, chain))
    return Head(_samples(levels, np.stack(chain_true, axis=1)))


def hazards(one: Head) -> dict[str, tuple[float, ...]]:
    """Returns the conditional acceptance at each depth, by arm, as `eyas eval` measures it."""
    found = {}
    for arm in ARMS[1:]:
        accepted_S = np.array([sample.accepted[arm.name] for sample in one.samples])
        trials = [max(int((accepted_S > depth).sum()), 1) for depth in range(arm.depth + 1)]
        found[arm.name] = tuple(after / before for before, after in itertools.pairwise(trials))
    return found


def _samples(levels: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], chain_true: np.ndarray) -> tuple[Sample, ...]:
    num_samples = len(chain_true)
    accepted: list[dict[str, int]] = [{"off": 1} for _ in range(num_samples)]
    evidence: list[dict[str, tuple[tuple[int, ...], int, int]]] = [{} for _ in range(num_samples)]
    right = chain_true.cumprod(axis=1)
    for arm in ARMS[1:]:
        if arm.is_chain:
            kept = right[:, : arm.depth].sum(axis=1)
            for place, count in enumerate(kept.tolist()):
                accepted[place][arm.name] = count + 1
                evidence[place][arm.name] = tuple(range(2, count + 2)), count, arm.depth
            continue
        scores, true, chain = (
            np.concatenate([level[part] for level in levels[: arm.depth]], axis=1) for part in range(3)
        )
        ranks = np.empty_like(scores, dtype=np.int64)
        np.put_along_axis(ranks, np.argsort(-scores, axis=1, kind="stable"), np.arange(scores.shape[1])[None], axis=1)
        needs = ranks + 2
        for place in range(num_samples):
            mine = needs[place] <= arm.nodes
            path = tuple(needs[place][true[place] & mine].tolist())
            accepted[place][arm.name] = len(path) + 1
            on_chain = int((true[place] & mine & chain[place]).sum())
            evidence[place][arm.name] = path, on_chain, int((chain[place] & mine).sum())
    return tuple(Sample(a, e) for a, e in zip(accepted, evidence, strict=True))


@dataclass(frozen=True)
class Machine:
    """True seconds of a round: a target's rows, the head's levels and its extend; attention grows with the context."""

    step_s: float = 0.007
    row_s: float = 0.00014
    level_s: float = 0.0007
    head_row_s: float = 0.00001
    token_s: float = 0.5e-7  # by row and token of context

    def seconds(self, arm: Arm, contexts: Sequence[int]) -> float:
        """Of a whole round. One row costs step_s; rows beyond it row_s each."""
        rows = arm.nodes * len(contexts)
        seconds = self.step_s + self.row_s * (rows - 1) + self.token_s * arm.nodes * sum(contexts)
        if arm.shape is None:
            return seconds
        grown = arm.depth * arm.shape.top_k * len(contexts)
        return seconds + self.level_s * (arm.depth + 1) + self.head_row_s * (grown + 3 * len(contexts))

    def mixed_seconds(self, arms: Sequence[Arm], contexts: Sequence[int]) -> float:
        """Of a round in which some requests draft and the others do not."""
        drafting = [arm for arm in arms if arm.shape is not None]
        if not drafting:
            return self.seconds(ARMS[0], contexts)
        some = [context for arm, context in zip(arms, contexts, strict=True) if arm.shape is not None]
        plain = [context for arm, context in zip(arms, contexts, strict=True) if arm.shape is None]
        return self.seconds(drafting[0], some) + self.row_s * len(plain) + self.token_s * sum(plain)

    def warm_cost(self, rows: int) -> float:
        """The head reads what it missed."""
        return self.level_s + self.head_row_s * rows

    def table(self, slots: int, errors: dict[str, float] | None = None) -> CostTable:
        """What measuring this machine gives; errors: by arm, how many times the truth it says."""
        scales = [(errors or {}).get(arm.name, 1.0) for arm in ARMS]
        seconds = tuple(
            tuple(scale * self.seconds(arm, [512] * batch) for batch in batch_sizes(slots))
            for arm, scale in zip(ARMS, scales, strict=True)
        )
        per_token = tuple(self.token_s * arm.nodes for arm in ARMS)
        return CostTable(tuple(arm.name for arm in ARMS), batch_sizes(slots), 512, seconds, per_token)


@dataclass(frozen=True)
class Scene:
    """One round of the world: who runs, with which head, how much slower than the machine should be."""

    contexts: tuple[int, ...]
    heads: tuple[Head, ...]
    slower: float = 1.0


@dataclass
class Outcome:
    """Expected tokens and true seconds of a whole run, exploring and warming included, without the luck of the draw.

    by_arm: rounds. fixed_s: what each arm would have taken for the same tokens in the same scenes. All but off
    read each prompt once.
    """

    seconds: float
    by_arm: dict[str, int]
    fixed_s: dict[str, float]
    names: list[str]

    @property
    def share(self) -> float:
        """Of the throughput of the best fixed arm."""
        return min(self.fixed_s.values()) / self.seconds

    @property
    def best(self) -> str:
        """The best fixed arm."""
        return min(self.fixed_s, key=self.fixed_s.__getitem__)

    @property
    def speed_up(self) -> float:
        """Over off."""
        return self.fixed_s["off"] / self.seconds


@dataclass(frozen=True)
class Weather:
    """How measured seconds differ from true ones: noise (of the logarithm), and every so often ten times as long."""

    noise: float = 0.03
    outliers: float = 0.0
    late: int = 1  # rounds until a report arrives
    ends: float = 0.005  # a request ends after a round with this probability, and another takes its place


def run(
    budget: Budget,
    machine: Machine,
    scene_at: Callable[[int], Scene],
    rounds: int,
    weather: Weather = Weather(),
    seed: int = 0,
) -> Outcome:
    """Play rounds."""
    rng = np.random.default_rng(seed)
    pending: list[RoundReport] = []
    outcome = Outcome(0.0, {arm.name: 0 for arm in ARMS}, {arm.name: 0.0 for arm in ARMS}, [])
    truths: dict[object, dict[str, tuple[list[float], float]]] = {}
    lags: list[int] = []
    new_prompt_tokens = 0
    usual = 1 + 9 * weather.outliers
    for number in range(rounds):
        scene = scene_at(number)
        key = scene.contexts, tuple(id(one) for one in scene.heads), scene.slower
        if key not in truths:
            truths[key] = _truth(machine, scene)
        truth = truths[key]
        lags = (lags + [0] * len(scene.contexts))[: len(scene.contexts)]
        choice = budget.decide(BatchLoad(scene.contexts, tuple(lags), (), new_prompt_tokens))
        new_prompt_tokens = 0
        arms = [choice.arm if drafts else ARMS[0] for drafts in choice.drafts]
        samples = [one.samples[int(rng.integers(len(one.samples)))] for one in scene.heads]
        gained = [sample.accepted[arm.name] for arm, sample in zip(arms, samples, strict=True)]
        true_s = scene.slower * machine.mixed_seconds(arms, scene.contexts) * usual
        unread = sum(lag for lag, drafts in zip(lags, choice.drafts, strict=True) if drafts)
        true_s += machine.warm_cost(unread) if unread else 0.0
        took_s = true_s / usual * float(np.exp(weather.noise * rng.standard_normal()))
        took_s *= 10.0 if rng.random() < weather.outliers else 1.0
        for place, drafts in enumerate(choice.drafts):
            lags[place] = 0 if drafts else lags[place] + 1
            if rng.random() < weather.ends:
                lags[place] = scene.contexts[place]  # the prompt of the next request
                new_prompt_tokens += scene.contexts[place]
                for name in outcome.fixed_s:
                    outcome.fixed_s[name] += 0.0 if name == "off" else machine.warm_cost(scene.contexts[place])
        outcome.by_arm[choice.arm.name] += 1
        outcome.names.append(choice.arm.name)
        outcome.seconds += true_s
        tokens = sum(truth[arm.name][0][place] for place, arm in enumerate(arms))
        for name, (_, token_s) in truth.items():
            outcome.fixed_s[name] += tokens * token_s * usual
        found = [
            AcceptanceTrace(arm, context, *sample.evidence[arm.name])
            for arm, context, sample in zip(arms, scene.contexts, samples, strict=True)
            if arm.shape is not None
        ]
        pending.append(RoundReport(choice, took_s, sum(gained), tuple(found)))
        if len(pending) > weather.late:
            budget.observe(pending.pop(0))
    return outcome


def _truth(machine: Machine, scene: Scene) -> dict[str, tuple[list[float], float]]:
    """By arm: expected tokens of each request, and seconds a token if the round runs it."""
    means = {id(one): {arm.name: one.tokens(arm) for arm in ARMS} for one in scene.heads}
    found = {}
    for arm in ARMS:
        tokens = [means[id(one)][arm.name] for one in scene.heads]
        found[arm.name] = tokens, scene.slower * machine.seconds(arm, scene.contexts) / sum(tokens)
    return found
