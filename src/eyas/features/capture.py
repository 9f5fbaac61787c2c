"""Capture: the target reads every conversation once more and its features are stored.

B rows of a batch, T tokens, U of them taught, D hidden, L = 3D captured features, N heads, G key-value heads, H head
size.

Which rows share a shard, and which share a forward, is decided from the ids alone before any forward. So a shard is a
pure function of its plan, a finished shard is skipped, and a killed run ends with the bytes of an undisturbed one; and
several machines may share the shards, each with the target:

    rank 0   shard 0   shard 2   shard 4   waits for the others', then the manifest
    rank 1   shard 1   shard 3             waits for the manifest

A shard is stored while the target reads the next one.

What the target computes of texts: captured layers and final states, a padded batch at a time.

B rows of a batch, T tokens, U of them taught, D hidden, L = 3D captured features, N heads, G key-value heads, H head
size.
"""

import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

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
from eyas.features.examples import TextRow, assign_splits, load_texts, plan_shards, to_row_info
from eyas.features.layout import NUM_AUX_LAYERS, Row, Split, teacher_positions
from eyas.features.quantize import (
    DESCRIPTIONS,
    QuantizationError,
    StoredDtype,
    is_finite,
    measure_quantization_error,
    quantize,
)
from eyas.features.shard import CodesAndScales, StoredRow
from eyas.features.store import (
    MANIFEST,
    NORM_STATE,
    SCHEMA,
    Manifest,
    ShardRecord,
    find_finished_shard,
    publish_shard,
    remove_shards_from,
    write_manifest,
)
from eyas.model.attention import AttentionParams, causal_attention
from eyas.model.target import Target


@dataclass(frozen=True, eq=False)
class ExtractedFeatures:
    """aux_TL before any norm, hidden_UD after the final norm at the taught positions; of the text `index`."""

    index: int
    aux_TL: Tensor
    hidden_UD: Tensor


class PrefillAttend:
    """Attention over whole rows padded on the right; keeps nothing. Padding comes after all that is real."""

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        return causal_attention(q_BNTH, k_BGTH, v_BGTH, params)


@torch.no_grad()
def extract_features(
    texts: Sequence[tuple[Tensor, Tensor]], target: Target, batch_tokens: int
) -> Iterator[ExtractedFeatures]:
    """Of texts (ids_T, loss_mask_T), where the target lies. Similar lengths share a forward of so many padded tokens.

    A text comes when its batch does, so not in the order given.
    """
    order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]))
    batches: list[list[int]] = []
    for index in order:
        if not batches or (len(batches[-1]) + 1) * len(texts[index][0]) > batch_tokens:
            batches.append([])
        batches[-1].append(index)
    device = next(target.model.parameters()).device
    for batch in batches:
        ids_BT = torch.zeros(len(batch), len(texts[batch[-1]][0]), dtype=torch.int64)
        for slot, index in enumerate(batch):
            ids_BT[slot, : len(texts[index][0])] = texts[index][0]
        positions_1T = torch.arange(ids_BT.shape[1], device=device)[None]
        out = target.forward(ids_BT.to(device), positions_1T, PrefillAttend(), want_aux=True)
        assert out.aux_BTL is not None
        for slot, index in enumerate(batch):
            ids_T, mask_T = texts[index]
            hidden_TD = out.hidden_BTD[slot, : len(ids_T)]
            taught_T = teacher_positions(mask_T).to(hidden_TD.device)
            yield ExtractedFeatures(index, out.aux_BTL[slot, : len(ids_T)], hidden_TD[taught_T])


def quantize_features(
    found: ExtractedFeatures, dtype: StoredDtype, row: str, shared: int = 0
) -> tuple[CodesAndScales, CodesAndScales]:
    """aux and hidden in codes, on the CPU, without the first `shared` tokens' aux. `StageError` naming the row where a
    value is no number.
    """
    pairs = quantize(found.aux_TL[shared:], NUM_AUX_LAYERS, dtype), quantize(found.hidden_UD, 1, dtype)
    if not all(is_finite(*pair) for pair in pairs):
        raise not_finite_error(row)
    (aux, aux_scales), (hidden, hidden_scales) = pairs
    return (aux.cpu(), aux_scales.cpu()), (hidden.cpu(), hidden_scales.cpu())


def not_finite_error(row: str) -> StageError:
    """For a row that the target makes something of that is no number."""
    return StageError(
        f"a feature of conversation {row} that is no finite number",
        "numbers",
        "load the target as float32 or bfloat16 (target.dtype), or take that conversation out",
    )


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
    error = _check_quantization_error(config, _choose_sample(texts, splits), target, progress)
    plans = plan_shards(texts, config.dtype, 0 if config.online else target.info.hidden_size, config.shard_bytes)
    work = [_ShardTask(number, [texts[i] for i in plan], origin, splits) for number, plan in enumerate(plans)]
    with Progress(STAGE, sum(len(text.ids) for text in texts), "tokens", enabled=progress) as bar:
        notes = _capture_shards(config, work[rank :: config.world], target, directory, bar)
        if rank:
            while not is_finished(directory, origin):
                time.sleep(POLL_S)
            return read_provenance(directory)
        notes |= _wait_for_other_ranks([shard for shard in work if shard.number not in notes], directory, bar)
    remove_shards_from(directory, len(work))
    manifest = Manifest(
        schema=SCHEMA,
        target=_portable_name(target.info.name),
        target_revision=_hub_revision(target),
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
        quantisation=DESCRIPTIONS[config.dtype],
        quantisation_error=error,
        num_cut=num_cut,
        shards=tuple(notes[shard.number].shard for shard in work),
        rows=tuple(row for shard in work for row in notes[shard.number].rows),
    )
    write_manifest(directory, manifest)
    return finish_stage(directory, origin, started_s, known_digests=manifest.shard_digests)


