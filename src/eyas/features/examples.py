"""Divides conversations into rows, splits, shards and batches, from token ids alone. capture.py calls it."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from eyas.base.errors import InputError
from eyas.base.sequences import count_equal
from eyas.chat.conversation import MODE_TAG, Conversation, read_conversation_dir
from eyas.chat.render import render
from eyas.features.layout import Split, count_supervised, teacher_positions, trimmed_length
from eyas.features.quantize import StoredDtype
from eyas.features.shard import RowInfo
from eyas.features.store import bytes_per_token
from eyas.model.target import Target

LOOPING_TAG = "looping"  # set by `eyas respond` for an answer that repeats itself


@dataclass(frozen=True)
class TextRow:
    """A row before the target has run. Its fields are part of the plan digest of its shard.

    Attributes:
        id: The conversation id; for one of several rows of a conversation with "#" and the turn, as in "gsm8k:17#2".
        conversation: The conversation id.
        task: The tag `task` of the conversation, else the name of its source.
        ids: The token ids.
        loss_mask: True where the target generated the token.
        looping: True if the answer repeats itself.
        shared: The length of the common prefix with the row before it, if both rows are of one conversation; else 0.
        mode: The mode of the conversation; "" if it has none.
    """

    id: str
    conversation: str
    task: str
    ids: list[int]
    loss_mask: list[bool]
    looping: bool
    shared: int = 0
    mode: str = ""


def load_texts(directory: Path, target: Target, max_length: int | None) -> tuple[list[TextRow], int]:
    """Reads the conversations of a directory as rows. Rows without a generated token are left out.

    Returns:
        The rows in file order, and the number of rows that were cut at `max_length` tokens.

    Raises:
        InputError: If a token id is not in the target's vocabulary, a row has more tokens than the target has
            positions, or no row is left.
    """
    texts: list[TextRow] = []
    num_cut, info = 0, target.info
    for conversation in read_conversation_dir(directory):
        for row in build_text_rows(conversation, target.tokenizer):
            fix = "Run `eyas respond` again with this target"
            if max(row.ids) >= info.vocab_size:
                problem = f"holds token id {max(row.ids)}, but the target's vocabulary has {info.vocab_size} tokens"
                raise InputError(f"Conversation {row.id} {problem}", fix)
            if len(row.ids) > info.max_positions:
                problem = f"has {len(row.ids)} tokens, but the target supports {info.max_positions} positions"
                raise InputError(f"Conversation {row.id} {problem}", fix)
            length = min(len(row.ids), max_length or len(row.ids))
            num_cut += length < len(row.ids)
            length = trimmed_length(row.loss_mask[:length])
            row = replace(row, ids=row.ids[:length], loss_mask=row.loss_mask[:length])
            if not row.ids:
                continue
            if texts and texts[-1].conversation == row.conversation:
                row = replace(row, shared=count_equal(texts[-1].ids, row.ids))
            texts.append(row)
    if not texts:
        raise InputError(f"The conversations in {directory} hold no generated token", "Run `eyas respond` again")
    return texts, num_cut


def build_text_rows(conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> list[TextRow]:
    """Returns the rows of an answered conversation: one, or one for each answer (see `chat.render`)."""
    return [
        TextRow(
            id=conversation.id if row.turn is None else f"{conversation.id}#{row.turn}",
            conversation=conversation.id,
            task=conversation.tags.get("task") or conversation.source,
            ids=row.ids,
            loss_mask=row.loss_mask,
            looping=LOOPING_TAG in conversation.tags,
            mode=conversation.tags.get(MODE_TAG, ""),
        )
        for row in render(conversation, tokenizer)
    ]


def assign_splits(texts: Sequence[TextRow], held_out: float) -> dict[str, Split]:
    """Returns conversation id -> split. Of each task, the share `held_out` of the conversations is held out.

    A task with two or more conversations holds out at least one, unless `held_out` is 0. The conversations whose ids
    have the smallest hashes are held out. So all rows of a conversation are in one split, and most assignments stay the
    same when data is added.
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


def plan_shards(texts: Sequence[TextRow], dtype: StoredDtype, hidden_size: int, shard_bytes: int) -> list[list[int]]:
    """Returns the row indices of each shard, in order. A row that would exceed `shard_bytes` starts a new shard."""
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


def group_by_length(indices: Iterable[int], length_of: Callable[[int], int], batch_tokens: int) -> list[list[int]]:
    """Returns the indices in batches of similar length, shortest first, each of at most `batch_tokens` padded tokens.

    An index whose length exceeds `batch_tokens` is a separate batch.
    """
    batches: list[list[int]] = []
    for index in sorted(indices, key=length_of):
        if not batches or (len(batches[-1]) + 1) * length_of(index) > batch_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


def to_row_info(text: TextRow, split: Split) -> RowInfo:
    """Returns the manifest entry of a row, without its offsets and checksums."""
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
        mode=text.mode,
    )
