"""Capture: the target reads every conversation once more and its features are stored.

B rows of a batch, T tokens, U of them taught, D hidden, L = 3D captured features, N heads, G key-value heads, H head
size.

Which rows share a shard, and which share a forward, is decided from the ids alone before any forward. So a shard is a
pure function of its plan, a finished shard is skipped, and a killed run ends with the bytes of an undisturbed one.
"""

import dataclasses
import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from eyas.base.errors import InputError, StageError, UsageError
from eyas.base.progress import Progress
from eyas.base.provenance import (
    Origin,
    Provenance,
    digest_json,
    finish,
    is_finished,
    read_provenance,
    reopen,
    require,
    require_digest,
)
from eyas.chat.conversation import Conversation, read_all
from eyas.chat.render import render
from eyas.features.drift import measure
from eyas.features.layout import Row, Split, num_needed, num_supervised, taught
from eyas.features.quantise import MEANING, StoredDtype, is_finite, quantise
from eyas.features.store import (
    NORM_STATE,
    NUM_LAYERS,
    SCHEMA,
    Manifest,
    QuantisationError,
    RowInfo,
    ShardInfo,
    StoredRow,
    finished_shard,
    placed,
    shard_name,
    token_bytes,
    write_manifest,
    write_shard,
)
from eyas.model.attention import Rule, causal_attention
from eyas.model.target import Target

STAGE = "capture"
LOOPING = "looping"  # the tag that `eyas respond` gives an answer that got stuck
SAMPLE_ROWS, SAMPLE_TOKENS = 32, 8192  # on which the error of storing is measured, whichever is reached first


@dataclass(frozen=True)
class CaptureConfig:
    """batch_tokens: padded tokens of one forward. held_out: share of each task's conversations kept from training.

    aux_layer_ids: Hugging Face indices, None for 2, n // 2, n - 3. max_length: longer rows are cut there; None: the
    target's positions. dtype: of the stored features (features.quantise). max_error: refused is what storing changes by
    more, the teacher or a layer (features.drift). Raises UsageError.

    The reasons for both defaults stand in docs/features.md: large channels hurt int8 and not fp8, and at an error of
    13 % the embedded head lost 0.8 % of its acceptance length.
    """

    dtype: StoredDtype = "fp8"
    max_error: float = 0.1
    aux_layer_ids: tuple[int, ...] | None = None
    max_length: int | None = None
    batch_tokens: int = 8192
    shard_bytes: int = 256 * 1024 * 1024
    held_out: float = 0.05

    def __post_init__(self) -> None:
        for name, least in (("batch_tokens", 1), ("shard_bytes", 1), ("max_length", 3)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"capture.{name} = {value}", f"at least {least}", f"raise capture.{name}")
        if not 0 < self.max_error <= 1:
            raise UsageError(f"capture.max_error = {self.max_error}", "above 0 and at most 1", "set for example 0.1")
        if not 0 <= self.held_out <= 1:
            raise UsageError(f"capture.held_out = {self.held_out}", "a share from 0 to 1", "set for example 0.05")


@dataclass(frozen=True)
class TextRow:
    """One row before the forward: ids and which of them were generated."""

    id: str
    conversation: str
    task: str
    ids: list[int]
    loss_mask: list[bool]
    looping: bool  # an answer got stuck repeating itself


class PrefillAttend:
    """Attention over whole rows padded on the right; keeps nothing. Padding comes after all that is real."""

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, rule: Rule) -> Tensor:
        return causal_attention(q_BNTH, k_BGTH, v_BGTH, rule)


def origin_of(config: CaptureConfig, conversations_digest: str, target: Target) -> Origin:
    """What decides the features."""
    made_from = {
        "schema": SCHEMA,
        "config": dataclasses.asdict(config),
        "aux_layer_ids": list(target.aux_layer_ids),
        "target_dtype": str(target.model.dtype),
    }
    return Origin(
        stage=STAGE,
        recipe=digest_json(made_from),
        parents={"conversations": conversations_digest, "target": target.digest},
        tokenizer=target.tokenizer_digest,
        template=target.template_digest,
    )


