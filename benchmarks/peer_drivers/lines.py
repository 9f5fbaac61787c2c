"""What a driver and benchmarks/peers.py say to each other: one JSON object a line, on stdin and stdout of the driver.

    driver  {"ready": "vllm 0.32.0"}                               once, when the model is loaded
    peers   {"streams": 8, "prompts": [[1, 7, 3], ...], "lengths": [69, ...]}
    driver  {"answers": [[5, 9, ...], ...], "seconds": 3.1, "accepted": 801, "rounds": 402}

A driver ends when its stdin does. Only the standard library is imported: each peer has an environment of its own.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Work:
    """A closed loop: `streams` requests under way, each to be answered greedily with exactly its length of tokens."""

    streams: int
    prompts: list[list[int]]
    lengths: list[int]


@dataclass(frozen=True)
class Done:
    """The answers by prompt, and the seconds from the first request sent to the last token.

    accepted, rounds: draft tokens accepted and rounds of verification, where the peer counts them.
    """

    answers: list[list[int]]
    seconds: float
    accepted: int | None = None
    rounds: int | None = None


@dataclass(frozen=True)
class Options:
    """What a driver is started with, as JSON in its only argument.

    target, head: in the peer's own format; head None: plain decoding. streams, context: the most that will be asked.
    dtype: of the arithmetic, "bfloat16" or "float32". chain: draft tokens of a round.
    """

    target: str
    head: str | None
    threads: int
    streams: int
    context: int
    prompt_lookup: bool = False
    dtype: str = "bfloat16"
    chain: int = 3

    @staticmethod
    def read() -> "Options":
        return Options(**json.loads(sys.argv[1]))


class Talk:
    """stdout for the protocol alone: what the libraries print goes to stderr. Make it before they are imported."""

    def __init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def say(self, message: dict[str, Any]) -> None:
        """One line."""
        self.out.write(json.dumps(message) + "\n")

    def serve(self, name: str, run: Callable[[Work], Done]) -> None:
        """Answer every line until stdin ends."""
        self.say({"ready": name})
        for line in sys.stdin:
            self.say(asdict(run(Work(**json.loads(line)))))


def closed_loop(work: Work, send: Callable[[int], None], step: Callable[[], dict[int, list[int]]]) -> Done:
    """send(i) hands in request i; step() returns the answers that have ended, by request."""
    began_s = time.perf_counter()
    sent, ended = 0, dict[int, list[int]]()
    while len(ended) < len(work.prompts):
        while sent < len(work.prompts) and sent - len(ended) < work.streams:
            send(sent)
            sent += 1
        ended |= step()
    seconds = time.perf_counter() - began_s
    return Done([ended[index] for index in range(len(ended))], seconds)
