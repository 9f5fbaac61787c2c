"""A proxy on loopback that passes everything on, until it is told to spoil the next stream."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal


@dataclass
class CuttingProxy:
    """spoil: what happens to the next stream after so many events: its connection breaks, or nothing more comes.

    left: whether the client closed the connection on which nothing more came.
    """

    upstream: tuple[str, int]
    spoil: Literal["cut", "hold"] | None = None
    after: int = 3
    left: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # closed: the test is over
                return
            server = socket.create_connection(self.upstream)
            threading.Thread(target=self._up, args=(client, server), daemon=True).start()
            threading.Thread(target=self._down, args=(client, server), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        if self.spoil == "hold":
            self.left.set()

    def _down(self, client: socket.socket, server: socket.socket) -> None:
        num_events = 0
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 10):
                num_events += data.count(b"data: {")
                if num_events > self.after and self.spoil == "hold":
                    continue
                client.sendall(data)
                if num_events > self.after and self.spoil == "cut":
                    self.spoil = None
                    break
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def cutting(upstream_url: str) -> Iterator[CuttingProxy]:
    """In front of the server at this URL."""
    host, port = upstream_url.removeprefix("http://").split(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = CuttingProxy((host, int(port)), url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=proxy.serve, args=(listener,), daemon=True)
        thread.start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
