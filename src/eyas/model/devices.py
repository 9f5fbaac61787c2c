"""Where a target lives, by name."""

import importlib
import re

import torch

from eyas.base.errors import InputError, UsageError

AUTO = "auto"
"""Its layers spread over all devices."""
DEVICE_NAMES = re.compile(r"auto|cpu|cuda(:[0-9]+)?")


def default_device() -> str:
    """The CUDA device where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_one_device(name: str) -> None:
    """UsageError for `auto`: keys and values of an engine lie on one device."""
    if name == AUTO:
        raise UsageError("device auto", "one device, which holds target and memory", "choose cpu, cuda or cuda:N")


def check_device(name: str) -> None:
    """UsageError for a name that means nothing; InputError where this machine does not have what it names."""
    if DEVICE_NAMES.fullmatch(name) is None:
        raise UsageError(f"device {name!r}", "auto, cpu, cuda or cuda:N", "choose one of them")
    if name == AUTO:
        try:
            importlib.import_module("accelerate")
        except ImportError:
            raise InputError(
                "device auto, but no package accelerate",
                "that package, which spreads a target over devices",
                "pip install 'eyas[large]'",
            ) from None
    elif name != "cpu" and int(name.partition(":")[2] or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device {name} on a machine with {torch.cuda.device_count()} CUDA devices",
            "a device that is there",
            "choose another one, or cpu",
        )


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
