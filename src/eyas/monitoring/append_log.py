"""A file of lines that grows while a server runs: whole lines, for the owner's eyes, by one writer at a time."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from eyas.base.errors import InputError
from eyas.base.storage import convert_write_errors

BLOCK_BYTES = 2**16


class AppendLog:
    """Opened for appending. What a killed writer left of its last line is cut off here, before anybody adds to it.

    num_bytes: of whole lines.
    """

    def __init__(self, path: Path) -> None:
        """Makes the file and its directory, for this user alone. StorageError; InputError where another one writes."""
        self.path = path
        with convert_write_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                self._lock()
                os.fchmod(self._fd, 0o600)
                self.num_bytes = self._complete_bytes()
                os.ftruncate(self._fd, self.num_bytes)
            except BaseException:
                os.close(self._fd)
                raise

    def append(self, line: bytes) -> None:
        """Add one line or nothing. OSError."""
        assert line.endswith(b"\n"), "a whole line"
        done = 0
        try:
            while done < len(line):
                done += os.write(self._fd, line[done:])
        except OSError:
            with contextlib.suppress(OSError):  # a half line stays only where even that fails; the next start cuts it
                os.ftruncate(self._fd, self.num_bytes)
            raise
        self.num_bytes += len(line)

    def close(self) -> None:
        os.close(self._fd)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{self.path}, to which another server writes", "a directory of its own for each", "name another one"
            ) from None

    def _complete_bytes(self) -> int:
        """Bytes up to the last line end."""
        at = os.fstat(self._fd).st_size
        while at:
            begin = max(at - BLOCK_BYTES, 0)
            found = os.pread(self._fd, at - begin, begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            at = begin
        return 0


def read_complete_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that may be written to at this moment; what has no line end is none. OSError."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line