def run(
    config: CaptureConfig, conversations_dir: Path, target: Target, out_dir: Path, *, progress: bool = True
) -> Provenance:
    """Capture the features of all conversations with a target loaded with `config.aux_layer_ids`.

    Idempotent and resumable. `InputError` for damaged or unfinished conversations, ids that the target does not have
    and rows longer than its positions; `StageError` for a full disk.
    """
    started_s = time.time()
    wanted = config.aux_layer_ids
    assert wanted is None or tuple(wanted) == tuple(target.aux_layer_ids), "load the target with config.aux_layer_ids"
    require(conversations_dir, "respond")
    origin = origin_of(config, require_digest(conversations_dir).digest, target)
    if is_finished(out_dir, origin):
        return read_provenance(out_dir)
    texts, num_cut = _load_texts(config, conversations_dir, target)
    splits = assign_splits(texts, config.held_out)
    reopen(out_dir)
    error = _check_error(config, _sample(texts, splits), target, progress)
    plans = _plan_shards(config, texts, target.facts.hidden_size)
    shards: list[ShardInfo] = []
    infos: list[RowInfo] = []
    with Progress(STAGE, sum(len(text.ids) for text in texts), "tokens", enabled=progress) as bar:
        for number, plan in enumerate(plans):
            path, members = out_dir / shard_name(number), [texts[i] for i in plan]
            plan_digest = digest_json([dataclasses.asdict(origin), [dataclasses.asdict(text) for text in members]])
            digest = finished_shard(path, plan_digest)
            if digest is None:
                digest = write_shard(path, _stored(config, members, target, bar), plan_digest)
            else:
                bar.skip(sum(len(text.ids) for text in members))
            infos += placed([_info(text, splits[text.conversation], number) for text in members])
            shards.append(ShardInfo(path.name, digest, sum(len(text.ids) for text in members)))
    for stale in sorted(out_dir.glob("shard-*.safetensors")):
        if stale.name not in {shard.name for shard in shards}:
            stale.unlink()  # of an earlier recipe
    manifest = Manifest(
        schema=SCHEMA,
        target=_public_name(target.facts.name),
        target_revision=_revision(target),
        target_digest=target.digest,
        tokenizer_digest=target.tokenizer_digest,
        template_digest=target.template_digest,
        aux_layer_ids=tuple(int(i) for i in target.aux_layer_ids),
        norm_state=NORM_STATE,
        hidden_size=target.facts.hidden_size,
        vocab_size=target.facts.vocab_size,
        dtype=config.dtype,
        quantisation=MEANING[config.dtype],
        quantisation_error=error,
        num_cut=num_cut,
        shards=tuple(shards),
        rows=tuple(infos),
    )
    write_manifest(out_dir, manifest)
    return finish(out_dir, origin, started_s)


def _info(text: TextRow, split: Split, shard: int) -> RowInfo:
    """Not yet `placed`."""
    mask_T = torch.tensor(text.loss_mask, dtype=torch.bool)
    counts = int(taught(mask_T).sum()), num_supervised(mask_T)
    return RowInfo(text.id, text.task, split, text.looping, shard, 0, len(text.ids), 0, *counts)


def _public_name(name: str) -> str:
    """A hub id as it is; of a directory the last part, for a path of this machine would make other bytes elsewhere."""
    return Path(name).resolve().name if Path(name).is_dir() else name


def _revision(target: Target) -> str | None:
    """The commit of a target that lies in the hub's cache, .../snapshots/<commit>."""
    place = target.directory.resolve()
    return place.name if place.parent.name == "snapshots" else None


