"""`eyas train` in one process or in several that share it, forked from a server that has imported everything.

They may be stopped in the middle: a signal reaches one of them a little after some update.
"""

import itertools
import math
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.e2e.processes import LONGEST_S, Ended, context

from eyas.cli import main
from eyas.features.layout import Row
from eyas.features.reader import Features
from eyas.model.target import Target
from eyas.train.trainer import Trainer


@dataclass(frozen=True)
class Blow:
    """A signal to this very process, `delay_s` after it has made so many updates."""

    updates: int
    number: int = signal.SIGKILL
    delay_s: float = 0.0

    def __call__(self) -> None:
        counter, step = itertools.count(1), Trainer._step

        def stepped(trainer: Trainer, learning_rate: float, number: int) -> None:
            step(trainer, learning_rate, number)
            if next(counter) == self.updates:
                if self.delay_s == 0:
                    os.kill(os.getpid(), self.number)
                else:
                    threading.Timer(self.delay_s, os.kill, (os.getpid(), self.number)).start()

        setattr(Trainer, "_step", stepped)  # noqa: B010 a patch


@dataclass(frozen=True)
class Poison:
    """The features of one conversation are no numbers, from the time on that it is read for the `reads`th time."""

    id: str
    reads: int

    def __call__(self) -> None:
        counter, read = itertools.count(1), Features.rows

        def poisoned(features: Features, indices: Sequence[int]) -> Iterator[Row]:
            for row in read(features, indices):
                bad = row.id == self.id and next(counter) >= self.reads
                yield replace(row, aux_TL=row.aux_TL * math.nan) if bad else row

        setattr(Features, "rows", poisoned)  # noqa: B010 a patch


def _work(arguments: Sequence[str], err: Path, environment: dict[str, str], fault: Callable[[], None] | None) -> None:
    torch.set_num_threads(1)  # the bytes depend on it
    os.environ.update(environment)
    sys.stderr = err.open("w", buffering=1)
    if fault is not None:
        fault()
    os._exit(main(arguments))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def train(
    recipe: Path,
    out: Path,
    world: int = 1,
    overrides: Sequence[str] = (),
    faults: Mapping[int, Callable[[], None]] | None = None,
    leave: Sequence[int] = (),
    own: Mapping[int, Sequence[str]] | None = None,
) -> list[Ended]:
    """Run it to its end in `world` processes; how each ended.

    faults: what befalls which of them. leave: those that end by themselves never, and are killed after the others.
    own: overrides of some of them.
    """
    started, port = [], free_port()
    for rank in range(world):
        environment = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        err = out.with_name(f"{out.name}.err{rank}")
        arguments = ["train", str(recipe), "--out", str(out), *overrides, *(own or {}).get(rank, ())]
        process = context().Process(target=_work, args=(arguments, err, environment, (faults or {}).get(rank)))
        process.start()
        started.append((process, err))
    ended = []
    for rank, (process, err) in sorted(enumerate(started), key=lambda item: item[0] in leave):
        process.join(0 if rank in leave else LONGEST_S)
        hangs = process.is_alive() and rank not in leave
        process.kill()
        process.join()
        assert not hangs, f"a process of {world} hangs: {err.read_text()}"
        assert process.exitcode is not None
        ended.append(Ended(process.exitcode, err.read_text() if err.is_file() else ""))
    return ended


def write_recipe(path: Path, target: Target) -> Path:
    """Ten updates of several micro-batches each, saved after every one, float32 throughout."""
    path.write_text(f"""
        [target]
        model = "{target.directory}"
        dtype = "float32"
        [capture]
        aux_layer_ids = [1, 2, 3]
        [train]
        steps = 3
        updates = 10
        batch_tokens = 80
        micro_tokens = 100
        draft_vocab_size = 151
        learning_rate = 3e-3
        log_every = 3
        dtype = "float32"
        stored_dtype = "float32"
        checkpoint_every_s = 0
    """)
    return path


def new_run(out: Path, features: Path) -> Path:
    """A run directory in which features are finished."""
    shutil.copytree(features, out / "features")
    return out


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "head" / "model.safetensors")