class _ShardTask:
    """What one shard is made from."""

    def __init__(self, number: int, texts: list[TextRow], origin: StageInputs, splits: dict[str, Split]) -> None:
        self.number = number
        self.texts = texts
        self.plan = digest_json([dataclasses.asdict(origin), [dataclasses.asdict(text) for text in texts]])
        self.infos = [to_row_info(text, splits[text.conversation]) for text in texts]
        self.num_tokens = sum(len(text.ids) for text in texts)


def _capture_shards(
    config: CaptureConfig, work: Sequence[_ShardTask], target: Target, directory: StoragePath, bar: Progress
) -> dict[int, ShardRecord]:
    """By number. Those that are there already are skipped."""
    notes: dict[int, ShardRecord] = {}
    made: dict[int, Future[ShardRecord]] = {}
    with ThreadPoolExecutor(1) as storing:
        for shard in work:
            note = find_finished_shard(directory, shard.number, shard.plan)
            if note is not None:
                notes[shard.number] = note
                bar.skip(shard.num_tokens)
                continue
            rows = _capture_rows(config, shard.texts, target, bar)
            wait(made.values())  # one on its way, one in the making: memory does not grow
            if any(future.exception() for future in made.values()):
                break
            made[shard.number] = storing.submit(publish_shard, directory, shard.number, shard.infos, rows, shard.plan)
    return notes | {number: future.result() for number, future in made.items()}


def _wait_for_other_ranks(work: Sequence[_ShardTask], directory: StoragePath, bar: Progress) -> dict[int, ShardRecord]:
    """Waits until each is there."""
    notes: dict[int, ShardRecord] = {}
    while len(notes) < len(work):
        for shard in work:
            note = None if shard.number in notes else find_finished_shard(directory, shard.number, shard.plan)
            if note is not None:
                notes[shard.number] = note
                bar.skip(shard.num_tokens)
        if len(notes) < len(work):
            time.sleep(POLL_S)
    return notes


def _portable_name(name: str) -> str:
    """A hub id as it is; of a directory the last part, for a path of this machine would make other bytes elsewhere."""
    return Path(name).resolve().name if Path(name).is_dir() else name


def _hub_revision(target: Target) -> str | None:
    """The commit of a target that lies in the hub's cache, .../snapshots/<commit>."""
    place = target.directory.resolve()
    return place.name if place.parent.name == "snapshots" else None


def _choose_sample(texts: Sequence[TextRow], splits: dict[str, Split]) -> list[TextRow]:
    """The first held-out rows, the first of all where none is held out; at least one."""
    rows = [text for text in texts if splits[text.conversation] == "held_out"] or texts
    sample: list[TextRow] = []
    for row in rows[:SAMPLE_ROWS]:
        if not sample or sum(len(one.ids) for one in sample) + len(row.ids) <= SAMPLE_TOKENS:
            sample.append(row)
    return sample


def _check_quantization_error(
    config: CaptureConfig, sample: list[TextRow], target: Target, progress: bool
) -> QuantizationError:
    """What storing changes on these rows; `StageError` where it is too much.

    Before the first shard rather than after the last: what will be refused shall not take hours.
    """
    rows: list[Row] = []
    tensors = [(torch.tensor(text.ids), torch.tensor(text.loss_mask)) for text in sample]
    for found in extract_features(tensors, target, config.batch_tokens):
        text = sample[found.index]
        if not (found.aux_TL.isfinite().all() and found.hidden_UD.isfinite().all()):
            raise not_finite_error(text.id)
        rows.append(Row(text.id, text.task, *tensors[found.index], found.aux_TL, found.hidden_UD))
    error = measure_quantization_error(rows, config.dtype, target)
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


def _capture_rows(config: CaptureConfig, texts: Sequence[TextRow], target: Target, bar: Progress) -> list[StoredRow]:
    """The rows as a shard holds them, in the order of the texts."""
    tensors = [(torch.tensor(text.ids), torch.tensor(text.loss_mask)) for text in texts]
    if config.online:
        bar.advance(sum(len(text.ids) for text in texts))
        nothing = torch.empty(0, 0, dtype=torch.uint8)
        return [StoredRow(*pair, (nothing, nothing), (nothing, nothing)) for pair in tensors]
    rows: dict[int, StoredRow] = {}
    for found in extract_features(tensors, target, config.batch_tokens):
        text = texts[found.index]
        rows[found.index] = StoredRow(
            *tensors[found.index], *quantize_features(found, config.dtype, text.id, text.shared)
        )
        bar.advance(len(text.ids))
    return [rows[number] for number in range(len(texts))]
