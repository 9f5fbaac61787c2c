"""The server's life.

    bind -> listen, warm up -> ready -> (SIGTERM, SIGINT) draining: what was accepted ends -> closed

The port is taken before a target is loaded, so that a mistake shows at once; connections are refused until it listens.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from eyas.base.errors import StageError, UsageError
from eyas.engine.request import Request
from eyas.server.app import Api
from eyas.server.generation import Generation

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
FLUSH_TIMEOUT_S = 2  # for the last bytes of answers that are finished; a client that does not read is cut off
POLL_S = 0.5
WARM_UP_TOKENS = 4


class _UvicornServer(uvicorn.Server):
    """Leaves the signals to `serve`: uvicorn would close the port at once, and nobody could ask /ready."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """A socket that holds the port and does not listen yet. UsageError for a port in use and a host that is none."""
    with contextlib.ExitStack() as on_failure:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = found[0]
            holder = on_failure.enter_context(socket.socket(family, kind, protocol))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(address)
        except OSError as error:
            place = f"--host {host} --port {port} ({error.strerror})"
            raise UsageError(place, "a free port of this machine", "choose another one") from None
        on_failure.pop_all()
    return holder


def server_url(listener: socket.socket) -> str:
    """Where clients find the server."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(api: Api, listener: socket.socket, drain_s: float, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT. Then, within drain_s, what was accepted finishes, and the rest gets an error.

    Starts and ends the service. StageError if the engine fails.
    """
    asyncio.run(_serve(api, listener, drain_s, on_ready))


async def _serve(api: Api, listener: socket.socket, drain_s: float, on_ready: Callable[[], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    server = _UvicornServer(
        uvicorn.Config(
            api.build_app(),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=FLUSH_TIMEOUT_S,
        )
    )
    api.async_engine.start()
    serving = asyncio.create_task(server.serve([listener]))
    warming = asyncio.create_task(_warm_up(api))
    stopping = asyncio.create_task(_wait_for_stop(api, stop))
    try:
        await asyncio.wait({warming, stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
        if warming.done() and api.async_engine.failure is None:
            warming.result()
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
        reason = f"{type(api.async_engine.failure).__name__}: {api.async_engine.failure}"
        raise StageError(f"an engine that failed ({reason})", "one that runs", "read the traceback above")
    await serving


async def _warm_up(api: Api) -> None:
    """Answer one short request, so that the first client does not pay for what happens only once."""
    num_tokens = min(WARM_UP_TOKENS, api.async_engine.engine.max_context - 1)
    call = Generation(api.async_engine, [Request("warm-up", (0,), num_tokens, wants_text=True)])
    call.submit()
    await call.collect(lambda piece: None)


async def _wait_for_stop(api: Api, stop: asyncio.Event) -> None:
    """Return on a signal, or when the engine has failed."""
    while not stop.is_set() and api.async_engine.failure is None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), POLL_S)
