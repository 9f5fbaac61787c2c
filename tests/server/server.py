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
from eyas.server.app import Api, ApiOptions
from eyas.server.server import bind, server_url
from eyas.server.vertex import VertexConfig
from eyas.tree.shape import TreeShape

MODEL = "tiny"
CHAT = "/v1/chat/completions"
ROSES = "Can you help me to plant 12 roses in Salmere?"  # the embedded pair knows about it
SHAPE = TreeShape(depth=3, top_k=2, nodes=6)
MESSAGE = re.compile(r"(found .+; expected .+; do )?.+", re.DOTALL)


@dataclass
class Server:
    """A running server; `lines` is its log."""

    api: Api
    url: str
    lines: list[str] = field(default_factory=list)

    def line_of(self, request_id: str) -> dict[str, Any]:
        """What the log says about a request; it does so right after the response."""
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            found[:] = [line for line in map(json.loads, list(self.lines)) if line["id"] == request_id]
            return bool(found)

        wait_until(is_there)
        (line,) = found
        return line

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30)


@contextlib.contextmanager
def serving(
    service: AsyncEngine, keys: Sequence[str] = (), vertex: VertexConfig | None = None, page: bool = True
) -> Iterator[Server]:
    """The service's HTTP server, ready; the service itself is started by the caller."""
    lines: list[str] = []
    api = Api(service, ApiOptions(MODEL, tuple(keys), lines.append, vertex, page))
    api.phase = "ready"
    config = uvicorn.Config(
        api.build_app(), http="h11", ws="none", lifespan="off", log_config=None, log_level="warning"
    )
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    with bind("127.0.0.1", 0) as holder:
        thread = threading.Thread(target=server.run, args=([holder],))
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield Server(api, server_url(holder), lines)
        finally:
            server.should_exit = True
            thread.join()


def wait_until(holds, longest_s: float = 30.0) -> None:
    """Wait until something is so."""
    end_s = time.monotonic() + longest_s
    while not holds():
        assert time.monotonic() < end_s, "it does not happen"
        time.sleep(0.005)


def new_service(
    target: Target, slots: int = 4, max_waiting: int = 16, context: int = 512, drafts: bool = False
) -> AsyncEngine:
    """Started; with `drafts`, a random head drafts in trees of `SHAPE`."""
    draft = random_draft(target, SHAPE) if drafts else None
    service = AsyncEngine(Engine(target, [] if draft is None else [draft], slots, context), max_waiting)
    service.start()
    return service


def error_of(reply: httpx.Response, status: int) -> dict[str, str]:
    """The error of a response in OpenAI's shape."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert list(reply.json()) == ["error"]
    error = reply.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert MESSAGE.fullmatch(error["message"]), error["message"]
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    return error
