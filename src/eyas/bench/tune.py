"""Which tree is best at how many streams: what held-out answers accept, over what rounds cost here.

    tokens per second of a tree at n streams = n * acceptance length / seconds of a round of n requests
                                                   train.many_trees    serve.costs

Both sides are what the rest of eyas uses: the tree and verification of serving, and the engine's own rounds, measured
with this target, head, dtype and machine. Of the trees with one top-k and number of nodes the shallowest and the
deepest are measured, of chains those of 1, 2, 4, ... levels: a further level is one more forward of the head over as
many rows, so depths between lie on the line. What is left out: prompts, which cost both arms the same, and streams that
are idle.
"""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eyas.base.errors import InputError
from eyas.base.progress import Progress
from eyas.base.provenance import (
    Provenance,
    StageInputs,
    digest_json,
    finish_stage,
    is_finished,
    mark_unfinished,
    read_provenance,
)
from eyas.base.storage import StoragePath, write_json_atomic
from eyas.bench.machine import describe_machine
from eyas.bench.tune_config import TuneConfig
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.cost_profiler import CostProfiler
from eyas.engine.engine import Engine
from eyas.evaluation.head_drafter import build_embed
from eyas.evaluation.replay import sample_held_out
from eyas.evaluation.resample import resample_answers
from eyas.evaluation.tree_sweep import TreeAcceptance, acceptance_lengths, count_rounds
from eyas.features.layout import Row
from eyas.features.reader import Features
from eyas.formats.engine_formats import sglang_flags, vllm_flags
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import CONFIG_FILE as HEAD_FILE
from eyas.formats.head_dir import StoredHead, digest_head, read_head
from eyas.kernels.aot_compile import compile_pair
from eyas.model.target import Target
from eyas.speculation.arms import OFF, Arm, BatchLoad
from eyas.speculation.round_costs import LONG_CONTEXT, CostTable, batch_sizes, measure_cost_table
from eyas.tree.shape import TreeShape

STAGE = "tune"
SCHEMA = 1
FILE = "tune.json"
REPEATS = 2  # of a round, the faster counts: what else runs on a machine only ever adds
TIE_MARGIN = 0.01  # trees that are predicted so close to the best are as good: the one with the fewest rows is taken


@dataclass(frozen=True)
class Prediction:
    """One tree at some number of streams. shape None: no speculation. speedup: over no speculation."""

    shape: TreeShape | None
    acceptance_length: float
    tps: float
    speedup: float


def build_origin(config: TuneConfig, head_dir: Path, features: Features, target: Target) -> StageInputs:
    """What decides what is measured; the figures themselves carry times. `InputError` without a head."""
    if not (head_dir / HEAD_FILE).is_file():
        raise InputError(
            f"no head in {head_dir}",
            "a trained head, for trees are drafted with it",
            "run `eyas train` with this recipe and this --out, or name one: target.head=DIRECTORY",
        )
    return StageInputs(
        stage=STAGE,
        recipe=digest_json(dataclasses.asdict(config) | {"target_dtype": str(target.model.dtype)}),
        parents={"head": digest_head(head_dir), "features": features.digest, "target": target.digest},
        tokenizer=features.manifest.tokenizer_digest,
        template=features.manifest.template_digest,
        undigested=(FILE,),
    )


def run(
    config: TuneConfig,
    head_dir: Path,
    features_dir: Path | StoragePath,
    target: Target,
    out_dir: Path,
    progress: bool = True,
) -> Provenance:
    """Write tune.json. Idempotent. `InputError` where a head is missing or does not fit, or nothing is held out."""
    started_s = time.time()
    features = Features(features_dir, target=target)
    features.check_target(target.digest)
    origin = build_origin(config, head_dir, features, target)
    stored = read_head(head_dir, torch.float32, target.info.num_layers)
    require_fit(stored, target.info, target.digest)
    if is_finished(out_dir, origin) and (out_dir / FILE).is_file():
        return read_provenance(out_dir)
    accepted, context = measure_acceptance(config, stored, features, target, progress)
    stored = read_head(head_dir, target.model.dtype, target.info.num_layers)
    costs = RoundCosts.measure(config, stored, target, progress)
    mark_unfinished(out_dir)
    write_json_atomic(out_dir / FILE, build_tune_results(config, accepted, costs, context) | _about(target, head_dir))
    return finish_stage(out_dir, origin, started_s)


