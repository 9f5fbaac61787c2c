"""What a draft vocabulary costs: for several sizes, the answers' tokens that it has, and the acceptance it leaves.

    size           1024   2048   4096 | 8192   16384 ...
    coverage       x      x      x    | x      x          share of the generated tokens, on held-out answers
    acceptance     x      x      x    | -      -          the head walks the same answers with these rows alone
                                 the head's own size: what larger ones would bring, only training tells

A smaller vocabulary is cut out of the head: its most frequent tokens keep their output rows, the others can no longer
be proposed. Nothing is captured or trained again. A head that is trained for the smaller vocabulary may do a little
better, since it spends nothing on the others; so the lengths are what a cut leaves at least, not a promise.

W target vocabulary, V draft vocabulary.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eyas.features.layout import Row
from eyas.features.reader import Features
from eyas.formats.head_dir import StoredHead
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.model.words import forced_ids
from eyas.train.head_drafter import HeadDrafter
from eyas.train.walk import answers_of, walk
from eyas.tree.shape import TreeShape
from eyas.tree.stats import RequestRounds, acceptance_length

SIZES = tuple(1024 * 2**power for power in range(7))
"""1k to 64k; those that the target has no tokens for are left out."""
TEXTS = 32
"""Of each task, the first ones: every size walks them once."""


@torch.inference_mode()
def vocab_report(
    shape: TreeShape,
    stored: StoredHead,
    data: tuple[Features, Features],
    target: Target,
    sizes: Sequence[int] = SIZES,
) -> dict[str, Any]:
    """The key `draft_vocab` of acceptance.json; data = (rows whose split "held_out" is looked at, training rows).

    Looping answers are left out. Lists go with `sizes`; None stands where the head is too small.
    """
    features, training = data
    counts_W = training.generated_counts(training.indices("train"))
    forced = forced_ids(target.tokenizer, target.facts.eos_ids, counts_W)
    own = stored.vocab
    wanted = sorted({own.size, *(size for size in sizes if len(forced) <= size < own.target_size)})
    vocabs = [_vocab(size, own, counts_W, forced) for size in wanted]
    by_task: dict[str, list[int]] = {}
    for index in features.indices("held_out"):
        if not features.manifest.rows[index].looping:
            by_task.setdefault(features.manifest.rows[index].task, []).append(index)
    rounds = _Rounds(shape, stored, _embed(target, stored.head.lm_head.weight.dtype), features)
    tasks = {task: _Task(by_task[task], features.generated_counts(by_task[task])) for task in sorted(by_task)}
    lengths = {
        task: [rounds.of(one.indices[:TEXTS], vocab) if vocab.size <= own.size else [] for vocab in vocabs]
        for task, one in tasks.items()
    }
    return {
        "head": own.size,
        "forced": len(forced),
        "seen": int((counts_W > 0).sum()),
        "sizes": wanted,
        "tasks": {task: _entry(vocabs, one.counts_W, lengths[task]) for task, one in tasks.items()},
        "all": _entry(
            vocabs,
            torch.stack([torch.zeros_like(counts_W), *(one.counts_W for one in tasks.values())]).sum(0),
            [[one for mine in lengths.values() for one in mine[place]] for place in range(len(vocabs))],
        ),
    }


def narrowed(head: Head, own: DraftVocab, vocab: DraftVocab) -> Head:
    """The head with the output rows of a part of its tokens; the other weights are shared."""
    rows = own.to_draft(vocab.target_ids_V)
    assert rows.known.all(), "a token that the head does not have"
    smaller = Head(dataclasses.replace(head.config, draft_vocab_size=vocab.size))
    weights = head.state_dict() | {"lm_head.weight": head.lm_head.weight.detach()[rows.ids]}
    smaller.load_state_dict(weights, assign=True)
    return smaller


def _vocab(size: int, own: DraftVocab, counts_W: Tensor, forced: Sequence[int]) -> DraftVocab:
    """As it would be chosen for training; below the head's size, out of the tokens that the head has."""
    if size == own.size:
        return own
    if size > own.size:
        return DraftVocab.from_counts(counts_W, size, forced)
    inside = [token for token in forced if bool(own.t2d_W[token])]
    return DraftVocab.from_counts(counts_W.masked_fill(~own.t2d_W, -1), size, inside)


@dataclass(frozen=True, eq=False)
class _Task:
    indices: list[int]
    counts_W: Tensor


@dataclass(frozen=True, eq=False)
class _Rounds:
    """Texts walked by a head that is cut to a vocabulary."""

    shape: TreeShape
    stored: StoredHead
    embed: Callable[[Tensor], Tensor]
    features: Features

    def of(self, indices: Sequence[int], vocab: DraftVocab) -> list[RequestRounds]:
        head = narrowed(self.stored.head, self.stored.vocab, vocab)
        found: list[RequestRounds] = []
        for rows in self._groups(indices):
            drafter = HeadDrafter(head, vocab, self.embed, self.shape, rows)
            answers = [one for text, row in enumerate(rows) for one in answers_of(text, row.ids_T, row.loss_mask_T)]
            found += walk(answers, drafter)
        return [one for one in found if one.accepted]

    def _groups(self, indices: Sequence[int]) -> Iterator[list[Row]]:
        """Texts of similar length, eight at a time."""
        lengths = self.features.manifest.rows
        ordered = sorted(indices, key=lambda index: lengths[index].length)
        for start in range(0, len(ordered), 8):
            yield list(self.features.rows(ordered[start : start + 8]))


def _embed(target: Target, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    place = target.embedding.weight.device
    return lambda ids: target.embed(ids.to(place)).to(ids.device, dtype)


def _entry(vocabs: Sequence[DraftVocab], counts_W: Tensor, rounds: Sequence[list[RequestRounds]]) -> dict[str, Any]:
    return {
        "tokens": int(counts_W.sum()),
        "coverage": [round(vocab.coverage(counts_W), 6) for vocab in vocabs],
        "acceptance_length": [round(acceptance_length(some), 6) if some else None for some in rounds],
    }
