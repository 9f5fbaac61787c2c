"""Which share of a stage's work is this process's, where several take theirs from the disk and never talk."""

import os

from eyas.base.errors import UsageError

VARIABLES = ("JOB_COMPLETION_INDEX", "RANK")
"""Kubernetes sets the first in each pod of an Indexed Job, torchrun and its like the second."""


def rank_of(key: str, world: int) -> int:
    """The number of this process, from 0, among `world` of them; key: the recipe's, for messages.

    UsageError for an index that is none.
    """
    if world == 1:
        return 0
    name = next((name for name in VARIABLES if name in os.environ), VARIABLES[0])
    text = os.environ.get(name, "")
    if not text.isdecimal() or int(text) >= world:
        raise UsageError(
            f"{key}={world} and {name}={text or 'unset'}",
            f"an index from 0 to {world - 1}",
            "run it as an Indexed Job or with torchrun, or set the variable in each process",
        )
    return int(text)
