"""Which texts become rows, of which split, and in which shard: decided from their ids, before the target reads any."""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from eyas.base.errors import InputError
from eyas.chat.conversation import Conversation, read_conversation_dir
from eyas.chat.render import render
from eyas.features.layout import Split, count_supervised, teacher_positions, trimmed_length
from eyas.features.quantize import StoredDtype
from eyas.features.shard import RowInfo
from eyas.features.store import bytes_per_token
from eyas.model.target import Target

LOOPING_TAG = "looping"  # the tag that `eyas respond` gives an answer that got stuck


@dataclass(frozen=True)
class TextRow:
    """One row before the forward: ids and which of them were generated."""

    id: str
    conversation: str
    task: str
    ids: list[int]
    loss_mask: list[bool]
    looping: bool  # an answer got stuck repeating itself
    shared: int = 0  # tokens that the row before it begins with, too; of the same conversation


def load_texts(directory: Path, target: Target, max_length: int | None) -> tuple[list[TextRow], int]:
    """All rows in file order, and how many were cut. Rows that generated nothing in what is kept are left out.

    `InputError` for ids that the target does not have, rows longer than its positions, and where nothing is left.
    """
    texts: list[TextRow] = []
    num_cut = 0
    for conversation in read_conversation_dir(directory):
        for row in build_text_rows(conversation, target.tokenizer):
            if max(row.ids) >= target.info.vocab_size:
                raise _row_error(row, f"the token id {max(row.ids)}", f"ids below {target.info.vocab_size}")
            if len(row.ids) > target.info.max_positions:
                raise _row_error(
                    row, f"{len(row.ids)} tokens", f"at most {target.info.max_positions}, the target's positions"
                )
            length = min(len(row.ids), max_length or len(row.ids))
            num_cut += length < len(row.ids)
            length = trimmed_length(row.loss_mask[:length])
            row = dataclasses.replace(row, ids=row.ids[:length], loss_mask=row.loss_mask[:length])
            if not row.ids:
                continue
            if texts and texts[-1].conversation == row.conversation:
                row = dataclasses.replace(row, shared=_common_prefix_length(texts[-1].ids, row.ids))
            texts.append(row)
    if not texts:
        raise InputError(f"no generated token in {directory}", "at least one answer", "run `eyas respond` again")
    return texts, num_cut


def _row_error(row: TextRow, found: str, expected: str) -> InputError:
    return InputError(f"{found} in conversation {row.id}", expected, "answer the prompts again with this target")


def build_text_rows(conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> list[TextRow]:
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
            looping=LOOPING_TAG in conversation.tags,
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


def _common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens that both begin with."""
    both = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(both) if a != b), min(len(first), len(second)))


def plan_shards(texts: Sequence[TextRow], dtype: StoredDtype, hidden_size: int, shard_bytes: int) -> list[list[int]]:
    """Rows in order, a new shard when the next row would exceed shard_bytes."""
    plans: list[list[int]] = []
    size = 0.0
    for number, text in enumerate(texts):
        length = len(text.ids)
        row_bytes = length * bytes_per_token(dtype, hidden_size, sum(text.loss_mask[1:]) / length)
        row_bytes -= text.shared * bytes_per_token(dtype, hidden_size, 0.0)
        if not plans or size + row_bytes > shard_bytes:
            plans.append([])
            size = 0.0
        plans[-1].append(number)
        size += row_bytes
    return plans


def to_row_info(text: TextRow, split: Split) -> RowInfo:
    """Not yet placed."""
    mask_T = torch.tensor(text.loss_mask, dtype=torch.bool)
    return RowInfo(
        id=text.id,
        task=text.task,
        split=split,
        looping=text.looping,
        length=len(text.ids),
        shared=text.shared,
        num_taught=int(teacher_positions(mask_T).sum()),
        num_supervised=count_supervised(mask_T),
    )
