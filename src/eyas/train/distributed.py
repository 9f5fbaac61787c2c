"""Connects the processes that train one head: rank and world size, collectives, and SIGTERM.

A launcher (torchrun, Slurm or a Kubernetes job) starts the same command in each process. It must set RANK, WORLD_SIZE,
LOCAL_RANK, MASTER_ADDR and MASTER_PORT. If WORLD_SIZE is not set, the process trains alone, and every collective
returns at once. gloo reduces tensors on a CPU, NCCL reduces tensors on a CUDA device.
"""

import os
import re
import signal
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from eyas.base.environment import read_int_variable
from eyas.base.errors import StageError, UsageError
from eyas.model.devices import default_device

COLLECTIVE_TIMEOUT = timedelta(minutes=15)
"""The longest time that a process waits in a collective. It must cover the download of a target in one process."""
DESTROY_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of one training. Requirement: all processes call the same collectives in the same order.

    Every collective raises StageError if another process has stopped.

    Attributes:
        rank: The number of the current process, counted from 0.
        world_size: The number of processes.
    """

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """True in the process that writes files and shows progress."""
        return self.rank == 0

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over all processes, in place, and returns it. All processes get the same bits."""
        if self.world_size > 1:
            with self.report_lost_ranks():
                dist.all_reduce(tensor)
        return tensor

    def any_rank(self, flag: bool) -> bool:
        """Returns True if the flag is True in any process."""
        return bool(self.all_reduce_sum(torch.tensor(int(flag))))

    def all_gather(self, text: str) -> list[str]:
        """Returns the text of each process, by rank."""
        texts: list[str] = [text] * self.world_size
        if self.world_size > 1:
            with self.report_lost_ranks():
                dist.all_gather_object(texts, text)
        return texts

    @contextmanager
    def report_lost_ranks(self) -> Iterator[None]:
        """Raises StageError if a collective in the block fails or takes longer than COLLECTIVE_TIMEOUT."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # Without the line of the source before the reason, and the advice after it.
            reason = re.sub(r"^\[\S+\] |\.? This is typically.*|\n.*|\.$", "", str(error), flags=re.DOTALL)
            rank = f"Rank {self.rank} of {self.world_size}"
            problem = f"{rank} lost the connection to the other processes of this training ({reason})"
            fix = "Read the error of the process that stopped first, then run the same command again: training resumes"
            raise StageError(problem, fix) from error


SINGLE_PROCESS = ProcessGroup()


def shard_rows(rank: int, world_size: int, num_rows: int) -> slice:
    """Returns the rows of a tensor that `rank` holds if DTensor shards the tensor with Shard(0)."""
    size = -(-num_rows // world_size)
    return slice(min(rank * size, num_rows), min((rank + 1) * size, num_rows))


def local_rows(tensor: Tensor) -> Tensor:
    """Returns the local shard of a DTensor. Returns any other tensor unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def copy_local_rows(source: Mapping[str, Tensor], destination: Mapping[str, Tensor]) -> None:
    """Copies the rows that this process holds of each tensor in `destination` from the tensor with the same name."""
    for name, tensor in destination.items():
        local_rows(tensor).copy_(local_rows(source[name]))


@contextmanager
def join_process_group() -> Generator[ProcessGroup, None, None]:
    """Yields the group of processes that the launcher started. Without a launcher, it has one process.

    Raises:
        UsageError: If an environment variable of the launcher is missing or not a number.
        StageError: If the other processes cannot be reached.
    """
    rank, world_size = (read_int_variable(name, default) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    if world_size == 1:
        yield SINGLE_PROCESS
        return
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            problem = f"WORLD_SIZE is {world_size}, but {name} is not set"
            raise UsageError(problem, "Start the processes with torchrun, or set RANK, MASTER_ADDR and MASTER_PORT")
    group = ProcessGroup(rank, world_size)
    if torch.cuda.is_available():
        torch.cuda.set_device(local_device())
    with group.report_lost_ranks():
        dist.init_process_group(rank=rank, world_size=world_size, timeout=COLLECTIVE_TIMEOUT)
    try:
        yield group
    except BaseException:
        # NCCL may wait here for a process that has stopped (pytorch pull 180611).
        thread = threading.Thread(target=dist.destroy_process_group, daemon=True)
        thread.start()
        thread.join(DESTROY_TIMEOUT_S)
        raise
    dist.destroy_process_group()


def local_device() -> str:
    """Returns the device of this process: "cuda:LOCAL_RANK" if a launcher sets LOCAL_RANK, else the default device."""
    name = default_device()
    return f"{name}:{read_int_variable('LOCAL_RANK', 0)}" if name == "cuda" and "LOCAL_RANK" in os.environ else name


def require_single_process(command: str) -> None:
    """Raises UsageError if a launcher started several processes of a command that supports only one."""
    if (world_size := read_int_variable("WORLD_SIZE", 1)) > 1:
        problem = f"`eyas {command}` runs in one process, but WORLD_SIZE is {world_size}"
        raise UsageError(problem, f"Run `eyas {command}` without the launcher, or unset WORLD_SIZE")


@contextmanager
def catch_sigterm() -> Generator[threading.Event, None, None]:
    """Yields an event. In the block, SIGTERM sets it and does not stop the process.

    Spot machines, Kubernetes and Slurm send SIGTERM before they stop a process. Outside the main thread the event is
    never set, because Python allows signal handlers only in the main thread.
    """
    notice = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield notice
        return
    previous = signal.signal(signal.SIGTERM, lambda number, frame: notice.set())
    try:
        yield notice
    finally:
        signal.signal(signal.SIGTERM, previous)
