"""Memory on pages of 2 MiB for weights that a CPU reads for every token.

A processor looks up the address of each page that it reads, and prefetches within a page. Linear layers take 1.07 to
1.18 times as long on the usual pages of 4 KiB (docs/results/cpu-forwards.md).
"""

import contextlib
import mmap

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
        taken, self._free = self._free[: part.nbytes], self._free[-(-part.nbytes // ALIGNMENT) * ALIGNMENT :]
        return taken.view(part.dtype).view(part.shape).copy_(part)
