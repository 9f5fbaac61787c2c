"""A server in the test's own process, on a loopback port."""

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from tests.engine.small import random_draft

from eyas.engine.async_engine import AsyncEngine
from eyas.engine.engine import Engine
from eyas.model.target import Target
from eyas.server.routes import Api, ApiOptions
from eyas.server.server import TimedProtocol, bind, server_url
from eyas.server.vertex import VertexConfig
from eyas.tree.shape import TreeShape

MODEL = "tiny"
CHAT = "/v1/chat/completions"
ROSES = "Can you help me to plant 12 roses in Salmere?"  # the embedded pair knows about it
SHAPE = TreeShape(depth=3, top_k=2, nodes=6)
MESSAGE = re.compile(r"(?!found )[A-Za-z0-9].+[.?]", re.DOTALL)


@dataclass
class Server:
    """A running server. lines: its access log."""

    api: Api
    url: str
    lines: list[str] = field(default_factory=list)

    def line_of(self, request_id: str) -> dict[str, Any]:
        """Returns the log line of a request, which is written right after the response."""
        found: list[dict[str, Any]] = []

        def is_logged() -> bool:
            found[:] = [line for line in map(json.loads, list(self.lines)) if line["id"] == request_id]
            return bool(found)

        wait_until(is_logged)
        (line,) = found
        return line

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120)


@contextlib.contextmanager
def serving(
    async_engine: AsyncEngine,
    keys: Sequence[str] = (),
    vertex: VertexConfig | None = None,
    page: bool = True,
    metrics_key: str | None = None,
    metrics_port: int | None = None,
) -> Iterator[Server]:
    """Runs the HTTP server of a started engine, ready."""
    lines: list[str] = []
    options = ApiOptions(
        MODEL, tuple(keys), lines.append, vertex, page, metrics_key=metrics_key, metrics_port=metrics_port
    )
    api = Api(async_engine, options)
    api.phase = "ready"
    config = uvicorn.Config(
        api.build_app(), http=TimedProtocol, ws="none", lifespan="off", log_config=None, log_level="warning"
    )
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    with bind("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield Server(api, server_url(listener), lines)
        finally:
            server.should_exit = True
            thread.join()


def wait_until(condition, timeout_s: float = 30.0) -> None:
    """Waits until a condition holds."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "timed out"
        time.sleep(0.005)


def start_engine(
    target: Target, slots: int = 4, max_waiting: int = 16, context: int = 512, drafts: bool = False
) -> AsyncEngine:
    """Starts an engine. drafts: a random head drafts trees of `SHAPE`."""
    draft = random_draft(target, SHAPE) if drafts else None
    async_engine = AsyncEngine(Engine(target, [] if draft is None else [draft], slots, context), max_waiting)
    async_engine.start()
    return async_engine


def error_of(reply: httpx.Response, status: int) -> dict[str, str]:
    """Returns the error of a response after a check of its shape."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert list(reply.json()) == ["error"]
    error = reply.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert MESSAGE.fullmatch(error["message"]), error["message"]
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    return error
