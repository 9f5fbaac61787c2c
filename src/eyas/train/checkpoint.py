"""Writes and reads checkpoints: files of all processes, in the head directory or at any URL.

    checkpoint-000042-0-of-2.safetensors    the first half of the rows of every weight and moment, written by rank 0
    checkpoint-000042-1-of-2.safetensors    the second half, written by rank 1
    checkpoint.json                         update, metrics so far, digests of both; written last, replaces the old one

The number of a shard determines its rows (`distributed.shard_rows`), so any number of processes can read a checkpoint
of any other number. Whenever a process dies, checkpoint.json names complete shards. It holds a digest of settings and
inputs of the run, so a changed recipe starts from the beginning. It contains only tensors and JSON.
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
    """The content of checkpoint.json, after `update` updates.

    window_start, window_SK: the first update since the last metrics line, and the sums since then.
    lines: the lines of metrics.jsonl so far.
    selection: the state of `checkpoint_selection`.
    parts: the digest of each shard by file name, once the shards are written.
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
    """Writes a checkpoint, one shard by each process. A collective call.

    Args:
        directory: The directory of the checkpoint.
        checkpoint: Its content besides the tensors.
        state: The tensors by name: DTensors sharded by rows, or whole tensors that are equal in all processes.
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
    text = json.dumps(content | {"digest": digest_json(content)})
    directory.join(CHECKPOINT_FILE).write_bytes(text.encode())
    _remove_shards(directory, keep=names)


def read_checkpoint(directory: StoragePath, origin: str) -> Checkpoint | None:
    """Returns the checkpoint of this run without its tensors, None if there is none or it is of another run.

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
    """Returns the rows of the tensors in `state` that this process holds, in CPU memory. Reads only shards with them.

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
                copies[name] = (
                    slice(begin - own.start, end - own.start),
                    slice(begin - stored.start, end - stored.start),
                )
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
