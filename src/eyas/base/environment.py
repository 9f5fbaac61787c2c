"""Reads facts about this process and its machine: cache directory, CPUs, rank, installed optional packages."""

import contextlib
import importlib
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from eyas.base.errors import InputError, UsageError

T = TypeVar("T")

RANK_VARIABLES = ("JOB_COMPLETION_INDEX", "RANK")
"""Environment variables with the rank. Kubernetes sets the first in the pods of an Indexed Job, torchrun the second."""


def cache_directory() -> Path:
    """Returns $XDG_CACHE_HOME/eyas, or ~/.cache/eyas if the variable is not set. The directory may not exist yet.

    It holds only files that eyas can make again: built operators, compiled forwards, measured costs, downloads.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")) / "eyas"


def remove_all_but_newest(directory: Path, pattern: str, count: int) -> None:
    """Removes files that match `pattern`, except the `count` newest. Ignores files that cannot be removed."""

    def modified_s(path: Path) -> float:
        with contextlib.suppress(OSError):  # another process removed it meanwhile
            return path.stat().st_mtime
        return 0.0

    for path in sorted(directory.glob(pattern), key=modified_s, reverse=True)[count:]:
        with contextlib.suppress(OSError):
            path.unlink()


def count_cpus() -> int:
    """Returns the number of CPUs that this process may use."""
    # macOS has no sched_getaffinity.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """Returns the model name of the processor, or its architecture if the model name is unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def memory_bytes() -> int:
    """Returns the size of the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_rank(key: str, world_size: int) -> int:
    """Returns the rank of this process, 0 to world_size - 1, from the environment.

    Each process of a stage does the share of the work that belongs to its rank. The processes do not communicate.

    Args:
        key: The recipe key that sets the number of processes, for error messages.
        world_size: The number of processes. If it is 1, the function returns 0 and reads no variable.

    Raises:
        UsageError: The rank is missing or out of range.
    """
    if world_size == 1:
        return 0
    name = next((name for name in RANK_VARIABLES if name in os.environ), RANK_VARIABLES[0])
    text = os.environ.get(name, "")
    if not text.isdecimal() or int(text) >= world_size:
        problem = f"{key}={world_size} needs a rank from 0 to {world_size - 1}, but {name} is {text or 'not set'}"
        raise UsageError(problem, f"Run it as an Indexed Job or with torchrun, or set {name} in each process")
    return int(text)


def read_int_variable(name: str, default: int) -> int:
    """Returns an environment variable as a whole number, or `default`. Raises UsageError if it is another text."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise UsageError(f"The environment variable {name} is {text!r}, not a whole number", f"Correct or unset {name}")
    return int(text)


def poll(condition: Callable[[], T | None], interval_s: float) -> T:
    """Calls `condition` every `interval_s` seconds until its result is truthy, and returns this result.

    A process of a stage uses it to wait for a file of another process.
    """
    while not (result := condition()):
        time.sleep(interval_s)
    return result


def import_extra(module: str, extra: str) -> Any:
    """Imports and returns a module of an optional package.

    Args:
        module: The name of the module.
        extra: The extra of eyas that installs the package, such as "gcs".

    Raises:
        InputError: The package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise InputError(f"The package {package} is not installed", f"Run: pip install 'eyas[{extra}]'") from None
