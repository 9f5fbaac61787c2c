"""Reads and writes a features directory: shards of safetensors and the manifest that lists them.

    features/                    a path, or any URL that fsspec knows
      shard-00000.safetensors    rows of about 256 MB, see shard.py
      shard-00000.json           the record of the shard: digest of its plan, digest of the file, offsets of the rows
      shard-00001.safetensors    ...
      manifest.json              written after the last shard: all rows and shards, target, dtype, quantization error
      provenance.json            written last; it marks the directory as finished

Shards are not overwritten while a reader may use them. Readers find shards and rows through manifest.json only; the
records are for a capture that resumes.

If the chat template rewrites earlier turns, a conversation has one row for each answer. Such rows can have a common
prefix. The captured layers of this prefix are stored once, with the earlier row:

    row    tokens                                                     stored captured layers
    7      <user> hi <assistant> D E .                                of all tokens
    8      <user> hi <assistant> E . <user> so? <assistant> F G       from the fourth token on (shared = 3)
"""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import Any

from eyas.base.errors import InputError, StageError
from eyas.base.json_parser import parse_json
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
    """The recipe keys `features.*`.

    Attributes:
        url: The directory of the features, any fsspec URL (gs://, s3://, file://, memory://). By default `features/` in
            the run directory.
    """

    url: str | None = None


@dataclass(frozen=True)
class ShardRecord:
    """The content of the JSON file of a shard. plan: a digest of everything that determines the bytes of the shard."""

    plan: str
    shard: ShardInfo
    rows: tuple[RowInfo, ...]


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json.

    Attributes:
        schema: The version of this format.
        target: The hub id or directory name of the target.
        target_revision: The commit of a target from the hub; None for another target.
        target_digest: The digest of the target.
        target_quantisation: The `quantization_config` of the target; None without one.
        tokenizer_digest: The digest of the tokenizer.
        template_digest: The digest of the chat template.
        aux_layer_ids: The Hugging Face indices of the captured layers.
        norm_state: The norms that were applied to the stored tensors, in words.
        hidden_size: The width of a hidden state.
        vocab_size: The size of the target's vocabulary.
        online: True if only token ids are stored, and the reader computes the features.
        batch_tokens: The most tokens of one forward, padding included.
        dtype: The dtype of the stored features.
        quantisation: The meaning of codes and scales of `dtype`, in words.
        quantisation_error: The measured quantization error.
        num_cut: The number of rows that were cut at `capture.max_length`.
        shards: The shards.
        rows: The rows of all shards.
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
        """The digest of each shard by file name."""
        return {shard.name: shard.digest for shard in self.shards}


def shard_name(number: int) -> str:
    """Returns the file name of a shard."""
    return f"shard-{number:05}.safetensors"


def record_name(number: int) -> str:
    """Returns the file name of the record of a shard."""
    return f"shard-{number:05}.json"


def bytes_per_token(dtype: StoredDtype, hidden_size: int, teacher_share: float) -> float:
    """Returns the mean number of bytes of one token in a shard. teacher_share: the share of teacher positions.

    A token has an id and a mask (5 bytes) and three captured layers; a teacher position has a final hidden state, too.
    Each vector has D values and a scale of 2 bytes. With D = 4096, fp8 and a share of 0.6, a token has
    3 * (4096 + 2) + 0.6 * (4096 + 2) + 5 = 14,758 bytes. Four bfloat16 vectors would have 4 * 4096 * 2 = 32,768 bytes.
    """
    vector_bytes = hidden_size * CODE_DTYPES[dtype].itemsize + (SCALE_DTYPE.itemsize if dtype in MAX_CODE else 0)
    return (NUM_AUX_LAYERS + teacher_share) * vector_bytes + 5


