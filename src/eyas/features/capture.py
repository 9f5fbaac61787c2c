"""Capture: the target reads every conversation once more and its features are stored.

B rows of a batch, T tokens, U of them taught, D hidden, L = 3D captured features, N heads, G key-value heads, H head
size.

Which rows share a shard, and which share a forward, is decided from the ids alone before any forward. So a shard is a
pure function of its plan, a finished shard is skipped, and a killed run ends with the bytes of an undisturbed one; and
several machines may share the shards, each with the target:

    rank 0   shard 0   shard 2   shard 4   waits for the others', then the manifest
    rank 1   shard 1   shard 3             waits for the manifest

A shard is stored while the target reads the next one.
"""

import dataclasses
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import torch

from eyas.base.environment import read_rank
from eyas.base.errors import StageError, UsageError
from eyas.base.progress import Progress
from eyas.base.provenance import (
    Provenance,
    StageInputs,
    digest_json,
    finish_stage,
    is_finished,
    mark_unfinished,
    read_provenance,
    require_finished,
    verify_contents,
)
from eyas.base.storage import StoragePath
from eyas.features.examples import TextRow, assign_splits, load_texts, plan_shards, row_info
from eyas.features.extract import coded, compute, not_finite
from eyas.features.layout import Row, Split
from eyas.features.quantization_error import measure
from eyas.features.quantize import MEANING, StoredDtype
from eyas.features.shard import StoredRow
from eyas.features.store import (
    MANIFEST,
    NORM_STATE,
    SCHEMA,
    Manifest,
    QuantisationError,
    ShardNote,
    finished_shard,
    publish_shard,
    remove_shards,
    write_manifest,
)
from eyas.model.target import Target

STAGE = "capture"
POLL_S = 2.0
SAMPLE_ROWS, SAMPLE_TOKENS = 32, 8192  # on which the error of storing is measured, whichever is reached first


