"""Chooses kernels for a device: Triton on CUDA, the C operators on a CPU, the dense reference elsewhere."""

from functools import cache

import torch
from torch import Tensor

from eyas.kernels.cpu_attention import Unavailable, load_cpu_attention, unsupported_reason
from eyas.kernels.cpu_linear import can_pack, pack_linears
from eyas.kernels.paged_attention import AttentionMetadata, PrepareAttention, prepare_dense
from eyas.model.attention import PackedAttentionFn
from eyas.model.head import DraftHead
from eyas.model.submodules import find_lm_head
from eyas.model.target import Target

cpu_kernel = cache(load_cpu_attention)  # one load in a process


def attention_for_device(device: torch.device) -> PrepareAttention:
    """Returns the fastest attention that this machine has for the device.

    On a CPU, a forward that the C operator does not support runs with the slower `prepare_dense`.
    """
    if device.type == "cuda":
        from eyas.kernels.triton_attention import prepare_on  # triton comes with the CUDA build of torch alone

        return prepare_on(device)
    cpu_kernel()  # built now, so that no forward waits for it
    return _prepare_on_cpu


def pack_target(target: Target) -> None:
    """Packs the linear layers of a target on a CPU, which makes its forwards faster. See `cpu_linear.pack_linears`."""
    pack_linears(target.model)
    target.lm_head = find_lm_head(target.model)


def pack_head(head: DraftHead) -> None:
    """Packs the layers of a head for serving: on a CPU with `pack_linears`, else with `Head.pack_projections`."""
    weight = head.norm.weight
    if weight.device.type == "cpu" and can_pack(weight.dtype):
        pack_linears(head)
    else:
        head.pack_projections()


def fallback_reason(dtype: torch.dtype, head_dim: int) -> str | None:
    """Returns why a CPU runs the slower `prepare_dense` instead of the C operator; None if it runs the operator.

    Both attend to the same tokens, so only the speed differs.

    Args:
        dtype: of the KV memory.
        head_dim: of the KV memory.
    """
    kernel = cpu_kernel()
    return kernel.reason if isinstance(kernel, Unavailable) else unsupported_reason(dtype, head_dim)


def _prepare_on_cpu(kv: Tensor, req_to_token_RC: Tensor, metadata: AttentionMetadata) -> PackedAttentionFn:
    """Returns the attention of one forward: the C operator if it supports dtype and head size of `kv`.

    Each forward chooses anew, because the KV memories of head and target may have different dtypes or head sizes.
    """
    kernel = cpu_kernel()
    if isinstance(kernel, Unavailable) or unsupported_reason(kv.dtype, kv.shape[4]) is not None:
        return prepare_dense(kv, req_to_token_RC, metadata)
    return kernel(kv, req_to_token_RC, metadata)
