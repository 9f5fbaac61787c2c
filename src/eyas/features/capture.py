"""Captures features: the target runs once over every conversation, and its hidden states are stored (`eyas capture`).

B rows of a batch, T tokens, U of them teacher positions, D hidden, L = 3D captured features, N heads, G key-value
heads, H head size.

The token ids alone decide which rows share a shard and which rows share a forward (the plan of the shard). So the plan
determines the bytes of the shard. A restarted run skips finished shards, and writes the same bytes as an uninterrupted
run. Several processes can divide the shards, each with its own copy of the target (see plan/placement.py):

    rank 0   shard 0   shard 2   shard 4   waits until all shards exist, then writes manifest.json and provenance.json
    rank 1   shard 1   shard 3             waits for provenance.json

Two threads store shards while the target computes the next one. If the layers of a target are spread over several CUDA
devices, as many batches are in flight:

    host      launch 0   launch 1   read 0   launch 2   read 1   ...
    cuda:0    | batch 0 | batch 1 | batch 2 ...
    cuda:1              | batch 0 | batch 1 | batch 2 ...
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field

from eyas.base import provenance
from eyas.base.config import PositiveInt
from eyas.base.environment import poll, read_rank
from eyas.base.errors import StageError
from eyas.base.progress import Progress
from eyas.base.storage import AnyPath, StoragePath
from eyas.features import extract, store
from eyas.features.examples import TextRow, assign_splits, load_texts, plan_shards, to_row_info
from eyas.features.layout import Row, Split
from eyas.features.quantize import DESCRIPTIONS, QuantizationError, StoredDtype, measure_quantization_error
from eyas.features.shard import StoredRow
from eyas.features.store import ShardRecord
from eyas.model.layer_ids import has_default_layers
from eyas.model.target import Target
from eyas.model.target_dir import public_name

Launched = TypeVar("Launched")

STAGE = "capture"
MAX_STORING = 2  # shards that are stored while one is computed
POLL_S = 2.0
SAMPLE_ROWS, SAMPLE_TOKENS = 32, 8192  # the most rows and tokens on which the quantization error is measured


@dataclass(frozen=True)
class CaptureConfig:
    """The recipe keys `capture.*`.

    docs/features.md gives the reasons for `dtype` and `max_error`.

    Attributes:
        dtype: The dtype in which features are stored.
        max_error: The largest quantization error, between 0 and 1. If the error of the target's distribution or of a
            captured layer exceeds it, the capture stops.
        online: Stores only token ids. Training and evaluation then run the target for each row that they read. The
            features have the same values as with `online=false`.
        world: The number of processes that divide the shards. Each process reads its rank from the environment variable
            JOB_COMPLETION_INDEX or RANK.
        aux_layer_ids: The Hugging Face indices of the three captured layers; by default 2, n // 2 and n - 3 of n
            layers; if there are fewer than 7, three that exist.
        max_length: The most tokens of a row; a longer row is cut. By default, no row is cut.
        batch_tokens: The most tokens of one forward, padding included.
        shard_bytes: The size of one shard in bytes.
        held_out: The share of each task's conversations that training does not see.
    """

    dtype: StoredDtype = "fp8"
    max_error: Annotated[float, Field(gt=0, le=1)] = 0.1
    online: bool = False
    world: PositiveInt = 1
    aux_layer_ids: tuple[int, ...] | None = None
    max_length: Annotated[int, Field(ge=3)] | None = None
    batch_tokens: PositiveInt = 8192
    shard_bytes: PositiveInt = 256 * 1024 * 1024
    held_out: Annotated[float, Field(ge=0, le=1)] = 0.05


def print_chosen_layers(ids: Sequence[int], num_layers: int) -> None:
    """Prints a note if the target is too shallow for the default layers. ids: those of `choose_aux_layers`."""
    if not has_default_layers(num_layers):
        text = f"layers {list(map(int, ids))}, because a target of {num_layers} layers has no default layers"
        print(f"eyas: note: The head reads {text}. Set capture.aux_layer_ids for other ones.", file=sys.stderr)


def build_origin(config: CaptureConfig, conversations_digest: str, target: Target) -> provenance.StageInputs:
    """Returns the settings and input digests that determine the features."""
    settings = {
        "schema": store.SCHEMA,
        "config": asdict(replace(config, world=1)),
        "aux_layer_ids": list(target.aux_layer_ids),
        "target_dtype": str(target.model.dtype),
    }
    recipe, parents = provenance.digest_json(settings), {"conversations": conversations_digest, "target": target.digest}
    return provenance.StageInputs(STAGE, recipe, parents, target.tokenizer_digest, target.template_digest)


def run(
    config: CaptureConfig, conversations_dir: Path, target: Target, out: AnyPath, *, progress: bool = True
) -> provenance.Provenance:
    """Captures the features of all conversations. Skips finished work, so an interrupted run can be repeated.

    Args:
        config: The settings.
        conversations_dir: The directory that `eyas respond` wrote.
        target: The target, loaded with `config.aux_layer_ids`.
        out: The features directory.
        progress: Shows a progress bar on stderr.

    Raises:
        InputError: If the conversations are damaged or unfinished, or have too many tokens or unknown token ids for the
            target.
        StorageError: If the disk is full or the store refuses a write.
        StageError: If another run writes to `out`, a feature is not finite, or the quantization error is too large.
    """
    started_s, rank = time.time(), read_rank("capture.world", config.world)
    assert config.aux_layer_ids in (None, target.aux_layer_ids), "load the target with config.aux_layer_ids"
    provenance.require_finished(conversations_dir, "respond")
    directory = StoragePath.of(out)
    origin = build_origin(config, provenance.verify_contents(conversations_dir).digest, target)
    if provenance.is_finished(directory, origin):
        return provenance.read_provenance(directory)
    texts, num_cut = load_texts(conversations_dir, target, config.max_length)
    if config.online:
        texts = [replace(text, shared=0) for text in texts]
    splits = assign_splits(texts, config.held_out)
    if rank == 0:
        provenance.mark_unfinished(directory)
        directory.join(store.MANIFEST).remove()
    error = _check_quantization_error(config, _choose_sample(texts, splits), target, progress)
    plans = plan_shards(texts, config.dtype, 0 if config.online else target.info.hidden_size, config.shard_bytes)
    inputs = asdict(origin)
    tasks = [_ShardTask(number, [texts[i] for i in plan], inputs, splits) for number, plan in enumerate(plans)]
    with Progress(STAGE, sum(len(text.ids) for text in texts), "tokens", enabled=progress) as bar:
        records = _capture_shards(config, tasks[rank :: config.world], target, directory, bar)
        if rank:
            poll(lambda: provenance.is_finished(directory, origin), POLL_S)
            return provenance.read_provenance(directory)
        records |= _wait_for_other_ranks([task for task in tasks if task.number not in records], directory, bar)
    store.remove_shards_from(directory, len(tasks))
    manifest = _build_manifest(config, target, error, num_cut, [records[task.number] for task in tasks])
    store.write_manifest(directory, manifest)
    return provenance.finish_stage(directory, origin, started_s, known_digests=manifest.shard_digests)


def _build_manifest(
    config: CaptureConfig, target: Target, error: QuantizationError, num_cut: int, records: Sequence[ShardRecord]
) -> store.Manifest:
    directory = target.directory.resolve()
    return store.Manifest(
        schema=store.SCHEMA,
        target=public_name(target.info.name),  # a path would make other bytes on another machine
        # The hub's cache stores a target in .../snapshots/<commit>.
        target_revision=directory.name if directory.parent.name == "snapshots" else None,
        target_digest=target.digest,
        target_quantisation=target.quantization,
        tokenizer_digest=target.tokenizer_digest,
        template_digest=target.template_digest,
        aux_layer_ids=tuple(int(i) for i in target.aux_layer_ids),
        norm_state=store.NORM_STATE,
        hidden_size=target.info.hidden_size,
        vocab_size=target.info.vocab_size,
        online=config.online,
        batch_tokens=config.batch_tokens,
        dtype=config.dtype,
        quantisation=DESCRIPTIONS.get(config.dtype, "none"),
        quantisation_error=error,
        num_cut=num_cut,
        shards=tuple(record.shard for record in records),
        rows=tuple(row for record in records for row in record.rows),
    )


class _ShardTask:
    """The texts of one shard, and the digest of the shard's plan."""

    def __init__(self, number: int, texts: list[TextRow], inputs: dict[str, Any], splits: dict[str, Split]) -> None:
        """Computes the digest. number: the index of the shard. inputs: the fields of the capture's StageInputs."""
        self.number = number
        self.texts = texts
        self.plan = provenance.digest_json([inputs, [asdict(text) for text in texts]])
        self.infos = [to_row_info(text, splits[text.conversation]) for text in texts]

    def find_record(self, directory: StoragePath, bar: Progress) -> ShardRecord | None:
        """Returns the record if the shard is finished, else None. Skips the tokens of a finished shard in the bar."""
        record = store.find_finished_shard(directory, self.number, self.plan)
        if record is not None:
            bar.skip(record.shard.num_tokens)
        return record


