"""Predicts the tokens per second of every draft that `eyas tune` compares, and chooses the best ones.

    tokens per second of a tree at n streams = n * acceptance length / seconds of a round with n requests

The rounds of all trees run on one engine that has all heads. The heads take turns, so that a slow moment of the machine
affects all. Not every tree is timed. Of the trees that differ only in depth, the shallowest and the deepest are timed;
of the chains, also those of 2, 4, 8, ... levels. The times of other depths are interpolated, because each level adds
the same work to the same number of rows.

Copies of earlier text are rated alone, and beside the best tree of each head at each n. A copy is used where it is
expected to bring more tokens per second than the round without it, as speculation.copy_budget decides for a batch.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eyas.base.progress import Progress
from eyas.bench.config import TuneConfig
from eyas.drafters.heads import draft_with
from eyas.engine.cost_profiler import CostProfiler
from eyas.engine.engine import Engine
from eyas.evaluation.copy_replay import CopyReplay
from eyas.evaluation.tree_sweep import TreeAcceptance
from eyas.formats.head_dir import StoredHead
from eyas.kernels.aot_compile import compile_pair
from eyas.model.target import Target
from eyas.speculation.arms import OFF, Arm
from eyas.speculation.batch_load import BatchLoad
from eyas.speculation.copy_budget import MIN_GAIN
from eyas.speculation.copy_index import COPY, MAX_COPY, CopyFinder
from eyas.speculation.round_costs import LONG_CONTEXT, CostTable, batch_sizes, measure_cost_table
from eyas.tree.acceptance_length import acceptance_length
from eyas.tree.shape import TreeShape, chain_shape

SCHEMA = 1
TIE_MARGIN = 0.01  # among drafts within this share of the best throughput, the one with the fewest nodes is chosen
REPEATS = 2  # measurements of a round; the fastest is used, because other processes only make a round slower
WITHOUT_HEAD = (OFF, Arm(COPY.name, chain_shape(1)), COPY)
"""The rounds without a head that are timed: plain decoding, and copies of one token and of MAX_COPY tokens."""


@dataclass(frozen=True)
class Prediction:
    """The predicted throughput of a draft at one number of streams.

    Attributes:
        tree: The tree; None: no head drafts.
        acceptance_length: The acceptance length.
        tps: The predicted output tokens per second, over all streams.
        speedup: `tps` divided by the tokens per second without speculation.
        head: The directory of the head; None if no head drafts.
        copies: True if copies of earlier text are drafted, beside the tree or alone.
    """

    tree: TreeShape | None
    acceptance_length: float
    tps: float
    speedup: float
    head: str | None = None
    copies: bool = False

    @property
    def size(self) -> tuple[int, int, bool]:
        """The number of nodes, the depth, and `copies`. Of two equally fast drafts the smaller one is chosen."""
        return (0, 0, self.copies) if self.tree is None else (self.tree.nodes, self.tree.depth, self.copies)


@dataclass(frozen=True)
class RatedHead:
    """A head, and the acceptance length of each of its trees.

    Attributes:
        directory: The directory of the head.
        kind: "eagle3" or "block".
        trees: The trees.
    """

    directory: str
    kind: str
    trees: Sequence[TreeAcceptance]


class RoundCosts:
    """The seconds of a round for every tree of the configuration, interpolated between the trees that were timed."""

    def __init__(self, table: CostTable, arms: Sequence[tuple[int, Arm]]) -> None:
        """Stores the measured costs. Row i of `table` is for arms[i]: a head's number and its arm.

        Requirement: the first arms are WITHOUT_HEAD.
        """
        self.table = table
        self._arms = list(enumerate(arms))[len(WITHOUT_HEAD) :]

    @classmethod
    def measure(cls, config: TuneConfig, heads: Sequence[StoredHead], target: Target, progress: bool) -> "RoundCosts":
        """Times the arms of all heads in turns on a new engine, in the dtype and on the device of the target."""
        arms = arms_to_measure([config.shape_groups(stored.config.max_depth) for stored in heads])
        drafts = []
        for number, stored in enumerate(heads):
            own = tuple(arm for head, arm in arms if head == number)
            drafts.append(dataclasses.replace(draft_with(target.model.device, stored, chain_shape(1)), arms=own))
            if config.compile:
                compile_pair(target, stored.head)
        slots = max(config.streams)
        # The requests of a profiled round share their KV slots, so the memory of one request is enough.
        engine = Engine(target, drafts, slots, LONG_CONTEXT, memory_tokens=1, copies=CopyFinder(0))
        profilers = [CostProfiler(engine, number) for number in range(len(heads))]
        num_cells = len(arms) * (len(batch_sizes(slots)) + 1)
        with Progress("tune, rounds", num_cells, "arms and batches", enabled=progress) as bar:
            timed: set[tuple[str, int, int]] = set()

            def measure_s(numbered: Arm, batch: int, context: int) -> float:
                cell = (numbered.name, batch, context)
                bar.advance(cell not in timed)
                timed.add(cell)
                head, arm = arms[int(numbered.name)]
                return min(profilers[head].measure_round_s(arm, batch, context) for _ in range(REPEATS))

            numbered = [Arm(str(number), arm.shape) for number, (_, arm) in enumerate(arms)]
            limit_s = config.allowance_s * len(heads) / REPEATS
            table = measure_cost_table(numbered, slots, profilers[0].max_context, measure_s, limit_s)
        return cls(table, arms)

    def seconds(self, shape: TreeShape | None, streams: int, context: int, head: int = 0) -> float:
        """Returns the seconds of a round of `streams` requests of `context` tokens. shape None: no speculation."""
        load = BatchLoad((context,) * streams, (0,) * streams)
        if shape is None:
            return self.table.seconds_for(0, load)
        family = {
            arm.shape.depth: self.table.seconds_for(index, load)
            for index, (number, arm) in self._arms
            if number == head and arm.shape is not None and _family(arm.shape) == _family(shape)
        }
        return float(np.interp(shape.depth, sorted(family), [family[depth] for depth in sorted(family)]))

    def copy_seconds(self, streams: int, context: int, copies: float, rows: float) -> float:
        """Returns the seconds that copies add to a round.

        Args:
            streams: The number of requests.
            context: The tokens of each request.
            copies: The copies of each request in a round, on average.
            rows: The rows of these copies beyond those of the tree.
        """
        load = BatchLoad((context,) * streams, (0,) * streams)
        off_s, one_s, all_s = (self.table.seconds_for(number, load) for number in range(len(WITHOUT_HEAD)))
        row_s = max(all_s - one_s, 0.0) / (MAX_COPY - 1)
        return max(one_s - off_s, 0.0) * copies + row_s * max(rows - copies, 0.0)


def _family(shape: TreeShape) -> tuple[int, int | None]:
    """Returns a key that is equal for trees that differ only in depth. All chains have the same key."""
    return shape.top_k, None if shape.top_k == 1 else shape.nodes


def arms_to_measure(heads: Sequence[Sequence[Sequence[TreeShape]]]) -> list[tuple[int, Arm]]:
    """Returns the arms to time, with the number of the head: WITHOUT_HEAD, and those between which is interpolated.

    Args:
        heads: For each head, the groups of its trees.
    """
    arms = [(0, arm) for arm in WITHOUT_HEAD]
    for number, groups in enumerate(heads):
        for shapes in groups:
            for family in dict.fromkeys(map(_family, shapes)):
                members = [shape for shape in shapes if _family(shape) == family]
                powers_of_two = [shape for shape in members if shape.top_k == 1 and shape.depth.bit_count() == 1]
                timed = dict.fromkeys([members[0], *powers_of_two, members[-1]])
                arms += [(number, Arm(shape.name, shape)) for shape in timed]
    return arms


def predict_trees(rated: Sequence[RatedHead], head: int, costs: RoundCosts, n: int, context: int) -> list[Prediction]:
    """Returns the predictions of plain decoding, and of each tree of a head, at n streams."""
    off_tps = n / costs.seconds(None, n, context)
    predictions = [Prediction(None, 1.0, off_tps, 1.0)]
    for one in rated[head].trees:
        tps = n * one.acceptance_length / costs.seconds(one.shape, n, context, head)
        predictions.append(Prediction(one.shape, one.acceptance_length, tps, tps / off_tps, rated[head].directory))
    return predictions


def plan_replays(config: TuneConfig, rated: Sequence[RatedHead], costs: RoundCosts, context: int) -> list[CopyReplay]:
    """Returns the replays with copies: for each number of streams alone, and beside the fastest tree of each head."""
    replays = []
    for n in sorted(config.streams):
        rows_s = costs.copy_seconds(n, context, 1, MAX_COPY)
        by_head = [predict_trees(rated, head, costs, n, context) for head in range(len(rated))]
        best = [(0, by_head[0][0]), *((head, select_best(some[1:])) for head, some in enumerate(by_head) if some[1:])]
        for head, one in best:
            least = MIN_GAIN * one.acceptance_length * (1 + rows_s / costs.seconds(one.tree, n, context, head))
            replays.append(CopyReplay(n, least, one.tree, head))
    return replays


def build_tune_results(
    config: TuneConfig, rated: Sequence[RatedHead], copies: Sequence[CopyReplay], costs: RoundCosts, context: int
) -> dict[str, Any]:
    """Returns the content of tune.json, without the keys about machine and head. context: tokens of each request.

    Args:
        config: The configuration.
        rated: The heads; the first is the head of the run, of which the results have the trees and the best ones.
        copies: The replays with copies.
        costs: The seconds of rounds.
        context: The tokens of each request.
    """
    streams, with_copies = [], []
    trees: list[dict[TreeShape | None, Any]] = [{one.shape: _tree_figures(one) for one in head.trees} for head in rated]
    for n in sorted(config.streams):
        by_head = [predict_trees(rated, head, costs, n, context) for head in range(len(rated))]
        for predictions, figures in zip(by_head, trees, strict=True):
            for one in predictions[1:]:
                figures[one.tree]["tps"][str(n)] = one.tps
        chains = [one for one in by_head[0] if one.tree is None or one.tree.top_k == 1]
        copied = [_predict_copies(one, rated, costs, context) for one in copies if one.streams == n]
        with_copies += [{"n": n} | dataclasses.asdict(one) for one in copied]
        ranked = (by_head[0], chains, [*copied, *(one for some in by_head for one in some)])
        best, best_chain, answer = (dataclasses.asdict(select_best(some)) for some in ranked)
        found = {"best": best, "best_chain": best_chain, "answer": answer}
        streams.append({"n": n, "off_tps": by_head[0][0].tps} | found)
    pairs = zip(rated, trees, strict=True)
    heads = [{"head": one.directory, "kind": one.kind, "trees": list(some.values())} for one, some in pairs]
    results = {"schema": SCHEMA, "context": context, "streams": streams, "trees": heads[0]["trees"]}
    return results | {"heads": heads, "copies": with_copies}


def _tree_figures(one: TreeAcceptance) -> dict[str, Any]:
    interval = [one.ci95.low, one.ci95.high]
    return dataclasses.asdict(one.shape) | {"acceptance_length": one.acceptance_length, "ci95": interval, "tps": {}}


def _predict_copies(one: CopyReplay, rated: Sequence[RatedHead], costs: RoundCosts, context: int) -> Prediction:
    """Returns the prediction for copies, alone or beside a tree."""
    length, share = acceptance_length(one.rounds), 1 / one.num_rounds
    seconds = costs.seconds(one.tree, one.streams, context, one.head)
    seconds += costs.copy_seconds(one.streams, context, one.num_copies * share, one.num_rows * share)
    speedup = length * costs.seconds(None, one.streams, context) / seconds
    head = None if one.tree is None else rated[one.head].directory
    return Prediction(one.tree, length, one.streams * length / seconds, speedup, head, copies=True)


def select_best(predictions: Sequence[Prediction]) -> Prediction:
    """Returns the fastest prediction. Among those within TIE_MARGIN of it, returns the one with the fewest nodes.

    If the numbers of nodes are equal, the smaller depth is returned, and a tree without copies before one with them.
    Plain decoding comes first, then copies alone.
    """
    fastest = max(one.tps for one in predictions)
    return min((one for one in predictions if one.tps >= fastest * (1 - TIE_MARGIN)), key=lambda one: one.size)
