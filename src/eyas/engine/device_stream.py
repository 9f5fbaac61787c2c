"""Device streams: they run closures in order; an event gives the result of each.

    host     launch(round 1) launch(round 2) wait(round 1) launch(round 3) wait(round 2) ...
    device        | round 1 ............... | round 2 ............... | round 3 ...

The device does not wait for the host as long as one round is queued behind the running one.
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
    """The return value of a piece of work, and the seconds that the device took."""

    out: Out
    seconds: float


class WorkEvent(Protocol):
    """The end of a piece of work."""

    def wait(self) -> "WorkResult[Any]":
        """Blocks the host until the work is done. Returns its result, or raises its exception."""
        ...


class DeviceStream(Protocol):
    """A queue of work for one device, run in order, one piece at a time."""

    def launch(self, work: Callable[[], Out]) -> WorkEvent:
        """Adds work to the queue and returns at once."""
        ...

    def close(self) -> None:
        """Finishes the queued work and releases the stream."""
        ...


class InlineStream:
    """A stream that runs work at once on the calling thread."""

    def launch(self, work: Callable[[], Out]) -> WorkEvent:
        """Runs the work."""
        return _FinishedWork(_timed(work))

    def close(self) -> None:
        """Does nothing."""


class WorkerStream:
    """A CPU as a device: one thread runs the work while the host's thread continues."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")

    def launch(self, work: Callable[[], Out]) -> WorkEvent:
        """Queues the work for the thread."""
        return _ThreadWork(self._pool.submit(_timed, work))

    def close(self) -> None:
        """Ends the thread after the queued work."""
        self._pool.shutdown(wait=True)


class CudaStream:
    """A CUDA stream. Only `WorkEvent.wait` blocks the host.

    The launched work queues its kernels and copies its results without waiting (`to_host`).
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def launch(self, work: Callable[[], Out]) -> WorkEvent:
        """Calls `work`, which queues its kernels on the stream."""
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
    """Returns a CUDA stream for a GPU; for a CPU a stream that runs work at once."""
    return CudaStream(device) if device.type == "cuda" else InlineStream()


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Copies a tensor to the host without waiting; read it after waiting for the event of its work.

    A CPU tensor is copied as well, because a recorded round overwrites its result while the host may still read it.
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
