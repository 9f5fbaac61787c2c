"""A device stream on a CPU thread: tests and benchmarks run the overlap loop with it where there is no GPU."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from eyas.engine.device_stream import InlineStream, WorkEvent

Out = TypeVar("Out")


class WorkerStream:
    """A stream that runs work on a separate CPU thread, while the calling thread continues."""

    def __init__(self) -> None:
        self._inline = InlineStream()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")

    def launch(self, work: Callable[[], Out]) -> WorkEvent[Out]:
        """Queues the work for the thread and returns at once."""
        done = self._pool.submit(self._inline.launch, work)
        return WorkEvent(lambda: done.result().wait())

    def close(self) -> None:
        """Waits for the queued work and ends the thread."""
        self._pool.shutdown(wait=True)
