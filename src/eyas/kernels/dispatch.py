"""Which attention serves a device."""

from functools import cache

import torch
from torch import Tensor

from eyas.kernels.cpu_attention import CpuKernel, Unavailable, load_cpu_attention, unsupported_reason
from eyas.kernels.paged_attention import AttentionMetadata, PackedAttentionFn, PrepareAttention, prepare_dense


def attention_for_device(device: torch.device) -> PrepareAttention:
    """The fastest attention that this machine has for the device; where it does not take a memory, the reference."""
    if device.type == "cuda":
        from eyas.kernels.triton_attention import prepare_on  # triton comes with the CUDA build of torch alone

        return prepare_on(device)
    cpu_kernel()  # built now, so that no forward waits for it
    return _prepare_on_cpu


def fallback_reason(dtype: torch.dtype, head_dim: int) -> str | None:
    """Why a memory of this type and head size is read by the reference on this CPU, which is slower; None if it is not.

    The reference gives the same words.
    """
    kernel = cpu_kernel()
    return kernel.reason if isinstance(kernel, Unavailable) else unsupported_reason(dtype, head_dim)


@cache
def cpu_kernel() -> CpuKernel | Unavailable:
    """The operator for CPUs, built once a process."""
    return load_cpu_attention()


def _prepare_on_cpu(kv: Tensor, req_to_token_RC: Tensor, rows: AttentionMetadata) -> PackedAttentionFn:
    """Decided by the memory, [layers, 2, Z, G, H]: that of a head may differ from that of its target."""
    kernel = cpu_kernel()
    if isinstance(kernel, Unavailable) or unsupported_reason(kv.dtype, kv.shape[4]) is not None:
        return prepare_dense(kv, req_to_token_RC, rows)
    return kernel(kv, req_to_token_RC, rows)
