"""Command lines as processes of their own that can be interrupted and killed.

They are forked from a server that has imported everything once, so that a test need not wait for torch each time.
"""

import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.0005
LONGEST_S = 120.0


@dataclass(frozen=True)
class Ended:
    """code: negative for a signal, as subprocess has it. err: what was printed on stderr."""

    code: int
    err: str


def _work(arguments: Sequence[str], err: Path) -> None:
    import torch

    from eyas.cli import main

    torch.set_num_threads(1)  # the bytes of a training depend on it
    with err.open("w", buffering=1) as stream:
        sys.stderr = stream
        code = main(arguments)
    os._exit(code)


def context() -> multiprocessing.context.ForkServerContext:
    """The server starts with the first process."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["eyas.cli.recipes", "eyas.cli.generate"])
    return server


def run(
    arguments: Sequence[str], err: Path, when: Callable[[], bool] | None = None, how: int = signal.SIGKILL
) -> Ended:
    """Run a command line to its end, or send the signal `how` as soon as `when()` holds."""
    process = context().Process(target=_work, args=(list(arguments), err))
    process.start()
    assert process.pid is not None
    began_s, sent = time.monotonic(), False
    while process.is_alive():
        assert time.monotonic() - began_s < LONGEST_S, f"{arguments} hangs"
        if when is not None and not sent and when():
            os.kill(process.pid, how)
            sent = True
        time.sleep(POLL_S)
    process.join()
    assert process.exitcode is not None
    return Ended(process.exitcode, err.read_text() if err.is_file() else "")
