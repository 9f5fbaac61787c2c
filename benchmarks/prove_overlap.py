"""Measures the host's side of the engine without a GPU: `Engine.launch`, and what the overlap loop hides.

    python benchmarks/prove_overlap.py [--only PART] [--pairs N] [--clock host|wall]

The engine is real: loops, scheduler, KV cache manager, budget and output processor. benchmarks/simulated_device.py
stands for the device and the model, so the rows need no GPU. The last row runs a small target with random weights and
two heads, and counts the operations that would make the host wait for a GPU (benchmarks/mixed_requests.py).

With `--clock host` the host's work counts with its processor time and waits take no time, so other processes on the
machine hardly matter. With `--clock wall` all times are real ones: for an idle machine.

Prints one JSON object for each row and exits 1 if a row misses its target. Progress goes to stderr. Takes about three
minutes on two idle cores.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from mixed_requests import Detector, HostReads, run_mixed_requests
from prove_engine import measure_rotated
from result_rows import Row, print_rows
from simulated_device import (
    Clock,
    HostClock,
    SimulatedDevice,
    WallClock,
    build_stand_in_engine,
    busy_until,
    endless_requests,
    load_tiny_target,
)

from eyas.engine.engine import Engine, OnTokens
from eyas.engine.loops import RequestList, overlap_loop, plain_loop
from eyas.engine.request import Request, RequestOutput
from eyas.engine.scheduler import RoundWork
from eyas.model.target import Target
from eyas.tree.intervals import median_interval

CLOCKS: dict[str, Callable[[], Clock]] = {"host": HostClock, "wall": WallClock}
LOOPS = {"plain": plain_loop, "overlap": overlap_loop}
SIZES = (8, 32, 64, 128)  # running requests
LAUNCHES = 60  # rounds of one size in a row
SHORT_ROUND_S = 1e-4  # in which the host need not wait for the simulated device
ROUND_S = 0.01
STREAMS = 32
WARM_UP_STEPS = 20
HOST_SHARE = 0.15  # host work of a round / its time on the device
MAX_OWN_SHARE = 0.6  # of this host work that the engine itself may do; the rest stands for the server's work
NUM_REQUESTS = 2000


@dataclass(frozen=True)
class Effort:
    """The size of each part. steps: the pieces of work of one run of a loop. clock: a key of CLOCKS."""

    pairs: int
    clock: str = "host"
    steps: int = 200
    requests: int = NUM_REQUESTS


@dataclass(frozen=True)
class LoopRun:
    """The result of one run of a loop, measured between two of its steps.

    Attributes:
        tps: Output tokens per second.
        idle: The share of the time in which the device had no work.
        host_s: The seconds between two pieces of work on the device; in the plain loop, the host's work for one piece.
        calls: The calls of `on_tokens` for each piece of work.
    """

    tps: float
    idle: float
    host_s: float
    calls: float


class SteadyLoad:
    """A source that keeps the engine full, and measures its steps between a warm-up and the end.

    At the end it cancels all requests, so that the few streams of a tail are not measured.
    """

    def __init__(self, engine: Engine, device: SimulatedDevice, requests: Iterator[Request], steps: int) -> None:
        self._engine, self._device = engine, device
        self._requests = RequestList(requests)
        self._steps_left = WARM_UP_STEPS + steps
        self._num_steps = steps
        self._num_calls = 0
        self._marks: list[tuple[float, int, float, int]] = []

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        """Adds requests until the engine is full. Returns False at the end, after it has cancelled all requests."""
        if self._steps_left in (self._num_steps, 0):
            done = engine.counters.output_tokens
            self._marks.append((self._device.clock.now_s(), done, self._device.idle_s, self._num_calls))
        if self._steps_left <= 0:
            states = [request.state for request in engine.scheduler.running] + list(engine.scheduler.waiting)
            for state in states:
                engine.cancel(state.output.request.id)
            return False
        self._steps_left -= 1
        return self._requests.admit(engine, may_wait)

    def counted(self, on_tokens: OnTokens) -> OnTokens:
        """Returns `on_tokens` with its calls counted."""

        def call(output: RequestOutput, count: int) -> None:
            self._num_calls += 1
            on_tokens(output, count)

        return call

    def result(self) -> LoopRun:
        """Returns what was measured. Requirement: the loop has ended."""
        (begin_s, tokens, idle_s, calls), (end_s, last_tokens, last_idle_s, last_calls) = self._marks[:2]
        seconds = end_s - begin_s
        return LoopRun(
            (last_tokens - tokens) / seconds,
            (last_idle_s - idle_s) / seconds,
            (last_idle_s - idle_s) / self._num_steps,
            (last_calls - calls) / self._num_steps,
        )


def run_loop(target: Target, loop: str, round_s: float, call_s: float, effort: Effort, wants_text: bool) -> LoopRun:
    """Runs a loop with a new engine at 32 streams.

    Args:
        target: the target of the engine; its forwards do not run.
        loop: "plain" or "overlap".
        round_s: the seconds of each piece of work on the device.
        call_s: the seconds of host work that is added for each output that gets tokens.
        effort: the number of steps.
        wants_text: True if the engine decodes the tokens to text.
    """
    device = SimulatedDevice(round_s, CLOCKS[effort.clock]())
    engine = build_stand_in_engine(target, STREAMS, device)

    def on_tokens(output: RequestOutput, count: int) -> None:
        busy_until(device.clock, device.clock.now_s() + call_s)

    load = SteadyLoad(engine, device, endless_requests(wants_text), effort.steps)
    list(LOOPS[loop](engine, load, load.counted(on_tokens)))
    return load.result()


def launch_time(target: Target, effort: Effort) -> Iterator[Row]:
    """Yields the rows of the time that `Engine.launch` takes on the host, by number of running requests."""
    found = measure_rotated(
        {str(size): timer for size in SIZES for timer in [_launch_timer(target, size)]}, effort.pairs, "launch"
    )
    middles = {size: median(found[str(size)]) * 1000 for size in SIZES}
    middle, span = median_interval([seconds * 1000 for seconds in found["128"]], 0)
    name = "host time of Engine.launch for a round of 128 requests, milliseconds, median"
    yield Row(name, round(middle, 3), "at most 1.0", middle <= 1.0, (round(span.low, 3), round(span.high, 3)))
    costs = [many / 128 / (few / 32) for many, few in zip(found["128"], found["32"], strict=True)]
    ratio, span = median_interval(costs, 0)
    name = "host time of Engine.launch for each request: at 128 requests over at 32"
    yield Row(name, round(ratio, 3), "at most 1.3", ratio <= 1.3, (round(span.low, 3), round(span.high, 3)))
    slope = float(np.polyfit(np.log(SIZES), np.log(list(middles.values())), 1)[0])
    told = ", ".join(f"{size}: {middles[size]:.2f} ms" for size in SIZES)
    print(f"launch by running requests: {told}", file=sys.stderr)
    name = "host time of Engine.launch: exponent of its growth from 8 to 128 requests"
    yield Row(name, round(slope, 3), "at most 1.05", slope <= 1.05)


def _launch_timer(target: Target, size: int) -> Callable[[], float]:
    """Returns a function that times rounds of `size` requests, and returns the median of their launches in seconds.

    The time is the processor time of the thread: a launch does not wait, and other processes should not count.
    """
    engine = build_stand_in_engine(target, size, SimulatedDevice(SHORT_ROUND_S, HostClock()))
    source, in_flight = RequestList(endless_requests(False)), None

    def run() -> float:
        nonlocal in_flight
        times: list[float] = []
        while len(times) < LAUNCHES:
            source.admit(engine, may_wait=False)
            began_s = time.thread_time()
            step = engine.launch()
            seconds = time.thread_time() - began_s
            if step is not None and isinstance(step.work, RoundWork) and len(step.work.members) == size:
                times.append(seconds)
            if in_flight is not None:
                engine.process(in_flight)
            in_flight = step
        return median(times)

    return run


def idle_share(target: Target, effort: Effort) -> Iterator[Row]:
    """Yields the rows of the device's idle share at 32 streams and 10 ms a round, with decoding to text."""
    arms = {name: lambda name=name: run_loop(target, name, ROUND_S, 0.0, effort, True).idle for name in LOOPS}
    found = measure_rotated(arms, effort.pairs, "idle share")
    for loop, (target_text, bound) in {"overlap": ("below 0.03", 0.03), "plain": ("none", 1.0)}.items():
        middle, span = median_interval(found[loop], 0)
        name = f"idle share of the device, {loop} loop, 32 streams, rounds of 10 ms"
        yield Row(name, round(middle, 4), target_text, middle < bound, (round(span.low, 4), round(span.high, 4)))


