"""Runs the engine on its own thread. Any thread submits requests; tokens come back through a callback.

any thread       submit(request, on_tokens), cancel(id)   -> inbox
engine thread    inbox -> loop(engine, inbox)             -> on_tokens(output, count)
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from eyas.base.errors import EyasError
from eyas.engine.canary import CANARY, MAIN, CanaryExperiment, CanaryStatus
from eyas.engine.counters import EngineCounters
from eyas.engine.engine import Engine, OnTokens
from eyas.engine.loops import RequestSource, overlap_loop
from eyas.engine.request import Request, RequestOutput
from eyas.speculation.budget import Budget
from eyas.speculation.speedup import SpeedupEstimate
from eyas.tree.node_scale import ScaleError

IDLE_S = 3600.0

Loop = Callable[[Engine, RequestSource, OnTokens], Iterator[RequestOutput]]
"""plain_loop or overlap_loop; yields outputs as they finish."""

Out = TypeVar("Out")


class QueueFull(EyasError):
    """A refused request: the engine has as many open requests as it accepts. Retry later."""


class Draining(EyasError):
    """A refused request: the engine is shutting down or has failed."""


class EngineThread:
    """The one thread that loads a target, measures round costs and runs the engine. It is a daemon thread.

    OpenMP creates a team of threads for every thread that computes. If all teams together have more threads than the
    process has cores, they sleep between two operators, and a forward of many small operators takes four times as long.
    So one thread must do all computation.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Out]) -> Out:
        """Runs `work` on the thread and waits for it. Returns its result or raises its exception."""
        done: Future[Out] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # it belongs to the caller
                done.set_exception(error)

        self._work.put(run)
        return done.result()

    def finish_with(self, work: Callable[[], None]) -> None:
        """Queues `work` as the last work of the thread, and returns at once. The thread ends afterwards."""
        self._work.put(work)
        self._work.put(None)

    def join(self) -> None:
        """Waits until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


@dataclass(frozen=True)
class EngineStats:
    """A snapshot of the engine.

    Attributes:
        running: The number of running requests.
        waiting: The number of waiting requests.
        kv_used: The tokens of KV memory that running requests own.
        kv_total: The tokens that the KV memory can hold.
        counters: The counters since the start or the last reset.
        speedup: The estimated speedup over plain decoding; None until it is known, or without a budget.
        canary: The state of the canary experiment; None without a canary head.
        forecast: The ratios of the budget's `ForecastCheck`; empty until they are known, or without a budget.
        scale_errors: The errors of the predicted acceptance of draft tokens, by source, as far as they are known.
    """

    running: int
    waiting: int
    kv_used: int
    kv_total: int
    counters: EngineCounters
    speedup: SpeedupEstimate | None
    canary: CanaryStatus | None
    forecast: dict[str, float] = field(default_factory=dict)
    scale_errors: dict[str, ScaleError] = field(default_factory=dict)


class RequestInbox:
    """A queue of calls that any thread submits and the engine's thread runs. It implements `RequestSource`."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[Engine], None] | None] = queue.SimpleQueue()
        self._idle_calls: deque[Callable[[Engine], None]] = deque()
        self._is_open = True

    def put(self, call: Callable[[Engine], None]) -> None:
        """Queues a call. The engine's thread runs it before it launches the next work."""
        self._calls.put(call)

    def put_when_idle(self, call: Callable[[Engine], None]) -> None:
        """Queues a call. The engine's thread runs it as soon as the engine has no request."""
        self._idle_calls.append(call)
        self._calls.put(lambda engine: None)  # wakes an engine that waits

    def close(self) -> None:
        """Closes the inbox. `admit` runs the calls that are already queued and then returns False."""
        self._calls.put(None)

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        """Runs the queued calls.

        Args:
            engine: the engine, passed to each call.
            may_wait: True to wait for a call if none is queued.

        Returns:
            False once the inbox is closed.
        """
        while self._is_open:
            while may_wait and self._idle_calls and self._calls.empty():
                self._idle_calls.popleft()(engine)
            try:
                call = self._calls.get(timeout=IDLE_S) if may_wait else self._calls.get_nowait()
            except queue.Empty:
                return True
            may_wait = False
            if call is None:
                self._is_open = False
            else:
                call(engine)
        return self._is_open


