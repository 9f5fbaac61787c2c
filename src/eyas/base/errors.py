"""Errors that a user can fix. The command line prints them without a traceback; our own mistakes are `assert`."""

from dataclasses import dataclass
from typing import Literal


class EyasError(Exception):
    """Base of all errors that a user can fix.

    problem: one or more sentences that say what is wrong, with the value and where it came from.
    fix: what to do, as a command or a key where there is one; empty where nothing can be done.
    Both come without the final full stop.
    """

    exit_code = 1

    def __init__(self, problem: str, fix: str = "", do: str = "") -> None:
        """Stores both parts. Three arguments (found, expected, do) are the old form, until all messages have moved."""
        # All go to args, so that the error survives pickling between processes.
        super().__init__(problem, fix, do)
        self.problem = problem
        self.fix = fix
        self.do = do

    def __str__(self) -> str:
        if self.do:
            return f"found {self.problem}; expected {self.fix}; do {self.do}"
        return f"{self.problem}. {self.fix}." if self.fix else f"{self.problem}."


class UsageError(EyasError):
    """A wrong command line or recipe key."""

    exit_code = 2


class InputError(EyasError):
    """An input that is missing, damaged or does not fit: files, targets, heads, digests."""

    exit_code = 2


class StageError(EyasError):
    """Work that failed: a loss that is not a number, a lost device."""

    exit_code = 1


class StorageError(StageError):
    """Storage that is full or not writable: like wrong input, the user fixes it and runs the command again."""

    exit_code = 2


@dataclass(frozen=True)
class Finding:
    """A "misfit" is unusable, a "warning" costs acceptance at most, an "ok" is right.

    do: what mends it, where that is known.
    """

    weight: Literal["misfit", "warning", "ok"]
    found: str
    expected: str
    do: str | None = None

    def __str__(self) -> str:
        if self.weight == "ok":
            return f"ok: {self.found}; {self.expected}"
        return f"{self.weight}: found {self.found}; expected {self.expected}" + (f"; do {self.do}" if self.do else "")


def raise_misfits(findings: list[Finding], fix: str) -> None:
    """`InputError` that names every misfit, if there is one. do: what mends those that do not say it."""
    misfits = [finding for finding in findings if finding.weight == "misfit"]
    if misfits:
        raise InputError(
            " and ".join(finding.found for finding in misfits),
            " and ".join(finding.expected for finding in misfits),
            misfits[0].do or fix,
        )
