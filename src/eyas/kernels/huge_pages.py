"""Memory on pages of 2 MiB for weights, keys and values, which a CPU reads for every token.

A processor looks up the address of each page that it reads, and prefetches within a page. On the usual pages of 4 KiB,
linear layers take 1.07 to 1.18 times as long, and attention up to 15 times (docs/results/cpu-forwards.md).
"""

import contextlib
import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

PAGE = 2 << 20
ALIGNMENT = 64  # bytes; a cache line


class HugePages:
    """Memory of a fixed size for copies of tensors, side by side. Its pages have 2 MiB where Linux allows it."""

    def __init__(self, num_bytes: int) -> None:
        memory = mmap.mmap(-1, num_bytes + PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
            with contextlib.suppress(OSError):  # built without large pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self._free = whole[-whole.data_ptr() % PAGE :]

    def copy(self, part: Tensor) -> Tensor:
        """Returns a contiguous copy in this memory, which it keeps alive. Requirement: there is room for it."""
        return self.take(part.nbytes).view(part.dtype).view(part.shape).copy_(part)

    def take(self, num_bytes: int) -> Tensor:
        """Returns the next bytes of this memory as uint8. Requirement: there is room for them."""
        taken, self._free = self._free[:num_bytes], self._free[-(-num_bytes // ALIGNMENT) * ALIGNMENT :]
        return taken


def zeros_on_huge_pages(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a tensor of zeros: on a CPU on pages of 2 MiB where Linux allows it, elsewhere as torch allocates it."""
    if device.type != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    return HugePages(num_bytes).take(num_bytes).view(dtype).view(*shape)  # the system gives memory that is zero
