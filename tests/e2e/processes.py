"""Command lines as processes of their own that can be interrupted and killed.

They are forked from a server that has imported everything once, so that a test need not wait for torch each time.
"""

import itertools
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

LONGEST_S = 120.0


@dataclass(frozen=True)
class Ended:
    """code: negative for a signal, as subprocess has it. err: what was printed on stderr."""

    code: int
    err: str


@dataclass(frozen=True)
class Moment:
    """Right after something has happened so many times: a step of any progress bar, or (file) a write of that name.

    file: a pattern over the path. It is the process itself that counts, so the moment is the same on any machine.
    """

    count: int
    file: str | None = None

    def watch(self, act: Callable[[], None]) -> None:
        """Have `act` called in this process at the moment."""
        from eyas.base.progress import Progress

        counter = itertools.count(1)
        advance, replace, link = Progress.advance, os.replace, os.link

        def advanced(bar: Progress, n: int = 1, note: str = "") -> None:
            advance(bar, n, note)
            if self.file is None and next(counter) == self.count:
                act()

        def replaced(old: Path, new: Path) -> None:
            replace(old, new)
            if self.file is not None and Path(new).match(self.file) and next(counter) == self.count:
                act()

        def linked(old: Path, new: Path) -> None:
            link(old, new)
            if self.file is not None and Path(new).match(self.file) and next(counter) == self.count:
                act()

        setattr(Progress, "advance", advanced)  # noqa: B010 a patch: pyright compares the parameters' names
        os.replace = replaced
        os.link = linked


def _work(arguments: Sequence[str], err: Path, moment: Moment | None, how: int) -> None:
    import torch

    from eyas.cli import main

    torch.set_num_threads(1)  # the bytes of a training depend on it
    sys.stderr = err.open("w", buffering=1)
    if moment is not None:
        moment.watch(lambda: os.kill(os.getpid(), how))
    os._exit(main(arguments))


def context() -> multiprocessing.context.ForkServerContext:
    """The server starts with the first process."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["eyas.cli.recipes", "eyas.cli.generate", "tests.e2e.detectors"])
    return server


def run(
    arguments: Sequence[str],
    err: Path,
    moment: Moment | None = None,
    how: int = signal.SIGKILL,
    kill_after_s: float | None = None,
) -> Ended:
    """Run a command line to its end; it gets the signal `how` at the moment, or is killed after so many seconds."""
    process = context().Process(target=_work, args=(list(arguments), err, moment, how))
    process.start()
    process.join(LONGEST_S if kill_after_s is None else kill_after_s)
    hangs = process.is_alive() and kill_after_s is None
    process.kill()
    process.join()
    assert not hangs, f"{arguments} hangs"
    assert process.exitcode is not None
    return Ended(process.exitcode, err.read_text() if err.is_file() else "")
