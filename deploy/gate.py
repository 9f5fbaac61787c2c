"""The door of a container: it starts an engine behind itself and lets in only what clients need.

    client ── AIP_HTTP_PORT ── gate ── 127.0.0.1:inner port ── engine

SGLang and vLLM answer on one port both clients and whoever wants to pause them, swap their weights or empty their
caches, and vLLM's own security guide asks for a list of what may pass. Everything that is not on it is answered 404
here and never reaches the engine. A head is passed on whole or not at all, with a length that was counted, and a
connection carries one request, so that nothing rides behind one.

    python gate.py COMMAND ...      EYAS_INNER_PORT, AIP_HTTP_PORT, AIP_HEALTH_ROUTE, AIP_PREDICT_ROUTE,
                                    EYAS_PREDICT_AS (what the predict route is for the engine)

The standard library alone, for it runs in the engine's image.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 10 * 2**20  # what a dedicated endpoint of Vertex AI lets through
HEAD_S, CONNECT_S, STOP_S = 60.0, 5.0, 60.0
OPEN = {
    ("GET", "/health"): "/health",
    ("GET", "/metrics"): "/metrics",
    ("GET", "/v1/models"): "/v1/models",
    ("POST", "/v1/chat/completions"): "/v1/chat/completions",
    ("POST", "/v1/completions"): "/v1/completions",
}
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "te", "trailer", "expect"}
HOP_BY_HOP |= {"proxy-connection", "host"}
CONNECTION = (b"connection:", b"keep-alive:")


class Refused(Exception):
    """status, and what was found, expected, to do."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Request:
    """One request, read to its end."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


def routes_of(environment: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """(method, path) -> the engine's path: what is always open, and what Vertex AI asks for."""
    routes = dict(OPEN)
    if route := environment.get("AIP_HEALTH_ROUTE"):
        routes["GET", route] = "/health"
    if route := environment.get("AIP_PREDICT_ROUTE"):
        routes["POST", route] = environment.get("EYAS_PREDICT_AS") or OPEN.get(("POST", route), "/v1/chat/completions")
    return routes


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """None where the client leaves without a word. Refused."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_S)
    except asyncio.LimitOverrunError:
        raise Refused(431, "found a longer head; expected at most 64 KiB; do send fewer headers") from None
    except (asyncio.IncompleteReadError, TimeoutError, ConnectionError):
        return None
    lines = head[:-4].decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[1].startswith("/") or parts[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise Refused(400, "found another request line; expected METHOD /path HTTP/1.1; do correct it")
    headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or "\n" in line or "\r" in line or "\0" in line:
            raise Refused(400, "found a header that is none; expected name: value; do correct it")
        headers.append((name, value.strip()))
    return Request(parts[0], parts[1], tuple(headers), await _body(reader, headers))


async def _body(reader: asyncio.StreamReader, headers: list[tuple[str, str]]) -> bytes:
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    codings = [value.lower() for name, value in headers if name.lower() == "transfer-encoding"]
    if len(lengths) + len(codings) > 1 or any(coding != "chunked" for coding in codings):
        raise Refused(400, "found two lengths of one body; expected one; do send Content-Length alone")
    if lengths and not (lengths[0].isascii() and lengths[0].isdigit()):
        raise Refused(400, "found another Content-Length; expected a number; do correct it")
    try:
        if codings:
            return b"".join([part async for part in _chunks(reader)])
        size = int(lengths[0]) if lengths else 0
        _require_small(size)
        return await asyncio.wait_for(reader.readexactly(size), HEAD_S)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, TimeoutError):
        raise Refused(400, "found a body that breaks off; expected all of it; do send it again") from None


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    total = 0
    while True:
        line = await asyncio.wait_for(reader.readuntil(b"\r\n"), HEAD_S)
        size = int(line.split(b";")[0].strip(), 16)
        total += size
        _require_small(total)
        part = await asyncio.wait_for(reader.readexactly(size + 2), HEAD_S)
        if size < 0 or part[-2:] != b"\r\n":
            raise ValueError
        if size == 0:
            return
        yield part[:-2]


def _require_small(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise Refused(413, f"found a body of {size} bytes or more; expected at most {MAX_BODY_BYTES}; do send less")


class Gate:
    """Answers one port; the engine has another."""

    def __init__(self, routes: Mapping[tuple[str, str], str], inner_port: int) -> None:
        self.routes = routes
        self.inner_port = inner_port

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            request = await read_request(reader)
            if request is not None:
                await self._pass(request, reader, writer)
        except Refused as refusal:
            with contextlib.suppress(ConnectionError):
                writer.write(_reply(refusal.status, str(refusal)))
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _pass(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path, mark, query = request.target.partition("?")
        inner = self.routes.get((request.method, path))
        if inner is None:
            known = ", ".join(sorted({f"{method} {open_path}" for method, open_path in self.routes}))
            raise Refused(404, f"found {request.method} {path[:80]}; expected one of {known}; do ask for one of them")
        try:
            opening = asyncio.open_connection("127.0.0.1", self.inner_port)
            up_reader, up_writer = await asyncio.wait_for(opening, CONNECT_S)
        except (OSError, TimeoutError):
            raise Refused(503, "found an engine that loads; expected one that is ready; do ask again") from None
        kept = [f"{name}: {value}" for name, value in request.headers if name.lower() not in HOP_BY_HOP]
        lines = [f"{request.method} {inner}{mark}{query} HTTP/1.1", f"Host: 127.0.0.1:{self.inner_port}", *kept]
        lines += ["Connection: close", f"Content-Length: {len(request.body)}"]
        try:
            up_writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + request.body)
            await up_writer.drain()
            answering = asyncio.ensure_future(_copy(up_reader, writer))
            leaving = asyncio.ensure_future(_until_gone(reader))
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            for task in (answering, leaving):
                task.cancel()
            await asyncio.wait({answering, leaving})
        finally:
            up_writer.close()  # a client that left: the engine sees it too and stops


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The engine's answer, as it comes; its head says that the connection ends, whether the engine says so or not."""
    with contextlib.suppress(ConnectionError):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.write(_reply(502, "found an engine that broke off; expected an answer; do ask again"))
            await writer.drain()
            return
        lines = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(CONNECTION)]
        writer.write(b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n")
        while data := await reader.read(64 * 1024):
            writer.write(data)
            await writer.drain()


async def _until_gone(reader: asyncio.StreamReader) -> None:
    """Until the client closes; what it sends behind its request is thrown away."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(64 * 1024):
            pass


def _reply(status: int, message: str) -> bytes:
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}})
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


async def run(command: list[str], environment: Mapping[str, str]) -> int:
    """Start the engine and the door; ends with the engine, whose exit code it returns. SIGTERM is passed on."""
    port, inner_port = (int(environment[name]) for name in ("AIP_HTTP_PORT", "EYAS_INNER_PORT"))
    gate = Gate(routes_of(environment), inner_port)
    server = await asyncio.start_server(gate.handle, "0.0.0.0", port, limit=MAX_HEAD_BYTES)
    # The engine is told nothing of Vertex AI: SGLang would register a route of its own under one of these names.
    told = {name: value for name, value in environment.items() if not name.startswith("AIP_")}
    engine = await asyncio.create_subprocess_exec(*command, env=told)

    def stop() -> None:
        with contextlib.suppress(ProcessLookupError):
            engine.send_signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(STOP_S, kill)

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            engine.kill()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    code = await engine.wait()
    server.close()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(asyncio.run(run(sys.argv[1:], os.environ)))
