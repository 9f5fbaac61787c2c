"""Facts about this process and its machine: the cache directory, the CPUs, the rank among several processes."""

import os
from pathlib import Path

from eyas.base.errors import UsageError


def cache_directory() -> Path:
    """$XDG_CACHE_HOME/eyas, ~/.cache/eyas without the variable. It may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "eyas"


def remove_all_but_newest(directory: Path, pattern: str, count: int) -> None:
    """Remove all but the `count` files of this pattern that were used last; what cannot be removed stays."""

    def used_s(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:  # somebody else removed it meanwhile
            return 0.0

    for path in sorted(directory.glob(pattern), key=used_s, reverse=True)[count:]:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            continue


def count_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


RANK_VARIABLES = ("JOB_COMPLETION_INDEX", "RANK")
"""Kubernetes sets the first in each pod of an Indexed Job, torchrun and its like the second."""


def read_rank(key: str, world_size: int) -> int:
    """The number of this process, from 0, among `world` of them; key: the recipe's, for messages.

    UsageError for an index that is none.
    """
    if world_size == 1:
        return 0
    name = next((name for name in RANK_VARIABLES if name in os.environ), RANK_VARIABLES[0])
    text = os.environ.get(name, "")
    if not text.isdecimal() or int(text) >= world_size:
        raise UsageError(
            f"{key}={world_size} and {name}={text or 'unset'}",
            f"an index from 0 to {world_size - 1}",
            "run it as an Indexed Job or with torchrun, or set the variable in each process",
        )
    return int(text)
