"""Device streams for tests and benchmarks: one that works on a CPU thread, and one that sums the device's seconds."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from eyas.engine.device_stream import DeviceStream, InlineStream, WorkEvent, WorkResult
from eyas.engine.runner_data import RoundOutput

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


class TimedStream:
    """A stream that runs work on another one and sums the device's seconds.

    Attributes:
        device_s: The seconds of all work whose result was read.
        round_s: The seconds of the rounds of an engine among this work.
    """

    def __init__(self, stream: DeviceStream) -> None:
        self._stream = stream
        self.device_s = self.round_s = 0.0

    def launch(self, work: Callable[[], Out]) -> WorkEvent[Out]:
        """Launches the work on the other stream."""
        event = self._stream.launch(work)

        @cache  # a result counts once, however often it is read
        def wait() -> WorkResult[Out]:
            result = event.wait()
            self.device_s += result.seconds
            self.round_s += result.seconds if isinstance(result.out, RoundOutput) else 0.0
            return result

        return WorkEvent(wait)

    def close(self) -> None:
        """Closes the other stream."""
        self._stream.close()
