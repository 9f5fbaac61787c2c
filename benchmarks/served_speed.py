"""Compares `eyas serve` over HTTP with itself without a head and with the servers of other engines.

    python benchmarks/served_speed.py --target DIR --head DIR --prompts FILE [--peers no-head,...] [--streams 1 8 16]
                                      [--repeats N] [--tokens N] [--env-dir DIR]

Every server starts with its own defaults: only the model, the port and, for llama.cpp, the number and the context of
the requests at once are set. A peer with EAGLE-3 runs twice, without and with the head. Servers are measured two at a
time: `eyas serve` with the head and another one. The one that is not measured waits. The client is `eyas bench --url`,
greedy, with the same prompts for both; an answer ends where the server ends it, at most at --tokens tokens. Ratios are
medians of blocks in rotated order. Beside itself without a head, `eyas serve` also has rows of the time to first token.

`make peers` and `make peers-llamacpp` install the peers below --env-dir. A peer that is not installed is named on
stderr and has no row. Prints one JSON object for each row and exits 1 if a row misses its target.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from compare_peers import DRIVERS, PeerFailedError, Setup, llamacpp_arms, openvino_arms, report_failures
from peer_drivers.protocol import Options, free_port
from plain_speed import wait_calm
from result_rows import Row, print_rows

from eyas.bench.client.bench_server import run
from eyas.bench.config import ClientConfig
from eyas.model.target_dir import EMBEDDED, resolve_target
from eyas.recipe import resolve_head

EYAS = [sys.executable, "-c", "import sys; from eyas.cli import main; sys.exit(main())", "serve"]
START_S = 600.0
OVER_PEERS, OVER_NO_HEAD = 1.2, 0.98
MOST_TTFT = (1.1, 1.25)  # at one stream and at more, with the head over without
CONTEXT = 2048  # tokens of a request of llama.cpp, which has no default for it


@dataclass(frozen=True)
class Server:
    """One server.

    Attributes:
        name: Its name in rows and of its log.
        command: Its command, without the port.
        environment: Variables that are added to those of this process.
        is_eyas: True for `eyas serve`, which may import eyas from PYTHONPATH and compiles while it serves.
    """

    name: str
    command: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_eyas: bool = False

    @contextlib.contextmanager
    def running(self, scratch: Path) -> Iterator[str]:
        """Starts the server, waits until it computes no more, and yields the URL of its API. Raises PeerFailedError."""
        log, port = scratch / f"{self.name}.log", free_port()
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or self.is_eyas}
        began_s = time.monotonic()
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*self.command, "--port", str(port)],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment | {"HF_HUB_OFFLINE": "1"} | dict(self.environment),
                process_group=0,
            )
        try:
            url = f"http://127.0.0.1:{port}"
            while not _is_ready(url):
                if process.poll() is not None or time.monotonic() - began_s > START_S:
                    raise PeerFailedError(f"{self.name} does not answer: {log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.2)
            print(f"{self.name}: answers after {time.monotonic() - began_s:.1f} s", file=sys.stderr, flush=True)
            if self.is_eyas:
                wait_calm(process.pid)
            yield f"{url}/v1"
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def no_head(setup: Setup) -> list[Server]:
    """Returns `eyas serve` without a head."""
    return [Server("eyas without a head", [*EYAS, "--target", str(setup.target), "--no-head"], is_eyas=True)]


def llamacpp(setup: Setup) -> list[Server]:
    """Returns llama-server without and with the head."""
    servers = []
    for arm in llamacpp_arms(setup).values():
        requests = setup.options.streams
        words = [arm.environment["LLAMA_SERVER"], "-m", arm.options.target, "--no-ui", "-np", str(requests)]
        words += ["-c", str(requests * CONTEXT), "--jinja"]
        if arm.options.head is not None:
            words += ["-md", str(arm.options.head), "--spec-type", "draft-eagle3"]
            words += ["--spec-draft-n-max", str(setup.options.chain)]
        servers.append(Server("llama-server" + (" with the head" if arm.options.head else ""), words))
    return servers


def vllm(setup: Setup) -> list[Server]:
    """Returns `vllm serve` without and with the head, a chain of 3."""
    python = setup.python("vllm")
    environment = {"VLLM_NO_USAGE_STATS": "1", "LD_PRELOAD": str(python.parent.parent / "lib" / "libiomp5.so")}
    environment["VLLM_CPU_KVCACHE_SPACE"] = "2"  # its default reserves most of the memory
    # The command `vllm` asks for the version of a package of that name, which the package `vllm-cpu` is not.
    words = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", setup.target]
    words += ["--dtype", "bfloat16", "--generation-config", "vllm"]
    head = {"method": "eagle3", "model": str(setup.head), "num_speculative_tokens": setup.options.chain}
    return [
        Server("vllm serve", words, environment),
        Server("vllm serve with the head", [*words, "--speculative-config", json.dumps(head)], environment),
    ]


def openvino(setup: Setup) -> list[Server]:
    """Returns OpenVINO GenAI behind an HTTP server, without and with the head, a chain of 3."""
    servers = []
    for arm in openvino_arms(setup).values():
        words = [setup.python("openvino"), DRIVERS / "serve_openvino.py", arm.options.target, setup.target]
        words += ["--slots", str(setup.options.streams)]
        if arm.options.head is not None:
            words += ["--head", str(arm.options.head), "--chain", str(setup.options.chain)]
        servers.append(Server("openvino" + (" with the head" if arm.options.head else ""), words))
    return servers


PEERS = {"no-head": no_head, "llamacpp": llamacpp, "vllm": vllm, "openvino": openvino}


def measure(peer: str, setup: Setup, ours: str, config: ClientConfig) -> Iterator[Row]:
    """Yields the rows of `eyas serve` over the faster server of this peer, by number of streams."""
    points: dict[int, dict[str, dict[str, Any]]] = {streams: {} for streams in config.concurrency}
    for server in PEERS[peer](setup):
        with server.running(setup.scratch) as url:
            found = run(ours, url, config, setup.scratch / server.name)
        for point in found["concurrency"]:
            points[point["n"]][server.name] = point
            told = {arm: round(point[arm]["output_tps"], 1) for arm in ("baseline", "speculative")}
            ttft = {arm: round(point[arm]["ttft_ms"]["p50"], 1) for arm in ("baseline", "speculative")}
            print(f"{server.name}, {point['n']} streams: {told}, TTFT {ttft}", file=sys.stderr, flush=True)
    least = OVER_NO_HEAD if peer == "no-head" else OVER_PEERS
    for streams, servers in points.items():
        name = max(servers, key=lambda name: servers[name]["baseline"]["output_tps"])
        point, at = servers[name], f"{streams} streams" if streams > 1 else "1 stream"
        told = f"{point['speculative']['output_tps']:.0f} and {point['baseline']['output_tps']:.0f} tokens/s"
        low, high = point["speedup_tps_ci95"]
        ratio = round(point["speedup_tps"], 3)
        interval = (round(low, 3), round(high, 3))
        yield Row(f"eyas serve over {name}, {at}", ratio, f"at least {least}", ratio >= least, interval, told)
        if peer == "no-head":
            with_ms, without_ms = (point[arm]["ttft_ms"]["p50"] for arm in ("speculative", "baseline"))
            most, told = MOST_TTFT[streams > 1], f"{with_ms:.0f} and {without_ms:.0f} ms"
            label, ratio = f"TTFT p50 of eyas serve over {name}, {at}", round(with_ms / without_ms, 3)
            yield Row(label, ratio, f"at most {most}", ratio <= most, None, told)


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--target", default=EMBEDDED)
    parser.add_argument("--head", default=EMBEDDED)
    parser.add_argument("--prompts", default="builtin:eval")
    parser.add_argument("--env-dir", type=Path, default=Path.home() / ".cache" / "eyas" / "peers")
    parsed = parser.parse_args()
    peers = parsed.peers.split(",")
    if unknown := set(peers) - set(PEERS):
        parser.error(f"unknown --peers {', '.join(sorted(unknown))}: choose from {', '.join(PEERS)}")
    target, head = resolve_target(parsed.target).absolute(), resolve_head(parsed.head).absolute()
    config = ClientConfig(
        prompts=parsed.prompts,
        repeats=parsed.repeats,
        concurrency=tuple(parsed.streams),
        max_tokens=parsed.tokens,
        requests_per_stream=3,
        warm_up=max(parsed.streams),
        one_stream=False,
    )
    options = Options(str(target), None, os.cpu_count() or 1, max(parsed.streams), CONTEXT)
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        setup = Setup(parsed.env_dir.absolute(), target, head, scratch, options)
        own = Server("eyas", [*EYAS, "--target", str(target), "--head", str(head)], is_eyas=True)
        with own.running(scratch) as ours:
            found = ((peer, measure(peer, setup, ours, config)) for peer in peers)
            return print_rows(row for peer, rows in found for row in report_failures(peer, rows, f"eyas over {peer}"))


if __name__ == "__main__":
    sys.exit(main())