def rows_of(conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> list[TextRow]:
    """The rows of an answered conversation, as `chat.render` makes them from the generated ids."""
    rows = render(conversation, tokenizer)
    task = conversation.tags.get("task") or conversation.source
    return [
        TextRow(
            id=conversation.id if row.turn is None else f"{conversation.id}#{row.turn}",
            conversation=conversation.id,
            task=task,
            ids=row.ids,
            loss_mask=row.loss_mask,
            looping=LOOPING in conversation.tags,
        )
        for row in rows
    ]


def assign_splits(texts: Sequence[TextRow], held_out: float) -> dict[str, Split]:
    """Conversation id -> split. In each task the share whose ids have the smallest hashes is held out, one at least.

    The id alone decides the rank, so all rows of a conversation stay together and a run with more data keeps most.
    """
    by_task: dict[str, set[str]] = {}
    for text in texts:
        by_task.setdefault(text.task, set()).add(text.conversation)
    splits: dict[str, Split] = {}
    for ids in by_task.values():
        ranked = sorted(ids, key=lambda name: hashlib.sha256(name.encode()).digest())
        count = round(held_out * len(ranked))
        if 0 < held_out < 1 and len(ranked) > 1:
            count = min(max(count, 1), len(ranked) - 1)
        for rank, name in enumerate(ranked):
            splits.setdefault(name, "held_out" if rank < count else "train")
    return splits


def _bad(row: TextRow, found: str, expected: str) -> InputError:
    return InputError(f"{found} in conversation {row.id}", expected, "answer the prompts again with this target")


def _load_texts(config: CaptureConfig, directory: Path, target: Target) -> tuple[list[TextRow], int]:
    """All rows in file order, and how many were cut. Rows that generated nothing in what is kept are left out."""
    texts: list[TextRow] = []
    num_cut = 0
    for conversation in read_all(directory):
        for row in rows_of(conversation, target.tokenizer):
            if max(row.ids) >= target.facts.vocab_size:
                raise _bad(row, f"the token id {max(row.ids)}", f"ids below {target.facts.vocab_size}")
            if len(row.ids) > target.facts.max_positions:
                raise _bad(
                    row, f"{len(row.ids)} tokens", f"at most {target.facts.max_positions}, the target's positions"
                )
            length = min(len(row.ids), config.max_length or len(row.ids))
            num_cut += length < len(row.ids)
            length = num_needed(row.loss_mask[:length])
            row = dataclasses.replace(row, ids=row.ids[:length], loss_mask=row.loss_mask[:length])
            if row.ids:
                texts.append(row)
    if not texts:
        raise InputError(f"no generated token in {directory}", "at least one answer", "run `eyas respond` again")
    return texts, num_cut


def _plan_shards(config: CaptureConfig, texts: Sequence[TextRow], hidden_size: int) -> list[list[int]]:
    """Rows in order, a new shard when the next row would exceed shard_bytes."""
    plans: list[list[int]] = []
    size = 0.0
    for number, text in enumerate(texts):
        length = len(text.ids)
        row_bytes = length * token_bytes(config.dtype, hidden_size, sum(text.loss_mask[1:]) / length)
        if not plans or size + row_bytes > config.shard_bytes:
            plans.append([])
            size = 0.0
        plans[-1].append(number)
        size += row_bytes
    return plans


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
    for number, (aux_TL, hidden_UD) in _forward(config, sample, target):
        text = sample[number]
        if not (aux_TL.isfinite().all() and hidden_UD.isfinite().all()):
            raise _not_finite(text)
        ids_T, mask_T = torch.tensor(text.ids), torch.tensor(text.loss_mask)
        rows.append(Row(text.id, text.task, ids_T, mask_T, aux_TL, hidden_UD))
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
            f"features of {target.facts.name} that {config.dtype} changes by {worst:.1%} on {error.num_rows} rows",
            f"at most {config.max_error:.1%}, capture.max_error",
            "set capture.dtype=fp8, or bfloat16 for the target's own values, or raise capture.max_error",
        )
    return error


def _stored(config: CaptureConfig, texts: Sequence[TextRow], target: Target, bar: Progress) -> list[StoredRow]:
    """The rows as a shard holds them, in the order of the texts."""
    rows: dict[int, StoredRow] = {}
    for number, (aux_TL, hidden_UD) in _forward(config, texts, target):
        text = texts[number]
        aux, hidden = quantise(aux_TL, NUM_LAYERS, config.dtype), quantise(hidden_UD, 1, config.dtype)
        if not (is_finite(*aux) and is_finite(*hidden)):
            raise _not_finite(text)
        ids_T, mask_T = torch.tensor(text.ids), torch.tensor(text.loss_mask)
        rows[number] = StoredRow(ids_T, mask_T, *((codes.cpu(), scales.cpu()) for codes, scales in (aux, hidden)))
        bar.advance(len(text.ids))
    return [rows[number] for number in range(len(texts))]


def _not_finite(text: TextRow) -> StageError:
    return StageError(
        f"a feature of conversation {text.id} that is no finite number",
        "numbers",
        "load the target as float32 or bfloat16 (target.dtype), or take that conversation out",
    )


@torch.no_grad()
def _forward(
    config: CaptureConfig, texts: Sequence[TextRow], target: Target
) -> Iterator[tuple[int, tuple[Tensor, Tensor]]]:
    """aux_TL and hidden_UD of each text, by its index, as the target computes them. Similar lengths share a forward."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i].ids))
    batches: list[list[int]] = []
    for number in order:
        if not batches or (len(batches[-1]) + 1) * len(texts[number].ids) > config.batch_tokens:
            batches.append([])
        batches[-1].append(number)
    device = next(target.model.parameters()).device
    for batch in batches:
        members = [texts[number] for number in batch]
        ids_BT = torch.zeros(len(batch), len(members[-1].ids), dtype=torch.int64)
        for slot, text in enumerate(members):
            ids_BT[slot, : len(text.ids)] = torch.tensor(text.ids)
        positions_1T = torch.arange(ids_BT.shape[1], device=device)[None]
        out = target.forward(ids_BT.to(device), positions_1T, PrefillAttend(), want_aux=True)
        assert out.aux_BTL is not None
        for slot, number in enumerate(batch):
            length, hidden_TD = len(texts[number].ids), out.hidden_BTD[slot]
            taught_T = taught(torch.tensor(texts[number].loss_mask)).to(hidden_TD.device)
            yield number, (out.aux_BTL[slot, :length], hidden_TD[:length][taught_T])
