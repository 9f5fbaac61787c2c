"""Measures how the size of the draft vocabulary changes coverage and acceptance length, without a new training.

Coverage is the share of the generated tokens of held-out answers that the vocabulary contains. x marks what is measured
for a head with 4096 draft tokens:

    draft vocabulary size    1024   2048   4096   8192   16384
    coverage                 x      x      x      x      x
    acceptance length        x      x      x      -      -        a larger size needs a new training

For a smaller size, the head keeps only the output rows of its most frequent tokens, and the held-out answers are
replayed. A head that was trained with the smaller vocabulary could be slightly better. So these acceptance lengths are
lower bounds.

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
from eyas.tree.acceptance_length import acceptance_length
from eyas.tree.shape import TreeShape

VOCAB_SIZES = tuple(1024 * 2**power for power in range(7))
"""1k to 64k tokens. Only sizes below the size of the target's vocabulary are measured."""
TEXTS_PER_TASK = 32
"""The number of texts of each task that are replayed with every size."""
BATCH_TOKENS = 16384


@torch.inference_mode()
def measure_vocab_sizes(
    shape: TreeShape, stored: StoredHead, data: tuple[Features, Features], target: Target
) -> dict[str, Any]:
    """Returns the value of `draft_vocab` in acceptance.json. Answers that repeat themselves are left out.

    Each list in it has one item for each measured size (its key `sizes`). The acceptance length is None for a size
    larger than the head's.

    Args:
        shape: The draft tree.
        stored: The head.
        data: The features whose held-out rows are replayed, and the features whose training rows give the token counts.
        target: The target of the head.
    """
    features, training = data
    training_counts_W = training.generated_counts(training.indices("train"))
    required = required_ids(target.tokenizer, target.info.eos_ids, training_counts_W)
    own = stored.vocab
    assert isinstance(stored.head, Head), "the draft vocabulary of an EAGLE-3 head"
    wanted = sorted({own.size, *(size for size in VOCAB_SIZES if len(required) <= size < own.target_size)})
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
        some = [[by_index[i] for i in indices if i in by_index] for by_index in rounds]
        # None: no answer has a round, because every answer has one token.
        lengths = [round(acceptance_length(one), 6) if any(r.accepted for r in one) else None for one in some]
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
    """Returns a head with fewer draft tokens. It shares all weights with `head`, except the output rows.

    Args:
        head: The head.
        own: The draft vocabulary of `head`.
        vocab: The smaller draft vocabulary. Requirement: `own` contains all its tokens.
    """
    rows_V, in_vocab_V = own.to_draft(vocab.target_ids_V)
    assert in_vocab_V.all(), "a token that the head does not have"
    smaller = Head(dataclasses.replace(head.config, draft_vocab_size=vocab.size))
    smaller.load_state_dict(head.state_dict() | {"lm_head.weight": head.lm_head.weight.detach()[rows_V]}, assign=True)
    return smaller


def _choose_vocab(size: int, own: DraftVocab, counts_W: Tensor, required: Sequence[int]) -> DraftVocab:
    """Chooses the most frequent tokens, as training does. A size below the head's takes only tokens of the head."""
    if size == own.size:
        return own
    if size > own.size:
        return DraftVocab.from_counts(counts_W, size, required)
    available = [token for token in required if bool(own.t2d_W[token])]
    return DraftVocab.from_counts(counts_W.masked_fill(~own.t2d_W, -1), size, available)
