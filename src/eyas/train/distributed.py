"""The processes that train one head together: who this one is, sums over all, and a request to stop.

A launcher (torchrun, Slurm with its variables set, a job of several hosts) starts the same command in each process and
says by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT who it is. Without them a process is alone, and every
method below returns at once.

Tensors on a CPU are summed by gloo, those on a CUDA device by NCCL. What all must agree on is a sum, too: each gives
its share and all get the same answer.
"""

import os
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from eyas.base.errors import StageError, UsageError
from eyas.model.devices import default_device


@dataclass(frozen=True)
class ProcessGroup:
    """This process is number `rank` of `world`, counted from 0."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """The process that writes, and tells how far the work is."""
        return self.rank == 0

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place; the same bits in each. StageError if one of them is gone."""
        if self.world_size > 1:
            with self.report_lost_ranks():
                dist.all_reduce(tensor)
        return tensor

    def any_rank(self, flag: bool) -> bool:
        """Whether any process says so."""
        return bool(self.all_reduce_sum(torch.tensor(int(flag))))

    def all_gather(self, text: str) -> list[str]:
        """What each process says, by rank."""
        texts: list[str] = [text] * self.world_size
        if self.world_size > 1:
            with self.report_lost_ranks():
                dist.all_gather_object(texts, text)
        return texts

    def device_mesh(self, device: torch.device) -> DeviceMesh:
        """All processes in a row, for DTensor."""
        return init_device_mesh(device.type, (self.world_size,))

    @contextmanager
    def report_lost_ranks(self) -> Iterator[None]:
        """Around what all processes do at once: if one is gone, the others' errors say no more than that."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # of gloo and NCCL alike
            raise StageError(
                f"process {self.rank} of {self.world_size} without the others ({str(error).splitlines()[0][:120]})",
                "all processes of this training to stay",
                "read what the one that stopped first says, then run the same command again: it continues",
            ) from error


SINGLE_PROCESS = ProcessGroup()


def shard_rows(rank: int, world_size: int, num_rows: int) -> slice:
    """The rows of a tensor that a process holds where they are divided: those of DTensor's Shard(0)."""
    size = -(-num_rows // world_size)
    return slice(min(rank * size, num_rows), min((rank + 1) * size, num_rows))


@contextmanager
def join_process_group() -> Generator[ProcessGroup, None, None]:
    """Meet the other processes that the launcher has started, if there are any. UsageError, StageError."""
    rank, world = (_read_int_variable(name, default) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    if world == 1:
        yield ProcessGroup()
        return
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise UsageError(
                f"WORLD_SIZE={world}, but no {name}",
                "both",
                "start it with torchrun, or say which process this is and where process 0 listens",
            )
    ranks = ProcessGroup(rank, world)
    if torch.cuda.is_available():
        torch.cuda.set_device(local_device())
    with ranks.report_lost_ranks():
        dist.init_process_group(rank=rank, world_size=world)
    try:
        yield ranks
    finally:
        dist.destroy_process_group()


def local_device() -> str:
    """The device of this process: CUDA devices are given out in the order of the processes of a host."""
    name = default_device()
    return f"{name}:{_read_int_variable('LOCAL_RANK', 0)}" if name == "cuda" and "LOCAL_RANK" in os.environ else name


def require_single_process(command: str) -> None:
    """UsageError where a launcher has started several processes of a verb that is one process's work."""
    if (world := _read_int_variable("WORLD_SIZE", 1)) > 1:
        raise UsageError(
            f"`eyas {command}` in one of {world} processes (WORLD_SIZE)",
            "one process for this verb",
            f"run `eyas {command}` in one process, without the launcher",
        )


class SigtermNotice:
    """Whether this machine is about to go: SIGTERM came, as a spot machine, Kubernetes and Slurm send it."""

    def __init__(self) -> None:
        self.received = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = True


@contextmanager
def catch_sigterm() -> Generator[SigtermNotice, None, None]:
    """SIGTERM inside the block does nothing but set `given`. Outside the main thread Python allows no handler."""
    found = SigtermNotice()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = signal.signal(signal.SIGTERM, found._receive)
    try:
        yield found
    finally:
        signal.signal(signal.SIGTERM, before)


def _read_int_variable(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise UsageError(f"{name}={text!r}", "a whole number", f"correct or unset {name}")
    return int(text)
