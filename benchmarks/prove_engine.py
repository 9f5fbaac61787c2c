"""Measures the engine: throughput, TTFT, host time and memory. `make prove-engine` calls it.

    python benchmarks/prove_engine.py [--only PART] [--pairs N] [--eager]

Runs the embedded pair in this process: bfloat16, closed loop, mixed tasks, and compiled forwards in both arms, as in
`eyas serve`. The arms of a pair run back to back on the same prompts, in an order that rotates from pair to pair. The
figure is the median of the ratios with its bootstrap interval over pairs. The prefix cache is empty unless a row says
otherwise. benchmarks/compare_peers.py measures the other engines that `make peers` has installed.

Prints one JSON object for each row and exits 1 if a row misses its target. Progress goes to stderr. Takes less than an
hour on two idle cores.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from engine_checks import check_engine
from result_rows import Row, print_rows

from eyas.bench.engine_load import build_auto_engine, build_fixed_arm_engine
from eyas.bench.engine_request_loops import run_closed_loop
from eyas.bench.workload import Prompt, interleave_tasks, load_eval_prompts
from eyas.drafters.eagle3 import Eagle3Drafter, Eagle3Spec
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request
from eyas.formats.head_dir import read_head
from eyas.kernels.aot_compile import compile_pair
from eyas.model.head import DraftHead, Head
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.recipe import resolve_head
from eyas.speculation.arms import default_arms
from eyas.tree.intervals import median_interval
from eyas.tree.shape import TreeShape

DTYPE = torch.bfloat16
SHAPE = TreeShape(6, 4, 16)
STREAMS = (1, 2, 4, 8, 16, 32)
MAX_TOKENS = 96
REQUESTS_PER_STREAM = 2
MIN_REQUESTS = 7  # one for each task
FIXED_PAIRS = 3
NUM_REQUESTS = 10_000
TTFT_PROMPTS = 14
TARGET_CALLS = ("forward", "logits", "embed")
HEAD_CALLS = ("step", "step_with_logits", "fuse_aux", "logits", "next_hidden", "context_keys_values", "correction")


@dataclass(frozen=True)
class Pair:
    """The embedded target and its head, loaded once."""

    target: Target
    draft: Eagle3Spec
    prompts: list[Prompt]

    @property
    def context(self) -> int:
        """The tokens of the longest prompt and its answer."""
        return max(len(prompt.ids) for prompt in self.prompts) + MAX_TOKENS


def load(eager: bool) -> Pair:
    """Loads the shipped pair and compiles its forwards, unless `eager` is set."""
    stored = read_head(resolve_head(EMBEDDED), DTYPE)
    target, head = Target.load(EMBEDDED, DTYPE, stored.config.aux_layer_ids), stored.head.pack_projections()
    if not eager:
        print("Compiling the forwards (about a minute the first time)", file=sys.stderr, flush=True)
        compile_pair(target, head)
    return Pair(
        target, Eagle3Spec(head, stored.vocab, SHAPE), interleave_tasks(load_eval_prompts(target.tokenizer, 10))
    )


def measure_rotated(arms: Mapping[str, Callable[[], float]], pairs: int, what: str) -> dict[str, list[float]]:
    """Runs each arm once in each pair, in rotated order, and returns the figures by arm."""
    names = list(arms)
    found: dict[str, list[float]] = {name: [] for name in names}
    for pair in range(pairs):
        first = pair % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(arms[name]())
        print(f"{what}: pair {pair + 1} of {pairs}", file=sys.stderr, flush=True)
    return found


def never_slower(pair: Pair, pairs: int) -> Iterator[Row]:
    """Yields the rows of the auto arm against the baseline and the best fixed arm, by number of streams."""
    medians = {1: 2.2, 4: 1.4}
    for streams in STREAMS:
        some = [pair.prompts[i % len(pair.prompts)] for i in range(max(MIN_REQUESTS, streams * REQUESTS_PER_STREAM))]
        engines = {"off": Engine(pair.target, (), streams, pair.context)}
        engines["auto"] = build_auto_engine(pair.target, pair.draft, streams, pair.context)
        for engine in engines.values():
            run_closed_loop(engine, some, MAX_TOKENS)  # warm-up; the arm selection starts to learn
        arms = {name: _throughput(engine, some) for name, engine in engines.items()}
        found = measure_rotated(arms, pairs, f"{streams} streams")
        ratios = [a / b for a, b in zip(found["auto"], found["off"], strict=True)]
        middle, span = median_interval(ratios, 0)
        label = f"auto over --no-head, output tokens per second, {streams} streams"
        yield Row(f"{label}: lower 95% bound", round(span.low, 3), "at least 0.97", span.low >= 0.97)
        if streams in medians:
            bound = medians[streams]
            yield Row(f"{label}: median", round(middle, 3), f"at least {bound:g}", middle >= bound)
        yield _against_fixed(pair, engines["auto"], some, streams)


def _against_fixed(pair: Pair, auto: Engine, some: Sequence[Prompt], streams: int) -> Row:
    engines = {
        arm.name: build_fixed_arm_engine(pair.target, pair.draft, arm, streams, pair.context) for arm in default_arms()
    } | {"auto": auto}
    for engine in engines.values():
        run_closed_loop(engine, some[: max(streams, 2)], 16)
    arms = {name: _throughput(engine, some) for name, engine in engines.items()}
    found = measure_rotated(arms, FIXED_PAIRS, f"{streams} streams, fixed arms")
    shares = {name: median([a / b for a, b in zip(found["auto"], times, strict=True)]) for name, times in found.items()}
    best = min((name for name in shares if name != "auto"), key=shares.__getitem__)
    print(json.dumps({name: round(share, 3) for name, share in shares.items()}), file=sys.stderr)
    name = f"auto over the best fixed arm ({best}), output tokens per second, {streams} streams"
    return Row(name, round(shares[best], 3), "at least 0.95", shares[best] >= 0.95)


def _throughput(engine: Engine, some: Sequence[Prompt]) -> Callable[[], float]:
    return lambda: run_closed_loop(engine, some, MAX_TOKENS).result.output_tps


def random_head(pair: Pair, pairs: int) -> Iterator[Row]:
    """Yields the row of a head with random weights, which the arm selection should switch off quickly."""
    useless = replace(pair.draft, head=Head.init(pair.draft.head.config, 1, DTYPE).pack_projections())
    if pair.draft.head.compiled_forward is not None:
        compile_pair(pair.target, useless.head)
    some = pair.prompts[:MIN_REQUESTS]
    engines = {
        "off": Engine(pair.target, (), 1, pair.context),
        "auto": build_auto_engine(pair.target, useless, 1, pair.context),
    }
    for engine in engines.values():
        run_closed_loop(engine, some, MAX_TOKENS)
    found = measure_rotated({name: _throughput(engine, some) for name, engine in engines.items()}, pairs, "random head")
    middle, _ = median_interval([a / b for a, b in zip(found["auto"], found["off"], strict=True)], 0)
    name = "a head with random weights over --no-head, output tokens per second, 1 stream"
    yield Row(name, round(middle, 3), "at least 0.98", middle >= 0.98)


def ttft(pair: Pair, pairs: int) -> Iterator[Row]:
    """Yields the rows of the time to first token at one stream, with a cold and a warm prefix cache."""
    some = pair.prompts[:TTFT_PROMPTS]
    engines = {
        "off": Engine(pair.target, (), 1, pair.context),
        "auto": build_auto_engine(pair.target, pair.draft, 1, pair.context),
    }
    for temper in ("cold", "warm"):

        def first_token_s(engine: Engine, temper: str = temper) -> float:
            times = []
            for prompt in some:
                engine.kv_cache.clear_prefix_cache()
                if temper == "warm":
                    list(plain_loop(engine, RequestList([Request("before", prompt.ids, 1)])))
                (answer,) = plain_loop(engine, RequestList([Request(prompt.id, prompt.ids, 8)]))
                times.append(answer.ttft_s)
            return median(times)

        arms = {name: lambda engine=engine: first_token_s(engine) for name, engine in engines.items()}
        for arm in arms.values():
            arm()
        found = measure_rotated(arms, pairs, f"TTFT, {temper}")
        ratio = median([a / b for a, b in zip(found["auto"], found["off"], strict=True)])
        name = f"TTFT p50 with head over baseline, 1 stream, prefix cache {temper}"
        yield Row(name, round(ratio, 3), "at most 1.15", ratio <= 1.15)


class CallTimer:
    """A timer for some callables. Nested calls among them are counted once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_inside = False

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the callable with its time added to `seconds`."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return call(*args, **kwargs)
            self._is_inside, began_s = True, time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began_s
                self._is_inside = False

        return timed


