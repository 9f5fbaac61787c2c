"""Chooses the attention of a device: Triton on CUDA, the C operator on a CPU, else the dense reference."""

from functools import cache

import torch
from torch import Tensor

from eyas.kernels.cpu_attention import CpuKernel, Unavailable, load_cpu_attention, unsupported_reason
from eyas.kernels.paged_attention import AttentionMetadata, PrepareAttention, prepare_dense
from eyas.model.attention import PackedAttentionFn


def attention_for_device(device: torch.device) -> PrepareAttention:
    """Returns the fastest attention of this machine for the device; it falls back to the reference where needed."""
    if device.type == "cuda":
        from eyas.kernels.triton_attention import prepare_on  # triton comes with the CUDA build of torch alone

        return prepare_on(device)
    cpu_kernel()  # built now, so that no forward waits for it
    return _prepare_on_cpu


def fallback_reason(dtype: torch.dtype, head_dim: int) -> str | None:
    """Returns why a CPU uses the slower reference for memory of this type and head size; None if it does not.

    Both give the same tokens.
    """
    kernel = cpu_kernel()
    return kernel.reason if isinstance(kernel, Unavailable) else unsupported_reason(dtype, head_dim)


@cache
def cpu_kernel() -> CpuKernel | Unavailable:
    """Returns the attention operator for CPUs, or why there is none. Builds it once per process."""
    return load_cpu_attention()


def _prepare_on_cpu(kv: Tensor, req_to_token_RC: Tensor, metadata: AttentionMetadata) -> PackedAttentionFn:
    """Chooses the operator or the reference by dtype and head size of `kv`: head and target may differ in them."""
    kernel = cpu_kernel()
    if isinstance(kernel, Unavailable) or unsupported_reason(kv.dtype, kv.shape[4]) is not None:
        return prepare_dense(kv, req_to_token_RC, metadata)
    return kernel(kv, req_to_token_RC, metadata)