@dataclass(frozen=True)
class CaptureConfig:
    """batch_tokens: padded tokens of one forward. held_out: share of each task's conversations kept from training.

    aux_layer_ids: Hugging Face indices, None for 2, n // 2, n - 3. max_length: longer rows are cut there; None: the
    target's positions. dtype: of the stored features (features.quantise). max_error: refused is what storing changes by
    more, the teacher or a layer (features.drift). Raises UsageError.

    world: processes that share the shards, each with its index in JOB_COMPLETION_INDEX or RANK.

    online: nothing is stored but the texts; training and evaluation let the target compute the rest each time, and get
    the numbers that would have been stored as `dtype`. `eyas plan` says what is cheaper.

    The reasons for both defaults stand in docs/features.md: large channels hurt int8 and not fp8, and at an error of
    13 % the embedded head lost 0.8 % of its acceptance length.
    """

    dtype: StoredDtype = "fp8"
    max_error: float = 0.1
    online: bool = False
    world: int = 1
    aux_layer_ids: tuple[int, ...] | None = None
    max_length: int | None = None
    batch_tokens: int = 8192
    shard_bytes: int = 256 * 1024 * 1024
    held_out: float = 0.05

    def __post_init__(self) -> None:
        for name, least in (("batch_tokens", 1), ("shard_bytes", 1), ("max_length", 3), ("world", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"capture.{name} = {value}", f"at least {least}", f"raise capture.{name}")
        if not 0 < self.max_error <= 1:
            raise UsageError(f"capture.max_error = {self.max_error}", "above 0 and at most 1", "set for example 0.1")
        if not 0 <= self.held_out <= 1:
            raise UsageError(f"capture.held_out = {self.held_out}", "a share from 0 to 1", "set for example 0.05")


def origin_of(config: CaptureConfig, conversations_digest: str, target: Target) -> StageInputs:
    """What decides the features."""
    made_from = {
        "schema": SCHEMA,
        "config": dataclasses.asdict(dataclasses.replace(config, world=1)),
        "aux_layer_ids": list(target.aux_layer_ids),
        "target_dtype": str(target.model.dtype),
    }
    return StageInputs(
        stage=STAGE,
        recipe=digest_json(made_from),
        parents={"conversations": conversations_digest, "target": target.digest},
        tokenizer=target.tokenizer_digest,
        template=target.template_digest,
    )


def run(
    config: CaptureConfig,
    conversations_dir: Path,
    target: Target,
    out: Path | StoragePath,
    *,
    progress: bool = True,
) -> Provenance:
    """Capture the features of all conversations with a target loaded with `config.aux_layer_ids`.

    Idempotent and resumable. `InputError` for damaged
    or unfinished conversations, ids that the target does not have and rows beyond its positions; `StorageError` for
    a full disk or a store that refuses; `StageError` where another run writes to the same place.
    """
    started_s, rank = time.time(), read_rank("capture.world", config.world)
    wanted = config.aux_layer_ids
    assert wanted is None or tuple(wanted) == tuple(target.aux_layer_ids), "load the target with config.aux_layer_ids"
    require_finished(conversations_dir, "respond")
    directory = StoragePath.of(out)
    origin = origin_of(config, verify_contents(conversations_dir).digest, target)
    if is_finished(directory, origin):
        return read_provenance(directory)
    texts, num_cut = load_texts(conversations_dir, target, config.max_length)
    if config.online:
        texts = [dataclasses.replace(text, shared=0) for text in texts]
    splits = assign_splits(texts, config.held_out)
    if rank == 0:
        mark_unfinished(directory)
        directory.join(MANIFEST).remove()
    error = _check_error(config, _sample(texts, splits), target, progress)
    plans = plan_shards(texts, config.dtype, 0 if config.online else target.info.hidden_size, config.shard_bytes)
    work = [_Shard(number, [texts[i] for i in plan], origin, splits) for number, plan in enumerate(plans)]
    with Progress(STAGE, sum(len(text.ids) for text in texts), "tokens", enabled=progress) as bar:
        notes = _make_shards(config, work[rank :: config.world], target, directory, bar)
        if rank:
            while not is_finished(directory, origin):
                time.sleep(POLL_S)
            return read_provenance(directory)
        notes |= _shards_of_others([shard for shard in work if shard.number not in notes], directory, bar)
    remove_shards(directory, len(work))
    manifest = Manifest(
        schema=SCHEMA,
        target=_public_name(target.info.name),
        target_revision=_revision(target),
        target_digest=target.digest,
        target_quantisation=target.quantization,
        tokenizer_digest=target.tokenizer_digest,
        template_digest=target.template_digest,
        aux_layer_ids=tuple(int(i) for i in target.aux_layer_ids),
        norm_state=NORM_STATE,
        hidden_size=target.info.hidden_size,
        vocab_size=target.info.vocab_size,
        online=config.online,
        batch_tokens=config.batch_tokens,
        dtype=config.dtype,
        quantisation=MEANING[config.dtype],
        quantisation_error=error,
        num_cut=num_cut,
        shards=tuple(notes[shard.number].shard for shard in work),
        rows=tuple(row for shard in work for row in notes[shard.number].rows),
    )
    write_manifest(directory, manifest)
    return finish_stage(directory, origin, started_s, known_digests=manifest.digests)


class _Shard:
    """What one shard is made from."""

    def __init__(self, number: int, texts: list[TextRow], origin: StageInputs, splits: dict[str, Split]) -> None:
        self.number = number
        self.texts = texts
        self.plan = digest_json([dataclasses.asdict(origin), [dataclasses.asdict(text) for text in texts]])
        self.infos = [row_info(text, splits[text.conversation]) for text in texts]
        self.num_tokens = sum(len(text.ids) for text in texts)


def _make_shards(
    config: CaptureConfig, work: Sequence[_Shard], target: Target, directory: StoragePath, bar: Progress
) -> dict[int, ShardNote]:
    """By number. Those that are there already are skipped."""
    notes: dict[int, ShardNote] = {}
    made: dict[int, Future[ShardNote]] = {}
    with ThreadPoolExecutor(1) as storing:
        for shard in work:
            note = finished_shard(directory, shard.number, shard.plan)
            if note is not None:
                notes[shard.number] = note
                bar.skip(shard.num_tokens)
                continue
            rows = _stored(config, shard.texts, target, bar)
            wait(made.values())  # one on its way, one in the making: memory does not grow
            if any(future.exception() for future in made.values()):
                break
            made[shard.number] = storing.submit(publish_shard, directory, shard.number, shard.infos, rows, shard.plan)
    return notes | {number: future.result() for number, future in made.items()}


def _shards_of_others(work: Sequence[_Shard], directory: StoragePath, bar: Progress) -> dict[int, ShardNote]:
    """Waits until each is there."""
    notes: dict[int, ShardNote] = {}
    while len(notes) < len(work):
        for shard in work:
            note = None if shard.number in notes else finished_shard(directory, shard.number, shard.plan)
            if note is not None:
                notes[shard.number] = note
                bar.skip(shard.num_tokens)
        if len(notes) < len(work):
            time.sleep(POLL_S)
    return notes


def _public_name(name: str) -> str:
    """A hub id as it is; of a directory the last part, for a path of this machine would make other bytes elsewhere."""
    return Path(name).resolve().name if Path(name).is_dir() else name


def _revision(target: Target) -> str | None:
    """The commit of a target that lies in the hub's cache, .../snapshots/<commit>."""
    place = target.directory.resolve()
    return place.name if place.parent.name == "snapshots" else None


def _sample(texts: Sequence[TextRow], splits: dict[str, Split]) -> list[TextRow]:
    """The first held-out rows, the first of all where none is held out; at least one."""
    rows = [text for text in texts if splits[text.conversation] == "held_out"] or texts
    sample: list[TextRow] = []
    for row in rows[:SAMPLE_ROWS]:
        if not sample or sum(len(one.ids) for one in sample) + len(row.ids) <= SAMPLE_TOKENS:
            sample.append(row)
    return sample


def _check_error(config: CaptureConfig, sample: list[TextRow], target: Target, progress: bool) -> QuantisationError:
    """What storing changes on these rows; `StageError` where it is too much.

    Before the first shard rather than after the last: what will be refused shall not take hours.
    """
    rows: list[Row] = []
    tensors = [(torch.tensor(text.ids), torch.tensor(text.loss_mask)) for text in sample]
    for found in compute(tensors, target, config.batch_tokens):
        text = sample[found.index]
        if not (found.aux_TL.isfinite().all() and found.hidden_UD.isfinite().all()):
            raise not_finite(text.id)
        rows.append(Row(text.id, text.task, *tensors[found.index], found.aux_TL, found.hidden_UD))
    error = measure(rows, config.dtype, target)
    if progress:
        layers = ", ".join(f"{layer:.2%}" for layer in error.aux)
        print(
            f"{STAGE}  stored as {config.dtype}: the teacher moves by {error.teacher:.2%}, the layers by {layers}",
            file=sys.stderr,
        )
    worst = max(error.teacher, *error.aux)
    if not worst <= config.max_error:
        raise StageError(
            f"features of {target.info.name} that {config.dtype} changes by {worst:.1%} on {error.num_rows} rows",
            f"at most {config.max_error:.1%}, capture.max_error",
            "set capture.dtype=fp8, or bfloat16 for the target's own values, or raise capture.max_error",
        )
    return error


def _stored(config: CaptureConfig, texts: Sequence[TextRow], target: Target, bar: Progress) -> list[StoredRow]:
    """The rows as a shard holds them, in the order of the texts."""
    tensors = [(torch.tensor(text.ids), torch.tensor(text.loss_mask)) for text in texts]
    if config.online:
        bar.advance(sum(len(text.ids) for text in texts))
        nothing = torch.empty(0, 0, dtype=torch.uint8)
        return [StoredRow(*pair, (nothing, nothing), (nothing, nothing)) for pair in tensors]
    rows: dict[int, StoredRow] = {}
    for found in compute(tensors, target, config.batch_tokens):
        text = texts[found.index]
        rows[found.index] = StoredRow(*tensors[found.index], *coded(found, config.dtype, text.id, text.shared))
        bar.advance(len(text.ids))
    return [rows[number] for number in range(len(texts))]
