"""Which attention serves a device."""

from functools import cache

import torch

from eyas.serve.kernels.cpu import Unavailable, load_cpu_attention
from eyas.serve.paged import Prepare, prepare_dense


def prepare_for(device: torch.device) -> Prepare:
    """The fastest attention that this machine has for the device."""
    if device.type == "cuda":
        from eyas.serve.kernels.triton_attention import prepare_on  # triton comes with the CUDA build of torch alone

        return prepare_on(device)
    return _on_cpu()


@cache
def _on_cpu() -> Prepare:
    """Built once a process; the reference where there is no compiler."""
    kernel = load_cpu_attention()
    return prepare_dense if isinstance(kernel, Unavailable) else kernel
