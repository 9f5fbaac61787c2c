"""The engine on a thread of its own: any thread submits requests, and tokens return through a callback.

any thread    submit, cancel ->  inbox  -> engine thread: loop(engine, inbox) -> on_tokens(output, count)
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from eyas.base.errors import EyasError
from eyas.engine.canary import CANARY, MAIN, CanaryExperiment, CanaryStatus
from eyas.engine.counters import EngineCounters
from eyas.engine.engine import Engine, OnTokens
from eyas.engine.loops import RequestSource, overlap_loop
from eyas.engine.request import Request, RequestOutput
from eyas.speculation.budget import Budget
from eyas.speculation.speedup import SpeedupEstimate

IDLE_S = 3600.0

Out = TypeVar("Out")


class QueueFull(EyasError):
    """The engine has as many requests as it takes at a time; retry later."""


class Draining(EyasError):
    """The engine drains and accepts no new requests."""


class Loop(Protocol):
    """plain_loop or overlap_loop."""

    def __call__(
        self, engine: Engine, source: RequestSource, on_tokens: OnTokens | None = None
    ) -> Iterator[RequestOutput]:
        """Yields outputs as they finish."""
        ...


class EngineThread:
    """The one thread that loads a target, measures and runs the engine. It does not keep the process alive.

    OpenMP keeps a team of threads for every thread that has ever computed. Once all teams together have more threads
    than the process has cores, they sleep between two operators instead of spinning, and a forward of many small
    operators takes four times as long. So the thread that loads a target also serves it.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Out]) -> Out:
        """Runs the work on the thread. Returns its result or raises its exception."""
        done: Future[Out] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # it belongs to the caller
                done.set_exception(error)

        self._work.put(run)
        return done.result()

    def finish_with(self, work: Callable[[], None]) -> None:
        """Starts `work`, the last work of the thread, and returns at once."""
        self._work.put(work)
        self._work.put(None)

    def join(self) -> None:
        """Waits until the last work is done."""
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


@dataclass(frozen=True)
class EngineStats:
    """A snapshot of the engine. kv_* in tokens; counters: since the start, or since they were reset.

    speedup: over the same server without speculation, estimated from its own rounds; None until both are measured.
    canary: None without a canary head.
    """

    running: int
    waiting: int
    kv_used: int
    kv_cached: int
    kv_total: int
    counters: EngineCounters
    speedup: SpeedupEstimate | None
    canary: CanaryStatus | None


class RequestInbox:
    """A queue of calls that other threads submit and the engine's thread runs. It is a `RequestSource`."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[Engine], None] | None] = queue.SimpleQueue()
        self._idle_calls: deque[Callable[[Engine], None]] = deque()
        self._is_open = True

    def put(self, call: Callable[[Engine], None]) -> None:
        """Queues a call; it runs before the next step."""
        self._calls.put(call)

    def put_when_idle(self, call: Callable[[Engine], None]) -> None:
        """Queues a call that runs when the engine has no request."""
        self._idle_calls.append(call)
        self._calls.put(lambda engine: None)  # wakes an engine that waits

    def close(self) -> None:
        """Closes the inbox: the queued calls still run, and then `admit` returns False."""
        self._calls.put(None)

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        """Runs the queued calls. Returns False once the inbox is closed. may_wait: wait for a call if there is none."""
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
    """Queues, runs, cancels and drains requests. Any thread may call it.

    An exception on the engine's thread ends all requests with finish reason "error" and is kept in `failure`.
    """

    def __init__(
        self, engine: Engine, max_waiting: int, loop: Loop = overlap_loop, thread: EngineThread | None = None
    ) -> None:
        """Prepares an engine that does not run yet.

        Args:
            max_waiting: requests beyond the running ones before `submit` refuses.
            thread: the thread that loaded the target; None for a new one.
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
        """Names of the arms that a round may run."""
        return tuple(arm.name for arm in self.engine.policies[MAIN].arms)

    @property
    def max_draft_tokens(self) -> int:
        """The most draft tokens that a round can accept."""
        return max(arm.depth for arm in self.engine.policies[MAIN].arms)

    def start(self) -> None:
        """Runs the loop on the engine's thread; requests are answered from now on."""
        self._thread.finish_with(self._run)

    def submit(self, request: Request, on_tokens: OnTokens) -> None:
        """Queues a request. Its id must be new.

        Args:
            on_tokens: called on the engine's thread as on_tokens(output, count) whenever the output has grown by count
                tokens; in the last call output.finish_reason is set.

        Raises:
            InputError: the request can never run.
            QueueFull: too many requests are open.
            Draining: the engine stops.
        """
        self.engine.max_new_tokens(request)
        with self._changed:
            if self._is_draining or self.failure is not None:
                raise Draining("The server is shutting down", "Retry on another replica")
            limit = self.engine.max_running + self.max_waiting
            if len(self._open) >= limit:
                raise QueueFull(
                    f"The server has {len(self._open)} open requests and takes at most {limit}", "Retry later"
                )
            assert request.id not in self._open, "each request has an id of its own"
            self._open[request.id] = (RequestOutput(request), on_tokens)

        def add(engine: Engine) -> None:
            drafter = MAIN if self.canary is None else self.canary.assign(request)
            self._open[request.id] = (engine.add(request, drafter), on_tokens)

        self._inbox.put(add)

    def when_idle(self, call: Callable[[Engine], None]) -> None:
        """Queues a call that the engine's thread runs when no request is open."""
        self._inbox.put_when_idle(call)

    def cancel(self, request_id: str) -> None:
        """Ends a request early. Its last on_tokens has finish reason "cancelled". Ignores unknown and finished ids."""

        def cancel(engine: Engine) -> None:
            if engine.cancel(request_id) is not None:
                self._close(request_id)

        self._inbox.put(cancel)

    def drain(self, timeout_s: float) -> bool:
        """Refuses new requests, lets open ones finish, and cancels those that are open after the timeout.

        Returns:
            True if all open requests finished by themselves.
        """
        with self._changed:
            self._is_draining = True
            all_finished = self._changed.wait_for(lambda: not self._open, timeout_s)

        def cancel_all(engine: Engine) -> None:
            for request_id in list(self._open):
                if engine.cancel(request_id) is not None:
                    self._close(request_id)

        self._inbox.put(cancel_all)
        self._inbox.close()
        self._thread.join()
        self.engine.stream.close()
        return all_finished

    def stats(self) -> EngineStats:
        """Returns a snapshot while the engine runs."""
        engine, pool = self.engine, self.engine.kv_cache.pool
        running, cached = len(engine.scheduler.running), engine.kv_cache.prefix_cache.num_slots
        is_promoted = self.canary is not None and self.canary.state == "promoted"
        policy = engine.policies[CANARY if is_promoted else MAIN]
        return EngineStats(
            running=running,
            waiting=max(len(self._open) - running, 0),
            kv_used=pool.num_slots - pool.num_free - cached,
            kv_cached=cached,
            kv_total=pool.num_slots,
            counters=engine.counters.copy(),
            speedup=policy.speedup() if isinstance(policy, Budget) else None,
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
        """Calls on_tokens for the last time, for a request that ended outside a step."""
        output, on_tokens = self._open[request_id]
        on_tokens(output, 0)
        self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        with self._changed:
            del self._open[request_id]
            self._changed.notify_all()
