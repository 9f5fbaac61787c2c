"""Throughput of the budget's choices beside plain decoding and beside every fixed arm. `make prove-speed` calls it.

    python benchmarks/budget_speed.py [--target DIR --head DIR] [--prompts FILE] [--streams N ...] [--seconds S]
                                      [--arms ARM ...] [--clock wall|cpu]

All engines run in this process, compiled, in bfloat16, on the threads that torch uses by default. A block is a list of
requests, the same for all arms; the arms run it one after the other, in rotated order. The figures are medians of the
ratios of blocks. The first block of an engine with a fresh budget has at least FIRST_ROUNDS rounds. A fixed arm that is
much slower than the best one in the first TRIAL_BLOCKS blocks is left out of the others.

With --clock cpu and one thread (OMP_NUM_THREADS=1), a second is one of this process's processor time, so that other
processes on the machine hardly matter. The budget itself always learns from the clock on the wall.

Realised over expected: tokens per second of the arms that the budget chose, over what it expected of them, by block,
from the budget's `ForecastCheck`. Blocks differ in how well the head drafts their texts, which nobody can expect.

Prints one JSON object for each row, and exits 1 if a row misses its target. Progress goes to stderr.
"""

import argparse
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch
from result_rows import Row, print_rows

from eyas.bench.config import BenchConfig
from eyas.bench.engine_load import build_fixed_arm_engine
from eyas.bench.engine_request_loops import run_closed_loop
from eyas.bench.workload import BUILTIN, Prompt, interleave_tasks, load_workload
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.cost_profiler import build_budget
from eyas.engine.engine import Engine
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import read_head, resolve_head
from eyas.kernels.aot_compile import compile_pair
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.speculation.arms import OFF, Arm, default_arms
from eyas.speculation.batch_load import RoundReport
from eyas.speculation.budget import Budget
from eyas.speculation.forecast_check import ForecastCheck
from eyas.tree.intervals import median_interval
from eyas.tree.shape import TreeShape

AUTO, FRESH = "auto", "auto, fresh"
FIRST_ROUNDS = 200
MAX_TOKENS = 96
TOKENS_PER_ROUND = 3  # of one stream, at most; only the size of a block depends on it
TRIAL_BLOCKS, KEPT = 2, 0.85  # then a fixed arm goes on if it has this share of the best one's speed
MIN_BLOCKS, MAX_BLOCKS = 5, 30
HALF_WIDTH = 0.01  # of the interval of a ratio; then no further block is needed
OVER_PLAIN, OVER_BEST, FIRST_OVER_BEST, EXPECTED = 0.98, 0.97, 0.93, (0.95, 1.05)


class WatchedBudget:
    """A budget that counts the rounds of each arm."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.arms, self.decide = budget.arms, budget.decide
        self.watch()

    def watch(self) -> None:
        """Forgets all rounds so far."""
        self.budget.forecast_check = ForecastCheck()
        self.rounds: Counter[str] = Counter()
        self.realised: list[dict[str, float]] = []

    def end_block(self) -> None:
        """Adds the block's tokens and seconds, over the expected ones, to `realised`, and begins the next block."""
        if ratios := self.budget.forecast_check.ratios():
            self.realised.append(ratios)
        self.budget.forecast_check = ForecastCheck()

    def observe(self, report: RoundReport) -> None:
        """Counts the round, then learns from it."""
        self.rounds[report.decision.arm.name] += 1
        self.budget.observe(report)


