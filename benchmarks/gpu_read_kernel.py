"""A Triton kernel that reads memory and writes almost nothing, to measure how fast a GPU reads."""

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

BLOCK = 4096  # numbers of 4 bytes that one program reads


@triton.jit
def _sum_blocks(values, sums, block: tl.constexpr):  # noqa: ANN001, ANN202 - Triton reads annotations as constants
    at = tl.program_id(0).to(tl.int64) * block
    tl.store(sums + tl.program_id(0), tl.sum(tl.load(values + at + tl.arange(0, block))))


def read_all(source_N: torch.Tensor) -> torch.Tensor:
    """Reads N bytes, a multiple of 16 KiB, and returns the sum of each 4,096 float32 numbers."""
    values = source_N.view(torch.float32)
    sums = torch.empty(values.numel() // BLOCK, dtype=torch.float32, device=source_N.device)
    _sum_blocks[(len(sums),)](values, sums, block=BLOCK, num_warps=8)  # pyright: ignore
    return sums
