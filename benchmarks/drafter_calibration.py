"""Compares what an engine expects of drafts with what the target accepts. `prove_drafters.py` calls it.

A *graded* node is a verified node whose parent was accepted: the target said if it is right. Its probability is that of
the head, given its parent. Two runs of greedy requests give the counts, for each head:

    a fixed tree       ECE and Brier score of the probabilities of graded nodes, by depth; and the tokens of a round
                       that the probabilities of all nodes of its tree promise
    the budget auto    the tokens of a round that the budget expected, against those that it brought
    copies             ECE and Brier score of the nodes of a tree into which copies of earlier text were merged, on the
                       scale that head and copies share (`tree.node_scale`). The scale learns from the first half of the
                       prompts, the other half is measured. Beside it: the same with the head's own probabilities

ECE is the expected calibration error with bins of equal width. The gain of the Brier score is 1 minus its ratio to that
of the base rate, which is the share of right nodes of the depth.

B requests, M tree nodes, X graded nodes.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from unittest import mock

import torch
from drafter_heads import NAMES, Kind
from result_rows import Row
from torch import Tensor

from eyas.bench.engine_load import build_auto_engine, build_fixed_arm_engine
from eyas.bench.engine_request_loops import run_closed_loop
from eyas.bench.workload import Prompt
from eyas.drafters.head_spec import HeadSpec
from eyas.engine import model_runner
from eyas.engine.engine import Engine
from eyas.model.target import Target
from eyas.speculation.arms import default_arms
from eyas.speculation.batch_load import BatchLoad, FixedArm, RoundReport, SpeculationDecision
from eyas.speculation.budget import Budget
from eyas.speculation.copy_index import CopyFinder
from eyas.tree.node_scale import IDENTITY_N, NodeScale
from eyas.tree.tree import Tree
from eyas.tree.verify import AcceptedPath, verify

STREAMS, MAX_TOKENS, ARM = 4, 96, "tree16"
BINS, MIN_NODES = 20, 500  # a depth with fewer graded nodes is left out
MAX_ECE, LEAST_GAIN, MAX_BIAS = 0.03, 0.10, 0.02


class GradedNodes:
    """The graded nodes of all rounds in a context, and what their trees promised.

    Attributes:
        depths, probs, hits: Of the graded nodes of each round: depth, probability, and 1.0 for an accepted node.
        promised, accepted: The sums over all rounds of promised and accepted tokens, bonus tokens included.
        rounds: The number of rounds, of one request each.
    """

    def __init__(self) -> None:
        self.depths: list[Tensor] = []
        self.probs: list[Tensor] = []
        self.hits: list[Tensor] = []
        self.promised = self.accepted = 0.0
        self.rounds = 0

    def watch(self) -> AbstractContextManager[object]:
        """Returns a context in which the rounds of all engines are counted."""
        return mock.patch.object(model_runner, "verify", self._verify)

    def _verify(self, tree: Tree, ids_BM: Tensor) -> AcceptedPath:
        path = verify(tree, ids_BM)
        drafts_B = tree.valid_BM[:, 1:].any(1)
        if bool(drafts_B.any()):
            self._count(tree, path, drafts_B)
        return path

    def _count(self, tree: Tree, path: AcceptedPath, drafts_B: Tensor) -> None:
        on_path_BM = torch.zeros_like(tree.valid_BM).scatter_(1, path.nodes_BS, True)  # unused slots are the root
        graded_BM = on_path_BM.gather(1, tree.parents_BM) & tree.valid_BM & (tree.depths_BM > 0)
        probs_BM = (tree.scores_BM - tree.scores_BM.gather(1, tree.parents_BM)).exp()
        self.depths.append(tree.depths_BM[graded_BM])
        self.probs.append(probs_BM[graded_BM])
        self.hits.append(on_path_BM[graded_BM].float())
        reached_BM = tree.scores_BM.exp().masked_fill(~tree.valid_BM, 0)  # 1 for the root: the bonus token
        self.promised += float(reached_BM.sum(1)[drafts_B].sum())
        self.accepted += float(path.lengths_B[drafts_B].sum())
        self.rounds += int(drafts_B.sum())

    def by_depth(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Returns probs_X and hits_X of each depth with enough graded nodes."""
        depths_X, probs_X, hits_X = (torch.cat(part) for part in (self.depths, self.probs, self.hits))
        found = {}
        for depth in range(1, int(depths_X.max()) + 1):
            which_X = depths_X == depth
            if int(which_X.sum()) >= MIN_NODES:
                found[depth] = probs_X[which_X], hits_X[which_X]
        return found


