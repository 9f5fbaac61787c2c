"""Runs the server process from binding the port to shutdown.

    bind -> listen, warm up -> ready -> (SIGTERM, SIGINT) draining: accepted requests finish -> closed

The port is bound before a target is loaded, so that a port in use is reported at once. Connections are refused until
the server listens.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from eyas.base.config import require_range
from eyas.base.errors import StageError, UsageError
from eyas.engine.request import Request
from eyas.server.generation import Generation
from eyas.server.routes import Api

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
FLUSH_TIMEOUT_S = 2  # to send the last bytes of finished responses; a client that does not read is disconnected
HEADER_TIMEOUT_S = 30  # from the connection, or the first byte of a later request, to the end of the headers
POLL_S = 0.5
WARM_UP_TOKENS = 4


class _UvicornServer(uvicorn.Server):
    """A uvicorn server without signal handlers, since uvicorn's would close the port before /ready can say 503."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class TimedProtocol(H11Protocol):
    """HTTP/1.1 on one connection. It closes the connection if the headers of a request take too long."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the timer of the first request."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._timer = self.loop.call_later(HEADER_TIMEOUT_S, transport.close)

    def data_received(self, data: bytes) -> None:
        """Reads bytes, and starts or stops the timer."""
        if self._timer is None:  # a later request on this connection
            self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.close)
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def bind(host: str, port: int, option: str = "--port") -> socket.socket:
    """Binds a socket, which does not listen yet.

    Args:
        host: the name or address of this machine.
        port: the port; 0 for any free one.
        option: the option that sets the port, for the error message.

    Raises:
        UsageError: the port is out of range or in use, or the host is not local.
    """
    require_range(option, port, 0, 65535)
    with contextlib.ExitStack() as on_failure:
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = addresses[0]
            listener = on_failure.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            problem = f"The server cannot listen at --host {host} {option} {port} ({error.strerror})"
            raise UsageError(problem, "Choose another port") from None
        on_failure.pop_all()
    return listener


def server_url(listener: socket.socket) -> str:
    """Returns the URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(api: Api, listener: socket.socket, drain_s: float, on_ready: Callable[[], None]) -> None:
    """Runs the server until SIGTERM or SIGINT, then lets running requests finish. Starts and stops the engine.

    Args:
        api: the routes, with an engine that has not started yet.
        listener: the bound socket.
        drain_s: seconds that accepted requests have to finish after the signal. Later ones end with an error.
        on_ready: called once the server has warmed up.

    Raises:
        StageError: the engine failed.
    """
    asyncio.run(_serve(api, listener, drain_s, on_ready))


async def _serve(api: Api, listener: socket.socket, drain_s: float, on_ready: Callable[[], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    quiet: dict[str, Any] = {"log_config": None, "log_level": "warning", "access_log": False, "server_header": False}
    settings = {"ws": "none", "lifespan": "off", "timeout_graceful_shutdown": FLUSH_TIMEOUT_S} | quiet
    server = _UvicornServer(uvicorn.Config(api.build_app(), http=TimedProtocol, **settings))
    api.async_engine.start()
    serving = asyncio.create_task(server.serve([listener]))
    warming = asyncio.create_task(_warm_up(api))
    stopping = asyncio.create_task(_wait_for_stop(api, stop))
    try:
        await asyncio.wait({warming, stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
        if warming.done() and api.async_engine.failure is None:
            warming.result()
            api.metrics.forget_warm_up()
            api.phase = "ready"
            on_ready()
        await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)  # a second signal ends the process at once
        api.phase = "draining"
        await asyncio.to_thread(api.async_engine.drain, drain_s)
        server.should_exit = True
        warming.cancel()
        stopping.cancel()
        await asyncio.wait({serving, warming, stopping})
    if api.async_engine.failure is not None:
        name = type(api.async_engine.failure).__name__
        raise StageError(f"The engine stopped after a {name}", "Read the traceback above and restart the server")
    await serving


async def _warm_up(api: Api) -> None:
    """Runs one short request, so that the first client does not wait for one-time initialization."""
    num_tokens = min(WARM_UP_TOKENS, api.async_engine.engine.max_context - 1)
    generation = Generation(api.async_engine, [Request("warm-up", (0,), num_tokens, wants_text=True)])
    generation.submit()
    await generation.collect()


async def _wait_for_stop(api: Api, stop: asyncio.Event) -> None:
    """Waits for a stop signal, or until the engine has failed."""
    while not stop.is_set() and api.async_engine.failure is None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), POLL_S)