def gain(target: Target, effort: Effort) -> Iterator[Row]:
    """Yields the rows of overlap over plain where the host's work is 15 % of a round."""
    bare = [run_loop(target, "plain", ROUND_S, 0.0, effort, False) for _ in range(3)]
    own_s, calls = median(run.host_s for run in bare), median(run.calls for run in bare)
    round_s = max(ROUND_S, own_s / (MAX_OWN_SHARE * HOST_SHARE))
    call_s = (HOST_SHARE * round_s - own_s) / calls
    told = f"rounds of {round_s * 1000:.1f} ms, {own_s * 1000:.2f} ms of them the engine's own work on the host"
    print(f"gain: {told}, {call_s * 1e6:.0f} us added for each output", file=sys.stderr)
    runs: dict[str, list[LoopRun]] = {loop: [] for loop in LOOPS}

    def measure(loop: str) -> float:
        runs[loop].append(run_loop(target, loop, round_s, call_s, effort, False))
        return runs[loop][-1].tps

    arms = {loop: lambda loop=loop: measure(loop) for loop in LOOPS}
    found = measure_rotated(arms, effort.pairs, "gain")
    share = median(run.host_s / round_s for run in runs["plain"])
    name = "host work of a round over its time on the device, plain loop, 32 streams"
    yield Row(name, round(share, 3), "0.13 to 0.17", 0.13 <= share <= 0.17)
    middle, span = median_interval([b / a for a, b in zip(found["plain"], found["overlap"], strict=True)], 0)
    name = "overlap over plain loop, output tokens/s, 32 streams, host work of 15 % of a round"
    interval = round(span.low, 3), round(span.high, 3)
    yield Row(name, round(middle, 3), "1.10 to 1.20", 1.10 <= middle <= 1.20, interval)