def calibration_error(probs_X: Tensor, hits_X: Tensor) -> float:
    """Returns the ECE: the mean distance of probability and share of right nodes over the bins, by their nodes."""
    bins_X = (probs_X * BINS).long().clamp(max=BINS - 1)
    gaps_b = torch.zeros(BINS).index_add_(0, bins_X, probs_X - hits_X)
    return float(gaps_b.abs().sum() / len(probs_X))


def chance_error(probs_X: Tensor) -> float:
    """Returns the ECE that nodes with exactly these probabilities have by chance, in the mean of many draws."""
    bins_X = (probs_X * BINS).long().clamp(max=BINS - 1)
    variances_b = torch.zeros(BINS).index_add_(0, bins_X, probs_X * (1 - probs_X))
    return float((variances_b * 2 / torch.pi).sqrt().sum() / len(probs_X))


def brier_gain(probs_X: Tensor, hits_X: Tensor) -> float:
    """Returns 1 minus the Brier score over that of the base rate; 0 if all nodes are equal."""
    base = float((hits_X - hits_X.mean()).square().mean())
    return 1 - float((probs_X - hits_X).square().mean()) / base if base else 0.0


class WatchedAcceptance:
    """A budget that adds up the tokens that it expects of each traced round, and the tokens that the round brought."""

    def __init__(self, budget: Budget) -> None:
        self.arms, self.decide = budget.arms, budget.decide
        self.expected = self.brought = 0.0
        self._budget = budget

    def observe(self, report: RoundReport) -> None:
        """Counts the rounds of the requests, then learns from them."""
        for trace in report.traces:
            estimates = self._budget.acceptance_model.expected([trace.context])
            self.expected += estimates.tokens[self.arms.index(trace.arm)]
            self.brought += len(trace.min_nodes) + 1
        self._budget.observe(report)


def grade_nodes(target: Target, spec: HeadSpec, prompts: Sequence[Prompt]) -> GradedNodes:
    """Answers the prompts with a fixed tree and returns the graded nodes."""
    arms = {arm.name: arm for arm in default_arms(spec.head.config.max_depth)}
    context = max(len(prompt.ids) for prompt in prompts) + MAX_TOKENS
    nodes, engine = GradedNodes(), build_fixed_arm_engine(target, spec, arms[ARM], STREAMS, context)
    with nodes.watch():
        run_closed_loop(engine, prompts, MAX_TOKENS)
    return nodes


def budget_bias(target: Target, spec: HeadSpec, prompts: Sequence[Prompt]) -> float:
    """Returns the tokens that the budget expected of its rounds, over those that they brought, minus 1."""
    context = max(len(prompt.ids) for prompt in prompts) + MAX_TOKENS
    engine = build_auto_engine(target, spec, STREAMS, context)
    budget = engine.policies[0]
    assert isinstance(budget, Budget), "the policy of an automatic engine"
    watched = engine.policies[0] = WatchedAcceptance(budget)
    run_closed_loop(engine, prompts, MAX_TOKENS)
    return watched.expected / watched.brought - 1


class CopiesBeside(FixedArm):
    """A policy that verifies copies beside the fixed tree in each round in which a request has one."""

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        """Returns the decision to run the fixed arm for all requests."""
        decision = super().decide(load)
        return replace(decision, copies="beside", predicted_s=1.0) if any(load.copies) else decision


