"""The two loops around the engine: who runs next, and when the host looks.

    plain     launch 1 | wait 1, process 1 | launch 2 | wait 2, process 2 | ...     the device waits for the host
    overlap   launch 1 | launch 2 | wait 1, process 1 | launch 3 | wait 2, ...      it has the next round already

Both give the same tokens: what a round does never depends on what the host has read of the rounds before.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from eyas.engine.engine import Engine, OnTokens
from eyas.engine.request import Request, RequestOutput


class RequestSource(Protocol):
    """Where requests come from."""

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        """Add what has come to the engine; may_wait: until something comes. False when nothing will come any more."""
        ...


class RequestList:
    """Requests that are known beforehand; each is taken up when the engine has room for it."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._requests = iter(requests)

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        while engine.has_capacity:
            request = next(self._requests, None)
            if request is None:
                return False
            engine.add(request)
        return True


def plain_loop(engine: Engine, source: RequestSource, on_tokens: OnTokens | None = None) -> Iterator[RequestOutput]:
    """Answers as they finish. The host reads the result of each step before it launches the next."""
    while source.admit(engine, may_wait=engine.is_idle) or not engine.is_idle:
        step = engine.launch()
        if step is not None:
            yield from engine.process(step, on_tokens)


def overlap_loop(engine: Engine, source: RequestSource, on_tokens: OnTokens | None = None) -> Iterator[RequestOutput]:
    """The same, with one step in flight: the host reads a result while the device is at the next step."""
    late = None
    while source.admit(engine, may_wait=engine.is_idle and late is None) or not engine.is_idle or late is not None:
        step = engine.launch()
        if late is not None:
            yield from engine.process(late, on_tokens)
        late = step
