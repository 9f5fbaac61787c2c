"""A reverse proxy with an allow list: it starts an engine and passes only the requests that clients need to it.

    client ── AIP_HTTP_PORT ── gate ── 127.0.0.1:EYAS_INNER_PORT ── engine

SGLang and vLLM serve clients and administration (pause, swap weights, empty caches) on the same port, and vLLM's own
security guide recommends a list of allowed routes. Every other request is answered with 404 here and never reaches the
engine. The gate reads a request completely and sends it with a new Content-Length, and a connection carries one
request, so that a second request cannot be smuggled in behind the first.

    python gate.py COMMAND ...

After SIGTERM new requests get 503, and running ones may finish for EYAS_DRAIN_S seconds (default 30). Then the engine
gets SIGTERM: SGLang and vLLM would otherwise end the answers that they are writing.

Environment: EYAS_INNER_PORT, AIP_HTTP_PORT, AIP_HEALTH_ROUTE, AIP_PREDICT_ROUTE, EYAS_DRAIN_S, EYAS_PREDICT_AS (the
engine's path for the predict route), and EYAS_METRICS_KEY_ENV (the variable that holds the Bearer token of /metrics; by
default /metrics needs none). The entrypoints beside this file call it. It imports only the standard library,
because it runs in the engine's image.
"""

import asyncio
import contextlib
import hmac
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 10 * 2**20  # the limit of a dedicated endpoint of Vertex AI
READ_TIMEOUT_S, CONNECT_TIMEOUT_S, EXIT_TIMEOUT_S, DRAIN_S = 60.0, 5.0, 10.0, 30.0
ALLOWED = {
    ("GET", "/health"): "/health",
    ("HEAD", "/health"): "/health",
    ("GET", "/metrics"): "/metrics",
    ("GET", "/v1/models"): "/v1/models",
    ("POST", "/v1/chat/completions"): "/v1/chat/completions",
    ("POST", "/v1/completions"): "/v1/completions",
    ("POST", "/v1/responses"): "/v1/responses",
}
# The name of a model may have slashes. No segment starts with a dot, so no path leads out of /v1/models.
MODEL_PATH = re.compile(r"/v1/models(/[A-Za-z0-9_][A-Za-z0-9_.:-]*)+")
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "te", "trailer", "expect"}
HOP_BY_HOP |= {"proxy-connection", "host"}
CONNECTION = (b"connection:", b"keep-alive:")


class RequestError(Exception):
    """An HTTP error that the gate itself answers."""

    def __init__(self, status: int, message: str) -> None:
        """Takes the HTTP status and the text for the client."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Request:
    """An HTTP request that was read completely."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


