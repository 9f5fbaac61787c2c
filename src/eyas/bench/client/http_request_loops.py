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
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from eyas.bench.client.http_connection import ConnectFailedError, Endpoint, HttpConnection, RawResponse, TransferError
from eyas.bench.client.response_parser import RequestSample, SpecDecodeStats, parse_response

WINDOWS = 4  # of a ramp, each with figures of its own
AGAIN_S = 1.0  # after which a server that took no connection is asked once more


@dataclass(frozen=True)
class ChatRequest:
    """One request. body: JSON, as it goes out."""

    id: str
    body: bytes


@dataclass(frozen=True)
class BlockResult:
    """Answers in the order of the questions, and the seconds from the first request to the last byte.

    unreached: requests that found nobody to ask. is_whole: False for a block that was cut short, as its server is gone.
    drafting: how it went by the server's own counters, other clients' requests included; None where they are not read.
    arrived: output tokens that came within `seconds`, where that is less than what the samples were given in the end.
    """

    samples: tuple[RequestSample, ...]
    seconds: float
    num_unreached: int = 0
    is_complete: bool = True
    spec_decode: SpecDecodeStats | None = None
    tokens_in_window: float | None = None


class LoadGenerator:
    """Asks one server. `seen` is called after every answer, while the clock runs: keep it short."""

    def __init__(self, server: Endpoint, headers: dict[str, str], timeout_s: float, seen: Callable[[], None]) -> None:
        self._server, self._headers = server, headers
        self._timeout_s = timeout_s
        self._seen = seen

    def run_closed_loop(self, questions: Sequence[ChatRequest], streams: int) -> BlockResult:
        """Every stream has a connection of its own."""

        async def stream(rest: Iterable[ChatRequest], found: dict[str, RawResponse]) -> None:
            connection = HttpConnection(self._server, self._headers)
            for question in rest:
                found[question.id] = await self._ask(connection, question)
            connection.close()

        async def run(found: dict[str, RawResponse]) -> None:
            rest = iter(questions)  # shared: whoever is free takes the next
            await asyncio.gather(*(stream(rest, found) for _ in range(min(streams, len(questions)))))

        return self._measure(questions, run)

    def run_open_loop(self, questions: Sequence[ChatRequest], moments_s: Sequence[float]) -> BlockResult:
        """Question i is sent at moments_s[i] after the start, whatever is in flight."""

        async def run(found: dict[str, RawResponse]) -> None:
            idle: list[HttpConnection] = []
            began_s = time.perf_counter()

            async def one(question: ChatRequest, moment_s: float) -> None:
                await asyncio.sleep(max(0.0, began_s + moment_s - time.perf_counter()))
                connection = idle.pop() if idle else HttpConnection(self._server, self._headers)
                found[question.id] = await self._ask(connection, question)
                idle.append(connection)

            await asyncio.gather(*(one(q, moment_s) for q, moment_s in zip(questions, moments_s, strict=True)))
            for connection in idle:
                connection.close()

        return self._measure(questions, run)

    def get(self, target: str, timeout_s: float) -> RawResponse:
        """Another route of the server. WireError."""

        async def run() -> RawResponse:
            connection = HttpConnection(self._server, self._headers)
            try:
                return await connection.get(target, min(timeout_s, self._timeout_s))
            finally:
                connection.close()

        return asyncio.run(run())

    def is_down(self) -> bool:
        """Whether the server takes no connection; asked after a request found none, in case it was one only."""

        async def run() -> bool:
            connection = HttpConnection(self._server, self._headers)
            await asyncio.sleep(AGAIN_S)
            try:
                await connection.open(self._timeout_s)
            except ConnectFailedError:
                return True
            connection.close()
            return False

        return asyncio.run(run())

    async def _ask(self, connection: HttpConnection, question: ChatRequest) -> RawResponse:
        sent_s = time.perf_counter()
        try:
            return await connection.post(question.body, self._timeout_s)
        except TransferError as error:
            connected = not isinstance(error, ConnectFailedError)
            return RawResponse(sent_s, end_s=time.perf_counter(), error=str(error), connected=connected)
        finally:
            self._seen()

    def _measure(
        self, questions: Sequence[ChatRequest], run: Callable[[dict[str, RawResponse]], Awaitable[None]]
    ) -> BlockResult:
        found: dict[str, RawResponse] = {}

        async def main() -> None:
            await run(found)

        began_s = time.perf_counter()
        with _no_collection():
            asyncio.run(main())
        seconds = time.perf_counter() - began_s
        samples = tuple(parse_response(question.id, found[question.id]) for question in questions)
        return BlockResult(samples, seconds, num_unreached=sum(not received.connected for received in found.values()))


def poisson_arrivals(rate: float, last_rate: float, seconds: float, seed: int) -> list[float]:
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


def split_windows(block: BlockResult, moments_s: Sequence[float], block_s: float) -> list[BlockResult]:
    """The quarters of an open loop over block_s seconds: the requests that were to be sent in each, whenever they were,
    so that they are the same in every arm, and the tokens that came in it.

    Tokens that came are those of all requests, each by the share of its pieces: past the breaking point they are fewer
    than the answers to what was sent. Times stay with the request.
    """
    seconds = block_s / WINDOWS
    due = [min(int(moment_s / seconds), WINDOWS - 1) for moment_s in moments_s]
    began_s = min((one.sent_s - moment_s for one, moment_s in zip(block.samples, moments_s, strict=True)), default=0.0)
    arrived = [0.0] * WINDOWS
    for sample in block.samples:
        if sample.error is None:
            times_s = sample.chunk_times_s or (sample.end_s,)
            for time_s in times_s:
                place = int((time_s - began_s) / seconds)
                if place < WINDOWS:
                    arrived[place] += (sample.output_tokens or 0) / len(times_s)
    cut = [tuple(block.samples[i] for i, place in enumerate(due) if place == window) for window in range(WINDOWS)]
    return [
        BlockResult(samples, seconds, tokens_in_window=tokens) for samples, tokens in zip(cut, arrived, strict=True)
    ]


def split_ramp(
    found: Mapping[str, Sequence[BlockResult]],
    moments_s: Sequence[Sequence[float]],
    rates: tuple[float, float],
    block_s: float,
) -> Iterator[tuple[float, dict[str, list[BlockResult]]]]:
    """Of a ramp, each quarter in which something was to be sent: the rate in its middle, and `windows` by arm.

    moments_s: of each block; an arm may lack the last ones, where its server went away.
    """
    cut = {
        name: [split_windows(block, planned_s, block_s) for block, planned_s in zip(blocks, moments_s, strict=False)]
        for name, blocks in found.items()
    }
    first, last = rates
    for place in range(WINDOWS):
        some = {name: [windows_[place] for windows_ in blocks] for name, blocks in cut.items()}
        if any(block.samples for blocks in some.values() for block in blocks):
            yield first + (last - first) * (place + 0.5) / WINDOWS, some


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
