"""What all doubles that answer HTTP share: a server on a free port of this machine, until the block ends."""

import json
import threading
from abc import ABC, abstractmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


def send_json(handler: BaseHTTPRequestHandler, status: int, body: Any) -> None:
    """Answers the request of this handler with a JSON body."""
    data = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


class Loopback(ABC):
    """A context manager. url is there inside the block."""

    url: str

    @abstractmethod
    def handler(self) -> type[BaseHTTPRequestHandler]:
        """Who answers."""

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
