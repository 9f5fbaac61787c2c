"""The closed and the open request loop over HTTP. `engine_request_loops.py` has them for an engine in this process."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from eyas.bench.client.http_connection import (
    ConnectFailedError,
    Endpoint,
    HttpConnection,
    RawResponse,
    TransferError,
)
from eyas.bench.client.response_parser import parse_response
from eyas.bench.request_metrics import BlockResult

RECONNECT_WAIT_S = 1.0  # before a server that refused a connection is tried once more


@dataclass(frozen=True)
class ChatRequest:
    """A request. body: its JSON as bytes."""

    id: str
    body: bytes


class LoadGenerator:
    """A client of one server. It calls `on_response` after each response, while the clock runs: keep it short."""

    def __init__(
        self, endpoint: Endpoint, headers: dict[str, str], timeout_s: float, on_response: Callable[[], None]
    ) -> None:
        self._endpoint, self._headers = endpoint, headers
        self._timeout_s = timeout_s
        self._on_response = on_response

    def run_closed_loop(self, requests: Sequence[ChatRequest], streams: int) -> BlockResult:
        """Sends the requests over `streams` connections. Each sends its next request when its response ends."""

        async def stream(pending: Iterable[ChatRequest], responses: dict[str, RawResponse]) -> None:
            connection = self._connection()
            for request in pending:
                responses[request.id] = await self._send(connection, request)
            connection.close()

        async def run(responses: dict[str, RawResponse]) -> None:
            pending = iter(requests)  # shared: an idle stream takes the next request
            await asyncio.gather(*(stream(pending, responses) for _ in range(min(streams, len(requests)))))

        return self._measure(requests, run)

    def run_open_loop(self, requests: Sequence[ChatRequest], arrivals_s: Sequence[float]) -> BlockResult:
        """Sends request i at arrivals_s[i] after the start, however many are in flight."""

        async def run(responses: dict[str, RawResponse]) -> None:
            idle: list[HttpConnection] = []
            start_s = time.perf_counter()

            async def send_at(request: ChatRequest, arrival_s: float) -> None:
                await asyncio.sleep(max(0.0, start_s + arrival_s - time.perf_counter()))
                connection = idle.pop() if idle else self._connection()
                responses[request.id] = await self._send(connection, request)
                idle.append(connection)

            await asyncio.gather(*map(send_at, requests, arrivals_s))
            for connection in idle:
                connection.close()

        return self._measure(requests, run)

    def get(self, target: str, timeout_s: float) -> RawResponse:
        """Requests another route of the server. Raises TransferError for an incomplete response."""

        async def run() -> RawResponse:
            connection = self._connection()
            try:
                return await connection.get(target, min(timeout_s, self._timeout_s))
            finally:
                connection.close()

        return asyncio.run(run())

    def is_down(self) -> bool:
        """Returns True if the server still refuses connections a second after it refused one."""

        async def run() -> bool:
            connection = self._connection()
            await asyncio.sleep(RECONNECT_WAIT_S)
            try:
                await connection.open(self._timeout_s)
            except ConnectFailedError:
                return True
            connection.close()
            return False

        return asyncio.run(run())

    def _connection(self) -> HttpConnection:
        return HttpConnection(self._endpoint, self._headers)

    async def _send(self, connection: HttpConnection, request: ChatRequest) -> RawResponse:
        sent_s = time.perf_counter()
        try:
            return await connection.post(request.body, self._timeout_s)
        except TransferError as error:
            connected = not isinstance(error, ConnectFailedError)
            return RawResponse(sent_s, end_s=time.perf_counter(), error=error.reason, connected=connected)
        finally:
            self._on_response()

    def _measure(
        self, requests: Sequence[ChatRequest], run: Callable[[dict[str, RawResponse]], Awaitable[None]]
    ) -> BlockResult:
        responses: dict[str, RawResponse] = {}

        async def main() -> None:
            await run(responses)

        start_s = time.perf_counter()
        with _garbage_collection_paused():
            asyncio.run(main())
        seconds = time.perf_counter() - start_s
        samples = tuple(parse_response(request.id, responses[request.id]) for request in requests)
        return BlockResult(samples, seconds, num_unreached=sum(not one.connected for one in responses.values()))


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pauses Python's garbage collector, which can stop the client for milliseconds."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
