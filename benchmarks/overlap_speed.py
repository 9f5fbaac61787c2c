"""Measures the overlap loop against the plain loop: throughput, and the idle share of the device.

    python benchmarks/overlap_speed.py [--streams 1 8] [--pairs 7] [--dtype bfloat16]

Both loops run on the same engine, device thread and prompts, in alternating order. In each pair the loops answer the
same requests, and their tokens are compared. Prints one JSON object for each number of streams.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import torch
from worker_stream import TimedStream, WorkerStream

from eyas.bench.workload import Prompt, interleave_tasks, load_eval_prompts
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.device_stream import stream_for
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, overlap_loop, plain_loop
from eyas.engine.request import Request
from eyas.formats.head_dir import read_head
from eyas.kernels.aot_compile import compile_pair
from eyas.model.devices import DTYPES
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.recipe import resolve_head
from eyas.tree.shape import TreeShape

SHAPE = TreeShape(6, 4, 16)
MAX_TOKENS = 64
MAX_WARM_UPS = 4
LOOPS = {"plain": plain_loop, "overlap": overlap_loop}


@dataclass(frozen=True)
class LoopResult:
    """The result of one loop: its tokens, tokens per second, and the device's idle share and host share of the time."""

    tokens: dict[str, list[int]]
    tps: float
    idle: float
    host: float


def run_loop(engine: Engine, loop: str, prompts: list[Prompt], max_tokens: int = MAX_TOKENS) -> LoopResult:
    """Answers all prompts with one loop, as many at a time as the engine has slots, from an empty prefix cache."""
    engine.kv_cache.clear_prefix_cache()
    engine.counters.reset()
    assert isinstance(engine.stream, TimedStream), "the device is timed"
    before_s = engine.stream.device_s
    requests = [Request(prompt.id, prompt.ids, max_tokens, wants_text=True) for prompt in prompts]
    began_s = time.perf_counter()
    tokens = {answer.request.id: answer.token_ids for answer in LOOPS[loop](engine, RequestList(requests))}
    seconds = time.perf_counter() - began_s
    count = sum(len(ids) for ids in tokens.values())
    busy = (engine.stream.device_s - before_s) / seconds
    return LoopResult(tokens, count / seconds, 1 - busy, engine.counters.host_s / seconds)


def warm_up(engine: Engine, prompts: list[Prompt], max_tokens: int = MAX_TOKENS) -> None:
    """Runs both loops until they capture no further CUDA graph, so that no timed run captures one."""
    for _ in range(MAX_WARM_UPS):
        graphs = engine.runner.graphs
        before = 0 if graphs is None else len(graphs)
        for loop in LOOPS:
            run_loop(engine, loop, prompts, max_tokens)
        if graphs is None or before == len(graphs) > 0 or graphs.disabled_reason is not None:
            return


def compare(streams: Sequence[int], pairs: int, dtype: torch.dtype) -> Iterator[tuple[dict[str, Any], list[float]]]:
    """Yields a row for each number of streams, with the gain of each pair."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    stored = read_head(resolve_head(EMBEDDED), dtype)
    target = Target.load(EMBEDDED, dtype, stored.config.aux_layer_ids, device)
    draft = Eagle3Spec.on(target.model.device, stored, SHAPE)
    if device.type == "cpu":
        compile_pair(target, draft.head)
    prompts = interleave_tasks(load_eval_prompts(target.tokenizer, 4))
    context = max(len(prompt.ids) for prompt in prompts) + MAX_TOKENS
    for count in streams:
        stream = TimedStream(WorkerStream() if device.type == "cpu" else stream_for(device))
        engine = Engine(target, [draft], count, context, stream=stream)
        some = prompts[: max(7, 2 * count)]
        found: dict[str, list[LoopResult]] = {"plain": [], "overlap": []}
        warm_up(engine, some)
        for pair in range(pairs):
            for loop in sorted(LOOPS, reverse=pair % 2 == 1):
                found[loop].append(run_loop(engine, loop, some))
            print(f"{count} streams, pair {pair + 1} of {pairs}", file=sys.stderr)
        same = all(a.tokens == b.tokens for a, b in zip(found["plain"], found["overlap"], strict=True))
        gains = [b.tps / a.tps for a, b in zip(found["plain"], found["overlap"], strict=True)]
        spread = quantiles(gains, n=4) if len(gains) > 1 else [gains[0]] * 3
        name = f"overlap over plain loop, output tokens/s, {count} streams, {str(dtype)[6:]}, {device.type}"
        row = {
            "name": name,
            "gain": round(median(gains), 3),
            "quartiles": [round(spread[0], 3), round(spread[2], 3)],
            "idle_share": {loop: round(median(one.idle for one in runs), 4) for loop, runs in found.items()},
            "host_share": {loop: round(median(one.host for one in runs), 4) for loop, runs in found.items()},
            "same_tokens": same,
            "pairs": pairs,
        }
        engine.stream.close()
        yield row, gains


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parsed = parser.parse_args()
    for row, _ in compare(parsed.streams, parsed.pairs, DTYPES[parsed.dtype]):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