@dataclass
class Bench:
    """A compiled pair and its prompts.

    Attributes:
        target: The compiled target.
        draft: The compiled head.
        prompts: The prompts of all blocks.
        cache: The directory of measured round costs.
        fixed: The arms to compare with.
        counts_cpu_time: True to divide tokens by seconds of this process's processor time.
    """

    target: Target
    draft: Eagle3Spec
    prompts: Sequence[Prompt]
    cache: Path
    fixed: Sequence[Arm]
    counts_cpu_time: bool = False

    def build_auto(self, streams: int) -> Engine:
        """Returns an engine whose budget has not seen a round."""
        arms = default_arms()
        engine = Engine(self.target, [replace(self.draft, arms=arms)], streams, self.context)
        engine.policies[0] = WatchedBudget(build_budget(engine, arms, self.cache))
        return engine

    def build_fixed(self, arm: Arm, streams: int) -> Engine:
        """Returns an engine that runs one arm; with `off`, it has no head."""
        return build_fixed_arm_engine(self.target, self.draft, arm, streams, self.context)

    @property
    def context(self) -> int:
        """The most tokens of a request."""
        return max(len(prompt.ids) for prompt in self.prompts) + MAX_TOKENS

    def block(self, number: int, streams: int) -> list[Prompt]:
        """Returns the prompts of a block: enough for FIRST_ROUNDS rounds of `streams` requests."""
        count = math.ceil(FIRST_ROUNDS * TOKENS_PER_ROUND / MAX_TOKENS) * streams
        return [self.prompts[(number * count + index) % len(self.prompts)] for index in range(count)]


