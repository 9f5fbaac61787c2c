"""Compares the speed of all arms of an EAGLE-3 head and a block head at one stream. `prove_drafters.py` calls it.

Each arm is an engine with that arm alone, compiled as in `eyas serve`. The models run in bfloat16. On a processor
without instructions for bfloat16 they run in float32: there, many rows of bfloat16 cost as much as each of them alone.

A block is a list of requests. All arms run it one after the other, in rotated order. A figure is the median of the
ratios of output tokens per second over the blocks, with its bootstrap interval. The best arm of a head is the one with
the highest median speed.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from drafter_heads import KINDS, NAMES, Kind
from prove_engine import outside_forwards
from result_rows import Row

from eyas.bench.engine_load import build_auto_engine, build_fixed_arm_engine
from eyas.bench.engine_request_loops import EngineBlock, run_closed_loop
from eyas.bench.workload import Prompt, run_paired
from eyas.drafters.head_spec import HeadSpec
from eyas.drafters.heads import draft_with
from eyas.engine.engine import Engine
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import StoredHead, read_head
from eyas.kernels.aot_compile import compile_pair
from eyas.model.devices import multiplies_bfloat16
from eyas.model.target import Target
from eyas.speculation.arms import Arm, default_arms
from eyas.tree.acceptance_length import acceptance_length
from eyas.tree.intervals import median_interval
from eyas.tree.shape import TreeShape

PLAIN = "plain"
SHAPE = TreeShape(6, 4, 16)
MAX_TOKENS, BLOCK_PROMPTS, MIN_BLOCKS, MAX_BLOCKS = 96, 3, 5, 15
LEAST = 1.10
HOST_STREAMS, HOST_PROMPTS, HOST_PAIRS, MAX_OUTSIDE = 8, 24, 3, 0.1


@dataclass(frozen=True)
class SpeedBench:
    """A target and its two heads, in the dtype of `speed_dtype`."""

    target: Target
    specs: Mapping[Kind, HeadSpec]

    @staticmethod
    def load(model: str, heads: Mapping[Kind, Path], compiled: bool) -> "SpeedBench":
        """Loads the models, and compiles their forwards if `compiled` is True."""
        dtype = speed_dtype()
        stored: dict[Kind, StoredHead] = {kind: read_head(heads[kind], dtype) for kind in KINDS}
        target = Target.load(model, dtype, stored["eagle3"].config.aux_layer_ids)
        specs: dict[Kind, HeadSpec] = {}
        for kind, one in stored.items():
            require_fit(one, target.info, target.digest)
            specs[kind] = draft_with(target.model.device, one, SHAPE)
        if compiled:
            print("Compiling the forwards (minutes the first time)", file=sys.stderr, flush=True)
            for spec in specs.values():
                compile_pair(target, spec.head)
        return SpeedBench(target, specs)

    @property
    def told(self) -> str:
        """The dtype, and if the forwards run uncompiled, for the names of rows."""
        name = str(self.target.model.dtype).removeprefix("torch.")
        return name if self.target.compiled_forward is not None else f"{name}, uncompiled"

    def arms(self, kind: Kind) -> dict[str, Arm]:
        """Returns the arms that draft, by the name of a row."""
        arms = default_arms(self.specs[kind].head.config.max_depth)
        return {f"{NAMES[kind]} {arm.name}": arm for arm in arms if arm.shape is not None}

    def build_engines(self, context: int) -> dict[str, Engine]:
        """Returns an engine for one stream without a head, and one for each arm of each head."""
        engines = {PLAIN: Engine(self.target, (), 1, context)}
        for kind, spec in self.specs.items():
            for name, arm in self.arms(kind).items():
                engines[name] = build_fixed_arm_engine(self.target, spec, arm, 1, context)
        return engines


def speed_dtype() -> torch.dtype:
    """Returns the dtype in which this processor serves fastest."""
    return torch.bfloat16 if multiplies_bfloat16(torch.device("cpu")) else torch.float32


def measure_speed(bench: SpeedBench, prompts: Sequence[Prompt], limit_s: float, where: str) -> Iterator[Row]:
    """Yields the rows of all arms at one stream. Measures for `limit_s`, but at least MIN_BLOCKS blocks."""
    engines = bench.build_engines(max(len(prompt.ids) for prompt in prompts) + MAX_TOKENS)
    blocks = [
        [prompts[(number * BLOCK_PROMPTS + i) % len(prompts)] for i in range(BLOCK_PROMPTS)]
        for number in range(MAX_BLOCKS)
    ]
    for engine in engines.values():
        run_closed_loop(engine, blocks[0][:1], MAX_TOKENS)
    began_s, least_runs, runs = time.monotonic(), MIN_BLOCKS * len(engines), 0

    def is_late() -> bool:
        nonlocal runs
        runs += 1
        if runs % len(engines) == 0:
            print(f"{where}: block {runs // len(engines)} of at most {MAX_BLOCKS}", file=sys.stderr, flush=True)
        return runs > least_runs and time.monotonic() - began_s > limit_s

    arms = {
        name: lambda block, engine=engine: run_closed_loop(engine, block, MAX_TOKENS)
        for name, engine in engines.items()
    }
    measured = run_paired(arms, blocks, 1, is_late)  # blocks that did not run before the time was over are empty
    found = {name: [one for rounds in by_block for one in rounds] for name, by_block in measured.items()}
    yield from _speed_rows(bench, found, f"{where}, {bench.told}, 1 stream, {len(found[PLAIN])} blocks")


def _speed_rows(bench: SpeedBench, found: Mapping[str, Sequence[EngineBlock]], told: str) -> Iterator[Row]:
    speeds = {name: [block.result.output_tps for block in blocks] for name, blocks in found.items()}
    middles = {name: median(values) for name, values in speeds.items()}
    best: dict[Kind, dict[str, str]] = {}
    for kind in KINDS:
        arms = bench.arms(kind)
        for name in arms:
            length = acceptance_length(answer.rounds for block in found[name] for answer in block.answers)
            note = f"acceptance length {length:.2f}, {middles[name]:.0f} tokens/s"
            yield _ratio(f"{told}: {name} over plain, tokens per second", speeds, name, PLAIN, None, note)
        chains = {name for name, arm in arms.items() if arm.is_chain}
        groups = {"arm": set(arms), "chain": chains, "tree": set(arms) - chains}
        best[kind] = {group: max(names, key=middles.__getitem__) for group, names in groups.items()}
    chosen, ours = best["eagle3"]["arm"], best["block"]
    name = f"{told}: conditioned tree ({ours['tree']}) over its own chain ({ours['chain']}), tokens per second"
    yield _ratio(name, speeds, ours["tree"], ours["chain"], LEAST)
    name = f"{told}: best block arm ({ours['arm']}) over best EAGLE-3 arm ({chosen}), tokens per second"
    yield _ratio(name, speeds, ours["arm"], chosen, LEAST)


def _ratio(
    name: str, speeds: Mapping[str, Sequence[float]], arm: str, other: str, least: float | None, note: str = ""
) -> Row:
    ratios = [mine / its for mine, its in zip(speeds[arm], speeds[other], strict=True)]
    middle, span = median_interval(ratios, 0)
    interval = (round(span.low, 3), round(span.high, 3))
    target, is_met = ("told", True) if least is None else (f"at least {least:g}", middle >= least)
    return Row(name, round(middle, 3), target, is_met, interval, note)


def measure_host_time(
    bench: SpeedBench, prompts: Sequence[Prompt], where: str, pairs: int = HOST_PAIRS
) -> Iterator[Row]:
    """Yields the share of the time outside forwards with each head, where the budget chooses the arms."""
    some = prompts[:HOST_PROMPTS]
    context = max(len(prompt.ids) for prompt in some) + MAX_TOKENS
    for kind, spec in bench.specs.items():
        engine = build_auto_engine(bench.target, spec, HOST_STREAMS, context)
        share = outside_forwards(engine, spec.head, some, pairs)
        name = f"{where}, {bench.told}, {HOST_STREAMS} streams, {NAMES[kind]} head: share of time outside forwards"
        yield Row(name, round(share, 4), f"at most {MAX_OUTSIDE:g}", share <= MAX_OUTSIDE)