def _capture_shards(
    config: CaptureConfig, tasks: Sequence[_ShardTask], target: Target, directory: StoragePath, bar: Progress
) -> dict[int, ShardRecord]:
    """Captures the unfinished shards of `tasks`. Returns shard number -> record for all `tasks`."""
    found = {task.number: task.find_record(directory, bar) for task in tasks}
    records = {number: record for number, record in found.items() if record is not None}
    stored: dict[int, Future[ShardRecord]] = {}
    with ThreadPoolExecutor(MAX_STORING) as pool:
        for task, rows in _capture_rows(config, [task for task in tasks if task.number not in records], target, bar):
            for future in list(stored.values())[: len(stored) + 1 - MAX_STORING]:  # bounds the memory
                future.result()
            stored[task.number] = pool.submit(store.publish_shard, directory, task.number, task.infos, rows, task.plan)
    return records | {number: future.result() for number, future in stored.items()}


def _wait_for_other_ranks(tasks: Sequence[_ShardTask], directory: StoragePath, bar: Progress) -> dict[int, ShardRecord]:
    """Waits until other processes have finished the shards of `tasks`. Returns shard number -> record."""
    return {task.number: poll(lambda task=task: task.find_record(directory, bar), POLL_S) for task in tasks}


def _choose_sample(texts: Sequence[TextRow], splits: dict[str, Split]) -> list[TextRow]:
    """Returns the first held-out rows, or the first rows if no row is held out; at least one row."""
    rows = [text for text in texts if splits[text.conversation] == "held_out"] or texts
    sample: list[TextRow] = []
    for row in rows[:SAMPLE_ROWS]:
        if not sample or sum(len(text.ids) for text in sample) + len(row.ids) <= SAMPLE_TOKENS:
            sample.append(row)
    return sample


