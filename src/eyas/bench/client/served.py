"""`eyas bench --url`: every point in every arm, block by block, on the same prompts; results.json and report.html.

block 0     baseline      speculative      a block is the unit of comparison: the same requests in every arm,
block 1     speculative   baseline         back to back, and the arm that begins changes
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from eyas.base.atomic import write_json_atomic
from eyas.base.progress import Progress
from eyas.base.provenance import versions
from eyas.bench.client.arms import Arm, find_arms
from eyas.bench.client.config import ClientConfig
from eyas.bench.client.load import Block, arrivals
from eyas.bench.client.reply import Sample
from eyas.bench.client.summary import arm as figures_of
from eyas.bench.client.summary import compare, require_answers, same_words
from eyas.bench.machine import machine
from eyas.bench.measure import BASELINE, SPECULATIVE
from eyas.bench.prompts import Asked, prompts_of
from eyas.bench.report import SCHEMA, write_report
from eyas.bench.stats import median_interval
from eyas.bench.workload import mixed, paired
from eyas.tree.stats import ratio_interval

RESULTS_FILE = "results.json"
WINDOWS = 4  # of a ramp, each with figures of its own
Blocks = dict[str, list[Block]]  # by arm


def run(url: str, baseline: str | None, config: ClientConfig, out_dir: Path, progress: bool = True) -> dict[str, Any]:
    """Measure, write both files, return results.json. EyasError as the parts; nothing is written before the end."""
    prompts = prompts_of(config.prompts, config.limit, config.synthetic_words, config.seed)
    bar = Progress("bench", None, "answers", enabled=progress)
    measuring = Measuring(config, find_arms(url, baseline, config, bar.advance), prompts)
    bar.total = measuring.num_requests
    with bar:
        tasks = measuring.tasks() if config.one_stream else {}
        found: dict[str, Any] = {
            "schema": SCHEMA,
            "machine": machine(),
            "target": {"name": measuring.model},
            "tasks": tasks,
            "concurrency": [measuring.streams(n) for n in config.concurrency],
            "rates": [measuring.rate(rate) for rate in config.rates],
            "ramp": [] if config.ramp is None else measuring.ramp(*config.ramp),
            "lossless": measuring.words(),
            "client": dataclasses.asdict(config),
            "command": "eyas bench --url URL" + (" --baseline URL" if baseline else ""),
            "versions": versions(),
        }
    write(found, out_dir)
    return found


def write(found: dict[str, Any], out_dir: Path) -> None:
    """results.json and report.html. StageError where they cannot be written."""
    out_dir.mkdir(parents=True, exist_ok=True)
    write_json_atomic(out_dir / RESULTS_FILE, found)
    write_report(found, None, out_dir / "report.html")


@dataclass(frozen=True)
class _Load:
    """A block before it is sent. moments_s: an open loop; None: a closed one of so many streams."""

    units: Sequence[tuple[str, Asked]]
    first: int  # number of its first request in the run
    streams: int = 1
    moments_s: Sequence[float] | None = None

    def send(self, arm: Arm, config: ClientConfig) -> Block:
        asked = [arm.question(one, self.first + i, config) for i, (_, one) in enumerate(self.units)]
        if self.moments_s is None:
            return arm.client.closed_loop(asked, self.streams)
        return arm.client.open_loop(asked, self.moments_s)


class Measuring:
    """One run. It counts which answers were the same in both arms."""

    def __init__(self, config: ClientConfig, arms: Mapping[str, Arm], prompts: Mapping[str, Sequence[Asked]]) -> None:
        self._config = config
        self._arms = arms
        self._pool = mixed({task: [(task, asked) for asked in some] for task, some in prompts.items()})
        self._compared, self._identical = 0, 0

    @property
    def model(self) -> str:
        """As the server names it."""
        return next(iter(self._arms.values())).model

    @property
    def num_requests(self) -> int:
        """All of them, warm-ups included."""
        config = self._config
        ramps = [(rate, rate) for rate in config.rates] + ([config.ramp] if config.ramp is not None else [])
        blocks = [n * config.requests_per_stream for n in config.concurrency for _ in range(config.repeats)]
        blocks += [len(self._moments(*rates, block)) for rates in ramps for block in range(config.repeats)]
        alone = len(self._pool) * config.repeats if config.one_stream else 0
        points = len(config.concurrency) + len(ramps) + config.one_stream
        return len(self._arms) * (sum(blocks) + alone + points * config.warm_up)

    def tasks(self) -> dict[str, dict[str, Any]]:
        """`tasks` of results.json: each prompt alone in the server."""
        loads = [_Load([unit], place) for place, unit in enumerate(self._pool)]
        found = self._run(loads, self._config.repeats)
        tasks: dict[str, list[int]] = {}
        for place, (task, _) in enumerate(self._pool):
            tasks.setdefault(task, []).append(place)
        return {
            task: self._task({name: [answers[place] for place in places] for name, answers in found.items()})
            for task, places in tasks.items()
        }

    def streams(self, n: int) -> dict[str, Any]:
        """One point of the closed loop."""
        size = n * self._config.requests_per_stream
        blocks = [_Load(self._some(b * size, size), b * size, n) for b in range(self._config.repeats)]
        return {"n": n} | self._point(self._blocks(blocks))

    def rate(self, rate: float) -> dict[str, Any]:
        """One point of the open loop, at a rate that stays."""
        return {"rate": rate} | self._point(self._open(rate, rate))

    def ramp(self, first: float, last: float) -> list[dict[str, Any]]:
        """An open loop whose rate grows; the figures of each quarter of its time in which something was sent."""
        found, seconds = self._open(first, last), self._config.block_s / WINDOWS
        points = []
        for window in range(WINDOWS):
            cut = {name: [_window(block, window * seconds, seconds) for block in some] for name, some in found.items()}
            if all(any(block.samples for block in some) for some in cut.values()):
                points.append({"rate": first + (last - first) * (window + 0.5) / WINDOWS} | self._point(cut))
        return points

    def words(self) -> dict[str, Any]:
        """`lossless` of results.json: texts of both arms, under every load that was measured."""
        reference = "the server without speculation, under the same load" if self._compared else "none: not checked"
        return {"prompts": self._compared, "identical": self._identical, "dtype": "as served", "reference": reference}

    # --- sending ----------------------------------------------------------------------------------------------------

    def _some(self, start: int, count: int) -> list[tuple[str, Asked]]:
        return [self._pool[(start + i) % len(self._pool)] for i in range(count)]

    def _moments(self, first: float, last: float, block: int) -> list[float]:
        return arrivals(first, last, self._config.block_s, self._config.seed + block)

    def _open(self, first: float, last: float) -> Blocks:
        loads, start = [], 0
        for block in range(self._config.repeats):
            moments_s = self._moments(first, last, block)
            loads.append(_Load(self._some(start, len(moments_s)), start, moments_s=moments_s))
            start += len(moments_s)
        return self._blocks(loads)

    def _blocks(self, loads: Sequence[_Load]) -> Blocks:
        return {name: [once for (once,) in blocks] for name, blocks in self._run(loads, 1).items()}

    def _run(self, loads: Sequence[_Load], repeats: int) -> dict[str, list[list[Block]]]:
        """By arm, load and repeat; every arm is warmed up first."""
        config = self._config
        for arm in self._arms.values():
            if config.warm_up:
                _Load(self._some(0, config.warm_up), 0, loads[0].streams).send(arm, config)
        arms = {name: lambda load, arm=arm: load.send(arm, config) for name, arm in self._arms.items()}
        found = paired(arms, loads, repeats)
        if BASELINE in found and config.temperature == 0:
            for before, after in zip(found[BASELINE], found[SPECULATIVE], strict=True):
                compared, identical = same_words(before[:1], after[:1])
                self._compared += compared
                self._identical += identical
        return found

    # --- figures ----------------------------------------------------------------------------------------------------

    def _point(self, found: Blocks) -> dict[str, Any]:
        """One entry of `concurrency`; an arm that is neither of the two stands in `arms`."""
        of = {name: figures_of(blocks, self._config.slo, self._config.seed) for name, blocks in found.items()}
        if BASELINE not in found:
            return {"arms": of}
        return of | {"arms": {}} | compare(found[BASELINE], found[SPECULATIVE], self._config.seed)

    def _task(self, found: Mapping[str, Sequence[Sequence[Block]]]) -> dict[str, Any]:
        """One entry of `tasks`: blocks of one request by arm, prompt and repeat."""
        seed = self._config.seed
        for some in found.values():
            require_answers([block for blocks in some for block in blocks])
        tpot_ms = {name: [_median_tpot_ms(blocks) for blocks in some] for name, some in found.items()}
        known = {name: [value for value in values if value is not None] for name, values in tpot_ms.items()}
        head = found.get(SPECULATIVE) or next(iter(found.values()))
        entry: dict[str, Any] = {"prompts": len(head), "tpot_ms": {k: median(v) for k, v in known.items() if v}}
        drafts = [sample.drafting for blocks in head for sample in blocks[0].samples if sample.drafting is not None]
        if drafts:
            steps = np.array([one.steps for one in drafts])
            tokens = steps + np.array([one.accepted for one in drafts])
            span = ratio_interval(tokens, steps, seed)
            entry |= {"acceptance_length": float(tokens.sum() / steps.sum()), "ci95": [span.low, span.high]}
        if BASELINE in found:
            pairs = zip(tpot_ms[BASELINE], tpot_ms[SPECULATIVE], strict=True)
            ratios = [a / b for a, b in pairs if a is not None and b]
            if ratios:
                speedup, span = median_interval(ratios, seed)
                entry |= {"speedup": speedup, "speedup_ci95": [span.low, span.high]}
        return entry


def _median_tpot_ms(blocks: Sequence[Block]) -> float | None:
    values = [
        1000 * one.tpot_s for block in blocks for one in block.samples if not one.error and one.tpot_s is not None
    ]
    return median(values) if values else None


def _window(block: Block, start_s: float, seconds: float) -> Block:
    """The requests of a block that were sent in these seconds of it."""
    began_s = min(sample.sent_s for sample in block.samples)
    some: list[Sample] = [one for one in block.samples if start_s <= one.sent_s - began_s < start_s + seconds]
    return Block(tuple(some), seconds)
