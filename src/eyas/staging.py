"""Copies numbers between host and device without waiting. Work that is launched on a device stream copies only with it.

    host     all lists of one call -> a pinned buffer of the ring ----one copy----> one device tensor, cut into views
    device   result -> `to_host`: pinned memory, which the host reads after the event of the launch

A copy from pageable memory makes the host wait. A copy from a pinned buffer is only queued. A buffer is written again
only after the CUDA event of its last copy; while all buffers have copies in flight, the ring grows.

The copies run on the stream of the launch, which orders them before the kernels that read them. They are some kilobytes
and take microseconds, less than the two events with which a stream of their own would be ordered. The ring holds its
buffers: torch's cache of pinned memory may free them, and to allocate one anew makes the host wait for the device.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 16  # bytes; views of any dtype may begin there
MIN_BUFFER_BYTES = 1 << 16
NUM_BUFFERS = 16  # at the start: two launches in flight seldom have more copies


@dataclass(eq=False)
class _Buffer:
    """Pinned host memory, and the event after the last copy from it."""

    bytes_X: Tensor
    copied: torch.cuda.Event


class Staging:
    """The copies of one device's launched work. Requirement: one thread calls it.

    Attributes:
        device: The device.
        num_reads: The number of calls of `read_now`, in which the host waited for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.num_reads = 0
        self._is_pinned = device.type == "cuda"
        self._ring: deque[_Buffer] = deque()  # the least recently used buffer is the first
        if self._is_pinned:
            self._ring.extend(_Buffer(_pinned(MIN_BUFFER_BYTES), torch.cuda.Event()) for _ in range(NUM_BUFFERS))

    def copy(self, *parts: Sequence[int] | NDArray[Any]) -> list[Tensor]:
        """Copies lists and arrays to the device, all with one copy, and does not wait for it.

        Args:
            parts: integers, which become int64, or arrays, which keep dtype and shape. The caller must not change an
                array later: on a CPU the tensors share its memory.
        """
        arrays = [np.ascontiguousarray(p) if isinstance(p, np.ndarray) else np.asarray(p, np.int64) for p in parts]
        hosts = [torch.from_numpy(array) for array in arrays]
        if not self._is_pinned:
            return [host.to(self.device) for host in hosts]
        begins = [0, *accumulate(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays)]
        buffer = self._free_buffer(begins[-1])
        target_X = buffer.bytes_X.numpy()
        for array, begin in zip(arrays, begins, strict=False):
            target_X[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
        device_X = buffer.bytes_X[: begins[-1]].to(self.device, non_blocking=True)
        buffer.copied.record()
        return [
            device_X[begin : begin + array.nbytes].view(host.dtype).view(host.shape)
            for array, host, begin in zip(arrays, hosts, begins, strict=False)
        ]

    def read_now(self, *tensors: Tensor) -> list[Any]:
        """Waits for the device and returns the integers of each tensor as nested lists. Bools become 0 and 1.

        Only grammars need this: they run on the host. All other results take `to_host`.
        """
        self.num_reads += 1
        host_X = torch.cat([tensor.flatten().long() for tensor in tensors]).cpu()
        parts = host_X.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape).tolist() for part, tensor in zip(parts, tensors, strict=True)]

    def _free_buffer(self, num_bytes: int) -> _Buffer:
        """Returns a buffer that no copy reads any more, and makes it the last one of the ring."""
        is_free = bool(self._ring) and self._ring[0].copied.query()
        buffer = self._ring.popleft() if is_free else _Buffer(_pinned(MIN_BUFFER_BYTES), torch.cuda.Event())
        if len(buffer.bytes_X) < num_bytes:
            buffer.bytes_X = _pinned(1 << (num_bytes - 1).bit_length())
        self._ring.append(buffer)
        return buffer


def to_host(tensor: Tensor) -> Tensor:
    """Starts a copy of a device tensor to pinned host memory, and returns the host tensor without waiting for the copy.

    Requirement: call this function within launched work, and read the returned tensor only after `WorkEvent.wait` of
    that work. A CPU tensor is also copied, because the next round may overwrite it while the host still reads it.
    """
    if tensor.device.type != "cuda":
        return tensor.to("cpu", copy=True)
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def _pinned(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
