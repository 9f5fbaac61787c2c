"""Sends blocks of requests to one server and measures the responses.

`engine_request_loops.py` does the same for an engine in this process.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.bench.client.http_connection import Endpoint, HttpConnection, RawResponse
from eyas.bench.client.response_parser import parse_response
from eyas.bench.load_test import LoadBlock
from eyas.bench.request_metrics import BlockResult

INFO_TIMEOUT_S = 30.0  # time limit of a GET request, for the list of models and the counters
RECONNECT_WAIT_S = 1.0  # wait before another connection to a server that refused one


@dataclass(frozen=True)
class LoadGenerator:
    """A client of one server.

    Attributes:
        endpoint: The chat route of the server.
        headers: The headers of every request.
        timeout_s: The time limit of one request.
        on_response: Called after each response. Requirement: it returns quickly; it runs during the measurement.
    """

    endpoint: Endpoint
    headers: Mapping[str, str]
    timeout_s: float
    on_response: Callable[[], None]

    def run_block(self, bodies: Sequence[bytes], block: LoadBlock[Any]) -> BlockResult:
        """Sends the JSON bodies of a block's requests and measures the responses.

        A closed loop has one connection for each stream, and a stream sends its next request when its response ends.
        An open loop sends each request at its arrival time, also if earlier requests are still running.
        """
        start_s = time.perf_counter()
        gc.disable()  # a collection can stop the client for milliseconds
        try:
            responses = asyncio.run(self._send_all(bodies, block))
        finally:
            gc.enable()
        seconds = time.perf_counter() - start_s
        samples = tuple(parse_response(str(block.first + index), one) for index, one in enumerate(responses))
        return BlockResult(samples, seconds, num_unreached=sum(not one.connected for one in responses))

    async def _send_all(self, bodies: Sequence[bytes], block: LoadBlock[Any]) -> list[RawResponse]:
        free = asyncio.Semaphore(block.streams if block.arrivals_s is None else len(bodies))
        idle: list[HttpConnection] = []
        start_s = time.perf_counter()

        async def send(body: bytes, arrival_s: float) -> RawResponse:
            await asyncio.sleep(max(0.0, start_s + arrival_s - time.perf_counter()))
            async with free:
                connection = idle.pop() if idle else HttpConnection(self.endpoint, self.headers)
                response = await connection.request("POST", self.endpoint.target, body, self.timeout_s)
                idle.append(connection)
            self.on_response()
            return response

        responses = await asyncio.gather(*map(send, bodies, block.arrivals_s or [0.0] * len(bodies)))
        for connection in idle:
            connection.close()
        return responses

    def get(self, target: str) -> RawResponse:
        """Sends a GET request to a path of the server."""

        async def run() -> RawResponse:
            connection = HttpConnection(self.endpoint, self.headers)
            response = await connection.request("GET", target, b"", min(INFO_TIMEOUT_S, self.timeout_s))
            connection.close()
            return response

        return asyncio.run(run())

    def is_down(self) -> bool:
        """Waits a second, then returns True if the server refuses a new connection."""
        time.sleep(RECONNECT_WAIT_S)
        return not self.get("/").connected
