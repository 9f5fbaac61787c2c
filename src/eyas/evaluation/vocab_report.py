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
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eyas.evaluation.head_drafter import HeadDrafter, build_embed
from eyas.evaluation.replay import replay_rows
from eyas.features.reader import Features
from eyas.formats.head_dir import StoredHead
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab, required_ids
from eyas.tree.shape import TreeShape
from eyas.tree.stats import RequestRounds, acceptance_length

VOCAB_SIZES = tuple(1024 * 2**power for power in range(7))
"""1k to 64k; those that the target has no tokens for are left out."""
TEXTS_PER_TASK = 32
"""Of each task, the first ones: every size walks them once."""
GROUP_TOKENS = 16384


@torch.inference_mode()
def measure_vocab_sizes(
    shape: TreeShape,
    stored: StoredHead,
    data: tuple[Features, Features],
    target: Target,
    sizes: Sequence[int] = VOCAB_SIZES,
) -> dict[str, Any]:
    """The key `draft_vocab` of acceptance.json; data = (rows whose split "held_out" is looked at, training rows).

    Looping answers are left out. Lists go with `sizes`; None stands where the head is too small.
    """
    features, training = data
    counts_W = training.generated_counts(training.indices("train"))
    forced = required_ids(target.tokenizer, target.info.eos_ids, counts_W)
    own = stored.vocab
    wanted = sorted({own.size, *(size for size in sizes if len(forced) <= size < own.target_size)})
    vocabs = [_choose_vocab(size, own, counts_W, forced) for size in wanted]
    by_task: dict[str, list[int]] = {}
    for index in features.indices("held_out"):
        if not features.manifest.rows[index].looping:
            by_task.setdefault(features.manifest.rows[index].task, []).append(index)
    counts = {task: features.generated_counts(by_task[task]) for task in sorted(by_task)}
    walked = [index for task in counts for index in by_task[task][:TEXTS_PER_TASK]]
    cuts = [vocab for vocab in vocabs if vocab.size <= own.size]
    rounds = _replay_cut_heads(shape, stored, cuts, (features, walked), target)

    def entry(counts_W: Tensor, indices: Sequence[int]) -> dict[str, Any]:
        lengths = [_length_or_none([found[index] for index in indices if index in found]) for found in rounds]
        return {
            "tokens": int(counts_W.sum()),
            "coverage": [round(vocab.coverage(counts_W), 6) for vocab in vocabs],
            "acceptance_length": lengths + [None] * (len(vocabs) - len(cuts)),
        }

    tasks = {task: entry(counts_W, by_task[task]) for task, counts_W in counts.items()}
    return {
        "head": own.size,
        "forced": len(forced),
        "seen": int((counts_W > 0).sum()),
        "sizes": wanted,
        "tasks": tasks,
        "all": entry(torch.stack(list(counts.values())).sum(0), walked) if counts else None,
    }


def cut_head(head: Head, own: DraftVocab, vocab: DraftVocab) -> Head:
    """The head with the output rows of a part of its tokens; the other weights are shared."""
    rows = own.to_draft(vocab.target_ids_V)
    assert rows.in_vocab.all(), "a token that the head does not have"
    smaller = Head(dataclasses.replace(head.config, draft_vocab_size=vocab.size))
    weights = head.state_dict() | {"lm_head.weight": head.lm_head.weight.detach()[rows.ids]}
    smaller.load_state_dict(weights, assign=True)
    return smaller


def _choose_vocab(size: int, own: DraftVocab, counts_W: Tensor, forced: Sequence[int]) -> DraftVocab:
    """As it would be chosen for training; below the head's size, out of the tokens that the head has."""
    if size == own.size:
        return own
    if size > own.size:
        return DraftVocab.from_counts(counts_W, size, forced)
    inside = [token for token in forced if bool(own.t2d_W[token])]
    return DraftVocab.from_counts(counts_W.masked_fill(~own.t2d_W, -1), size, inside)


def _replay_cut_heads(
    shape: TreeShape,
    stored: StoredHead,
    cuts: Sequence[DraftVocab],
    texts: tuple[Features, Sequence[int]],
    target: Target,
) -> list[dict[int, RequestRounds]]:
    """For each vocabulary the rounds of each text, by its index, as the head drafts when it is cut to it."""
    features, indices = texts
    heads = [cut_head(stored.head, stored.vocab, vocab) for vocab in cuts]
    embed = build_embed(target, stored.head.lm_head.weight.dtype)
    found: list[dict[int, RequestRounds]] = [{} for _ in cuts]
    for group in features.batches(indices, GROUP_TOKENS):
        rows = list(features.rows(group))  # once for all sizes: the target may have to compute them
        for head, vocab, by_text in zip(heads, cuts, found, strict=True):
            walked = replay_rows(rows, HeadDrafter(head, vocab, embed, shape, rows))
            by_text |= {index: text.rounds for index, text in zip(group, walked, strict=True)}
    return found


def _length_or_none(rounds: Sequence[RequestRounds]) -> float | None:
    """None for answers of one token, which have no round."""
    return round(acceptance_length(rounds), 6) if any(one.accepted for one in rounds) else None
