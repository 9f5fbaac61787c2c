"""Triton kernels that start before the kernel in front of them has ended (programmatic dependent launch).

The end of a kernel and the start of the next take about two microseconds, as long as a small kernel. From compute
capability 9.0 on, a kernel may start early, prepare what does not depend on the previous one, and wait for it then. All
kernels before the previous one have ended by that time, if each of them waits, too.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl


@cache
def dependent_launch(device: torch.device) -> dict[str, Any]:
    """Returns launch arguments: the constant DEPENDENT of the kernel, and Triton's option where the device has it."""
    can = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
    return {"DEPENDENT": True, "launch_pdl": True} if can else {"DEPENDENT": False}


@triton.jit
def await_previous(DEPENDENT: tl.constexpr):  # noqa: ANN201
    """Waits until the previous kernel has ended, and lets the next one start."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
