"""Lines of metrics.jsonl, handed on to TensorBoard and Weights & Biases while training runs, for those who ask.

metrics.jsonl is written in any case and is what eyas itself reads; these are copies for people, they carry times, and
they lie outside the head's directory, whose bytes must not depend on who watches:

    RUN/head/metrics.jsonl
    RUN/watch/tensorboard/    tensorboard --logdir RUN/watch/tensorboard
    RUN/watch/wandb/          offline unless WANDB_MODE=online; `wandb sync` sends it later
"""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from eyas.base.errors import InputError

Watcher = Literal["tensorboard", "wandb"]
Tell = Callable[[Mapping[str, Any]], None]
DIRECTORY = "watch"


@contextlib.contextmanager
def watching(watchers: Sequence[Watcher], place: Path, origin: str, first: int) -> Iterator[Tell]:
    """A function that takes a line of metrics.jsonl and tells all watchers.

    place: where they write. origin: digest of what decides the head, by which a run that goes on is known. first:
    updates that an earlier process has done; what it told beyond them is taken back. InputError for a package that is
    not installed.
    """
    openers = {"tensorboard": _tensorboard, "wandb": _wandb}
    with contextlib.ExitStack() as stack:
        tells = [stack.enter_context(openers[name](place, origin, first)) for name in dict.fromkeys(watchers)]

        def tell(line: Mapping[str, Any]) -> None:
            for each in tells:
                each(line)

        yield tell


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """The line's numbers by name; a list becomes one for each unrolled step: accuracy/0, accuracy/1, ..."""
    found: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, list):
            found |= {f"{name}/{step}": float(each) for step, each in enumerate(value)}
        elif isinstance(value, int | float) and name != "update":
            found[name] = float(value)
    return found


@contextlib.contextmanager
def _tensorboard(place: Path, origin: str, first: int) -> Iterator[Tell]:
    _need("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(place / "tensorboard"), purge_step=first + 1) as writer:

        def tell(line: Mapping[str, Any]) -> None:
            for name, value in scalars(line).items():
                writer.add_scalar(name, value, int(line["update"]))
            writer.flush()

        yield tell


@contextlib.contextmanager
def _wandb(place: Path, origin: str, first: int) -> Iterator[Tell]:
    wandb = _need("wandb")
    place.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        project="eyas",
        dir=str(place),
        id=origin[:32],
        name=place.resolve().parent.name,
        resume="allow",
        mode=os.environ.get("WANDB_MODE", "offline"),  # nothing leaves this machine unless it is asked for
        # Nothing of this machine, its packages or what it prints: the lines are all that is told.
        settings=wandb.Settings(
            console="off",
            silent=True,
            save_code=False,
            disable_git=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        ),
    )
    try:
        yield lambda line: run.log(scalars(line), step=int(line["update"]))
    finally:
        run.finish()


def _need(package: Watcher) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(
            f"train.watch with {package}, but no package {package}",
            "that package, or nobody who watches: metrics.jsonl is written in any case",
            f"pip install 'eyas[{package}]', or leave train.watch out",
        ) from None
