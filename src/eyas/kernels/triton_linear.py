"""Linear layers of one row on CUDA in Triton: they read a 16-bit weight at nearly the bandwidth of the memory.

D inputs, F outputs. In the kernel: N outputs of a program, K inputs of a block.

With one row, the time of a linear layer is that of reading its weight. cuBLAS takes up to 1.5 times as long for weights
of less than 100 MB, because a kernel reads little in its first and last microseconds. Here a program requests its first
block before it waits for the kernel that computes x, so that the reads of neighboring kernels overlap.

More rows run with cuBLAS. On an H200, a kernel with matrix units for 2 to 16 rows took as long as cuBLAS did.
"""

# ruff: noqa: ANN001, ANN202 - the arguments of a kernel are pointers
# pyright: reportMissingImports=false, reportArgumentType=false, reportCallIssue=false

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from eyas.kernels.dependent_launch import await_previous, dependent_launch

OUTPUTS, INPUTS = 4, 2048  # of a block


def linear(x: Tensor, weight_FD: Tensor) -> Tensor:
    """Returns x @ weight_FD.T in the dtype of x, with float32 sums: [..., D] to [..., F].

    Several rows, other dtypes than bfloat16 and float16, and sizes that are not a multiple of a block run with cuBLAS.
    """
    num_out, num_in = weight_FD.shape
    fits = num_in % INPUTS == 0 and num_out % OUTPUTS == 0 and weight_FD.is_contiguous()
    if x.numel() != num_in or not fits or weight_FD.dtype not in (torch.bfloat16, torch.float16):
        return F.linear(x, weight_FD)
    y = torch.empty((*x.shape[:-1], num_out), dtype=x.dtype, device=x.device)
    _one_row[(num_out // OUTPUTS,)](
        x.contiguous(), weight_FD, y, D=num_in, N=OUTPUTS, K=INPUTS, num_warps=8, **dependent_launch(x.device)
    )
    return y


@triton.jit
def _one_row(x, weight, y, D: tl.constexpr, N: tl.constexpr, K: tl.constexpr, DEPENDENT: tl.constexpr):
    """Computes N outputs. Grid: F / N."""
    n_N = tl.program_id(0) * N + tl.arange(0, N)
    k_K = tl.arange(0, K)
    at_NK = weight + n_N[:, None].to(tl.int64) * D + k_K[None, :]
    weight_NK = tl.load(at_NK)
    await_previous(DEPENDENT)
    sum_NK = weight_NK.to(tl.float32) * tl.load(x + k_K)[None, :].to(tl.float32)
    for first in range(K, D, K):
        x_K = tl.load(x + first + k_K)
        sum_NK += tl.load(at_NK + first).to(tl.float32) * x_K[None, :].to(tl.float32)
    tl.store(y + n_N, tl.sum(sum_NK, 1).to(y.dtype.element_ty))
