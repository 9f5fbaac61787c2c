"""Writes and reads training checkpoints, in the head directory or at `train.checkpoint_url`.

    checkpoint-000042-0-of-2.safetensors    the first half of the rows of every weight and moment, written by rank 0
    checkpoint-000042-1-of-2.safetensors    the second half, written by rank 1
    checkpoint.json                         the update, the metrics so far, the digest of each shard; written last

The example is the checkpoint after update 42 of two processes. The number of a shard determines its rows
(`distributed.shard_rows`), so a training with another number of processes can read it. Every shard is complete before
checkpoint.json names it, so a process may die at any time. checkpoint.json holds a digest of the settings and inputs
of the run. A run with another digest ignores the checkpoint and starts from the beginning. The files contain only
tensors and JSON.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor
from torch.distributed.tensor import DTensor

from eyas.base.errors import InputError, StorageError
from eyas.base.provenance import digest_bytes, digest_json
from eyas.base.storage import StoragePath
from eyas.train.distributed import ProcessGroup, local_rows, shard_rows

CHECKPOINT_FILE = "checkpoint.json"
SHARD_PATTERN = re.compile(r"checkpoint-\d+-\d+-of-\d+\.safetensors")
SCHEMA = 1


@dataclass(frozen=True)
class Checkpoint:
    """The content of checkpoint.json.

    Attributes:
        update: The number of updates that are done.
        window_start: The number of updates that were done when the last line of metrics.jsonl was written.
        window_SK: `MetricSums.sums_SK`, summed over the updates after `window_start`.
        lines: The lines of metrics.jsonl so far.
        selection: The result of `CheckpointSelection.to_json`.
        parts: Shard file name -> digest. Empty until the shards are written.
    """

    update: int
    window_start: int
    window_SK: list[list[float]]
    lines: list[dict[str, Any]]
    selection: dict[str, Any]
    parts: dict[str, str] = field(default_factory=dict)


class DamagedCheckpointError(Exception):
    """A checkpoint that cannot be used. Training reports it and starts from the beginning."""


def write_checkpoint(
    directory: StoragePath, checkpoint: Checkpoint, state: Mapping[str, Tensor], origin: str, group: ProcessGroup
) -> None:
    """Writes a checkpoint; each process writes one shard. A collective call: every process must make it.

    Args:
        directory: The directory of the checkpoint.
        checkpoint: The content of checkpoint.json; this function fills in `parts`.
        state: The tensors by name. Each is a DTensor sharded by rows, or a whole tensor that is equal in all processes.
        origin: A digest of everything that determines the run.
        group: The processes of the training.

    Raises:
        StorageError: If the storage is full or not writable, or the processes do not write to the same place.
    """
    shard = {}
    for name, tensor in state.items():
        if tensor.ndim and not isinstance(tensor, DTensor):
            tensor = tensor[shard_rows(group.rank, group.world_size, tensor.shape[0])]
        shard[name] = local_rows(tensor).detach().cpu().clone(memory_format=torch.contiguous_format)
    data = save_safetensors(shard)
    ranks = range(group.world_size)
    names = [f"checkpoint-{checkpoint.update:06}-{rank}-of-{group.world_size}.safetensors" for rank in ranks]
    directory.join(names[group.rank]).write_bytes(data)
    digests = group.all_gather(digest_bytes(data))  # returns when every process has written its shard
    if not group.is_main:
        return
    for rank, name in enumerate(names):
        if not directory.join(name).exists():
            problem = f"{directory.join(name)} is missing: rank {rank} wrote it to the disk of another machine"
            raise StorageError(problem, "Set train.checkpoint_url to storage that every host can reach")
    content: dict[str, Any] = {"schema": SCHEMA, "origin": origin, **asdict(checkpoint)}
    content["parts"] = dict(zip(names, digests, strict=True))
    directory.join(CHECKPOINT_FILE).write_bytes(json.dumps(content | {"digest": digest_json(content)}).encode())
    _remove_shards(directory, keep=names)


def read_checkpoint(directory: StoragePath, origin: str) -> Checkpoint | None:
    """Returns the content of checkpoint.json, or None if there is no checkpoint of this run.

    Args:
        directory: The directory of the checkpoint.
        origin: The digest that `write_checkpoint` was given. A checkpoint with another digest is ignored.

    Raises:
        DamagedCheckpointError: If checkpoint.json is damaged.
    """
    path = directory.join(CHECKPOINT_FILE)
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_bytes())
        digest = content.pop("digest")
        if (actual := digest_json(content)) != digest:
            raise DamagedCheckpointError(f"{path} has digest {actual} instead of {digest}")
        if content.pop("schema") != SCHEMA or content.pop("origin") != origin:
            return None
        return Checkpoint(**content)
    except (ValueError, KeyError, TypeError, AttributeError, InputError) as error:
        raise DamagedCheckpointError(f"{path} cannot be read") from error


def load_tensors(
    directory: StoragePath, checkpoint: Checkpoint, state: Mapping[str, Tensor], group: ProcessGroup
) -> dict[str, Tensor]:
    """Reads the tensors of a checkpoint and returns them by name, in CPU memory.

    Of a DTensor only the rows of this process are returned. Shards without such rows are not read.

    Args:
        directory: The directory of the checkpoint.
        checkpoint: The result of `read_checkpoint`.
        state: The current tensors by name. They give the names, shapes and sharding.
        group: The processes of the training.

    Raises:
        DamagedCheckpointError: If a shard is missing or damaged.
    """
    loaded = {name: torch.empty_like(local_rows(tensor), device="cpu") for name, tensor in state.items()}
    for number, (file_name, digest) in enumerate(checkpoint.parts.items()):
        copies: dict[str, tuple[slice, slice]] = {}  # rows of the loaded tensor, and of the shard
        for name, tensor in state.items():
            count = tensor.shape[0] if tensor.ndim else 0
            stored, own = shard_rows(number, len(checkpoint.parts), count), slice(0, count)
            if isinstance(tensor, DTensor):
                own = shard_rows(group.rank, group.world_size, count)
            begin, end = max(stored.start, own.start), min(stored.stop, own.stop)
            if begin < end:
                loaded_rows = slice(begin - own.start, end - own.start)
                copies[name] = loaded_rows, slice(begin - stored.start, end - stored.start)
        if not copies:
            continue
        path = directory.join(file_name)
        try:
            data = path.read_bytes()
            if (actual := digest_bytes(data)) != digest:
                raise DamagedCheckpointError(f"{path} has digest {actual} instead of {digest}")
            shard = load_safetensors(data)
            for name, tensor in loaded.items():
                if not tensor.ndim:
                    tensor.copy_(shard[name])
                elif name in copies:
                    own, stored = copies[name]
                    tensor[own] = shard[name][stored]
        except (SafetensorError, InputError, KeyError, RuntimeError) as error:
            raise DamagedCheckpointError(f"{path} cannot be read") from error
    return loaded


def remove_checkpoint(directory: StoragePath) -> None:
    """Removes checkpoint.json and all shards, if there are any."""
    directory.join(CHECKPOINT_FILE).remove()  # first: it must not name missing shards
    _remove_shards(directory, keep=[])


def _remove_shards(directory: StoragePath, keep: list[str]) -> None:
    for name in directory.list_files():
        if SHARD_PATTERN.fullmatch(name) and name not in keep:
            directory.join(name).remove()