def host_share(pair: Pair, pairs: int) -> Iterator[Row]:
    """Yields the share of time outside forwards: trees, verification, memory, scheduling, detokenization."""
    engine = build_auto_engine(pair.target, pair.draft, 8, pair.context)
    share = outside_forwards(engine, pair.draft.head, pair.prompts[:24], pairs)
    name = "share of time outside forwards of target and head, 8 streams"
    yield Row(name, round(share, 4), "below 0.1", share < 0.1)


def outside_forwards(engine: Engine, head: DraftHead, some: Sequence[Prompt], pairs: int) -> float:
    """Answers the prompts `pairs` times and returns the median share of time outside forwards of target and head."""
    run_closed_loop(engine, some, MAX_TOKENS)
    timer = CallTimer()
    calls: list[tuple[Target | DraftHead, str]] = [(engine.target, name) for name in TARGET_CALLS]
    calls += [(head, name) for name in HEAD_CALLS if hasattr(head, name)]
    for owner, name in calls:
        setattr(owner, name, timer.around(getattr(owner, name)))
    shares = []
    for _ in range(pairs):
        engine.kv_cache.clear_prefix_cache()
        timer.seconds, began_s = 0.0, time.perf_counter()
        requests = [Request(prompt.id, prompt.ids, MAX_TOKENS, wants_text=True) for prompt in some]
        list(plain_loop(engine, RequestList(requests)))
        shares.append(1 - timer.seconds / (time.perf_counter() - began_s))
    for owner, name in calls:
        delattr(owner, name)
    return median(shares)


