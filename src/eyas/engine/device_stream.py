"""Device streams: queues of work for a device. The work runs in order; an event for each piece gives its result.

    host     launch(round 1) launch(round 2) wait(round 1) launch(round 3) wait(round 2) ...
    device        | round 1 ............... | round 2 ............... | round 3 ...

While the device runs one round and the next round is already queued, the device never waits for the host.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

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


class WorkEvent(Protocol):
    """An event that occurs when a launched piece of work is done."""

    def wait(self) -> "WorkResult[Any]":
        """Blocks the calling thread until the work is done. Returns the result, or raises the exception of the work."""
        ...


class DeviceStream(Protocol):
    """A queue of work for one device, run in order, one piece at a time."""

    def launch(self, work: Callable[[], Out]) -> WorkEvent:
        """Adds work to the queue. Returns the event to wait for."""
        ...

    def close(self) -> None:
        """Waits for the queued work and releases the stream."""
        ...


class InlineStream:
    """A stream that runs work on the calling thread, before `launch` returns."""

    def launch(self, work: Callable[[], Out]) -> WorkEvent:
        """Runs the work."""
        return _FinishedWork(_timed(work))

    def close(self) -> None:
        """Does nothing."""


class WorkerStream:
    """A stream that runs work on a CPU thread of its own, while the calling thread continues."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")

    def launch(self, work: Callable[[], Out]) -> WorkEvent:
        """Queues the work for the thread and returns at once."""
        return _ThreadWork(self._pool.submit(_timed, work))

    def close(self) -> None:
        """Waits for the queued work and ends the thread."""
        self._pool.shutdown(wait=True)


class CudaStream:
    """A CUDA stream. Only `WorkEvent.wait` blocks the calling thread.

    Requirement: launched work does not wait for the device. It must copy its results to the host with `to_host`.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def launch(self, work: Callable[[], Out]) -> WorkEvent:
        """Calls `work`, which queues its kernels on the stream. Returns without waiting for the kernels."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))  # allocations and fills run there
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self._stream), torch.inference_mode():
            begin.record()
            out = work()
            end.record()
        return _CudaWork(out, begin, end)

    def close(self) -> None:
        """Waits for the queued kernels."""
        self._stream.synchronize()


def stream_for(device: torch.device) -> DeviceStream:
    """Returns a CudaStream for a CUDA device, and an InlineStream for a CPU."""
    return CudaStream(device) if device.type == "cuda" else InlineStream()


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Starts a copy of a device tensor to host memory, and returns the host tensor without waiting for the copy.

    Requirement: call this function within launched work, and read the returned tensor only after `WorkEvent.wait` of
    that work. A CPU tensor is also copied, because the next round may overwrite it while the host still reads it.
    """
    return tensor.to("cpu", non_blocking=True, copy=True)


def _timed(work: Callable[[], Out]) -> WorkResult[Out]:
    began_s = time.perf_counter()
    with torch.inference_mode():
        out = work()
    return WorkResult(out, time.perf_counter() - began_s)


@dataclass(frozen=True, eq=False)
class _FinishedWork(Generic[Out]):
    done: WorkResult[Out]

    def wait(self) -> WorkResult[Out]:
        return self.done


@dataclass(frozen=True, eq=False)
class _ThreadWork(Generic[Out]):
    future: "Future[WorkResult[Out]]"

    def wait(self) -> WorkResult[Out]:
        return self.future.result()


@dataclass(frozen=True, eq=False)
class _CudaWork(Generic[Out]):
    out: Out
    begin: torch.cuda.Event
    end: torch.cuda.Event

    def wait(self) -> WorkResult[Out]:
        self.end.synchronize()
        return WorkResult(self.out, self.begin.elapsed_time(self.end) / 1000)