@torch.no_grad()
def measure_acceptance(
    config: TuneConfig, stored: StoredHead, features: Features, target: Target, progress: bool
) -> tuple[list[TreeAcceptance], int]:
    """All trees on the same held-out answers, in float32, and the mean tokens before a token of these answers."""
    indices = sample_held_out(features, config.answers, config.seed)
    if not indices:
        raise InputError(
            f"no held-out answer to draft on in {features.directory}",
            "one at least, of two tokens, that does not loop",
            "raise capture.held_out, or capture more conversations",
        )
    embed, families = build_embed(target, torch.float32), config.shapes_by_top_k
    rows: list[Row] = []
    rounds: dict[int, list[np.ndarray]] = {top_k: [] for top_k in families}
    with Progress("tune, trees", len(indices), "texts", enabled=progress) as bar:
        for group in features.batches(indices, config.batch_tokens):
            some = list(features.rows(group))
            if config.sampling is not None:
                seeds = [config.seed + index for index in group]
                some = resample_answers(some, seeds, target, config.sampling, config.max_tokens)
            for top_k, shapes in families.items():
                rounds[top_k].append(count_rounds(some, shapes, stored.head, stored.vocab, embed, config.batch_tokens))
            # Without their features: of the rows only which tokens were generated is asked for from here on.
            rows += [dataclasses.replace(row, aux_TL=row.aux_TL[:0], hidden_UD=row.hidden_UD[:0]) for row in some]
            bar.advance(len(some))
    told = [
        one
        for top_k, shapes in families.items()
        for one in acceptance_lengths(shapes, rows, np.concatenate(rounds[top_k]), config.seed)
    ]
    places = torch.cat([row.loss_mask_T.nonzero()[:, 0] for row in rows])
    return told, round(float(places.float().mean()))


class RoundCosts:
    """Seconds of a round of any tree of the configuration, from those that were measured."""

    def __init__(self, table: CostTable, arms: Sequence[Arm]) -> None:
        self.table = table
        self._numbers = {arm.shape: number for number, arm in enumerate(arms)}

    @classmethod
    def measure(cls, config: TuneConfig, stored: StoredHead, target: Target, progress: bool) -> "RoundCosts":
        """On an engine of its own, in the target's dtype and on its device."""
        arms = arms_to_measure(config)
        draft = Eagle3Spec.on(target.model.device, stored.head, stored.vocab, arms[-1].shape or TreeShape(1, 1, 2))
        if config.compile and target.model.device.type == "cpu":
            compile_pair(target, draft.head)
        slots = max(config.streams)
        # Lines share their slots while rounds are rehearsed, so one line's worth is enough.
        engine = Engine(target, dataclasses.replace(draft, arms=arms), slots, LONG_CONTEXT, memory_tokens=1)
        rehearsal = CostProfiler(engine)
        cells = len(arms) * (len(batch_sizes(slots)) + 1)
        with Progress("tune, rounds", cells, "arms and batches", enabled=progress) as bar:
            seen: set[tuple[str, int, int]] = set()

            def once(arm: Arm, batch: int, context: int) -> float:
                cell = (arm.name, batch, context)
                bar.advance(cell not in seen)
                seen.add(cell)
                return min(rehearsal.measure_round_s(arm, batch, context) for _ in range(REPEATS))

            table = measure_cost_table(arms, slots, rehearsal.max_context, once, config.allowance_s / REPEATS)
        return cls(table, arms)

    def seconds(self, shape: TreeShape | None, streams: int, context: int) -> float:
        """Of a round of so many requests with so many tokens each."""
        load = BatchLoad((context,) * streams, (0,) * streams)
        if shape in self._numbers:
            return self.table.seconds_for(self._numbers[shape], load)
        assert shape is not None, "off is always measured"
        alike = [one for one in self._numbers if one is not None and _family(one) == _family(shape)]
        below = max((one for one in alike if one.depth < shape.depth), key=lambda one: one.depth)
        above = min((one for one in alike if one.depth > shape.depth), key=lambda one: one.depth)
        low_s, high_s = (self.table.seconds_for(self._numbers[one], load) for one in (below, above))
        return low_s + (high_s - low_s) * (shape.depth - below.depth) / (above.depth - below.depth)


def _family(shape: TreeShape) -> tuple[int, int | None]:
    """Trees that differ in depth alone; chains, whose nodes are their depth, are all of one family."""
    return shape.top_k, None if shape.top_k == 1 else shape.nodes


