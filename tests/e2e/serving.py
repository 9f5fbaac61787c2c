"""`eyas serve` as a process of its own."""

import multiprocessing.process
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.processes import LONGEST_S, context

from eyas.cli import main

READY = re.compile(r"eyas serves (\S+) at (http://(?:127\.0\.0\.1|0\.0\.0\.0):\d+)/v1 \(arms: (.+)\)\n")


def _work(arguments: Sequence[str], out: Path, err: Path, environment: dict[str, str]) -> None:
    import torch

    os.environ |= environment
    torch.set_num_threads(1)
    sys.stdout = out.open("w", buffering=1)
    sys.stderr = err.open("w", buffering=1)
    os._exit(main(arguments))


@dataclass
class Serving:
    """A server process. out and err: what it has printed."""

    process: multiprocessing.process.BaseProcess
    out: Path
    err: Path

    def wait_ready(self) -> str:
        """The URL of its one line."""
        end_s = time.monotonic() + LONGEST_S
        while not (self.out.is_file() and (found := READY.fullmatch(self.out.read_text()))):
            assert self.process.is_alive(), self.err.read_text()
            assert time.monotonic() < end_s, "it does not get ready"
            time.sleep(0.02)
        return found[2]

    def stop(self, how: signal.Signals) -> int | None:
        """Send a signal and wait; the exit code."""
        assert self.process.pid is not None
        os.kill(self.process.pid, how)
        self.process.join(LONGEST_S)
        return self.process.exitcode


def start_server(place: Path, words: Sequence[str], environment: dict[str, str]) -> Serving:
    """Arguments behind `eyas`; what it prints goes to files of that place."""
    out, err = place.with_suffix(".out"), place.with_suffix(".err")
    process = context().Process(target=_work, args=(list(words), out, err, environment))
    process.start()
    return Serving(process, out, err)
