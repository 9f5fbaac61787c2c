"""Linear layers of few rows on CUDA in Triton: they read a 16-bit weight at nearly the bandwidth of the memory.

T rows, D inputs, F outputs. In the kernels: N outputs of a program, K inputs of a block.

With few rows, the time of a linear layer is that of reading its weight. cuBLAS takes up to 1.5 times as long for those
of less than 100 MB, because a kernel reads little in its first and last microseconds. Here a program requests its first
block of weights before it waits for the kernel that computes x, so that the reads of neighboring kernels overlap.
"""

# ruff: noqa: ANN001, ANN202, PLR0913 - the arguments of a kernel are pointers, and many
# pyright: reportMissingImports=false, reportArgumentType=false, reportCallIssue=false

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from eyas.kernels.dependent_launch import await_previous, dependent_launch
from eyas.kernels.triton_attention import power_of_2

MAX_ROWS = 16  # more rows are faster with cuBLAS
SUMMED_ROWS = 4  # up to which plain products and sums keep up with the memory. More rows need the matrix units
MANY_OUTPUTS = 16_384


def linear(x: Tensor, weight_FD: Tensor, added: Tensor | None = None) -> Tensor:
    """Returns x @ weight_FD.T + added in the dtype of x, with float32 sums. x: [..., D]; added and result: [..., F].

    More than MAX_ROWS rows, other dtypes than bfloat16 and float16, and sizes that are not a multiple of the blocks run
    with cuBLAS.
    """
    num_out, num_in = weight_FD.shape
    x_TD = x.reshape(-1, num_in).contiguous()
    added_TF = None if added is None else added.reshape(-1, num_out).contiguous()
    rows = len(x_TD)
    is_summed = rows <= SUMMED_ROWS
    if is_summed:
        outputs, block = 4 if rows == 1 else 2, 2048
    else:
        outputs, block = (64, 128) if num_out >= MANY_OUTPUTS else (32, 256)
    fits = num_in % block == 0 and num_out % outputs == 0 and weight_FD.is_contiguous()
    if not (0 < rows <= MAX_ROWS and fits) or weight_FD.dtype not in (torch.bfloat16, torch.float16):
        y_TF = F.linear(x_TD, weight_FD) if added_TF is None else torch.addmm(added_TF, x_TD, weight_FD.t())
        return y_TF.view(*x.shape[:-1], num_out)
    y_TF = torch.empty((rows, num_out), dtype=x.dtype, device=x.device)
    kernel, padded = (_sum_products, power_of_2(rows)) if is_summed else (_multiply, MAX_ROWS)
    kernel[(num_out // outputs,)](
        x_TD, weight_FD, added_TF, y_TF, rows, num_out, D=num_in, N=outputs, K=block, T_PAD=padded,
        num_warps=8 if is_summed else 4, num_stages=4, **dependent_launch(x.device),
    )  # fmt: skip
    return y_TF.view(*x.shape[:-1], num_out)


@triton.jit(do_not_specialize=["num_rows"])
def _sum_products(
    x, weight, added, y, num_rows, num_out, D: tl.constexpr, N: tl.constexpr, K: tl.constexpr, T_PAD: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Computes N outputs of all rows without matrix units. Grid: F / N."""
    n_N = tl.program_id(0) * N + tl.arange(0, N)
    k_K = tl.arange(0, K)
    t_T = tl.arange(0, T_PAD)
    at_NK = weight + n_N[:, None].to(tl.int64) * D + k_K[None, :]
    at_TK = x + t_T[:, None] * D + k_K[None, :]
    is_row_T1 = (t_T < num_rows)[:, None]
    weight_NK = tl.load(at_NK)
    await_previous(DEPENDENT)
    x_TK = tl.load(at_TK, mask=is_row_T1, other=0.0)
    sum_TNK = weight_NK.to(tl.float32)[None, :, :] * x_TK.to(tl.float32)[:, None, :]
    for first in range(K, D, K):
        x_TK = tl.load(at_TK + first, mask=is_row_T1, other=0.0)
        sum_TNK += tl.load(at_NK + first).to(tl.float32)[None, :, :] * x_TK.to(tl.float32)[:, None, :]
    y_TN = tl.sum(sum_TNK, 2)
    at_TN = t_T[:, None] * num_out + n_N[None, :]
    if added is not None:
        y_TN += tl.load(added + at_TN, mask=is_row_T1, other=0.0).to(tl.float32)
    tl.store(y + at_TN, y_TN.to(y.dtype.element_ty), mask=is_row_T1)


@triton.jit(do_not_specialize=["num_rows"])
def _multiply(
    x, weight, added, y, num_rows, num_out, D: tl.constexpr, N: tl.constexpr, K: tl.constexpr, T_PAD: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Computes N outputs of all rows with matrix units. Grid: F / N."""
    n_N = tl.program_id(0) * N + tl.arange(0, N)
    k_K = tl.arange(0, K)
    t_T = tl.arange(0, T_PAD)
    at_NK = weight + n_N[:, None].to(tl.int64) * D + k_K[None, :]
    at_KT = x + t_T[None, :] * D + k_K[:, None]
    is_row_1T = (t_T < num_rows)[None, :]
    weight_NK = tl.load(at_NK)
    await_previous(DEPENDENT)
    y_NT = tl.dot(weight_NK, tl.load(at_KT, mask=is_row_1T, other=0.0))
    for first in range(K, D, K):
        x_KT = tl.load(at_KT + first, mask=is_row_1T, other=0.0)
        y_NT = tl.dot(tl.load(at_NK + first), x_KT, y_NT)
    at_NT = t_T[None, :] * num_out + n_N[:, None]
    if added is not None:
        y_NT += tl.load(added + at_NT, mask=is_row_1T, other=0.0).to(tl.float32)
    tl.store(y + at_NT, y_NT.to(y.dtype.element_ty), mask=is_row_1T)
