"""Errors that a user can fix. The command line prints them without a traceback. A bug of eyas fails an `assert`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


class EyasError(Exception):
    """Base of all errors that a user can fix.

    Attributes:
        problem: One or more sentences that say what is wrong, with the value and where it came from.
        fix: What to do, as a command or a recipe key if possible. Empty if nothing can be done.

    Requirement: `problem` and `fix` do not end with a full stop. `str(error)` adds it.
    """

    exit_code = 1

    def __init__(self, problem: str, fix: str = "") -> None:
        # Both go to args, so that the error survives pickling between processes.
        super().__init__(problem, fix)
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.problem}. {self.fix}." if self.fix else f"{self.problem}."


class UsageError(EyasError):
    """A wrong command line or recipe key."""

    exit_code = 2


class InputError(EyasError):
    """An input that is missing, damaged or does not fit: files, targets, heads, digests."""

    exit_code = 2


class StageError(EyasError):
    """Work that failed although its inputs are valid, for example because the loss became NaN."""


class StorageError(StageError):
    """Storage that is full or cannot be read or written. The user fixes it and runs the same command again."""

    exit_code = 2


@dataclass(frozen=True)
class Finding:
    """One result of checking a head, a target or a run.

    Attributes:
        weight: "misfit": the head, target or run cannot be used. "warning": it can be used, but may be slower or
            unfinished. "ok": the check passed.
        problem: What is wrong; if the weight is "ok", the result of the check. Without the final full stop.
        fix: What to do. Empty if nothing can be done.
    """

    weight: Literal["misfit", "warning", "ok"]
    problem: str
    fix: str = ""

    def __str__(self) -> str:
        if self.weight == "ok":
            return f"ok: {self.problem}"
        return f"{self.weight}: {EyasError(self.problem, self.fix)}"


def raise_misfits(subject: str, findings: Sequence[Finding]) -> None:
    """Raises one InputError that lists all misfits and their fixes. Does nothing if there is no misfit.

    Args:
        subject: The first sentence of the message, for example "The head in DIR cannot be loaded".
        findings: The findings; those that are no misfits are ignored.
    """
    misfits = [finding for finding in findings if finding.weight == "misfit"]
    if misfits:
        fixes = dict.fromkeys(finding.fix for finding in misfits if finding.fix)
        raise InputError(". ".join([subject, *(finding.problem for finding in misfits)]), ". ".join(fixes))
