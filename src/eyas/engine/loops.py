"""The two loops around the engine: when the host launches work and when it reads results.

    plain     launch 1 | wait 1, process 1 | launch 2 | wait 2, process 2 | ...     the device waits for the host
    overlap   launch 1 | launch 2 | wait 1, process 1 | launch 3 | wait 2, ...      the next round is queued already

Both give the same tokens: a round never depends on what the host has read of the rounds before.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from eyas.engine.engine import Engine, OnTokens
from eyas.engine.request import Request, RequestOutput


class RequestSource(Protocol):
    """A source of requests for a loop."""

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        """Adds the requests that have arrived to the engine.

        Args:
            engine: the engine.
            may_wait: True to wait for a request if none has arrived.

        Returns:
            False if no further request will arrive.
        """
        ...


class RequestList:
    """A source that adds the requests of a list, each as soon as the engine can run it."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._requests = iter(requests)

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        """Adds requests until the engine is full. Returns False once all are added. `may_wait` has no effect."""
        while engine.num_free > 0:
            request = next(self._requests, None)
            if request is None:
                return False
            engine.add(request)
        return True


def plain_loop(engine: Engine, source: RequestSource, on_tokens: OnTokens | None = None) -> Iterator[RequestOutput]:
    """Yields outputs as they finish. The host reads the result of each step before it launches the next."""
    while source.admit(engine, may_wait=engine.is_idle) or not engine.is_idle:
        step = engine.launch()
        if step is not None:
            yield from engine.process(step, on_tokens)


def overlap_loop(engine: Engine, source: RequestSource, on_tokens: OnTokens | None = None) -> Iterator[RequestOutput]:
    """Yields outputs as they finish. The host reads a result while the device runs the next step."""
    in_flight = None
    while source.admit(engine, may_wait=engine.is_idle and in_flight is None) or not engine.is_idle or in_flight:
        step = engine.launch()
        if in_flight is not None:
            yield from engine.process(in_flight, on_tokens)
        in_flight = step
