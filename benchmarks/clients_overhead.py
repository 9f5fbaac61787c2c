"""Part `overhead` of `make prove-clients`: what tool calls, metrics and digests cost.

    python benchmarks/clients_overhead.py [--pairs N]

tpot       32 streams of `eyas serve` with the embedded pair and a tool, with and without parsing and metrics. The
           signal SIGUSR1 switches both off and on in the server, so that both arms have the same process. TPOT itself
           varies by more than the limit from run to run. Therefore the CPU seconds of the server for each token count,
           and TPOT is told.
start-up   from the start of `eyas serve` with a random target of 0.2 GB until it is ready, with and without hashing it.

Both arms run back to back in rotated order, at most N times, until the 95 % interval of the median ratio is narrower
than 2 %. The server computes with one thread, because waiting threads use CPU time, too.
"""

import argparse
import asyncio
import contextlib
import json
import os
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

from eyas.cli import main as run_eyas
from eyas.formats.config import HeadMetadata
from eyas.formats.head_dir import write_head
from eyas.model.head import Head, HeadConfig
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.tree.intervals import median_interval

MIN_PAIRS, MAX_PAIRS, HALF_WIDTH = 5, 30, 0.01
STREAMS, MAX_TOKENS = 32, 128
MAX_TPOT, MAX_START = 1.01, 1.10
LAYERS, DRAFT_VOCAB = 30, 4096
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


def overhead_rows(max_pairs: int) -> Iterator[Row]:
    """Yields a row for TPOT and one for the start-up."""
    server, url = _start(["--serve="])
    try:
        for _ in range(3):  # warm-up
            asyncio.run(_load(url))
        is_on = True

        times_s: dict[bool, list[float]] = {True: [], False: []}  # TPOT of each arm

        def cpu_s(wants: bool) -> float:
            nonlocal is_on
            if wants != is_on:
                server.send_signal(signal.SIGUSR1)
                is_on = wants
                time.sleep(0.2)
            before_s = _cpu_s(server.pid)
            times_s[wants].append(asyncio.run(_load(url)))
            return _cpu_s(server.pid) - before_s

        name = f"overhead: CPU time of {STREAMS} streams with tool calls and metrics over without"
        yield _ratio_row(name, lambda: cpu_s(True), lambda: cpu_s(False), MAX_TPOT, max_pairs)
        middle, span = median_interval([on / off for on, off in zip(*times_s.values(), strict=True)], 0)
        interval = (round(span.low, 3), round(span.high, 3))
        yield Row(name.replace("CPU time", "TPOT"), round(middle, 3), "told", True, interval)
    finally:
        server.terminate()
        server.wait(60)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        digest = _write_pair(place)
        name = "overhead: start-up of `eyas serve` with digests over without"
        yield _ratio_row(name, lambda: _start_s(place, None), lambda: _start_s(place, digest), MAX_START, max_pairs)


def _start(words: Sequence[str]) -> tuple[subprocess.Popen[str], str]:
    """Starts this script as a server and waits until it is ready. Returns the process and the URL."""
    command = [sys.executable, __file__, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    assert server.stdout is not None, "it is a pipe"
    return server, next(word for word in server.stdout.readline().split() if word.startswith("http"))


def _cpu_s(pid: int) -> float:
    """Returns the CPU seconds of a process, its own and the system's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ratio_row(name: str, first: Callable[[], float], second: Callable[[], float], most: float, max_pairs: int) -> Row:
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
    """Runs `eyas serve`. SIGUSR1 switches parsing and metrics off and on. digest: see `_start_s`."""
    from eyas.server import response_builder
    from eyas.server.request_metrics import RequestMetrics

    own = {name: getattr(RequestMetrics, name) for name in ("observe_tokens", "observe_call", "count_response")}
    parser, is_on = response_builder.AnswerParser, True

    def switch(*_: object) -> None:
        nonlocal is_on
        is_on = not is_on
        for name, method in own.items():
            setattr(RequestMetrics, name, method if is_on else lambda *_: None)
        response_builder.AnswerParser = parser if is_on else _PlainAnswer

    signal.signal(signal.SIGUSR1, switch)
    without = mock.patch("eyas.cli.generate.digest_target", return_value=digest)
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
