"""Where an interrupted training goes on: files that all its processes write, in the head directory or at any URL.

    checkpoint-000042-0-of-2.safetensors    rows of every weight and moment, the first half     written by process 0
    checkpoint-000042-1-of-2.safetensors    the second half                                     by process 1
    checkpoint.json                         update, figures so far, digests of both; last, and in place of the former

Which rows a part holds follows from its number (`ranks.rows_of`), so any number of processes reads what any other
wrote. Whenever a process dies, checkpoint.json names parts that are whole. It is bound to what the run is made from, so
a changed recipe starts anew. Only tensors and JSON are in it.
"""

import json
import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from eyas.base.errors import InputError, StorageError
from eyas.base.provenance import digest_bytes, digest_json
from eyas.base.storage import StoragePath
from eyas.train.distributed import ProcessGroup, shard_rows

CHECKPOINT_FILE = "checkpoint.json"
SHARD_PATTERN = re.compile(r"checkpoint-\d+-\d+-of-\d+\.safetensors")
SCHEMA = 1


@dataclass(frozen=True)
class Checkpoint:
    """After `update` updates: the sums of the current window and since when, the lines of metrics.jsonl so far, and
    what `train.checkpoint_selection` has seen.

    parts: the digest of each file of tensors, once they are written.
    """

    update: int
    window_start: int
    window_SK: list[list[float]]
    lines: list[dict[str, Any]]
    selection: dict[str, Any]
    parts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DamagedCheckpoint:
    """Why the checkpoint that is there cannot be used."""

    reason: str


@dataclass(frozen=True, eq=False)
class LocalState:
    """What one process holds: all rows, or where they are divided those of its number.

    num_rows: of each tensor as a whole; a tensor without dimensions has none and is held by all.
    """

    tensors: dict[str, Tensor]
    num_rows: dict[str, int]
    is_sharded: bool

    def empty_like(self) -> "LocalState":
        """Room for as much, in memory of the CPU."""
        return replace(
            self, tensors={name: torch.empty_like(tensor, device="cpu") for name, tensor in self.tensors.items()}
        )

    def local_rows(self, name: str, ranks: ProcessGroup) -> slice:
        """The rows of the whole that are here."""
        count = self.num_rows[name]
        return shard_rows(ranks.rank, ranks.world_size, count) if self.is_sharded else slice(0, count)


def write_checkpoint(
    place: StoragePath, checkpoint: Checkpoint, tensors: LocalState, origin: str, ranks: ProcessGroup
) -> None:
    """All processes together. StorageError where the place is full, closed, or not one for all of them."""
    mine = {}
    for name, tensor in tensors.tensors.items():
        if name in tensors.num_rows and not tensors.is_sharded:
            tensor = tensor[shard_rows(ranks.rank, ranks.world_size, tensors.num_rows[name])]
        mine[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    data = save_safetensors(mine)
    names = [
        f"checkpoint-{checkpoint.update:06}-{rank}-of-{ranks.world_size}.safetensors"
        for rank in range(ranks.world_size)
    ]
    place.join(names[ranks.rank]).write_bytes(data)
    digests = ranks.all_gather(digest_bytes(data))  # from here on all parts are written
    if not ranks.is_main:
        return
    for rank, name in enumerate(names):
        if not place.join(name).exists():
            raise StorageError(
                f"no {place.join(name)}, which process {rank} has written on a machine of its own",
                "one place for all processes",
                "set train.checkpoint_url to one that every host reaches",
            )
    note: dict[str, Any] = {"schema": SCHEMA, "origin": origin, **asdict(checkpoint)}
    note["parts"] = dict(zip(names, digests, strict=True))
    place.join(CHECKPOINT_FILE).write_bytes(json.dumps(note | {"digest": digest_json(note)}).encode())
    _remove_shards(place, keep=names)


def read_checkpoint(place: StoragePath, origin: str) -> Checkpoint | DamagedCheckpoint | None:
    """The checkpoint of this very run, without its tensors; None if there is none, or one of other settings or data."""
    file = place.join(CHECKPOINT_FILE)
    if not file.exists():
        return None
    try:
        note = json.loads(file.read_bytes())
        digest = note.pop("digest")
        if (found := digest_json(note)) != digest:
            return DamagedCheckpoint(f"{file} with digest {found}, expected {digest}")
        if note.pop("schema") != SCHEMA or note.pop("origin") != origin:
            return None
        return Checkpoint(**note)
    except (ValueError, KeyError, TypeError, AttributeError, InputError) as error:
        return DamagedCheckpoint(f"{file} that cannot be read ({type(error).__name__}: {error})")


def load_tensors(
    place: StoragePath, checkpoint: Checkpoint, state: LocalState, ranks: ProcessGroup
) -> DamagedCheckpoint | None:
    """Fill `into`. Each part with any of its rows is read once and compared with its digest.

    Where something is damaged, `into` is filled in part.
    """
    for number, (part, digest) in enumerate(checkpoint.parts.items()):
        cuts = {
            name: _overlap(shard_rows(number, len(checkpoint.parts), count), state.local_rows(name, ranks))
            for name, count in state.num_rows.items()
        }
        if all(cut is None for cut in cuts.values()):
            continue
        try:
            data = place.join(part).read_bytes()
            if (found := digest_bytes(data)) != digest:
                return DamagedCheckpoint(f"{place.join(part)} with digest {found}, expected {digest}")
            stored = load_safetensors(data)
            for name, tensor in state.tensors.items():
                cut = cuts.get(name)
                if name not in state.num_rows:
                    tensor.copy_(stored[name])
                elif cut is not None:
                    tensor[cut.destination] = stored[name][cut.source]
        except (SafetensorError, InputError, KeyError, RuntimeError) as error:
            return DamagedCheckpoint(f"{place.join(part)} that cannot be read ({type(error).__name__}: {error})")
    return None


def remove_checkpoint(place: StoragePath) -> None:
    place.join(CHECKPOINT_FILE).remove()  # first: it must not name what is gone
    _remove_shards(place, keep=[])


@dataclass(frozen=True)
class _Overlap:
    """The rows that a part and a process have in common, counted from the first of each."""

    source: slice
    destination: slice


def _overlap(part: slice, own: slice) -> _Overlap | None:
    begin, end = max(part.start, own.start), min(part.stop, own.stop)
    if begin >= end:
        return None
    return _Overlap(slice(begin - part.start, end - part.start), slice(begin - own.start, end - own.start))


def _remove_shards(place: StoragePath, keep: list[str]) -> None:
    for name in place.list_files():
        if SHARD_PATTERN.fullmatch(name) and name not in keep:
            place.join(name).remove()
