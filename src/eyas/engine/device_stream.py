"""Device streams: queues of work for a device. The work runs in order; an event for each piece gives its result.

    host     launch(round 1) launch(round 2) wait(round 1) launch(round 3) wait(round 2) ...
    device        | round 1 ............... | round 2 ............... | round 3 ...

While the device runs one round and the next round is already queued, the device never waits for the host.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

Out = TypeVar("Out")


@dataclass(frozen=True, eq=False)
class WorkResult(Generic[Out]):
    """The result of a piece of work.

    Attributes:
        out: The return value of the work.
        seconds: The seconds that the device took.
    """

    out: Out
    seconds: float


@dataclass(frozen=True, eq=False)
class WorkEvent(Generic[Out]):
    """An event that occurs when a launched piece of work is done.

    `wait()` blocks the calling thread until then. It returns the result, or raises the exception of the work.
    """

    wait: Callable[[], WorkResult[Out]]


class DeviceStream(Protocol):
    """A queue of work for one device, run in order, one piece at a time."""

    def launch(self, work: Callable[[], Out]) -> WorkEvent[Out]:
        """Adds work to the queue. Returns the event to wait for."""
        ...

    def close(self) -> None:
        """Waits for the queued work and releases the stream."""
        ...


class InlineStream:
    """A stream that runs work on the calling thread, before `launch` returns."""

    def launch(self, work: Callable[[], Out]) -> WorkEvent[Out]:
        """Runs the work."""
        began_s = time.perf_counter()
        with torch.inference_mode():
            out = work()
        result = WorkResult(out, time.perf_counter() - began_s)
        return WorkEvent(lambda: result)

    def close(self) -> None:
        """Does nothing."""


class CudaStream:
    """A CUDA stream. Only `WorkEvent.wait` blocks the calling thread.

    Requirement: launched work does not wait for the device. It copies only with `eyas.staging`.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def launch(self, work: Callable[[], Out]) -> WorkEvent[Out]:
        """Calls `work`, which queues its kernels on the stream. Returns without waiting for the kernels."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))  # allocations and fills run there
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self._stream), torch.inference_mode():
            begin.record()
            out = work()
            end.record()

        def wait() -> WorkResult[Out]:
            end.synchronize()
            return WorkResult(out, begin.elapsed_time(end) / 1000)

        return WorkEvent(wait)

    def close(self) -> None:
        """Waits for the queued kernels."""
        self._stream.synchronize()


def stream_for(device: torch.device) -> DeviceStream:
    """Returns a CudaStream for a CUDA device, and an InlineStream for a CPU."""
    return CudaStream(device) if device.type == "cuda" else InlineStream()
