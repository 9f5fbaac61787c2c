"""Requests over HTTP/1.1 whose answer is kept as it came: pieces of the body, each with the time of its arrival.

    while the clock runs    a piece comes -> httptools (C) -> (time, bytes) into a list
    afterwards              the pieces are read (`reply`)

At 32 streams of 1 ms tokens 32,000 pieces come a second: whoever reads JSON meanwhile measures himself. Times are
`time.perf_counter`, in seconds.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

from eyas.base.errors import UsageError

CONNECT_S = 30.0
PORTS = {"http": 80, "https": 443}


class TransferError(Exception):
    """No whole answer; its text says what happened."""


class ConnectFailedError(TransferError):
    """Nobody was there to ask."""


@dataclass(frozen=True)
class Endpoint:
    """Where requests go. target: path and query of the chat route, as the request line has it."""

    host: str
    port: int
    uses_tls: bool
    target: str

    @property
    def authority(self) -> str:
        """Of the Host line: an IPv6 address in brackets, the port where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS["https" if self.uses_tls else "http"] else f"{host}:{self.port}"

    @staticmethod
    def parse(url: str) -> "Endpoint":
        """From the URL of an API (".../v1"), or of a route that takes the same bodies. UsageError for anything else."""
        parts = urlsplit(url)
        if parts.scheme not in PORTS or not parts.hostname or parts.username is not None:
            raise UsageError(
                f"{url!r} as the URL of a server",
                "http:// or https://, a host, and the path of the API, without a name or a key in it",
                "write for example http://127.0.0.1:8000/v1",
            )
        path = parts.path.rstrip("/")
        if path in ("", "/v1") or path.endswith("/v1"):
            path = f"{path or '/v1'}/chat/completions"
        query = f"?{parts.query}" if parts.query else ""
        return Endpoint(parts.hostname, parts.port or PORTS[parts.scheme], parts.scheme == "https", path + query)


@dataclass
class RawResponse:
    """An answer as it came. sent_s: when its request was handed to the socket; end_s: its last byte.

    error: why there is no whole answer; connected: whether there was anybody to ask.
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
        """All pieces together."""
        return b"".join(piece for _, piece in self.chunks)


class HttpConnection(asyncio.Protocol):
    """One connection, one request at a time; it is opened again where the server closed it."""

    def __init__(self, server: Endpoint, headers: Mapping[str, str]) -> None:
        self._server = server
        self._headers = dict(headers)
        self._transport: asyncio.Transport | None = None
        self._received = RawResponse(0.0)
        self._done: asyncio.Future[None] | None = None
        self._now_s = 0.0
        self._keep = True

    async def post(self, body: bytes, timeout_s: float) -> RawResponse:
        """The whole answer. WireError."""
        return await self._ask("POST", self._server.target, body, timeout_s)

    async def get(self, target: str, timeout_s: float) -> RawResponse:
        """Another route of the same server. WireError."""
        return await self._ask("GET", target, b"", timeout_s)

    async def open(self, timeout_s: float) -> None:
        """Connect where it is not connected. NoConnectionError."""
        if self._transport is not None and not self._transport.is_closing():
            return
        seconds = min(CONNECT_S, timeout_s)
        context = ssl.create_default_context() if self._server.uses_tls else None
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(lambda: self, self._server.host, self._server.port, ssl=context)
        try:
            transport, _ = await asyncio.wait_for(opening, seconds)
        except TimeoutError:
            raise ConnectFailedError(f"no connection within {seconds:.0f} s") from None
        except OSError as error:
            # asyncio puts the address into strerror; the system's own words for the number are plainer.
            words = error.strerror or type(error).__name__
            if isinstance(error, ConnectionError) and error.errno is not None:
                words = os.strerror(error.errno)
            raise ConnectFailedError(f"no connection ({words})") from None
        self._transport = cast(asyncio.Transport, transport)

    def close(self) -> None:
        """Safe to call twice."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    async def _ask(self, method: str, target: str, body: bytes, timeout_s: float) -> RawResponse:
        await self.open(timeout_s)
        assert self._transport is not None
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._server.authority}"]
        lines += [f"{name}: {value}" for name, value in self._headers.items()]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"] if method == "POST" else []
        request = "\r\n".join([*lines, "", ""]).encode() + body
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._received = received = RawResponse(time.perf_counter())
        self._transport.write(request)
        try:
            await asyncio.wait_for(self._done, timeout_s)
        except TimeoutError:
            self.close()
            raise TransferError(f"no end of the answer within {timeout_s:.0f} s") from None
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._done = None
        if not self._keep:
            self.close()
        return received

    # --- what asyncio calls -----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """A piece of an answer."""
        self._now_s = time.perf_counter()
        if self._done is None or self._done.done():
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._done.set_exception(TransferError(f"an answer that is no HTTP ({error})"))
            self.close()

    def eof_received(self) -> bool:
        """The server is done; an answer without a length ends here."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Before the end of an answer that is an error, unless its length was open."""
        self._transport = None
        if self._done is None or self._done.done():
            return
        headers = self._received.headers
        if self._received.status and "content-length" not in headers and "transfer-encoding" not in headers:
            self.on_message_complete()
        else:
            self._done.set_exception(TransferError("the connection broke off before the end of the answer"))

    # --- what the parser calls --------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Names in small letters."""
        self._received.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Status, and whether the connection outlives the answer."""
        self._received.status = self._parser.get_status_code()
        self._keep = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """Framing is gone."""
        self._received.chunks.append((self._now_s, body))

    def on_message_complete(self) -> None:
        """The last byte is here."""
        self._received.end_s = self._now_s
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