def memory(pair: Pair, pairs: int) -> Iterator[Row]:
    """Yields the rows of bytes for each token and of the growth of resident memory."""
    engine = Engine(pair.target, [pair.draft], 32, pair.context, memory_tokens=20_000)
    facts, config = pair.target.info, pair.draft.head.config
    size = torch.empty(0, dtype=DTYPE).element_size()
    layers = 2 * facts.num_layers * facts.num_kv_heads * facts.head_dim * size
    aux = 3 * facts.hidden_size * size
    pool, drafter = engine.kv_cache.pool, engine.runner.drafters[0]
    assert isinstance(drafter, Eagle3Drafter), "an engine with a head"
    assert pool.aux_ZL is not None, "an engine with a head stores features"
    held = pool.kv.nbytes / (pool.num_slots + 1) + pool.aux_ZL.nbytes / (pool.num_slots + 1)
    wanted = layers + aux
    yield Row("bytes per 1,000 tokens, keys, values and features, over the arithmetic", round(held / wanted, 6), "1",
              held == wanted)  # fmt: skip
    head_bytes = 2 * config.num_kv_heads * config.head_dim * size
    tokens = pool.num_slots + 1 + (engine.max_running + 1) * len(drafter.scratch_E)
    yield Row("bytes per 1,000 tokens of the head's keys and values, over the arithmetic",
              round(drafter.kv.nbytes / tokens / head_bytes, 6), "1",
              drafter.kv.nbytes == tokens * head_bytes)  # fmt: skip
    yield _no_growth(engine, pair)


def _no_growth(engine: Engine, pair: Pair) -> Row:
    """Returns the row of resident memory after all requests against that after the first tenth."""
    pool, drafter = engine.kv_cache.pool, engine.runner.drafters[0]
    assert isinstance(drafter, Eagle3Drafter), "an engine with a head"
    for reserved in (pool.kv, pool.aux_ZL, drafter.kv):
        if reserved is not None:
            reserved.zero_()  # so that reserved memory is resident from the start, not from its first write
    short = [prompt.ids[:24] for prompt in pair.prompts]
    marks = []
    # Runs every batch size once, because the kernels of each shape stay in memory.
    list(
        plain_loop(
            engine, RequestList(Request(str(i), short[i % len(short)], 2 + i) for i in range(2 * engine.max_running))
        )
    )
    for number, _ in enumerate(
        plain_loop(engine, RequestList(Request(str(i), short[i % len(short)], 2 + i % 5) for i in range(NUM_REQUESTS))),
        1,
    ):
        if number and number % (NUM_REQUESTS // 10) == 0:
            marks.append(_resident_bytes())
            print(f"memory: {number} of {NUM_REQUESTS} requests", file=sys.stderr, flush=True)
    check_engine(engine)
    grown = (marks[-1] - marks[0]) / marks[0]
    name = f"growth of resident memory from request {NUM_REQUESTS // 10} to request {NUM_REQUESTS}"
    return Row(name, round(grown, 4), "below 0.01", grown < 0.01)


def _resident_bytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def peers(pair: Pair, pairs: int) -> Iterator[Row]:
    """Yields the rows of benchmarks/compare_peers.py."""
    rows = _run_script("compare_peers.py", "--pairs", str(pairs))
    yield from rows or [Row("eyas beside other engines", None, "a figure: `make peers` installs them", False)]


def gpu(pair: Pair, pairs: int) -> Iterator[Row]:
    """Yields the rows of benchmarks/engine_gpu.py if there is a GPU."""
    if torch.cuda.is_available():
        yield from _run_script("engine_gpu.py")


def _run_script(script: str, *arguments: str) -> list[Row]:
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return [Row(**json.loads(line)) for line in done.stdout.splitlines()]


PARTS = {
    "never-slower": never_slower,
    "random-head": random_head,
    "ttft": ttft,
    "rounds": host_share,
    "memory": memory,
    "peers": peers,
    "gpu": gpu,
}


def main() -> int:
    """Runs the chosen parts and prints their rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--eager", action="store_true", help="do not compile the forwards of either arm")
    parsed = parser.parse_args()
    pair = load(parsed.eager)
    chosen = [part for name, part in PARTS.items() if parsed.only in (None, name)]
    return print_rows(row for part in chosen for row in part(pair, parsed.pairs))


if __name__ == "__main__":
    sys.exit(main())
