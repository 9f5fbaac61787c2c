"""Measures the cost of a draft vocabulary size: tokens of the answers that it covers, and the acceptance it leaves.

    size           1024   2048   4096 | 8192   16384 ...
    coverage       x      x      x    | x      x          share of the generated tokens, on held-out answers
    acceptance     x      x      x    | -      -          the same answers replayed with this part of the vocabulary
                                 the head's own size; only a new training tells the acceptance of larger ones

A smaller vocabulary is cut out of the head: its most frequent tokens keep their output rows, and the head can no longer
propose the others. Features are not captured again and the head is not trained again. A head that is trained for the
smaller vocabulary may do a little better, because it spends no capacity on the other tokens. So the lengths are lower
bounds.

W target vocabulary, V draft vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eyas.evaluation.replay import replay_heads
from eyas.features.reader import Features
from eyas.formats.head_dir import StoredHead
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab, required_ids
from eyas.tree.acceptance_length import RequestRounds, acceptance_length
from eyas.tree.shape import TreeShape

VOCAB_SIZES = tuple(1024 * 2**power for power in range(7))
"""1k to 64k tokens. Sizes that the target's vocabulary does not reach are left out."""
TEXTS_PER_TASK = 32
"""The first texts of each task are replayed with every size."""
BATCH_TOKENS = 16384


@torch.inference_mode()
def measure_vocab_sizes(
    shape: TreeShape,
    stored: StoredHead,
    data: tuple[Features, Features],
    target: Target,
    sizes: Sequence[int] = VOCAB_SIZES,
) -> dict[str, Any]:
    """Returns the value of `draft_vocab` in acceptance.json. Looping answers are left out.

    The lists of an entry have one item for each of `sizes`; the acceptance is None where the head is smaller.

    Args:
        shape: The tree.
        stored: The head.
        data: The features whose held-out rows are replayed, and those whose training rows are counted.
        target: The target of the head.
        sizes: Draft vocabulary sizes to measure, besides the head's own.
    """
    features, training = data
    training_counts_W = training.generated_counts(training.indices("train"))
    required = required_ids(target.tokenizer, target.info.eos_ids, training_counts_W)
    own = stored.vocab
    wanted = sorted({own.size, *(size for size in sizes if len(required) <= size < own.target_size)})
    vocabs = [_choose_vocab(size, own, training_counts_W, required) for size in wanted]
    by_task: dict[str, list[int]] = {}
    for index in features.indices("held_out"):
        if not features.manifest.rows[index].looping:
            by_task.setdefault(features.manifest.rows[index].task, []).append(index)
    counts = {task: features.generated_counts(by_task[task]) for task in sorted(by_task)}
    replayed = [index for task in counts for index in by_task[task][:TEXTS_PER_TASK]]
    heads = [(cut_head(stored.head, own, vocab), vocab) for vocab in vocabs if vocab.size <= own.size]
    rounds = replay_heads(features, replayed, heads, target, shape, BATCH_TOKENS)

    def entry(counts_W: Tensor, indices: Sequence[int]) -> dict[str, Any]:
        lengths = [_length_or_none([by_index[i] for i in indices if i in by_index]) for by_index in rounds]
        return {
            "tokens": int(counts_W.sum()),
            "coverage": [round(vocab.coverage(counts_W), 6) for vocab in vocabs],
            "acceptance_length": lengths + [None] * (len(vocabs) - len(heads)),
        }

    return {
        "head": own.size,
        "forced": len(required),
        "seen": int((training_counts_W > 0).sum()),
        "sizes": wanted,
        "tasks": {task: entry(counts_W, by_task[task]) for task, counts_W in counts.items()},
        "all": entry(torch.stack(list(counts.values())).sum(0), replayed) if counts else None,
    }


def cut_head(head: Head, own: DraftVocab, vocab: DraftVocab) -> Head:
    """Returns the head with the output rows of `vocab`, a part of its tokens. The other weights are shared."""
    rows = own.to_draft(vocab.target_ids_V)
    assert rows.in_vocab.all(), "a token that the head does not have"
    smaller = Head(dataclasses.replace(head.config, draft_vocab_size=vocab.size))
    weights = head.state_dict() | {"lm_head.weight": head.lm_head.weight.detach()[rows.ids]}
    smaller.load_state_dict(weights, assign=True)
    return smaller


def _choose_vocab(size: int, own: DraftVocab, counts_W: Tensor, required: Sequence[int]) -> DraftVocab:
    """Chooses a vocabulary of this size as training does. A smaller one than the head's uses only the head's tokens."""
    if size == own.size:
        return own
    if size > own.size:
        return DraftVocab.from_counts(counts_W, size, required)
    available = [token for token in required if bool(own.t2d_W[token])]
    return DraftVocab.from_counts(counts_W.masked_fill(~own.t2d_W, -1), size, available)


def _length_or_none(rounds: Sequence[RequestRounds]) -> float | None:
    """Returns the acceptance length, or None if no answer has a round (answers of one token)."""
    return round(acceptance_length(rounds), 6) if any(request.accepted for request in rounds) else None
