"""Feature files: shards of safetensors and the manifest that names them.

    features/                    a path, or any URL that fsspec knows
      shard-00000.safetensors    rows of about 256 MB, see shard.py
      shard-00000.json           written when the shard is: its plan, its digest, where each row lies
      shard-00001.safetensors    ...
      manifest.json              written when all shards are: what they hold, and all that stands beside them
      provenance.json

A shard and the file beside it are created, never written over while others may read them; readers believe the manifest
alone.

Rows of one conversation that begin alike (an answer each, where the template rewrites earlier turns) keep the captured
layers of what they share once, with the first:

    row 7    <user> hi <assistant> D E .                          aux of all tokens
    row 8    <user> hi <assistant> E . <user> so? <assistant> F G     shared = 3: aux from the fourth token on
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from eyas.base.errors import InputError, StageError
from eyas.base.provenance import digest_bytes, digest_file
from eyas.base.storage import StoragePath, to_json
from eyas.features.layout import NUM_AUX_LAYERS
from eyas.features.quantize import CODE_DTYPES, MAX_CODE, SCALE_DTYPE, QuantizationError, StoredDtype
from eyas.features.shard import RowInfo, ShardInfo, ShardReader, StoredRow, encode_shard

MANIFEST = "manifest.json"
SCHEMA = 3
NORM_STATE = "aux: before any norm; hidden: after the final norm"


@dataclass(frozen=True)
class FeaturesConfig:
    """url: where features are kept, any fsspec URL (gs://, s3://, file://, memory://); None: in the run directory."""

    url: str | None = None


@dataclass(frozen=True)
class ShardRecord:
    """What stands beside a shard. plan: digest of all that decides its bytes."""

    plan: str
    shard: ShardInfo
    rows: tuple[RowInfo, ...]


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json. Layer ids are Hugging Face indices; digests bind the target and its words.

    target_revision: the commit of a target from the hub. target_quantisation: its own, as its config says it, for it
    is captured as it is served. online: only texts are stored; features are computed in forwards of batch_tokens padded
    tokens when they are read. quantisation: what the codes and scales of `dtype` mean.
    """

    schema: int
    target: str
    target_revision: str | None
    target_digest: str
    target_quantisation: Mapping[str, Any] | None
    tokenizer_digest: str
    template_digest: str
    aux_layer_ids: tuple[int, ...]
    norm_state: str
    hidden_size: int
    vocab_size: int
    online: bool
    batch_tokens: int
    dtype: StoredDtype
    quantisation: str
    quantisation_error: QuantizationError
    num_cut: int
    shards: tuple[ShardInfo, ...]
    rows: tuple[RowInfo, ...]

    @property
    def shard_digests(self) -> dict[str, str]:
        """Of the shards, by name."""
        return {shard.name: shard.digest for shard in self.shards}


def shard_name(number: int) -> str:
    return f"shard-{number:05}.safetensors"


def record_name(number: int) -> str:
    return f"shard-{number:05}.json"


def bytes_per_token(dtype: StoredDtype, hidden_size: int, taught_share: float) -> float:
    """Bytes that one token takes in a shard, where this share of all tokens is taught.

    Three layers, the final state of some, a scale for each, id and mask. At D = 4096, 60 % and in 8 bits:
    3 * (4096 + 2) + 0.6 * (4096 + 2) + 5 = 14,758 bytes = 14.41 KiB, and 4 * 4096 * 2 = 32 KiB as bfloat16 throughout.
    """
    vector = hidden_size * CODE_DTYPES[dtype].itemsize + (SCALE_DTYPE.itemsize if dtype in MAX_CODE else 0)
    return (NUM_AUX_LAYERS + taught_share) * vector + 5


def publish_shard(
    directory: StoragePath, number: int, infos: Sequence[RowInfo], rows: Sequence[StoredRow], plan: str
) -> ShardRecord:
    """Write a shard and its note, each whole or not at all. `StageError` where another run writes at the same place.

    plan says what the rows were made from. A shard of another plan is of an earlier recipe: it makes room.
    """
    data, placed = encode_shard(number, infos, rows)
    shard = ShardInfo(shard_name(number), digest_bytes(data), len(data), sum(info.length for info in infos))
    note = ShardRecord(plan, shard, placed)
    _create_file(directory.join(shard.name), data)
    _create_file(directory.join(record_name(number)), to_json(dataclasses.asdict(note)))
    return note


def find_finished_shard(directory: StoragePath, number: int, plan: str) -> ShardRecord | None:
    """The note of a shard that was finished with this plan; None if it is missing, other, cut off or damaged.

    Where the shard lies on this machine it is read again. An object store keeps what it was given, so there its size
    has to do: reading some terabytes would take as long as making them.
    """
    try:
        raw = json.loads(directory.join(record_name(number)).read_bytes())
        shard, rows = ShardInfo(**raw["shard"]), tuple(RowInfo(**row) for row in raw["rows"])
        place = directory.join(shard.name)
        whole = raw["plan"] == plan and place.size() == shard.num_bytes
        if whole and place.is_local:
            whole = digest_file(place) == shard.digest
        return ShardRecord(plan, shard, rows) if whole else None
    except (InputError, ValueError, TypeError, KeyError):
        return None


def remove_shards_from(directory: StoragePath, first: int) -> None:
    """Every shard from number `kept` on, with its note."""
    names = {name(number) for number in range(first) for name in (shard_name, record_name)}
    for name in directory.list_files():
        if name.startswith("shard-") and name not in names:
            directory.join(name).remove()


def remove_rows(directory: StoragePath, manifest: Manifest, number: int, ids: AbstractSet[str]) -> Manifest:
    """Write a shard anew without these rows; the manifest as it is then, to be written by the caller.

    A shard without a row goes, and those behind it move up: take the numbers from the last to the first. Rows that
    share with one another go together.
    """
    shards = list(manifest.shards)
    place = directory.join(shards[number].name)
    # What it names is gone: nobody may take this shard for what its plan makes.
    directory.join(place.name.replace(".safetensors", ".json")).remove()
    kept = [row for row in manifest.rows if row.shard == number and row.id not in ids]
    if not kept:
        place.remove()
        del shards[number]
        others = [row for row in manifest.rows if row.shard != number]
        up = tuple(dataclasses.replace(row, shard=row.shard - (row.shard > number)) for row in others)
        return dataclasses.replace(manifest, shards=tuple(shards), rows=up)
    file = ShardReader(place)
    data, placed = encode_shard(number, kept, [file.read_row(info) for info in kept])
    place.write_bytes(data)
    shards[number] = ShardInfo(place.name, digest_bytes(data), len(data), sum(info.length for info in kept))
    moved = {info.id: info for info in placed}
    left = tuple(moved.get(row.id, row) for row in manifest.rows if row.shard != number or row.id in moved)
    return dataclasses.replace(manifest, shards=tuple(shards), rows=left)


def write_manifest(directory: StoragePath, manifest: Manifest) -> None:
    """Only where none is; `StageError` where another run has written one in the meantime."""
    if not directory.join(MANIFEST).create_if_absent(to_json(dataclasses.asdict(manifest))):
        raise StageError(
            f"{directory.join(MANIFEST)} of another run, which was not there when this one began",
            "one capture at a time in a directory",
            "let that one end, or send this one elsewhere with features.url",
        )


def _create_file(place: StoragePath, data: bytes) -> None:
    if place.create_if_absent(data):
        return
    place.remove()  # of an earlier recipe, or damaged
    if not place.create_if_absent(data):
        raise StageError(
            f"{place}, which another run has just written",
            "one capture at a time in a directory",
            "let that one end, or send this one elsewhere with features.url",
        )


def read_manifest(directory: StoragePath) -> Manifest:
    """`InputError` if it is missing, damaged, or of a schema that this version does not know."""
    path = directory.join(MANIFEST)
    if not path.exists():
        raise InputError(f"no {path}", "finished features", "run `eyas capture` first")
    try:
        raw = json.loads(path.read_bytes())
        if raw["schema"] != SCHEMA or raw["norm_state"] != NORM_STATE:
            raise InputError(
                f"{path} of schema {raw['schema']} ({raw['norm_state']})",
                f"schema {SCHEMA} ({NORM_STATE})",
                "run `eyas capture` again: it replaces these features",
            )
        error = raw.pop("quantisation_error")
        raw["quantisation_error"] = QuantizationError(**error | {"aux": tuple(error["aux"])})
        shards = tuple(ShardInfo(**shard) for shard in raw.pop("shards"))
        rows = tuple(RowInfo(**row) for row in raw.pop("rows"))
        return Manifest(**{**raw, "aux_layer_ids": tuple(raw["aux_layer_ids"])}, shards=shards, rows=rows)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"damaged {path} ({error})", "what eyas wrote", "run `eyas capture` again") from None
