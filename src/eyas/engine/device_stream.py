"""Where the device's work is queued: a stream of closures, and the events behind which their results lie.

    host     launch(round 1) launch(round 2) wait(round 1) launch(round 3) wait(round 2) ...
    device        | round 1 ............... | round 2 ............... | round 3 ...

The device never waits for the host as long as one round is queued behind the one that runs.
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
    """What a piece of work returned, and how long the device was at it."""

    out: Out
    seconds: float


class WorkEvent(Protocol):
    """The end of a piece of work."""

    def wait(self) -> "WorkResult[Any]":
        """Block the host until the work is done; what it returned may be read from then on. Raises what it raised."""
        ...


class DeviceStream(Protocol):
    """Work in the order in which it is launched, one piece at a time."""

    def launch(self, work: Callable[[], Out]) -> WorkEvent:
        """Queue work for the device."""
        ...

    def close(self) -> None:
        """Finish what is queued."""
        ...


class InlineStream:
    """The host does the work itself, at once."""

    def launch(self, work: Callable[[], Out]) -> WorkEvent:
        return _FinishedWork(_timed(work))

    def close(self) -> None:
        pass


class WorkerStream:
    """A CPU as a device: one thread does the work while the host's thread goes on."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")

    def launch(self, work: Callable[[], Out]) -> WorkEvent:
        return _ThreadWork(self._pool.submit(_timed, work))

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class CudaStream:
    """A CUDA stream. Work returns as soon as its kernels are queued; what the host is to read it copies without waiting
    (`to_host`), so that nothing but `wait` blocks.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def launch(self, work: Callable[[], Out]) -> WorkEvent:
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))  # where memory was made and filled
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self._stream), torch.inference_mode():
            begin.record()
            out = work()
            end.record()
        return _CudaWork(out, begin, end)

    def close(self) -> None:
        self._stream.synchronize()


def stream_for(device: torch.device) -> DeviceStream:
    """CUDA works while the host goes on; a CPU is the host."""
    return CudaStream(device) if device.type == "cuda" else InlineStream()


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy for the host, to be read once its work's event is reached; queued, not waited for.

    A copy on a CPU, too: a recorded round overwrites what it told before, perhaps while the host still reads that.
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
