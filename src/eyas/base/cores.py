"""How many CPUs there are for us."""

import os


def num_cores() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