def grade_merged(target: Target, spec: HeadSpec, prompts: Sequence[Prompt], learns: bool) -> GradedNodes:
    """Answers the prompts with copies beside a fixed tree. Returns the graded nodes of the second half of the prompts.

    Args:
        target: The target.
        spec: The head.
        prompts: The prompts.
        learns: False to keep the head's own probabilities.
    """
    arm = next(arm for arm in default_arms(spec.head.config.max_depth) if arm.name == ARM)
    context, nodes = max(len(prompt.ids) for prompt in prompts) + MAX_TOKENS, GradedNodes()
    engine = Engine(target, [replace(spec, shape=arm.shape)], STREAMS, context, copies=CopyFinder(0))
    engine.policies[0] = CopiesBeside(arm)
    with contextlib.ExitStack() as stack:
        if not learns:
            stack.enter_context(mock.patch.object(NodeScale, "learn"))
        run_closed_loop(engine, prompts[::2], MAX_TOKENS)
        with nodes.watch():
            run_closed_loop(engine, prompts[1::2], MAX_TOKENS)
    return nodes


def measure_scale(
    target: Target, specs: Mapping[Kind, HeadSpec], prompts: Sequence[Prompt], where: str
) -> Iterator[Row]:
    """Yields the rows of merged trees: with the head's own probabilities, and on the common scale."""
    for kind, spec in specs.items():
        for learns in (False, True):
            raw = replace(spec, node_prior_N=spec.node_prior_N if learns else IDENTITY_N)
            nodes = grade_merged(target, raw, prompts, learns)
            told = f"{where}, {NAMES[kind]} head, {ARM} and copies, {'one scale' if learns else 'uncalibrated'}"
            rows = list(_depth_rows(nodes.by_depth(), told))
            yield from rows if learns else [replace(row, target="told", ok=True) for row in rows]
            name = f"{told}: tokens per round that the probabilities promise, over accepted ones, minus 1"
            yield Row(name, round(nodes.promised / nodes.accepted - 1, 4), "told", True)


def measure_calibration(
    target: Target, specs: Mapping[Kind, HeadSpec], prompts: Sequence[Prompt], where: str
) -> Iterator[Row]:
    """Yields the rows of each head: the worst depth of ECE and of the Brier score, and the bias of expected tokens."""
    for kind, spec in specs.items():
        nodes = grade_nodes(target, spec, prompts)
        by_depth, told = nodes.by_depth(), f"{where}, {NAMES[kind]} head, {ARM}"
        if by_depth:
            yield from _depth_rows(by_depth, told)
        promised = nodes.promised / nodes.accepted - 1
        name = f"{told}: tokens per round that its probabilities promise, over accepted ones, minus 1"
        yield Row(name, round(promised, 4), "told", True)
        bias = budget_bias(target, spec, prompts)
        name = (
            f"{where}, {NAMES[kind]} head, auto: tokens per round that the budget expects, over accepted ones, minus 1"
        )
        yield Row(name, round(bias, 4), f"at most {MAX_BIAS:g} either way", abs(bias) <= MAX_BIAS)


def _depth_rows(by_depth: Mapping[int, tuple[Tensor, Tensor]], told: str) -> Iterator[Row]:
    errors = {depth: calibration_error(*graded) for depth, graded in by_depth.items()}
    gains = {depth: brier_gain(*graded) for depth, graded in by_depth.items()}
    chance = ", ".join(f"{chance_error(probs_X):.3f}" for probs_X, _ in by_depth.values())
    worst, least = max(errors, key=errors.__getitem__), min(gains, key=gains.__getitem__)
    yield Row(f"{told}: ECE of node probabilities, worst depth", round(errors[worst], 4), f"at most {MAX_ECE:g}",
              errors[worst] <= MAX_ECE, note=f"{_list_depths(errors)}; by chance alone {chance}")  # fmt: skip
    yield Row(f"{told}: Brier score better than the base rate's by, worst depth", round(gains[least], 4),
              f"at least {LEAST_GAIN:g}", gains[least] >= LEAST_GAIN, note=_list_depths(gains))  # fmt: skip


def _list_depths(values: Mapping[int, float]) -> str:
    return ", ".join(f"depth {depth} {value:.3f}" for depth, value in values.items())
