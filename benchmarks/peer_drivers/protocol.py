"""Defines the messages between benchmarks/compare_peers.py and a driver: one JSON object for each line.

    driver's stdout  {"ready": "vllm 0.32.0"}                      once, when the model is loaded
    driver's stdin   {"streams": 8, "prompts": [[1, 7, 3], ...], "lengths": [69, ...]}
    driver's stdout  {"answers": [[5, 9, ...], ...], "seconds": 3.1, "accepted": 801, "rounds": 402}

A driver ends when its stdin is closed. This module imports only the standard library, because each peer has its own
environment.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


def free_port() -> int:
    """Asks the system for a port that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass(frozen=True)
class LoadTask:
    """A closed loop with `streams` concurrent requests. Each is answered greedily with exactly its length of tokens."""

    streams: int
    prompts: list[list[int]]
    lengths: list[int]


@dataclass(frozen=True)
class LoadResult:
    """The answers in the order of the prompts, and the seconds from the first request to the last token.

    accepted, rounds: accepted draft tokens and rounds of verification, if the peer counts them.
    """

    answers: list[list[int]]
    seconds: float
    accepted: int | None = None
    rounds: int | None = None


@dataclass(frozen=True)
class Options:
    """The options of a driver, passed as JSON in its only argument.

    target, head: in the peer's format; head None: plain decoding. streams, context: the largest values of the run.
    dtype: of the arithmetic, "bfloat16" or "float32". chain: draft tokens in a round. method: of drafting, "eagle3" or
    "dflash".
    """

    target: str
    head: str | None
    threads: int
    streams: int
    context: int
    prompt_lookup: bool = False
    dtype: str = "bfloat16"
    chain: int = 3
    method: str = "eagle3"

    @staticmethod
    def read() -> "Options":
        """Reads the options from the command line."""
        return Options(**json.loads(sys.argv[1]))


class ProtocolServer:
    """The protocol on stdout. It sends other output to stderr, so create it before the libraries are imported."""

    def __init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def send(self, message: dict[str, Any]) -> None:
        """Writes one message as a line."""
        self.out.write(json.dumps(message) + "\n")

    def serve(self, name: str, run: Callable[[LoadTask], LoadResult]) -> None:
        """Sends the ready message, then runs every task from stdin until it is closed."""
        self.send({"ready": name})
        for line in sys.stdin:
            self.send(asdict(run(LoadTask(**json.loads(line)))))


def run_closed_loop(
    task: LoadTask, send: Callable[[int], None], step: Callable[[], dict[int, list[int]]]
) -> LoadResult:
    """Runs a closed loop. send(i) submits request i; step() returns the finished answers by request."""
    began_s = time.perf_counter()
    sent, ended = 0, dict[int, list[int]]()
    while len(ended) < len(task.prompts):
        while sent < len(task.prompts) and sent - len(ended) < task.streams:
            send(sent)
            sent += 1
        ended |= step()
    seconds = time.perf_counter() - began_s
    return LoadResult([ended[index] for index in range(len(ended))], seconds)
