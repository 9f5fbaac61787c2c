"""Where an interrupted training goes on: one file, replaced as a whole.

It is bound to what the run is made from, so a changed recipe starts anew. Only tensors and JSON are in it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as save_safetensors
from torch import Tensor

from eyas.base.provenance import write_atomic

NAME = "checkpoint.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """After `update` updates: the optimizer's state, the sums of the current window, the lines written so far."""

    update: int
    window_start: int
    tensors: dict[str, Tensor]
    lines: list[dict[str, Any]]


def write_checkpoint(directory: Path, checkpoint: Checkpoint, origin: str) -> None:
    note = {"origin": origin, "update": checkpoint.update, "window_start": checkpoint.window_start}
    note["lines"] = checkpoint.lines
    tensors = {name: tensor.contiguous() for name, tensor in checkpoint.tensors.items()}
    write_atomic(directory / NAME, save_safetensors(tensors, metadata={"eyas": json.dumps(note)}))


def read_checkpoint(directory: Path, origin: str) -> Checkpoint | None:
    """The checkpoint of this very run; None if there is none, or only one of other settings or data."""
    path = directory / NAME
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            note = json.loads((file.metadata() or {})["eyas"])
        if note["origin"] != origin:
            return None
        return Checkpoint(note["update"], note["window_start"], load_file(path), note["lines"])
    except (SafetensorError, OSError, ValueError, KeyError):
        return None  # it was only a shortcut


def remove_checkpoint(directory: Path) -> None:
    (directory / NAME).unlink(missing_ok=True)
