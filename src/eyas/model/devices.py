"""The device and dtype names of recipes and flags, and checks of device names."""

import importlib
import re

import torch

from eyas.base.environment import read_int_variable
from eyas.base.errors import InputError, UsageError

Device = torch.device | str
AUTO = "auto"
"""The device name that spreads the layers of a target over all devices."""
DEVICE_NAMES = re.compile(r"auto|cpu|cuda(:[0-9]+)?")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""The dtypes that a recipe can name."""


def default_device() -> str:
    """Returns "cuda" if this machine has a CUDA device, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def multiplies_bfloat16(device: torch.device) -> bool:
    """Returns True if the device has instructions for bfloat16. Other CPUs multiply float32 many times as fast."""
    return device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def own_memory() -> dict[int, int]:
    """Returns the free bytes of each CUDA device of this process.

    It is every LOCAL_WORLD_SIZE-th device, from LOCAL_RANK on, as torchrun sets them. Without torchrun it is every one.
    """
    rank, count = (read_int_variable(name, default) for name, default in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)))
    return {i: torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())[rank % count :: count]}


def check_one_device(name: str) -> None:
    """Raises UsageError for the device `auto`, because an engine runs on one device."""
    if name == AUTO:
        raise UsageError("An engine runs on one device, not on auto (all devices)", "Choose cpu, cuda or cuda:N")


def check_device(name: str) -> None:
    """Raises UsageError for an unknown device name, and InputError for a device that this machine does not have."""
    if DEVICE_NAMES.fullmatch(name) is None:
        raise UsageError(f"The device {name!r} is unknown", "Choose auto, cpu, cuda or cuda:N")
    if name == AUTO:
        try:
            importlib.import_module("accelerate")
        except ImportError:
            raise InputError("The device auto needs the `large` extra", "Run: pip install 'eyas[large]'") from None
    elif name != "cpu" and int(name.partition(":")[2] or 0) >= torch.cuda.device_count():
        problem = f"This machine has {torch.cuda.device_count()} CUDA devices, so there is no device {name}"
        raise InputError(problem, "Choose another device, or cpu")
