"""Errors that a user can fix. The command line prints them without a traceback; our own mistakes are `assert`."""


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


class PlaceError(StageError):
    """Storage that is full or not writable: like wrong input, the user fixes it and runs the command again."""

    exit_code = 2
