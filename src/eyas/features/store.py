"""Feature files: shards of safetensors and the manifest that names them.

N tokens of a shard (its rows one behind the other), M of them taught, T and U those of one row, D hidden, P captured
layers, L = PD. What codes and scales mean is told in quantise.py; float dtypes have no scales: no columns.

    features/
      shard-00000.safetensors    ids_N int32, loss_mask_N uint8,
                                 aux_NL codes, aux_scales_NP, hidden_MD codes, hidden_scales_M1
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
from eyas.features.quantise import CODES, LARGEST, SCALE, StoredDtype, restore

MANIFEST = "manifest.json"
SCHEMA = 2
NUM_LAYERS = 3  # captured ones
NORM_STATE = "aux: before any norm; hidden: after the final norm"


@dataclass(frozen=True, eq=False)
class StoredRow:
    """A row as its shard holds it: aux and hidden as (codes, scales)."""

    ids_T: Tensor
    loss_mask_T: Tensor
    aux: tuple[Tensor, Tensor]
    hidden: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class RowInfo:
    """Where a row lies: tokens [start, start + length) of a shard, which is an index into Manifest.shards.

    Its hidden states, num_taught of them, begin at hidden_start.
    """

    id: str
    task: str
    split: Split
    looping: bool
    shard: int
    start: int
    length: int
    hidden_start: int
    num_taught: int
    num_supervised: int


@dataclass(frozen=True)
class ShardInfo:
    name: str
    digest: str
    num_tokens: int


@dataclass(frozen=True)
class QuantisationError:
    """What storing changed on a few rows (features.drift): teacher, mean total variation; aux, relative, by layer."""

    teacher: float
    aux: tuple[float, ...]
    num_rows: int
    num_tokens: int


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json. Layer ids are Hugging Face indices; digests bind the target and its words.

    target_revision: the commit of a target from the hub. quantisation: what the codes and scales of `dtype` mean.
    """

    schema: int
    target: str
    target_revision: str | None
    target_digest: str
    tokenizer_digest: str
    template_digest: str
    aux_layer_ids: tuple[int, ...]
    norm_state: str
    hidden_size: int
    vocab_size: int
    dtype: StoredDtype
    quantisation: str
    quantisation_error: QuantisationError
    num_cut: int
    shards: tuple[ShardInfo, ...]
    rows: tuple[RowInfo, ...]


def shard_name(index: int) -> str:
    return f"shard-{index:05}.safetensors"


def token_bytes(dtype: StoredDtype, hidden_size: int, taught_share: float) -> float:
    """Bytes that one token takes in a shard, where this share of all tokens is taught.

    Three layers, the final state of some, a scale for each, id and mask. At D = 4096, 60 % and in 8 bits:
    3 * (4096 + 2) + 0.6 * (4096 + 2) + 5 = 14,758 bytes = 14.41 KiB, and 4 * 4096 * 2 = 32 KiB as bfloat16 throughout.
    """
    vector = hidden_size * CODES[dtype].itemsize + (SCALE.itemsize if dtype in LARGEST else 0)
    return (NUM_LAYERS + taught_share) * vector + 5


def write_shard(path: Path, rows: Sequence[StoredRow], plan: str) -> str:
    """Write the rows as one file, whole or not at all, and return its digest. `plan` says what they were made from."""
    tensors = {
        "ids_N": torch.cat([row.ids_T for row in rows]).to(torch.int32),
        "loss_mask_N": torch.cat([row.loss_mask_T for row in rows]).to(torch.uint8),
        "aux_NL": torch.cat([row.aux[0] for row in rows]),
        "aux_scales_NP": torch.cat([row.aux[1] for row in rows]),
        "hidden_MD": torch.cat([row.hidden[0] for row in rows]),
        "hidden_scales_M1": torch.cat([row.hidden[1] for row in rows]),
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


def placed(rows: Sequence[RowInfo]) -> list[RowInfo]:
    """All rows of one shard, in order, each where it begins."""
    found: list[RowInfo] = []
    start = hidden_start = 0
    for row in rows:
        found.append(dataclasses.replace(row, start=start, hidden_start=hidden_start))
        start, hidden_start = start + row.length, hidden_start + row.num_taught
    return found


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
    rows = [file.stored(info) for info in kept]
    moved = {info.id: info for info in placed(kept)}
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
            self._slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)

    def stored(self, info: RowInfo) -> StoredRow:
        """The row as it was written, token ids as int64."""
        span = slice(info.start, info.start + info.length)
        taught_span = slice(info.hidden_start, info.hidden_start + info.num_taught)
        aux = self._slices["aux_NL"][span], self._slices["aux_scales_NP"][span]
        hidden = self._slices["hidden_MD"][taught_span], self._slices["hidden_scales_M1"][taught_span]
        return StoredRow(*self.ids(info), aux, hidden)

    def row(self, info: RowInfo, dtype: torch.dtype) -> Row:
        """The row with its features as values of `dtype`."""
        row = self.stored(info)
        return Row(
            info.id, info.task, row.ids_T, row.loss_mask_T, restore(*row.aux, dtype), restore(*row.hidden, dtype)
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
                f"schema {SCHEMA} ({NORM_STATE}), which keeps final states at taught positions only",
                "run `eyas capture` again: it replaces these features",
            )
        error = raw.pop("quantisation_error")
        raw["quantisation_error"] = QuantisationError(**error | {"aux": tuple(error["aux"])})
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