def _check_quantization_error(
    config: CaptureConfig, sample: list[TextRow], target: Target, progress: bool
) -> QuantizationError:
    """Measures the quantization error on these rows and raises StageError if it exceeds capture.max_error.

    It runs before the first shard is computed. So a capture fails at its start, not after hours.
    """
    rows: list[Row] = []
    tensors = _to_tensors(sample)
    for features in extract.extract_features([tensors], target, config.batch_tokens):
        text = sample[features.index]
        if not (features.aux_TL.isfinite().all() and features.hidden_UD.isfinite().all()):
            raise extract.not_finite_error(text.id)
        rows.append(Row(text.id, text.task, *tensors[features.index], features.aux_TL, features.hidden_UD))
    error = measure_quantization_error(rows, config.dtype, target)
    if progress:
        layers = ", ".join(f"{layer:.2%}" for layer in error.aux)
        text = f"{STAGE}  error of features stored as {config.dtype}: teacher {error.teacher:.2%}, layers {layers}"
        print(text, file=sys.stderr)
    worst = max(error.teacher, *error.aux)
    if not worst <= config.max_error:
        change = f"changes them by {worst:.1%} on {error.num_rows} rows"
        problem = f"Storing the features of {target.info.name} as {config.dtype} {change}, but capture.max_error allows"
        fix = "Set capture.dtype=fp8, or bfloat16 for the exact values, or raise capture.max_error"
        raise StageError(f"{problem} {config.max_error:.1%}", fix)
    return error


def _capture_rows(
    config: CaptureConfig, tasks: Sequence[_ShardTask], target: Target, bar: Progress
) -> Iterator[tuple[_ShardTask, list[StoredRow]]]:
    """Yields each shard with its rows, quantized, in the order of its texts. With `online` they have no features."""
    empty = torch.empty(0, 0, dtype=torch.uint8)
    groups = (_to_tensors(task.texts) for task in tasks if not config.online)
    owners = iter([task for task in tasks for _ in task.texts])

    def launch(features: extract.ExtractedFeatures) -> tuple[int, extract.ReadFeatures]:
        shared = next(owners).texts[features.index].shared
        return features.index, extract.launch_quantization(features, config.dtype, shared)

    launched = _launch_one_batch_ahead(extract.extract_features(groups, target, config.batch_tokens), launch)
    for task in tasks:
        rows = {i: StoredRow(*pair, (empty, empty), (empty, empty)) for i, pair in enumerate(_to_tensors(task.texts))}
        for index, read in islice(launched, len(rows)):
            text = task.texts[index]
            aux, hidden = read(text.id)
            rows[index] = replace(rows[index], aux=aux, hidden=hidden)
            bar.advance(len(text.ids))
        if config.online:
            bar.advance(sum(len(text.ids) for text in task.texts))
        yield task, list(rows.values())


def _launch_one_batch_ahead(
    extracted: Iterable[extract.ExtractedFeatures], launch: Callable[[extract.ExtractedFeatures], Launched]
) -> Iterator[Launched]:
    """Yields `launch(features)` of each text in order, but only after the next batch has been launched.

    So a CUDA device computes a batch while the host reads the batch before it.
    """
    waiting: deque[tuple[int, Launched]] = deque()
    for features in extracted:
        while waiting and waiting[0][0] < features.batch:
            yield waiting.popleft()[1]
        waiting.append((features.batch, launch(features)))
    yield from (one for _, one in waiting)


def _to_tensors(texts: Sequence[TextRow]) -> list[extract.Text]:
    return [(torch.tensor(text.ids), torch.tensor(text.loss_mask)) for text in texts]