def measure(bench: Bench, streams: int, limit_s: float) -> Iterator[Row]:
    """Yields the rows of one number of streams. Measures until the ratios are exact enough, at most `limit_s`."""
    engines = {arm.name: bench.build_fixed(arm, streams) for arm in bench.fixed}
    engines[AUTO] = bench.build_auto(streams)
    for engine in engines.values():  # also gives AUTO its first rounds
        run_closed_loop(engine, bench.block(0, streams)[: 2 * streams], MAX_TOKENS)
    run_closed_loop(engines[AUTO], bench.block(0, streams), MAX_TOKENS)
    budget = engines[AUTO].policies[0]
    assert isinstance(budget, WatchedBudget)
    budget.watch()
    speeds: dict[str, list[float]] = {name: [] for name in [*engines, FRESH]}
    ends_s = time.monotonic() + limit_s
    while len(speeds[AUTO]) < MAX_BLOCKS and (len(speeds[AUTO]) < MIN_BLOCKS or time.monotonic() < ends_s):
        number = len(speeds[AUTO])
        running = {**engines, FRESH: bench.build_auto(streams)}
        for name, speed in run_block(bench, running, bench.block(1 + number, streams), number, streams).items():
            speeds[name].append(speed)
        budget.end_block()
        told = ", ".join(f"{name} {values[-1]:.0f}" for name, values in speeds.items())
        print(f"{streams} streams, block {number + 1}: {told}", file=sys.stderr, flush=True)
        if number + 1 == TRIAL_BLOCKS:
            drop_slow_arms(engines, speeds)
        if number + 1 >= MIN_BLOCKS and all(is_exact(speeds, name) for name in (AUTO, FRESH)):
            break
    best = max(speeds.keys() - {AUTO, FRESH}, key=lambda name: sorted(speeds[name])[len(speeds[name]) // 2])
    at = f"{streams} streams" if streams > 1 else "1 stream"
    chosen = ", ".join(f"{name} {count}" for name, count in budget.rounds.most_common(3))
    yield row(f"auto over plain, {at} (rounds: {chosen})", speeds, AUTO, OFF.name, OVER_PLAIN)
    yield row(f"auto over the best fixed arm ({best}), {at}", speeds, AUTO, best, OVER_BEST)
    yield row(f"auto over plain, first rounds, {at}", speeds, FRESH, OFF.name, OVER_PLAIN)
    yield row(f"auto over the best fixed arm ({best}), first rounds, {at}", speeds, FRESH, best, FIRST_OVER_BEST)
    (low, high), blocks = EXPECTED, budget.realised
    realised, span = median_interval([block["tokens"] / block["seconds"] for block in blocks], seed=0)
    interval, is_near = (round(span.low, 3), round(span.high, 3)), low <= realised <= high
    told = ", ".join(f"{name} {median(block[name] for block in blocks):.3f}" for name in ("tokens", "seconds"))
    yield Row(f"realised over expected tokens/s, {at}", round(realised, 3), f"{low} to {high}", is_near, interval, told)


def drop_slow_arms(engines: dict[str, Engine], speeds: dict[str, list[float]]) -> None:
    """Removes the fixed arms that cannot be the best one. Plain decoding stays."""
    totals = {name: sum(speeds[name]) for name in engines if name != AUTO}
    least = KEPT * max(totals.values())
    for name, total in totals.items():
        if total < least and name != OFF.name:
            del engines[name], speeds[name]


def run_block(
    bench: Bench, engines: Mapping[str, Engine], prompts: Sequence[Prompt], number: int, streams: int
) -> dict[str, float]:
    """Runs a block with every engine in rotated order. Returns the tokens per second of each.

    With one stream the engines take turns after each request, so that a machine whose speed drifts is as fast for all.
    With more streams a turn is the whole block, because the last requests of a turn run alone.
    """
    size = 1 if streams == 1 else len(prompts)
    names, turns = list(engines), [prompts[start : start + size] for start in range(0, len(prompts), size)]
    tokens, seconds = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for turn, some in enumerate(turns, number * len(turns)):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            began_s = time.process_time()
            result = run_closed_loop(engines[name], some, MAX_TOKENS).result
            seconds[name] += time.process_time() - began_s if bench.counts_cpu_time else result.seconds
            tokens[name] += result.output_tokens
    return {name: tokens[name] / seconds[name] for name in names}


def is_exact(speeds: Mapping[str, Sequence[float]], name: str) -> bool:
    """Returns True if the interval of the ratio of this arm and plain decoding is narrow enough."""
    _, interval = median_interval(ratios(speeds, name, OFF.name), seed=0)
    return interval.high - interval.low <= 2 * HALF_WIDTH


def ratios(speeds: Mapping[str, Sequence[float]], arm: str, other: str) -> list[float]:
    """Returns the speed of an arm over that of another one, by block."""
    return [mine / its for mine, its in zip(speeds[arm], speeds[other], strict=True)]


def row(name: str, speeds: Mapping[str, Sequence[float]], arm: str, other: str, least: float) -> Row:
    """Returns the row of the median ratio of two arms."""
    middle, span = median_interval(ratios(speeds, arm, other), seed=0)
    interval = (round(span.low, 3), round(span.high, 3))
    return Row(name, round(middle, 3), f"at least {least}", middle >= least, interval)


def load(parsed: argparse.Namespace, cache: Path) -> Bench:
    """Loads and compiles the pair, and reads its prompts."""
    stored = read_head(resolve_head(parsed.head), torch.bfloat16)
    target = Target.load(parsed.target, torch.bfloat16, stored.config.aux_layer_ids)
    require_fit(stored, target.info, target.digest)
    draft = Eagle3Spec.on(target.model.device, stored, TreeShape(6, 4, 16))
    compile_pair(target, draft.head)
    config = BenchConfig(prompts=parsed.prompts, prompts_per_task=400, max_tokens=MAX_TOKENS)
    workload, _ = load_workload(config, None, target)
    fixed = [arm for arm in default_arms() if arm == OFF or parsed.arms is None or arm.name in parsed.arms]
    return Bench(target, draft, interleave_tasks(workload), cache, fixed, parsed.clock == "cpu")


def main() -> int:
    """Measures and prints all rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=EMBEDDED)
    parser.add_argument("--head", default=EMBEDDED)
    parser.add_argument("--prompts", default=BUILTIN)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16])
    names = [arm.name for arm in default_arms()]
    parser.add_argument("--arms", nargs="+", choices=names, help="the fixed arms beside plain decoding (default: all)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--seconds", type=float, default=240.0, help="for each number of streams, at most")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        bench = load(parsed, Path(directory))
        return print_rows(row for streams in parsed.streams for row in measure(bench, streams, parsed.seconds))


if __name__ == "__main__":
    sys.exit(main())