def publish_shard(
    directory: StoragePath, number: int, infos: Sequence[RowInfo], rows: Sequence[StoredRow], plan: str
) -> ShardRecord:
    """Writes a shard and its record, each atomically. Replaces a shard that has the same number and another plan.

    Args:
        directory: The features directory.
        number: The index of the shard.
        infos: The manifest entries of the rows, without offsets and checksums.
        rows: The features of the rows.
        plan: A digest of everything that determines the bytes of the shard.

    Raises:
        StageError: If another run writes to the same directory.
    """
    data, placed = encode_shard(number, infos, rows)
    shard = ShardInfo(shard_name(number), digest_bytes(data), len(data), sum(info.length for info in infos))
    record = ShardRecord(plan, shard, placed)
    files = {shard.name: data, record_name(number): to_json(asdict(record))}
    for path, content in ((directory.join(name), content) for name, content in files.items()):
        if not path.create_if_absent(content):
            path.remove()  # of an earlier recipe, or damaged
            if not path.create_if_absent(content):
                raise _concurrent_run_error(path)
    return record


def find_finished_shard(directory: StoragePath, number: int, plan: str) -> ShardRecord | None:
    """Returns the record of a finished shard with this plan. None if it is missing, damaged or has another plan.

    A local file is read and compared with its digest. In an object store, only the size of the file is compared,
    because reading terabytes would take as long as computing them.
    """
    try:
        record = parse_json(ShardRecord, directory.join(record_name(number)).read_bytes())
        path = directory.join(record.shard.name)
        is_whole = record.plan == plan and path.size() == record.shard.num_bytes
        return record if is_whole and (not path.is_local or digest_file(path) == record.shard.digest) else None
    except (InputError, ValueError):
        return None


def remove_shards_from(directory: StoragePath, first: int) -> None:
    """Removes shard number `first` and all later ones, with their records."""
    kept = {name(number) for number in range(first) for name in (shard_name, record_name)}
    for name in directory.list_files():
        if name.startswith("shard-") and name not in kept:
            directory.join(name).remove()


def remove_rows(directory: StoragePath, manifest: Manifest, number: int, ids: Set[str]) -> Manifest:
    """Rewrites shard `number` without the rows `ids`. Returns the new manifest, which the caller must write.

    If no row is left, the shard is removed, and the numbers of later shards decrease by 1. So the caller must start
    with the highest shard number. Requirement: rows that share a prefix are removed together.
    """
    shards = list(manifest.shards)
    path = directory.join(shards[number].name)
    # The record describes the old shard: a capture must not take the new one for it.
    directory.join(path.name.replace(".safetensors", ".json")).remove()
    kept = [row for row in manifest.rows if row.shard == number and row.id not in ids]
    if not kept:
        path.remove()
        del shards[number]
        others = [row for row in manifest.rows if row.shard != number]
        renumbered = tuple(replace(row, shard=row.shard - (row.shard > number)) for row in others)
        return replace(manifest, shards=tuple(shards), rows=renumbered)
    reader = ShardReader(path)
    data, placed = encode_shard(number, kept, [reader.read_row(info) for info in kept])
    path.write_bytes(data)
    shards[number] = ShardInfo(path.name, digest_bytes(data), len(data), sum(info.length for info in kept))
    by_id = {info.id: info for info in placed}
    rows = tuple(by_id.get(row.id, row) for row in manifest.rows if row.shard != number or row.id in by_id)
    return replace(manifest, shards=tuple(shards), rows=rows)


def write_manifest(directory: StoragePath, manifest: Manifest) -> None:
    """Creates manifest.json. Raises StageError if another run has created it in the meantime."""
    path = directory.join(MANIFEST)
    if not path.create_if_absent(to_json(asdict(manifest))):
        raise _concurrent_run_error(path)


def _concurrent_run_error(path: StoragePath) -> StageError:
    problem = f"Another run has written {path} while this one was running"
    return StageError(problem, "Wait until the other run ends, or set features.url to another directory for this run")


def read_manifest(directory: StoragePath) -> Manifest:
    """Reads manifest.json. Raises InputError if it is missing, damaged or of an unsupported schema."""
    path = directory.join(MANIFEST)
    if not path.exists():
        raise InputError(f"{directory} holds no finished features: {MANIFEST} is missing", "Run `eyas capture` first")
    try:
        data = path.read_bytes()
        raw = json.loads(data)
        if raw["schema"] != SCHEMA or raw["norm_state"] != NORM_STATE:
            problem = f"{path} has schema {raw['schema']}, and this version of eyas reads schema {SCHEMA}"
            raise InputError(problem, "Run `eyas capture` again: it replaces these features")
        return parse_json(Manifest, data)
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{path} is damaged", "Run `eyas capture` again") from None
