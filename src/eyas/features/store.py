"""Feature files: shards of safetensors and the manifest that names them.

N tokens of a shard (its rows one behind the other), T tokens of one row, D hidden, L = 3D captured features.

    features/
      shard-00000.safetensors    ids_N int32, loss_mask_N uint8, aux_NL, hidden_ND
      shard-00001.safetensors
      manifest.json              written when all shards are: what they hold, their digests, where each row lies
      provenance.json
"""

import dataclasses
import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from eyas.base.errors import InputError
from eyas.base.provenance import digest_bytes, digest_file, digest_json, write_atomic, write_json_atomic
from eyas.features.layout import Row, Split

MANIFEST = "manifest.json"
SCHEMA = 1
NORM_STATE = "aux: before any norm; hidden: after the final norm"


@dataclass(frozen=True)
class RowInfo:
    """Where a row lies: tokens [start, start + length) of a shard, which is an index into Manifest.shards."""

    id: str
    task: str
    split: Split
    looping: bool
    shard: int
    start: int
    length: int
    num_supervised: int


@dataclass(frozen=True)
class ShardInfo:
    name: str
    digest: str
    num_tokens: int


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json. Layer ids are Hugging Face indices; digests bind the target and its words."""

    schema: int
    target: str
    target_digest: str
    tokenizer_digest: str
    template_digest: str
    aux_layer_ids: tuple[int, ...]
    norm_state: str
    hidden_size: int
    vocab_size: int
    dtype: str
    num_cut: int
    shards: tuple[ShardInfo, ...]
    rows: tuple[RowInfo, ...]


def shard_name(index: int) -> str:
    return f"shard-{index:05}.safetensors"


def write_shard(path: Path, rows: Sequence[Row], plan: str) -> str:
    """Write the rows as one file, whole or not at all, and return its digest. `plan` says what they were made from."""
    tensors = {
        "ids_N": torch.cat([row.ids_T for row in rows]).to(torch.int32),
        "loss_mask_N": torch.cat([row.loss_mask_T for row in rows]).to(torch.uint8),
        "aux_NL": torch.cat([row.aux_TL for row in rows]),
        "hidden_ND": torch.cat([row.hidden_TD for row in rows]),
    }
    # One key only: safetensors keeps several in an order of its own, and the bytes must not depend on it.
    note = json.dumps({"plan": plan, "content": _content_digest(tensors)})
    data = save_safetensors(tensors, metadata={"eyas": note})
    write_atomic(path, data)
    return digest_bytes(data)


def finished_shard(path: Path, plan: str) -> str | None:
    """The digest of a shard that an earlier run finished with this plan; None if it is missing, other or damaged."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            note = json.loads((file.metadata() or {}).get("eyas", "{}"))
        if note.get("plan") != plan:
            return None
        data = path.read_bytes()
        return digest_bytes(data) if _content_digest(load_safetensors(data)) == note.get("content") else None
    except (SafetensorError, OSError, ValueError):
        return None


def check_shard(directory: Path, shard: ShardInfo) -> None:
    """`InputError` naming both digests if the file is not what the manifest says."""
    found = digest_file(directory / shard.name)
    if found != shard.digest:
        raise InputError(
            f"damaged shard {directory / shard.name} with digest {found}",
            f"digest {shard.digest}",
            f"remove {directory / shard.name} and {directory / 'provenance.json'}, then run `eyas capture` again",
        )


def without_rows(directory: Path, manifest: Manifest, number: int, ids: AbstractSet[str]) -> Manifest:
    """Write a shard anew without these rows; the manifest as it is then, to be written by the caller.

    A shard without a row goes, and those behind it move up: take the numbers from the last to the first.
    """
    shard = manifest.shards[number]
    path = directory / shard.name
    kept = [row for row in manifest.rows if row.shard == number and row.id not in ids]
    if not kept:
        path.unlink()
        others = [row for row in manifest.rows if row.shard != number]
        up = tuple(dataclasses.replace(row, shard=row.shard - (row.shard > number)) for row in others)
        return dataclasses.replace(manifest, shards=manifest.shards[:number] + manifest.shards[number + 1 :], rows=up)
    file = ShardFile(path)
    rows = [file.row(info) for info in kept]
    starts = [sum(info.length for info in kept[:place]) for place in range(len(kept))]
    moved = {info.id: dataclasses.replace(info, start=start) for info, start in zip(kept, starts, strict=True)}
    # The old plan names what is gone: nobody may take this shard for what that plan makes.
    digest = write_shard(path, rows, f"without {len(ids)} forgotten rows")
    shards = list(manifest.shards)
    shards[number] = ShardInfo(shard.name, digest, sum(info.length for info in kept))
    left = tuple(moved.get(row.id, row) for row in manifest.rows if row.shard != number or row.id in moved)
    return dataclasses.replace(manifest, shards=tuple(shards), rows=left)


class ShardFile:
    """One open shard; rows are read from the mapped file as they are asked for."""

    def __init__(self, path: Path) -> None:
        self._file: Any = safe_open(path, framework="pt")
        with self._file as file:
            self._slices = {name: file.get_slice(name) for name in ("ids_N", "loss_mask_N", "aux_NL", "hidden_ND")}

    def row(self, info: RowInfo) -> Row:
        """The row as it was written, token ids as int64."""
        span = slice(info.start, info.start + info.length)
        return Row(
            id=info.id,
            task=info.task,
            ids_T=self._slices["ids_N"][span].long(),
            loss_mask_T=self._slices["loss_mask_N"][span].bool(),
            aux_TL=self._slices["aux_NL"][span],
            hidden_TD=self._slices["hidden_ND"][span],
        )

    def ids(self, info: RowInfo) -> tuple[Tensor, Tensor]:
        """Only ids_T and loss_mask_T."""
        span = slice(info.start, info.start + info.length)
        return self._slices["ids_N"][span].long(), self._slices["loss_mask_N"][span].bool()


def write_manifest(directory: Path, manifest: Manifest) -> None:
    write_json_atomic(directory / MANIFEST, dataclasses.asdict(manifest))


def read_manifest(directory: Path) -> Manifest:
    """`InputError` if it is missing, damaged, or of a schema that this version does not know."""
    path = directory / MANIFEST
    try:
        raw = json.loads(path.read_bytes())
        if raw["schema"] != SCHEMA or raw["norm_state"] != NORM_STATE:
            raise InputError(
                f"{path} of schema {raw['schema']} ({raw['norm_state']})",
                f"schema {SCHEMA} ({NORM_STATE})",
                "capture again",
            )
        shards = tuple(ShardInfo(**shard) for shard in raw.pop("shards"))
        rows = tuple(RowInfo(**row) for row in raw.pop("rows"))
        return Manifest(**{**raw, "aux_layer_ids": tuple(raw["aux_layer_ids"])}, shards=shards, rows=rows)
    except FileNotFoundError:
        raise InputError(f"no {path}", "finished features", "run `eyas capture` first") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"damaged {path} ({error})", "what eyas wrote", "run `eyas capture` again") from None


def _content_digest(tensors: dict[str, Tensor]) -> str:
    raw = {
        name: digest_bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes()) for name, tensor in tensors.items()
    }
    return digest_json({name: [str(tensors[name].dtype), list(tensors[name].shape), raw[name]] for name in raw})
