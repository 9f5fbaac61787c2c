"""Sends HTTP requests and stores each response as raw chunks with their arrival times.

    during the measurement    bytes arrive -> httptools (C) -> (time, bytes) into a list
    after the measurement     `response_parser` parses the chunks

32 streams with a token every millisecond send 32,000 chunks a second. A client that parses JSON during the measurement
would be slower than the server. Times are `time.perf_counter`, in seconds.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import httptools

from eyas.base.openai_http import CHAT_PATH, CONNECT_TIMEOUT_S, DEFAULT_PORTS, parse_api_url


@dataclass(frozen=True)
class Endpoint:
    """The chat route of a server. target: the request target of HTTP, which is path and query."""

    host: str
    port: int
    uses_tls: bool
    target: str

    @property
    def authority(self) -> str:
        """The value of the Host header: IPv6 addresses in brackets, the port only if it is not 80 or 443."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS["https" if self.uses_tls else "http"] else f"{host}:{self.port}"

    @staticmethod
    def parse(url: str, source: str) -> "Endpoint":
        """Parses the URL of an API (".../v1"), or of another route that accepts chat completion requests.

        Args:
            url: An http or https URL.
            source: The flag of the command line that gives the URL, for the error message.

        Raises:
            UsageError: `url` is not an http or https URL, or contains credentials.
        """
        parts = parse_api_url(url, source)
        path = parts.path.rstrip("/")
        if path == "" or path.endswith("/v1"):
            path = f"{path or '/v1'}{CHAT_PATH}"
        query = f"?{parts.query}" if parts.query else ""
        port = parts.port or DEFAULT_PORTS[parts.scheme]
        return Endpoint(parts.hostname or "", port, parts.scheme == "https", path + query)


@dataclass
class RawResponse:
    """A response that is not yet parsed. Times are `time.perf_counter`, in seconds.

    Attributes:
        sent_s: The time at which the request was written to the socket.
        status: The HTTP status; 0 if none arrived.
        headers: The headers by lower-case name.
        chunks: The chunks of the body with their arrival times.
        end_s: The arrival time of the last byte, or the time of the error.
        error: The reason if the response is incomplete; None if it is complete.
        connected: False if no connection could be opened.
    """

    sent_s: float
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    end_s: float = 0.0
    error: str | None = None
    connected: bool = True

    @property
    def body(self) -> bytes:
        """The bytes of all chunks, joined."""
        return b"".join(chunk for _, chunk in self.chunks)


class HttpConnection(asyncio.Protocol):
    """An HTTP/1.1 connection for one request at a time. It reconnects if the server has closed it."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str]) -> None:
        self._endpoint = endpoint
        self._headers = dict(headers)
        self._transport: asyncio.Transport | None = None
        self._response = RawResponse(0.0)
        self._done: asyncio.Future[str | None] | None = None  # its result is the response's error
        self._now_s = 0.0
        self._keep_alive = True

    async def request(self, method: str, target: str, body: bytes, timeout_s: float) -> RawResponse:
        """Sends a request and returns the response. `RawResponse.error` says why a response is incomplete."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._endpoint.authority}"]
        lines += [f"{name}: {value}" for name, value in self._headers.items()]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"] if method == "POST" else []
        data = "\r\n".join([*lines, "", ""]).encode() + body
        response = self._response = RawResponse(time.perf_counter())
        response.error = await self._open(timeout_s)
        response.connected = response.error is None
        if response.connected:
            response.error = await self._exchange(data, timeout_s)
        if response.error is not None:
            response.end_s = time.perf_counter()
        if response.error is not None or not self._keep_alive:
            self.close()
        return response

    async def _exchange(self, data: bytes, timeout_s: float) -> str | None:
        """Writes a request and waits for the end of its response. Returns the error; None for a complete response."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._response.sent_s = time.perf_counter()
        self._transport.write(data)
        try:
            return await asyncio.wait_for(self._done, timeout_s)
        except TimeoutError:
            return f"the response did not end within {timeout_s:.0f} s"
        finally:
            self._done = None

    async def _open(self, timeout_s: float) -> str | None:
        """Opens the connection if it is not open. Returns the error; None if the connection is open."""
        if self._transport is not None and not self._transport.is_closing():
            return None
        seconds = min(CONNECT_TIMEOUT_S, timeout_s)
        context = ssl.create_default_context() if self._endpoint.uses_tls else None
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(lambda: self, self._endpoint.host, self._endpoint.port, ssl=context)
        try:
            transport, _ = await asyncio.wait_for(opening, seconds)
        except TimeoutError:
            return f"no connection within {seconds:.0f} s"
        except OSError as error:
            # asyncio puts the address into strerror of a ConnectionError; the system's text has none.
            number = error.errno if isinstance(error, ConnectionError) else None
            reason = error.strerror or type(error).__name__ if number is None else os.strerror(number)
            return f"no connection ({reason})"
        self._transport = cast(asyncio.Transport, transport)
        return None

    def close(self) -> None:
        """Closes the connection; safe to call twice."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _end_response(self, error: str | None = None) -> None:
        """Ends the wait for a response. error: the reason why it is incomplete."""
        if self._done is not None and not self._done.done():
            self._response.end_s = self._now_s
            self._done.set_result(error)

    # --- called by asyncio ------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parses bytes of a response."""
        self._now_s = time.perf_counter()
        if self._done is None or self._done.done():
            self.close()  # bytes without a request
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end_response(f"the response is not HTTP ({error})")

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the response. It is complete only if neither a content length nor chunks announced its end."""
        self._transport = None
        headers = self._response.headers
        is_complete = self._response.status and not {"content-length", "transfer-encoding"} & headers.keys()
        self._end_response(None if is_complete else "the connection broke off before the end of the response")

    # --- called by the parser ---------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Stores a header under its lower-case name."""
        self._response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Stores the status, and whether the connection stays open after the response."""
        self._response.status = self._parser.get_status_code()
        self._keep_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """Stores a chunk of the body with its arrival time."""
        self._response.chunks.append((self._now_s, body))

    def on_message_complete(self) -> None:
        """Marks the response complete."""
        self._end_response()
