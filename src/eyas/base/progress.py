"""Prints the progress of a long job on stderr: name, units done, total, rate, elapsed time and time left."""

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Self, TextIO

TTY_INTERVAL_S = 0.1
PLAIN_INTERVAL_S = 5.0


@dataclass(eq=False)
class Progress:
    """A context manager that prints the progress of a long job.

    On a terminal it rewrites one line. In a log file it prints a new line every 5 seconds and at the end:

        capture  120/300 rows  40%  12.3 rows/s  0:10 elapsed  0:15 left  shard 3

    The rate does not count the units that `skip` has added.

    Attributes:
        name: The first word of the line.
        total: The number of units of the job; None if it is unknown.
        unit: The name of the units, such as "rows".
        enabled: False prints nothing.
        stream: Where to print.
        clock: Returns the current time in seconds.
        done: The number of finished units.
    """

    name: str
    total: int | None
    unit: str
    _: KW_ONLY
    enabled: bool = True
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    clock: Callable[[], float] = time.monotonic
    done: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._tty = self.stream.isatty()
        self._interval_s = TTY_INTERVAL_S if self._tty else PLAIN_INTERVAL_S
        self._skipped = 0
        self._note = ""
        self._start_s = self._printed_s = self.clock()

    def __enter__(self) -> Self:
        self._start_s = self._printed_s = self.clock()
        if self._tty:
            self._print()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._print("" if kind is None else "stopped", last=True)

    def skip(self, n: int) -> None:
        """Adds n units that an earlier run of the job has done. They do not count for the rate."""
        self._skipped += n
        self.done += n

    def advance(self, n: int = 1, note: str = "") -> None:
        """Adds n finished units. `note` is printed at the end of the line until another note replaces it."""
        self.done += n
        self._note = note or self._note
        ends = self.done == self.total and not self._tty  # the line at 100 % is printed at the end, once
        if self.clock() - self._printed_s >= self._interval_s and not ends:
            self._print()

    def line(self) -> str:
        """Returns the current progress line."""
        elapsed_s = self.clock() - self._start_s
        rate = (self.done - self._skipped) / elapsed_s if elapsed_s > 0 else 0.0
        of_total = "" if self.total is None else f"/{self.total:,}"
        parts = [self.name, f"{self.done:,}{of_total} {self.unit}"]
        if self.total:
            parts.append(f"{100 * self.done // self.total}%")
        parts += [f"{_format_rate(rate)} {self.unit}/s", f"{_format_duration(elapsed_s)} elapsed"]
        if self.total is not None and self.done < self.total and rate > 0:
            parts.append(f"{_format_duration((self.total - self.done) / rate)} left")
        return "  ".join([*parts, self._note]).rstrip()

    def _print(self, ending: str = "", last: bool = False) -> None:
        self._printed_s = self.clock()
        if not self.enabled:
            return
        text = f"{self.line()}  {ending}".rstrip()
        if self._tty:
            # A line that wraps could not be rewritten, so it is cut; \x1b[K clears what a longer line left.
            text = "\r" + text[: shutil.get_terminal_size().columns - 1] + "\x1b[K" + ("\n" if last else "")
        else:
            text += "\n"
        self.stream.write(text)
        self.stream.flush()


def _format_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 1 else f"{rate:.2g}"


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
