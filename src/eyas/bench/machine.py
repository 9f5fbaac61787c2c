"""What the figures were measured on, without host names or paths."""

import contextlib
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import torch

from eyas.base.environment import count_cpus


def describe_machine() -> dict[str, Any]:
    """cores: CPUs that this process may use; threads: those that torch computes with; gpu: None where there is none."""
    return {
        "cpu": _cpu_name(),
        "cores": count_cpus(),
        "threads": torch.get_num_threads(),
        "memory_gb": _memory_gb(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "os": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
    }


def redact_location(place: str) -> str:
    """As a page may have it: of what lies somewhere on this machine the last part only, of a URL no value of its query,
    which may be a key; anything else as it is."""
    if "://" not in place:
        return Path(place).name if Path(place).is_absolute() else place
    parts = urlsplit(place)
    names = "&".join(f"{name}=..." for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    return parts._replace(query=names, fragment="").geturl()


def _cpu_name() -> str:
    """The model as the processor names itself; the architecture where it does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    """Decimal gigabytes, one digit; None where the system does not say."""
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    return None