def forbidden_operations_row(
    directory: Path, num_requests: int = NUM_REQUESTS, detector: Detector | None = None
) -> Row:
    """Returns the row of the operations in launched work that would make the host wait for a GPU.

    Args:
        directory: where the small target is saved.
        num_requests: the number of requests.
        detector: watches launched work and counts; None for `HostReads`.
    """
    detector = HostReads() if detector is None else detector
    mix = run_mixed_requests(load_tiny_target(directory), num_requests, detector.watch)
    print(f"mixed requests: {mix}; forbidden operations: {dict(detector.counts)}", file=sys.stderr)
    name = (
        f"forbidden operations over {num_requests:,} mixed requests (admissions, finishes, cancels, grammars, "
        "log-probabilities, two heads)"
    )
    found = sum(detector.counts.values())
    return Row(name, found, "0", found == 0 and mix.is_mixed)


def measure_rows(directory: Path, only: str | None, effort: Effort) -> Iterator[Row]:
    """Yields the rows of all parts, or of one."""
    target = load_tiny_target(directory)
    for name, part in {"launch": launch_time, "idle": idle_share, "gain": gain}.items():
        if only in (None, name):
            yield from part(target, effort)
    if only in (None, "forbidden"):
        yield forbidden_operations_row(directory, effort.requests)


def main() -> int:
    """Runs the chosen parts and prints their rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["launch", "idle", "gain", "forbidden"])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--clock", choices=CLOCKS, default="host")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        return print_rows(measure_rows(Path(directory), parsed.only, Effort(parsed.pairs, parsed.clock)))


if __name__ == "__main__":
    sys.exit(main())
