"""Errors for users. Each says what was found, what was expected and what to do; our own mistakes are `assert`."""


class EyasError(Exception):
    """Base of every error that a user can mend; the command line prints it without a traceback.

    found, expected and do are sentence fragments without a full stop: they are joined by "; ".
    """

    exit_code = 1

    def __init__(self, found: str, expected: str, do: str) -> None:
        # All three go to args, so that the error survives pickling between processes.
        super().__init__(found, expected, do)
        self.found = found
        self.expected = expected
        self.do = do

    def __str__(self) -> str:
        return f"found {self.found}; expected {self.expected}; do {self.do}"


class UsageError(EyasError):
    """A wrong command line or recipe key."""

    exit_code = 2


class InputError(EyasError):
    """An input that is missing, damaged or does not fit: files, targets, heads, digests."""

    exit_code = 2


class StageError(EyasError):
    """The work itself failed: a loss that is no number, a lost device."""

    exit_code = 1


class PlaceError(StageError):
    """The place to write to is full or closed: like wrong input, the user mends it and runs the command again."""

    exit_code = 2
