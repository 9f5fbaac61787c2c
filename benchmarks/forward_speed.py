"""Compares plain decoding at one stream with the speed at which this CPU reads memory. `make prove-speed` calls it.

    python benchmarks/forward_speed.py [--target DIR] [--prompts FILE] [--answers N]

A token of plain decoding needs every weight once. So the least time of a round is the bytes of the weights over the
bandwidth. The bandwidth is that of torch.sum over a float32 tensor that no cache holds, on pages of 2 MiB as the
weights, on all threads, the fastest of READS calls. The forward is the target's compiled forward and its logits; the
round has the host's work, too. Another row is the part of this work that is Python: the scheduler and the output
processor, at 1 and at 32 streams.

Reads and answers take turns. A figure is the median over answers, with its 95 % interval. Prints one JSON object for
each row and exits 1 if a row misses its target.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from statistics import median
from typing import Any
from unittest import mock

import torch
from result_rows import Row, print_rows

from eyas.bench.config import BenchConfig
from eyas.bench.engine_request_loops import run_closed_loop
from eyas.bench.workload import BUILTIN, Prompt, interleave_tasks, load_workload
from eyas.engine.engine import Engine
from eyas.kernels.aot_compile import compile_pair
from eyas.kernels.huge_pages import zeros_on_huge_pages
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.tree.intervals import median_interval

READ_BYTES, READS = 1 << 30, 3
MAX_TOKENS = 128
FORWARD, ROUND = 0.85, 0.72
HOST_US = {1: 150, 32: 300}  # the most microseconds of Python in a round, by streams
HOST_TOKENS, HOST_RUNS = 48, 6


class TimedCalls:
    """The seconds of each call of a function."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.seconds: list[float] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        began_s = time.perf_counter()
        result = self._call(*args, **kwargs)
        self.seconds.append(time.perf_counter() - began_s)
        return result


def bytes_per_second(buffer: torch.Tensor) -> float:
    """Returns the fastest of READS reads of the buffer."""
    best_s = float("inf")
    for _ in range(READS):
        began_s = time.perf_counter()
        buffer.sum()
        best_s = min(best_s, time.perf_counter() - began_s)
    return buffer.nbytes / best_s


def round_seconds(engine: Engine, prompt: Prompt) -> tuple[float, float]:
    """Answers a prompt. Returns the mean seconds of a forward with its logits, and of a round."""
    runner, target = engine.runner, engine.runner.target
    forward, logits = TimedCalls(runner._forward), TimedCalls(target.logits)
    with mock.patch.object(runner, "_forward", forward), mock.patch.object(target, "logits", logits):
        engine.counters.reset()
        times_s = run_closed_loop(engine, [prompt], MAX_TOKENS).answers[0].token_times_s
    rounds = engine.counters.rounds  # the prefill came before them
    forward_s = sum(forward.seconds[-rounds:]) + sum(logits.seconds[-rounds:])
    return forward_s / rounds, (times_s[-1] - times_s[0]) / rounds


def measure(target: Target, weight_bytes: int, prompts: Sequence[Prompt]) -> Iterator[Row]:
    """Yields the rows."""
    buffer = zeros_on_huge_pages((READ_BYTES // 4,), torch.float32, torch.device("cpu")).fill_(1)
    engine = Engine(target, (), 1, max(len(prompt.ids) for prompt in prompts) + MAX_TOKENS)
    round_seconds(engine, prompts[0])
    shares: dict[str, list[float]] = {"forward": [], "round": []}
    speeds, forward_ms, round_ms = [], [], []
    for prompt in prompts:
        speed = bytes_per_second(buffer)
        forward_s, round_s = round_seconds(engine, prompt)
        shares["forward"].append(weight_bytes / speed / forward_s)
        shares["round"].append(weight_bytes / speed / round_s)
        speeds.append(speed / 1e9)
        forward_ms.append(1e3 * forward_s)
        round_ms.append(1e3 * round_s)
    told = f"{weight_bytes / 1e6:.0f} MB, {median(speeds):.1f} GB/s"
    for name, least, ms in (("forward", FORWARD, forward_ms), ("round", ROUND, round_ms)):
        middle, span = median_interval(shares[name], 0)
        interval = (round(span.low, 3), round(span.high, 3))
        label = f"plain decoding, 1 stream: time of the bytes of the weights over that of a {name}"
        note = f"{told}, {median(ms):.2f} ms"
        yield Row(label, round(middle, 3), f"at least {least}", middle >= least, interval, note)


def host_rows(target: Target, prompts: Sequence[Prompt]) -> Iterator[Row]:
    """Yields the rows of the host's microseconds for a round."""
    for streams, most in HOST_US.items():
        engine = Engine(target, (), streams, max(len(prompt.ids) for prompt in prompts) + HOST_TOKENS)
        found = []
        for first in range(HOST_RUNS):
            asked = [prompts[(first + i) % len(prompts)] for i in range(streams)]
            engine.counters.reset()
            run_closed_loop(engine, asked, HOST_TOKENS)
            found.append(1e6 * engine.counters.host_s / engine.counters.rounds)
        middle, span = median_interval(found[1:], 0)  # the first run warms up
        at = f"{streams} streams" if streams > 1 else "1 stream"
        interval = (round(span.low), round(span.high))
        name = f"microseconds of Python in a round of plain decoding, {at}"
        yield Row(name, round(middle), f"at most {most}", middle <= most, interval)


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=EMBEDDED)
    parser.add_argument("--prompts", default=BUILTIN)
    parser.add_argument("--answers", type=int, default=12)
    parsed = parser.parse_args()
    target = Target.load(parsed.target, torch.bfloat16)
    weight_bytes = sum(one.nbytes for one in target.model.parameters())  # of each tensor once; packing moves them
    compile_pair(target, None)
    config = BenchConfig(prompts=parsed.prompts, prompts_per_task=parsed.answers, max_tokens=MAX_TOKENS)
    workload, _ = load_workload(config, None, target)
    asked = interleave_tasks(workload)[: parsed.answers]
    return print_rows(chain(measure(target, weight_bytes, asked), host_rows(target, asked)))


if __name__ == "__main__":
    sys.exit(main())
