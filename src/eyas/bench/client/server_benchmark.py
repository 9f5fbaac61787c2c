"""Every point in every arm, block by block, on the same prompts.

block 0     baseline      speculative      a block is the unit of comparison: the same requests in every arm,
block 1     speculative   baseline         back to back, and the arm that begins changes
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from statistics import median
from typing import Any, Literal

from eyas.base.errors import StageError
from eyas.bench.bench_prompts import ChatPrompt
from eyas.bench.client.config import ClientConfig
from eyas.bench.client.http_request_loops import BlockResult, poisson_arrivals, split_ramp
from eyas.bench.client.server_arms import ServerArm
from eyas.bench.client.spec_decode_metrics import counter_difference
from eyas.bench.request_metrics import compare_arms, count_identical, summarize_acceptance
from eyas.bench.request_metrics import summarize_arm as figures_of
from eyas.bench.single_stream import BASELINE, SPECULATIVE
from eyas.bench.workload import interleave_tasks, run_paired
from eyas.tree.stats import median_interval

NOT_SENT = BlockResult((), 0.0, is_complete=False)
Blocks = dict[str, list[BlockResult]]  # by arm


@dataclass(frozen=True)
class _Load:
    """A block before it is sent. moments_s: an open loop; None: a closed one of so many streams."""

    units: Sequence[tuple[str, ChatPrompt]]
    first: int  # number of its first request in the run
    streams: int = 1
    moments_s: Sequence[float] | None = None

    def send(self, arm: ServerArm, config: ClientConfig) -> BlockResult:
        asked = [arm.build_request(one, self.first + i, config) for i, (_, one) in enumerate(self.units)]
        before = arm.read_counters()
        if self.moments_s is None:
            block = arm.load_generator.run_closed_loop(asked, self.streams)
        else:
            block = arm.load_generator.run_open_loop(asked, self.moments_s)
        return replace(block, spec_decode=counter_difference(before, arm.read_counters()))


class ServerBenchmark:
    """One run. It counts which answers were the same in both arms.

    answered, failed: requests so far, warm-ups included, and what the first that failed was told. gone: the arm whose
    server takes no connections any more, and its words; from then on nothing is sent.
    """

    def __init__(
        self, config: ClientConfig, arms: Mapping[str, ServerArm], prompts: Mapping[str, Sequence[ChatPrompt]]
    ) -> None:
        self._config = config
        self._arms = arms
        self._pool = interleave_tasks({task: [(task, asked) for asked in some] for task, some in prompts.items()})
        self._compared, self._identical = 0, 0
        self.num_answered, self.num_failed, self.first_error = 0, 0, ""
        self.down: str | None = None

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

    def measure_tasks(self) -> dict[str, dict[str, Any]]:
        """`tasks` of results.json: each prompt alone in the server."""
        loads = [_Load([unit], place) for place, unit in enumerate(self._pool)]
        found = self._run(loads, self._config.repeats)
        tasks: dict[str, list[int]] = {}
        for place, (task, _) in enumerate(self._pool):
            tasks.setdefault(task, []).append(place)
        return {
            task: self._task({name: [answers[place] for place in places] for name, answers in found.items()})
            for task, places in tasks.items()
            if any(answers[place] for answers in found.values() for place in places)
        }

    def measure_concurrency(self, counts: Sequence[int]) -> list[dict[str, Any]]:
        """`concurrency` of results.json: the closed loop."""
        return [{"n": n} | self._point(found) for n in counts if (found := self._closed(n))]

    def measure_rates(self, rates: Sequence[float]) -> list[dict[str, Any]]:
        """`rates` of results.json: the open loop, each rate staying what it is."""
        loads = ((rate, self._open(rate, rate)) for rate in rates)
        return [{"rate": rate} | self._point(found) for rate, some in loads if (found := self._blocks(some))]

    def measure_ramp(self, first: float, last: float) -> list[dict[str, Any]]:
        """An open loop whose rate grows; the figures of each quarter of its time in which something was to be sent."""
        loads = self._open(first, last)
        moments_s = [load.moments_s or () for load in loads]
        cut = split_ramp(self._blocks(loads), moments_s, (first, last), self._config.block_s)
        return [{"rate": rate} | self._point(blocks) for rate, blocks in cut]

    def lossless_counts(self) -> dict[str, Any]:
        """`lossless` of results.json: texts of both arms, under every load that was measured."""
        reference = "the server without speculation, under the same load" if self._compared else "none: not checked"
        return {"prompts": self._compared, "identical": self._identical, "dtype": "as served", "reference": reference}

    # --- sending ----------------------------------------------------------------------------------------------------

    def _some(self, start: int, count: int) -> list[tuple[str, ChatPrompt]]:
        return [self._pool[(start + i) % len(self._pool)] for i in range(count)]

    def _moments(self, first: float, last: float, block: int) -> list[float]:
        return poisson_arrivals(first, last, self._config.block_s, self._config.seed + block)

    def _closed(self, n: int) -> Blocks:
        size = n * self._config.requests_per_stream
        return self._blocks([_Load(self._some(b * size, size), b * size, n) for b in range(self._config.repeats)])

    def _open(self, first: float, last: float) -> list[_Load]:
        loads, start = [], 0
        for block in range(self._config.repeats):
            moments_s = self._moments(first, last, block)
            loads.append(_Load(self._some(start, len(moments_s)), start, moments_s=moments_s))
            start += len(moments_s)
        return loads

    def _blocks(self, loads: Sequence[_Load]) -> Blocks:
        """By arm and load, up to the load at which a server was gone; empty where that was the first."""
        found = {name: list(chain.from_iterable(blocks)) for name, blocks in self._run(loads, 1).items()}
        return found if all(found.values()) else {}

    def _run(self, loads: Sequence[_Load], repeats: int) -> dict[str, list[list[BlockResult]]]:
        """By arm, load and repeat; every arm is warmed up first."""
        config = self._config
        for name in self._arms:
            if config.warm_up:
                self._send(name, _Load(self._some(0, config.warm_up), 0, loads[0].streams))
        found = run_paired({name: partial(self._send, name) for name in self._arms}, loads, repeats)
        if self.down is not None:
            found = _whole(found)
        if BASELINE in found and config.temperature == 0:
            for before, after in zip(found[BASELINE], found[SPECULATIVE], strict=True):
                compared, identical = count_identical(before[:1], after[:1])
                self._compared += compared
                self._identical += identical
        return found

    def _send(self, name: str, load: _Load) -> BlockResult:
        if self.down is not None:
            return NOT_SENT
        arm = self._arms[name]
        block = load.send(arm, self._config)
        errors = [sample.error for sample in block.samples if sample.error is not None]
        self.num_answered += len(block.samples) - len(errors)
        self.num_failed += len(errors)
        self.first_error = self.first_error or next(iter(errors), "")
        if not self.num_answered and self.first_error.startswith("HTTP 4") and "stream" in self.first_error:
            raise StageError(
                f"a server that refuses ({self.first_error})", "answers piece by piece", "set client.stream=false"
            )
        if block.num_unreached and arm.load_generator.is_down():
            self.down = f"{name}: {errors[-1]}"
            return replace(block, is_complete=False)
        return block

    # --- figures ----------------------------------------------------------------------------------------------------

    def _point(self, found: Blocks) -> dict[str, Any]:
        """One entry of `concurrency`; an arm that is neither of the two stands in `arms`."""
        of = {name: figures_of(blocks, self._config.slo, self._config.seed) for name, blocks in found.items()}
        if BASELINE not in found:
            return {"arms": of}
        return of | {"arms": {}} | compare_arms(found[BASELINE], found[SPECULATIVE], self._config.seed)

    def _task(self, found: Mapping[str, Sequence[Sequence[BlockResult]]]) -> dict[str, Any]:
        """One entry of `tasks`: blocks of one request by arm, prompt and repeat."""
        seed = self._config.seed
        tpot_ms = {name: [_median_ms(blocks, "tpot_s") for blocks in some] for name, some in found.items()}
        e2e_ms = {name: [_median_ms(blocks, "e2e_s") for blocks in some] for name, some in found.items()}
        head = found.get(SPECULATIVE) or next(iter(found.values()))
        entry: dict[str, Any] = {
            "prompts": sum(map(bool, head)),
            "tpot_ms": _medians(tpot_ms),
            "e2e_ms": _medians(e2e_ms),
        } | _counted([one for some in found.values() for blocks in some for one in blocks])
        told = summarize_acceptance([blocks[0] for blocks in head if blocks], seed)
        if told is not None:
            span = told.interval
            entry |= {"acceptance_length": told.length, "ci95": [span.low, span.high], "acceptance_source": told.source}
        if BASELINE in found:
            pairs = zip(tpot_ms[BASELINE], tpot_ms[SPECULATIVE], strict=True)
            ratios = [a / b for a, b in pairs if a is not None and b]
            if ratios:
                speedup, span = median_interval(ratios, seed)
                entry |= {"speedup": speedup, "speedup_ci95": [span.low, span.high]}
        return entry


def _counted(blocks: Sequence[BlockResult]) -> dict[str, Any]:
    """Requests of all arms, and what those that failed were told."""
    samples = [sample for block in blocks for sample in block.samples]
    errors = Counter(sample.error for sample in samples if sample.error is not None)
    found: dict[str, Any] = {"requests": len(samples), "failed": errors.total()}
    return found | ({"errors": dict(errors.most_common(5))} if errors else {})


def _median_ms(blocks: Sequence[BlockResult], time: Literal["tpot_s", "e2e_s"]) -> float | None:
    answered = [one for block in blocks for one in block.samples if one.error is None]
    values = [1000 * value for one in answered if (value := getattr(one, time)) is not None]
    return median(values) if values else None


def _medians(times_ms: Mapping[str, Sequence[float | None]]) -> dict[str, float]:
    """By arm, of those that have any."""
    known = {name: [value for value in values if value is not None] for name, values in times_ms.items()}
    return {name: median(values) for name, values in known.items() if values}


def _whole(found: Mapping[str, Sequence[Sequence[BlockResult]]]) -> dict[str, list[list[BlockResult]]]:
    """What every arm has sent to its end, for a block that one arm lacks compares with nothing."""
    kept: dict[str, list[list[BlockResult]]] = {name: [] for name in found}
    for repeats in zip(*found.values(), strict=True):  # of one load, by arm
        rounds = [blocks for blocks in zip(*repeats, strict=True) if all(block.is_complete for block in blocks)]
        for place, name in enumerate(found):
            kept[name].append([blocks[place] for blocks in rounds])
    return kept