def build_routes(environment: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Returns the engine's path for each allowed (method, path), with the routes that Vertex AI sets."""
    routes = dict(ALLOWED)
    if route := environment.get("AIP_HEALTH_ROUTE"):
        routes["GET", route] = routes["HEAD", route] = "/health"
    if route := environment.get("AIP_PREDICT_ROUTE"):
        routes["POST", route] = environment.get("EYAS_PREDICT_AS") or ALLOWED.get(
            ("POST", route), "/v1/chat/completions"
        )
    return routes


def read_metrics_key(environment: Mapping[str, str]) -> str | None:
    """Returns the Bearer token of /metrics; None if it needs none. Ends the process if the token is missing."""
    variable = environment.get("EYAS_METRICS_KEY_ENV")
    if not variable:
        return None
    key = environment.get(variable, "").strip()
    if not key:
        fix = f"Add {variable} to the Secret of the container, or unset EYAS_METRICS_KEY_ENV"
        print(f"eyas: error: The variable {variable} with the key of /metrics is not set. {fix}.", file=sys.stderr)
        sys.exit(2)
    return key


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Reads a request; None if the client closes the connection before. Raises RequestError."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), READ_TIMEOUT_S)
    except asyncio.LimitOverrunError:
        raise RequestError(431, "The headers are longer than 64 KiB. Send fewer headers.") from None
    except (asyncio.IncompleteReadError, TimeoutError, ConnectionError):
        return None
    lines = head[:-4].decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[1].startswith("/") or parts[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise RequestError(400, "The request line is not METHOD /path HTTP/1.1.")
    headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or "\n" in line or "\r" in line or "\0" in line:
            raise RequestError(400, "A header is not of the form name: value.")
        headers.append((name, value.strip()))
    return Request(parts[0], parts[1], tuple(headers), await _read_body(reader, headers))


async def _read_body(reader: asyncio.StreamReader, headers: list[tuple[str, str]]) -> bytes:
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    codings = [value.lower() for name, value in headers if name.lower() == "transfer-encoding"]
    if len(lengths) + len(codings) > 1 or any(coding != "chunked" for coding in codings):
        raise RequestError(400, "The body has two lengths. Send Content-Length alone.")
    if lengths and not (lengths[0].isascii() and lengths[0].isdigit()):
        raise RequestError(400, "Content-Length is not a number.")
    try:
        if codings:
            return b"".join([part async for part in _read_chunks(reader)])
        size = int(lengths[0]) if lengths else 0
        _require_body_size(size)
        return await asyncio.wait_for(reader.readexactly(size), READ_TIMEOUT_S)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, TimeoutError):
        raise RequestError(400, "The body is incomplete. Send the request again.") from None


async def _read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    total = 0
    while True:
        line = await asyncio.wait_for(reader.readuntil(b"\r\n"), READ_TIMEOUT_S)
        size = int(line.split(b";")[0].strip(), 16)
        total += size
        _require_body_size(total)
        part = await asyncio.wait_for(reader.readexactly(size + 2), READ_TIMEOUT_S)
        if size < 0 or part[-2:] != b"\r\n":
            raise ValueError
        if size == 0:
            return
        yield part[:-2]


def _require_body_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise RequestError(413, f"The body has {size} bytes or more, but at most {MAX_BODY_BYTES} are allowed.")


class Gate:
    """The server of the container's port. It holds the allowed routes and the port of the engine."""

    def __init__(self, routes: Mapping[tuple[str, str], str], inner_port: int, metrics_key: str | None = None) -> None:
        """Takes the routes of `build_routes`, the port of the engine, and the key of /metrics."""
        self.routes = routes
        self.inner_port = inner_port
        self.metrics_key = metrics_key
        self.is_draining = False
        self.running: set[asyncio.Task[None]] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection, which carries one request."""
        try:
            request = await read_request(reader)
            if request is not None and self.is_draining:
                raise RequestError(503, "The server is shutting down. Retry on another replica.")
            if request is not None:
                task = asyncio.ensure_future(self._forward(request, reader, writer))
                self.running.add(task)
                task.add_done_callback(self.running.discard)
                await task
        except RequestError as error:
            with contextlib.suppress(ConnectionError):
                writer.write(_build_reply(error.status, str(error)))
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _forward(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path, mark, query = request.target.partition("?")
        is_model = request.method == "GET" and MODEL_PATH.fullmatch(path)
        inner = path if is_model else self.routes.get((request.method, path))
        if inner is None:
            allowed = ", ".join(sorted({f"{method} {route}" for method, route in self.routes}))
            raise RequestError(404, f"This server does not offer {request.method} {path[:80]}. It offers {allowed}.")
        if inner == "/metrics" and not self._has_metrics_key(request):
            raise RequestError(401, "The Bearer token of /metrics is missing or wrong. Send the metrics key.")
        try:
            opening = asyncio.open_connection("127.0.0.1", self.inner_port)
            engine_reader, engine_writer = await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)
        except (OSError, TimeoutError):
            raise RequestError(503, "The engine is still loading. Retry later.") from None
        headers = [f"{name}: {value}" for name, value in request.headers if name.lower() not in HOP_BY_HOP]
        # The engines answer GET only. For HEAD the body is left out.
        is_head = request.method == "HEAD"
        method = "GET" if is_head else request.method
        lines = [f"{method} {inner}{mark}{query} HTTP/1.1", f"Host: 127.0.0.1:{self.inner_port}", *headers]
        lines += ["Connection: close", f"Content-Length: {len(request.body)}"]
        try:
            engine_writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + request.body)
            await engine_writer.drain()
            answer = asyncio.ensure_future(_copy_answer(engine_reader, writer, is_head))
            disconnect = asyncio.ensure_future(_wait_for_disconnect(reader))
            await asyncio.wait({answer, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            for task in (answer, disconnect):
                task.cancel()
            await asyncio.wait({answer, disconnect})
        finally:
            engine_writer.close()  # after a disconnect of the client the engine sees one, too, and stops

    def _has_metrics_key(self, request: Request) -> bool:
        given = [value for name, value in request.headers if name.lower() == "authorization"]
        expected = f"Bearer {self.metrics_key}".encode()
        return self.metrics_key is None or any(hmac.compare_digest(value.encode(), expected) for value in given)


async def _copy_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_head: bool) -> None:
    """Copies the engine's answer as it arrives, with `Connection: close` in its headers. is_head: without its body."""
    with contextlib.suppress(ConnectionError):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.write(_build_reply(502, "The engine closed the connection without an answer. Retry later."))
            await writer.drain()
            return
        lines = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(CONNECTION)]
        writer.write(b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n")
        while not is_head and (data := await reader.read(64 * 1024)):
            writer.write(data)
            await writer.drain()


async def _wait_for_disconnect(reader: asyncio.StreamReader) -> None:
    """Returns when the client closes the connection. What it sends after its request is discarded."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(64 * 1024):
            pass


def _build_reply(status: int, message: str) -> bytes:
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}})
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


async def run(command: list[str], environment: Mapping[str, str]) -> int:
    """Starts the engine and the proxy and returns the engine's exit code. After SIGTERM, requests may finish first."""
    port, inner_port = (int(environment[name]) for name in ("AIP_HTTP_PORT", "EYAS_INNER_PORT"))
    gate = Gate(build_routes(environment), inner_port, read_metrics_key(environment))
    server = await asyncio.start_server(gate.handle, "0.0.0.0", port, limit=MAX_HEAD_BYTES)
    # The engine gets no AIP_ variables: SGLang would register its own route under one of these names.
    engine_environment = {name: value for name, value in environment.items() if not name.startswith("AIP_")}
    engine = await asyncio.create_subprocess_exec(*command, env=engine_environment)
    loop = asyncio.get_running_loop()

    drain_s = float(environment.get("EYAS_DRAIN_S") or DRAIN_S)

    async def drain() -> None:
        gate.is_draining = True
        if gate.running:
            await asyncio.wait(gate.running, timeout=drain_s)
        with contextlib.suppress(ProcessLookupError):
            engine.terminate()
        await asyncio.sleep(EXIT_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            engine.kill()

    draining: list[asyncio.Task[None]] = []  # holds the task, which the loop itself would not keep alive
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: draining.append(loop.create_task(drain())))
    code = await engine.wait()
    server.close()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(asyncio.run(run(sys.argv[1:], os.environ)))
