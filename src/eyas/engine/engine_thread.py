"""One thread for everything that computes: loading, measuring, the engine.

OpenMP keeps a team of threads for every thread that has ever computed. Once the teams together have more members than
the process has cores, their members sleep between two operators instead of spinning, and a forward of many small
operators takes four times as long. So the thread that loads a target is the thread that serves it.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Out = TypeVar("Out")


class EngineThread:
    """Does what it is handed, in order. It does not keep the process alive."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Out]) -> Out:
        """What it returns or raises."""
        done: Future[Out] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # it is the caller's
                done.set_exception(error)

        self._work.put(run)
        return done.result()

    def finish_with(self, work: Callable[[], None]) -> None:
        """The last work; the caller goes on at once."""
        self._work.put(work)
        self._work.put(None)

    def join(self) -> None:
        """Wait until the last work is done."""
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
