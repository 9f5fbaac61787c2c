"""Part `overhead` of `make prove-clients`: what tool calls, metrics and digests cost.

    python benchmarks/clients_overhead.py [--pairs N]

tpot       32 streams of `eyas serve` with the embedded pair in float32, compiled, and a tool. TPOT with and without
           parsing and metrics varies by more than the limit from run to run. Therefore the row is the CPU time that
           the server spends in them, measured inside the server, as a share of all its CPU time; the ratio of TPOT is
           told. The time that the clock itself takes is measured before each call and subtracted. Float32, because
           many CPUs emulate bfloat16, and then a slow forward hides the cost. The signal SIGUSR1 switches both off and
           on in the server, so that both arms have the same process.
start-up   from the start of `eyas serve` with a random target of 0.2 GB until it is ready, with and without hashing it.

Both arms run back to back in rotated order, at most N times, until the 95 % interval of the median ratio is narrower
than 2 %.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import torch
from result_rows import Row, print_rows
from training_fixtures import make_target

from eyas.base.environment import count_cpus
from eyas.cli import main as run_eyas
from eyas.formats.config import HeadMetadata
from eyas.formats.head_dir import read_head, write_head
from eyas.kernels.aot_compile import compile_pair
from eyas.model.head import Head, HeadConfig
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.model.vocab import DraftVocab
from eyas.recipe import resolve_head
from eyas.tree.intervals import median_interval

MIN_PAIRS, MAX_PAIRS, HALF_WIDTH = 5, 30, 0.01
STREAMS, MAX_TOKENS = 32, 128
MAX_SHARE, MAX_START = 0.01, 1.10
LAYERS, DRAFT_VOCAB = 30, 4096
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


def overhead_rows(max_pairs: int) -> Iterator[Row]:
    """Yields a row for TPOT and one for the start-up."""
    threads = max(count_cpus() - 1, 1)
    _compile(threads)
    server, url = _start(["--serve=", "--dtype", "float32", "--threads", str(threads)])
    try:
        for _ in range(3):  # warm-up
            asyncio.run(_load(url))
        is_on = True

        def tpot_s(wants: bool) -> float:
            nonlocal is_on
            if wants != is_on:
                server.send_signal(signal.SIGUSR1)
                is_on = wants
                time.sleep(0.2)
            return asyncio.run(_load(url))

        before = _ask_times(server)
        for _ in range(MIN_PAIRS):
            asyncio.run(_load(url))
        after = _ask_times(server)
        share = (after["inside_s"] - before["inside_s"]) / (after["cpu_s"] - before["cpu_s"])
        name = f"overhead: share of the server's CPU time for tool calls and metrics at {STREAMS} streams"
        yield Row(name, round(share, 4), f"at most {MAX_SHARE:g}", share <= MAX_SHARE)
        name = f"overhead: TPOT at {STREAMS} streams with tool calls and metrics over without"
        yield _ratio_row(name, lambda: tpot_s(True), lambda: tpot_s(False), None, min(max_pairs, MIN_PAIRS))
    finally:
        server.terminate()
        server.wait(60)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        digest = _write_pair(place)
        name = "overhead: start-up of `eyas serve` with digests over without"
        yield _ratio_row(name, lambda: _start_s(place, None), lambda: _start_s(place, digest), MAX_START, max_pairs)


def _compile(threads: int) -> None:
    """Compiles the forwards of the embedded pair, which the server then loads from the cache."""
    torch.set_num_threads(threads)
    stored = read_head(resolve_head(EMBEDDED), torch.float32)
    compile_pair(Target.load(EMBEDDED, torch.float32, stored.config.aux_layer_ids), stored.head)


def _start(words: Sequence[str]) -> tuple[subprocess.Popen[str], str]:
    """Starts this script as a server and waits until it is ready. Returns the process and the URL."""
    command = [sys.executable, __file__, *words]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None, "it is a pipe"
    return server, next(word for word in server.stdout.readline().split() if word.startswith("http"))


def _ask_times(server: subprocess.Popen[str]) -> dict[str, float]:
    """Returns the CPU seconds of the server, and those inside parsing and metrics."""
    server.send_signal(signal.SIGUSR2)
    assert server.stdout is not None, "it is a pipe"
    return json.loads(next(line for line in server.stdout if line.startswith("{")))


def _ratio_row(
    name: str, first: Callable[[], float], second: Callable[[], float], most: float | None, max_pairs: int
) -> Row:
    ratios: list[float] = []
    while True:
        order = (first, second) if len(ratios) % 2 else (second, first)
        seconds = {arm: arm() for arm in order}
        ratios.append(seconds[first] / seconds[second])
        middle, span = median_interval(ratios, 0)
        print(f"{name}: pair {len(ratios)}, {middle:.3f}", file=sys.stderr)
        is_narrow = len(ratios) >= MIN_PAIRS and span.high - span.low <= 2 * HALF_WIDTH
        if is_narrow or len(ratios) >= max_pairs:
            interval = (round(span.low, 3), round(span.high, 3))
            if most is None:
                return Row(name, round(middle, 3), "told", True, interval)
            return Row(name, round(middle, 3), f"at most {most:g}", middle <= most, interval)


# --- TPOT ------------------------------------------------------------------------------------------------------------


async def _load(url: str) -> float:
    """Runs the streams once and returns the median of their seconds per token."""
    async with httpx.AsyncClient(timeout=120) as client:
        return statistics.median(await asyncio.gather(*(_ask(client, url, number) for number in range(STREAMS))))


async def _ask(client: httpx.AsyncClient, url: str, number: int) -> float:
    body: dict[str, Any] = {"model": "embedded", "stream": True, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    body |= {
        "temperature": 0,
        "tools": [TOOL],
        "return_token_ids": True,
        "speculation": "off",
    }  # a chunk for each token
    body["messages"] = [{"role": "user", "content": f"Tell me about story number {number}."}]
    times_s: list[float] = []
    tokens = 0
    async with client.stream("POST", f"{url}/chat/completions", json=body) as reply:
        assert reply.status_code == 200, await reply.aread()
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            choice = json.loads(line[6:])["choices"][0]
            if choice.get("token_ids"):
                times_s.append(time.perf_counter())
                tokens += len(choice["token_ids"]) if len(times_s) > 1 else 0
    assert tokens > MAX_TOKENS // 2, tokens
    return (times_s[-1] - times_s[0]) / tokens


class _PlainAnswer:
    """In the place of `AnswerParser`: all text is content."""

    has_calls = False

    def __init__(self, *_: object) -> None:
        pass

    def message(self, text: str) -> dict[str, Any]:
        return {"content": text}

    def deltas(self, text: str, is_last: bool) -> list[dict[str, Any]]:
        return [{"content": text}]

    def finish_reason(self, reason: str | None) -> str | None:
        return reason

    def count_thought_tokens(self, output: object) -> int:
        return 0


def serve(digest: str, words: Sequence[str]) -> int:
    """Runs `eyas serve`. SIGUSR1 switches parsing and metrics off and on, SIGUSR2 prints their CPU seconds.

    Args:
        digest: See `_start_s`.
        words: Arguments of `eyas serve`.
    """
    from eyas.server import response_builder
    from eyas.server.request_metrics import RequestMetrics

    inside_s = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keys: Any) -> Any:
            nonlocal inside_s
            before_s = time.thread_time()
            began_s = time.thread_time()
            try:
                return function(*args, **keys)
            finally:
                inside_s += time.thread_time() - began_s - (began_s - before_s)

        return call

    names = ("observe_tokens", "observe_call", "count_response")
    own = {name: timed(getattr(RequestMetrics, name)) for name in names}
    parser, is_on = response_builder.AnswerParser, True
    for name in ("__init__", "deltas", "finish_reason", "count_thought_tokens"):
        setattr(parser, name, timed(getattr(parser, name)))
    for name, method in own.items():
        setattr(RequestMetrics, name, method)

    def switch(*_: object) -> None:
        nonlocal is_on
        is_on = not is_on
        for name, method in own.items():
            setattr(RequestMetrics, name, method if is_on else lambda *_: None)
        response_builder.AnswerParser = parser if is_on else _PlainAnswer

    def tell(*_: object) -> None:
        print(json.dumps({"inside_s": inside_s, "cpu_s": time.process_time()}), flush=True)

    signal.signal(signal.SIGUSR1, switch)
    signal.signal(signal.SIGUSR2, tell)
    without = mock.patch("eyas.cli.generate.verify_target", return_value=(digest, None))
    with without if digest else contextlib.nullcontext():
        return run_eyas(["serve", "--port", "0", "--slots", str(STREAMS), *words])


# --- start-up --------------------------------------------------------------------------------------------------------


def _write_pair(directory: Path) -> str:
    """Writes a random target and a head for it. Returns the digest of the target."""
    place = make_target(directory / "target", LAYERS)
    target = Target.load(place, torch.bfloat16)
    vocab = DraftVocab.from_chosen(torch.arange(target.info.vocab_size) < DRAFT_VOCAB)
    metadata = HeadMetadata(target_name=str(target.info.name), target_digest=target.digest)
    head = Head.init(HeadConfig.for_target(target.info, DRAFT_VOCAB), 0)
    write_head(directory / "head", head, vocab, metadata, torch.bfloat16)
    return target.digest


def _start_s(directory: Path, digest: str | None) -> float:
    """Returns the seconds until `eyas serve` is ready. digest: the target's, which is then not computed."""
    words = ["--target", str(directory / "target"), "--head", str(directory / "head"), "--no-compile"]
    began_s = time.perf_counter()
    server, _ = _start([f"--serve={digest or ''}", *words])
    took_s = time.perf_counter() - began_s
    server.terminate()
    server.wait(60)
    return took_s


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=MAX_PAIRS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parsed, words = parser.parse_known_args()
    return print_rows(overhead_rows(parsed.pairs)) if parsed.serve is None else serve(parsed.serve, words)


if __name__ == "__main__":
    sys.exit(main())
