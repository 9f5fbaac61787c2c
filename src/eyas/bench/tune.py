"""Predicts the fastest draft tree for each number of concurrent requests (`eyas tune`).

    tokens per second of a tree at n streams = n * acceptance length / seconds of a round with n requests

evaluation.tree_sweep computes the acceptance length on held-out answers. engine.cost_profiler measures the seconds of a
round. Both use the code of serving, with this target, head, dtype and machine.

Not every tree is timed. Of the trees that differ only in depth, the shallowest and the deepest are timed; of the
chains, also those of 2, 4, 8, ... levels. The times of other depths are interpolated, because each level adds one
forward of the head with the same number of rows. The prediction does not include prefill, which
plain decoding needs as well, and assumes that all n streams are busy.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eyas.base import provenance
from eyas.base.errors import InputError
from eyas.base.progress import Progress
from eyas.base.provenance import Provenance, StageInputs
from eyas.base.storage import StoragePath, write_json_atomic
from eyas.bench.config import TuneConfig
from eyas.bench.results import describe_machine, describe_runtime
from eyas.drafters.heads import draft_with
from eyas.engine.cost_profiler import CostProfiler
from eyas.engine.engine import Engine
from eyas.evaluation.head_drafter import build_head_drafter
from eyas.evaluation.replay import sample_held_out
from eyas.evaluation.resample import resample_answers
from eyas.evaluation.tree_sweep import TreeAcceptance, acceptance_lengths, count_rounds
from eyas.features.layout import Row
from eyas.features.reader import Features
from eyas.formats.fit import require_fit, require_layers
from eyas.formats.head_dir import CONFIG_FILE as HEAD_FILE
from eyas.formats.head_dir import StoredHead, digest_head, read_head
from eyas.kernels.aot_compile import compile_pair
from eyas.model.target import Target
from eyas.speculation.arms import OFF, Arm
from eyas.speculation.batch_load import BatchLoad
from eyas.speculation.round_costs import LONG_CONTEXT, CostTable, batch_sizes, measure_cost_table
from eyas.tree.shape import TreeShape

STAGE = "tune"
SCHEMA = 1
FILE = "tune.json"
REPEATS = 2  # measurements of a round; the fastest is used, because other processes only make a round slower
TIE_MARGIN = 0.01  # among trees within this share of the best throughput, the tree with the fewest nodes is chosen


@dataclass(frozen=True)
class Prediction:
    """The predicted throughput of a tree at one number of streams.

    Attributes:
        tree: The tree; None: no speculation.
        acceptance_length: The acceptance length of the tree.
        tps: The predicted output tokens per second, over all streams.
        speedup: `tps` divided by the tokens per second without speculation.
    """

    tree: TreeShape | None
    acceptance_length: float
    tps: float
    speedup: float


def build_origin(config: TuneConfig, head_dir: Path, features: Features, target: Target) -> StageInputs:
    """Returns the settings and input digests that decide what is measured. Raises InputError without a head."""
    if not (head_dir / HEAD_FILE).is_file():
        problem = f"There is no head in {head_dir}"
        raise InputError(problem, "Run `eyas train` with this recipe and this --out, or set target.head=DIRECTORY")
    settings = dataclasses.asdict(config) | {"target_dtype": str(target.model.dtype)}
    parents = {"head": digest_head(head_dir), "features": features.digest, "target": target.digest}
    return features.build_origin(STAGE, settings, parents, undigested=(FILE,))


def run(
    config: TuneConfig,
    head_dir: Path,
    features_dir: Path | StoragePath,
    target: Target,
    out_dir: Path,
    progress: bool = True,
) -> Provenance:
    """Writes tune.json. Does nothing if the file of these inputs exists.

    Raises:
        InputError: The head is missing or does not fit the target, or no answer is held out.
    """
    started_s = time.time()
    features = Features(features_dir, target=target)
    features.check_target(target.digest)
    origin = build_origin(config, head_dir, features, target)
    stored = read_head(head_dir, torch.float32, target.info.num_layers)
    require_fit(stored, target.info, target.digest)
    require_layers(stored, features.manifest.aux_layer_ids)
    if provenance.is_finished(out_dir, origin) and (out_dir / FILE).is_file():
        return provenance.read_provenance(out_dir)
    accepted, context = measure_acceptance(config, stored, features, target, progress)
    stored = read_head(head_dir, target.model.dtype, target.info.num_layers)
    costs = RoundCosts.measure(config, stored, target, progress)
    about = {"machine": describe_machine(), **describe_runtime(target), "head": str(head_dir)}
    about["slots"] = stored.config.max_depth
    provenance.mark_unfinished(out_dir)
    write_json_atomic(out_dir / FILE, build_tune_results(config, accepted, costs, context) | about)
    return provenance.finish_stage(out_dir, origin, started_s)


@torch.no_grad()
def measure_acceptance(
    config: TuneConfig, stored: StoredHead, features: Features, target: Target, progress: bool
) -> tuple[list[TreeAcceptance], int]:
    """Computes the acceptance length of all trees on the same held-out answers, in float32.

    Returns:
        The acceptance length of each tree, and the mean context length: the mean position of an answer token.
    """
    indices = sample_held_out(features, config.answers, config.seed)
    if not indices:
        problem = f"Every held-out answer in {features.directory} is shorter than two tokens or repeats itself"
        raise InputError(problem, "Raise capture.held_out, or capture more conversations")
    shapes_by_top_k = _usable_shapes(config, stored)
    rows: list[Row] = []
    rounds: dict[int, list[np.ndarray]] = {top_k: [] for top_k in shapes_by_top_k}
    with Progress("tune, trees", len(indices), "texts", enabled=progress) as bar:
        for group in features.batches(indices, config.batch_tokens):
            some = list(features.rows(group))
            if config.sampling is not None:
                seeds = [config.seed + index for index in group]
                some = resample_answers(some, seeds, target, config.sampling, config.max_tokens)
            build_drafter = partial(build_head_drafter, stored.head, stored.vocab, target, rows=some)
            for top_k, shapes in shapes_by_top_k.items():
                rounds[top_k].append(count_rounds(some, shapes, build_drafter, config.batch_tokens))
            # Only the generated tokens are needed from here on, so the features are dropped.
            rows += [dataclasses.replace(row, aux_TL=row.aux_TL[:0], hidden_UD=row.hidden_UD[:0]) for row in some]
            bar.advance(len(some))
    accepted = [
        one
        for top_k, shapes in shapes_by_top_k.items()
        for one in acceptance_lengths(shapes, rows, np.concatenate(rounds[top_k]), config.seed)
    ]
    positions = torch.cat([row.loss_mask_T.nonzero()[:, 0] for row in rows])
    return accepted, round(float(positions.float().mean()))


class RoundCosts:
    """The seconds of a round for every tree of the configuration, interpolated between the trees that were timed."""

    def __init__(self, table: CostTable, arms: Sequence[Arm]) -> None:
        """Stores the measured costs. Requirement: row i of `table` is for arms[i]."""
        self.table = table
        self._indices = {arm.shape: index for index, arm in enumerate(arms)}

    @classmethod
    def measure(cls, config: TuneConfig, stored: StoredHead, target: Target, progress: bool) -> "RoundCosts":
        """Times the arms of `arms_to_measure` on a new engine, in the dtype and on the device of the target."""
        arms = arms_to_measure(_usable_shapes(config, stored))
        draft = draft_with(target.model.device, stored, arms[-1].shape or TreeShape(1, 1, 2))
        if config.compile:
            compile_pair(target, draft.head)
        slots = max(config.streams)
        # The requests of a profiled round share their KV slots, so the memory of one request is enough.
        engine = Engine(target, [dataclasses.replace(draft, arms=arms)], slots, LONG_CONTEXT, memory_tokens=1)
        profiler = CostProfiler(engine)
        num_cells = len(arms) * (len(batch_sizes(slots)) + 1)
        with Progress("tune, rounds", num_cells, "arms and batches", enabled=progress) as bar:
            timed: set[tuple[str, int, int]] = set()

            def measure_s(arm: Arm, batch: int, context: int) -> float:
                cell = (arm.name, batch, context)
                bar.advance(cell not in timed)
                timed.add(cell)
                return min(profiler.measure_round_s(arm, batch, context) for _ in range(REPEATS))

            table = measure_cost_table(arms, slots, profiler.max_context, measure_s, config.allowance_s / REPEATS)
        return cls(table, arms)

    def seconds(self, shape: TreeShape | None, streams: int, context: int) -> float:
        """Returns the seconds of a round of `streams` requests of `context` tokens. shape None: no speculation."""
        load = BatchLoad((context,) * streams, (0,) * streams)
        if shape is None:
            return self.table.seconds_for(self._indices[None], load)
        family = [timed for timed in self._indices if timed is not None and _family(timed) == _family(shape)]
        family.sort(key=lambda timed: timed.depth)
        seconds = [self.table.seconds_for(self._indices[timed], load) for timed in family]
        return float(np.interp(shape.depth, [timed.depth for timed in family], seconds))


def _family(shape: TreeShape) -> tuple[int, int | None]:
    """Returns a key that is equal for trees that differ only in depth. All chains have the same key."""
    return shape.top_k, None if shape.top_k == 1 else shape.nodes


def _usable_shapes(config: TuneConfig, stored: StoredHead) -> dict[int, list[TreeShape]]:
    """Returns the shapes of `TuneConfig.shapes_by_top_k` that are not deeper than the head can draft."""
    by_top_k = {
        top_k: [shape for shape in shapes if shape == shape.limit_depth(stored.config.max_depth)]
        for top_k, shapes in config.shapes_by_top_k.items()
    }
    return {top_k: shapes for top_k, shapes in by_top_k.items() if shapes}


def arms_to_measure(shapes_by_top_k: Mapping[int, Sequence[TreeShape]]) -> tuple[Arm, ...]:
    """Returns the arms to time: `off`, and the trees between which `RoundCosts.seconds` interpolates."""
    arms = [OFF]
    for shapes in shapes_by_top_k.values():
        for family in dict.fromkeys(map(_family, shapes)):
            members = [shape for shape in shapes if _family(shape) == family]
            powers_of_two = [shape for shape in members if shape.top_k == 1 and shape.depth.bit_count() == 1]
            timed = dict.fromkeys([members[0], *powers_of_two, members[-1]])
            arms += [Arm(shape.name, shape) for shape in timed]
    return tuple(arms)


def build_tune_results(
    config: TuneConfig, accepted: Sequence[TreeAcceptance], costs: RoundCosts, context: int
) -> dict[str, Any]:
    """Returns the content of tune.json, without the keys about machine and head. context: tokens of each request."""
    streams = []
    trees = {}
    for one in accepted:
        interval = [one.ci95.low, one.ci95.high]
        figures = {"acceptance_length": one.acceptance_length, "ci95": interval, "tps": {}}
        trees[one.shape] = dataclasses.asdict(one.shape) | figures
    for n in sorted(config.streams):
        off_tps = n / costs.seconds(None, n, context)
        predictions = [Prediction(None, 1.0, off_tps, 1.0)]
        for one in accepted:
            tps = n * one.acceptance_length / costs.seconds(one.shape, n, context)
            predictions.append(Prediction(one.shape, one.acceptance_length, tps, tps / off_tps))
            trees[one.shape]["tps"][str(n)] = tps
        chains = [one for one in predictions if one.tree is None or one.tree.top_k == 1]
        best, best_chain = (dataclasses.asdict(select_best(some)) for some in (predictions, chains))
        streams.append({"n": n, "off_tps": off_tps, "best": best, "best_chain": best_chain})
    return {"schema": SCHEMA, "context": context, "streams": streams, "trees": list(trees.values())}


def select_best(predictions: Sequence[Prediction]) -> Prediction:
    """Returns the fastest prediction. Among those within TIE_MARGIN of it, returns the one with the fewest nodes.

    If the numbers of nodes are equal, the smaller depth is returned.
    """
    fastest = max(one.tps for one in predictions)
    close = [one for one in predictions if one.tps >= fastest * (1 - TIE_MARGIN)]
    return min(close, key=lambda one: (0, 0) if one.tree is None else (one.tree.nodes, one.tree.depth))