class AsyncEngine:
    """The engine of a server. It queues, runs, cancels and drains requests. Any thread may call its methods.

    If the engine's thread raises an exception, all requests end with finish reason "error", and `failure` holds the
    exception.
    """

    def __init__(
        self, engine: Engine, max_waiting: int, loop: Loop = overlap_loop, thread: EngineThread | None = None
    ) -> None:
        """Prepares the engine. It runs no request before `start` is called.

        Args:
            engine: the engine. Only the engine's thread uses it from now on.
            max_waiting: the number of waiting requests beyond which `submit` raises QueueFull.
            loop: `overlap_loop` or `plain_loop`.
            thread: the thread that has loaded the target; None to start a new thread.
        """
        self.engine = engine
        self.max_waiting = max_waiting
        self.failure: BaseException | None = None
        self.canary: CanaryExperiment | None = None
        self._loop = loop
        self._inbox = RequestInbox()
        self._open: dict[str, tuple[RequestOutput, OnTokens]] = {}
        self._changed = threading.Condition()
        self._is_draining = False
        self._thread = EngineThread() if thread is None else thread

    @property
    def arms(self) -> tuple[str, ...]:
        """The names of the arms that a round may run."""
        return tuple(arm.name for arm in self.engine.policies[MAIN].arms)

    @property
    def max_draft_tokens(self) -> int:
        """The maximum number of draft tokens that a round can accept for one request."""
        return max(arm.depth for arm in self.engine.policies[MAIN].arms)

    def start(self) -> None:
        """Starts the loop on the engine's thread. Submitted requests run from now on."""
        self._thread.finish_with(self._run)

    def submit(self, request: Request, on_tokens: OnTokens) -> None:
        """Queues a request.

        Args:
            request: the request. Requirement: no open request has the same id.
            on_tokens: called on the engine's thread as on_tokens(output, count) whenever the output has grown by
                `count` tokens. In the last call output.finish_reason is set.

        Raises:
            InputError: the request is not valid, for example because its prompt is too long.
            QueueFull: too many requests are running or waiting.
            Draining: the engine is shutting down or has failed.
        """
        self.engine.max_new_tokens(request)
        with self._changed:
            if self._is_draining or self.failure is not None:
                raise Draining("The server is shutting down", "Retry on another replica")
            limit = self.engine.max_running + self.max_waiting
            if len(self._open) >= limit:
                problem = f"The server has {len(self._open)} open requests and takes at most {limit}"
                raise QueueFull(problem, "Retry later")
            assert request.id not in self._open, "each request has a new id"
            self._open[request.id] = (RequestOutput(request), on_tokens)

        def add(engine: Engine) -> None:
            drafter = MAIN if self.canary is None else self.canary.assign(request)
            self._open[request.id] = (engine.add(request, drafter), on_tokens)

        self._inbox.put(add)

    def when_idle(self, call: Callable[[Engine], None]) -> None:
        """Queues a call. The engine's thread runs it as soon as no request is running or waiting."""
        self._inbox.put_when_idle(call)

    def cancel(self, request_id: str) -> None:
        """Ends a request early. Its on_tokens is called once more, with finish reason "cancelled".

        Does nothing if the request has finished or the id is unknown.
        """

        def cancel(engine: Engine) -> None:
            if engine.cancel(request_id) is not None:
                self._close(request_id)

        self._inbox.put(cancel)

    def drain(self, timeout_s: float) -> bool:
        """Refuses new requests, waits until the others have finished, cancels those left, and stops the engine.

        Args:
            timeout_s: the seconds to wait before requests are cancelled.

        Returns:
            True if no request had to be cancelled.
        """
        with self._changed:
            self._is_draining = True
            all_finished = self._changed.wait_for(lambda: not self._open, timeout_s)

        for request_id in list(self._open):
            self.cancel(request_id)
        self._inbox.close()
        self._thread.join()
        self.engine.stream.close()
        return all_finished

    def stats(self) -> EngineStats:
        """Returns a snapshot of the engine. The engine keeps running meanwhile."""
        engine, pool = self.engine, self.engine.kv_cache.pool
        running, cached = len(engine.scheduler.running), engine.kv_cache.prefix_cache.num_slots
        drafter = CANARY if self.canary is not None and self.canary.state == "promoted" else MAIN
        policy, scales = engine.policies[drafter], [one.node_scale for one in engine.runner.drafters]
        scale = scales[drafter] if scales else None
        return EngineStats(
            running=running,
            waiting=max(len(self._open) - running, 0),
            kv_used=pool.num_slots - pool.num_free - cached,
            kv_total=pool.num_slots,
            counters=engine.counters.copy(),
            speedup=policy.speedup() if isinstance(policy, Budget) else None,
            forecast=policy.forecast_check.ratios() if isinstance(policy, Budget) else {},
            scale_errors={} if scale is None else scale.errors(),
            canary=None if self.canary is None else self.canary.status(),
        )

    def _run(self) -> None:
        try:
            for output in self._loop(self.engine, self._inbox, self._call_back):
                if self.canary is not None:
                    self.canary.observe(output)
                self._forget(output.request.id)
        except BaseException as error:  # whatever it was: no caller may wait for ever
            with self._changed:
                self.failure = error
            for request_id, (output, _) in list(self._open.items()):
                output.finish_reason = "error"
                self._close(request_id)
            raise

    def _call_back(self, output: RequestOutput, count: int) -> None:
        self._open[output.request.id][1](output, count)

    def _close(self, request_id: str) -> None:
        """Makes the last call of on_tokens for a request that was cancelled or has failed."""
        output, on_tokens = self._open[request_id]
        on_tokens(output, 0)
        self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        with self._changed:
            del self._open[request_id]
            self._changed.notify_all()
