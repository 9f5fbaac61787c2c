"""When requests are sent: a closed loop of streams, or at moments that nobody's answers can shift.

closed, 2 streams   a |--------|c |---|d |-----        a stream sends its next request when its last one ends
                    b |-----------|e |------
open                a  b    c d       e                Poisson: gaps are exponential, answers may pile up
ramp                a     b    c   d  e f g            the same, the rate growing
"""

import asyncio
import gc
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from eyas.bench.client.reply import Sample, read
from eyas.bench.client.wire import Connection, Received, Server, WireError


@dataclass(frozen=True)
class Question:
    """One request. body: JSON, as it goes out."""

    id: str
    body: bytes


@dataclass(frozen=True)
class Block:
    """Answers in the order of the questions, and the seconds from the first request to the last byte."""

    samples: tuple[Sample, ...]
    seconds: float


class Client:
    """Asks one server. `seen` is called after every answer, while the clock runs: keep it short."""

    def __init__(self, server: Server, headers: dict[str, str], timeout_s: float, seen: Callable[[], None]) -> None:
        self._server, self._headers = server, headers
        self._timeout_s = timeout_s
        self._seen = seen

    def closed_loop(self, questions: Sequence[Question], streams: int) -> Block:
        """Every stream has a connection of its own."""

        async def stream(rest: Iterable[Question], found: dict[str, Received | str]) -> None:
            connection = Connection(self._server, self._headers)
            for question in rest:
                found[question.id] = await self._ask(connection, question)
            connection.close()

        async def run(found: dict[str, Received | str]) -> None:
            rest = iter(questions)  # shared: whoever is free takes the next
            await asyncio.gather(*(stream(rest, found) for _ in range(min(streams, len(questions)))))

        return self._measure(questions, run)

    def open_loop(self, questions: Sequence[Question], moments_s: Sequence[float]) -> Block:
        """Question i is sent at moments_s[i] after the start, whatever is in flight."""

        async def run(found: dict[str, Received | str]) -> None:
            idle: list[Connection] = []
            began_s = time.perf_counter()

            async def one(question: Question, moment_s: float) -> None:
                await asyncio.sleep(max(0.0, began_s + moment_s - time.perf_counter()))
                connection = idle.pop() if idle else Connection(self._server, self._headers)
                found[question.id] = await self._ask(connection, question)
                idle.append(connection)

            await asyncio.gather(*(one(q, moment_s) for q, moment_s in zip(questions, moments_s, strict=True)))
            for connection in idle:
                connection.close()

        return self._measure(questions, run)

    def get(self, target: str) -> Received:
        """Another route of the server. WireError."""

        async def run() -> Received:
            connection = Connection(self._server, self._headers)
            try:
                return await connection.get(target, self._timeout_s)
            finally:
                connection.close()

        return asyncio.run(run())

    async def _ask(self, connection: Connection, question: Question) -> Received | str:
        try:
            return await connection.post(question.body, self._timeout_s)
        except WireError as error:
            return str(error)
        finally:
            self._seen()

    def _measure(
        self, questions: Sequence[Question], run: Callable[[dict[str, Received | str]], Awaitable[None]]
    ) -> Block:
        found: dict[str, Received | str] = {}

        async def main() -> None:
            await run(found)

        began_s = time.perf_counter()
        with _no_collection():
            asyncio.run(main())
        seconds = time.perf_counter() - began_s
        return Block(tuple(_sample(question, found[question.id], began_s) for question in questions), seconds)


def arrivals(rate: float, last_rate: float, seconds: float, seed: int) -> list[float]:
    """Moments of a Poisson process over so many seconds whose rate grows from `rate` to `last_rate`; at least one.

    A process of rate 1 runs on a clock that has ticked Lambda(t) = rate t + (last_rate - rate) t^2 / (2 seconds).
    """
    random_ = random.Random(seed)
    slope = (last_rate - rate) / seconds
    moments: list[float] = []
    ticks = random_.expovariate(1.0)
    while ticks <= (rate + last_rate) * seconds / 2 or not moments:
        root = math.sqrt(max(rate * rate + 2 * slope * ticks, 0.0))
        moments.append(min(2 * ticks / (rate + root), seconds))
        ticks += random_.expovariate(1.0)
    return moments


def _sample(question: Question, received: Received | str, began_s: float) -> Sample:
    if isinstance(received, str):
        return Sample(question.id, began_s, began_s, error=received)
    return read(question.id, received)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's garbage collector stops everything for milliseconds: not while the clock runs."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