def arms_to_measure(config: TuneConfig) -> tuple[Arm, ...]:
    """Off, and of each family so many that all others lie between two."""
    arms = [OFF]
    for shapes in config.shapes_by_top_k.values():
        for family in dict.fromkeys(map(_family, shapes)):
            alike = [one for one in shapes if _family(one) == family]
            few = alike[:1] + alike[-1:]
            if family[1] is None:
                few = [one for one in alike if one.depth.bit_count() == 1] + alike[-1:]
            arms += [Arm(one.name, one) for one in dict.fromkeys(few)]
    return tuple(arms)


def build_tune_results(
    config: TuneConfig, accepted: Sequence[TreeAcceptance], costs: RoundCosts, context: int
) -> dict[str, Any]:
    """What tune.json says of trees and streams."""
    streams, trees = [], {one.shape: _tree(one) for one in accepted}
    for n in sorted(config.streams):
        off_tps = n / costs.seconds(None, n, context)
        off = Prediction(None, 1.0, off_tps, 1.0)
        all_trees = []
        for one in accepted:
            tps = n * one.acceptance_length / costs.seconds(one.shape, n, context)
            all_trees.append(Prediction(one.shape, one.acceptance_length, tps, tps / off_tps))
            trees[one.shape]["tps"][str(n)] = tps
        chains = [one for one in all_trees if one.shape is not None and one.shape.top_k == 1]
        best, chain = (select_best([off, *some]) for some in (all_trees, chains))
        streams.append({"n": n, "off_tps": off_tps, "best": _told(best), "best_chain": _told(chain)})
    return {"schema": SCHEMA, "context": context, "streams": streams, "trees": list(trees.values())}


def select_best(predictions: Sequence[Prediction]) -> Prediction:
    """The fastest; of those that are as good, the one with the fewest rows of verify, then levels."""
    fastest = max(one.tps for one in predictions)
    alike = [one for one in predictions if one.tps >= fastest * (1 - TIE_MARGIN)]
    return min(alike, key=lambda one: (0, 0) if one.shape is None else (one.shape.nodes, one.shape.depth))


def _tree(one: TreeAcceptance) -> dict[str, Any]:
    interval = [one.ci95.low, one.ci95.high]
    return dataclasses.asdict(one.shape) | {"acceptance_length": one.acceptance_length, "ci95": interval, "tps": {}}


def _told(one: Prediction) -> dict[str, Any]:
    return {
        "tree": None if one.shape is None else dataclasses.asdict(one.shape),
        "acceptance_length": one.acceptance_length,
        "tps": one.tps,
        "speedup": one.speedup,
    }


def _about(target: Target, head_dir: Path) -> dict[str, Any]:
    return {
        "machine": describe_machine(),
        "dtype": str(target.model.dtype).removeprefix("torch."),
        "compiled": target.compiled_forward is not None,
        "head": str(head_dir),
    }


def format_table(told: dict[str, Any]) -> str:
    """tune.json for the terminal."""
    lines = [
        f"trees on held-out answers, rounds on this machine ({told['dtype']}, "
        f"{told['machine']['threads']} threads, {told['context']} tokens of context)",
        f"{'streams':>7}{'off':>11}  {'best tree':<18}{'accepted':>8}{'predicted':>14}{'faster':>8}  "
        f"{'best chain':<12}{'faster':>6}",
    ]
    for point in told["streams"]:
        best, chain = point["best"], point["best_chain"]
        length = "off" if chain["tree"] is None else f"of {chain['tree']['depth']}"
        lines.append(
            f"{point['n']:>7}{point['off_tps']:>7.0f} t/s  {_named(best['tree']):<18}{best['acceptance_length']:>8.2f}"
            f"{best['tps']:>10.0f} t/s{best['speedup']:>7.2f}x  {length:<12}{chain['speedup']:>5.2f}x"
        )
    for name, key, flags in (("SGLang", "best", sglang_flags), ("vLLM", "best_chain", vllm_flags)):
        lines += ["", f"{name}, by streams:"]
        for point in told["streams"]:
            lines.append(f"{point['n']:>7}  {flags(point[key]['tree'], told['head']) or 'no speculation'}")
    return "\n".join(lines)


def _named(tree: dict[str, int] | None) -> str:
    return "off" if tree is None else f"{tree['depth']}, {tree['top_k']}, {tree['nodes']}"
