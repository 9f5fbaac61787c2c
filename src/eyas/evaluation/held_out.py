"""Held-out answers in pieces: all of them in groups, or the same few again and again while a head is trained."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from eyas.evaluation.head_drafter import HeadDrafter, embedder
from eyas.evaluation.replay import walk_rows
from eyas.features.reader import Features
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.tree.shape import TreeShape
from eyas.tree.stats import AcceptanceStats, RequestRounds, summarize


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The rows of `indices`, and the tree that is drafted on them. batch_tokens: padded tokens of a group."""

    features: Features
    indices: tuple[int, ...]
    target: Target
    shape: TreeShape
    batch_tokens: int

    def part(self, places: Sequence[int]) -> "HeldOut":
        """Some of the rows, by their places among `indices`."""
        return replace(self, indices=tuple(self.indices[place] for place in places))

    @torch.no_grad()
    def rounds(self, head: Head, vocab: DraftVocab) -> list[RequestRounds]:
        """Of each row, with the head as it is now, in the precision of its weights; it is read, not changed."""
        embed, found = embedder(self.target, head.lm_head.weight.dtype), {}
        for group in groups(self.features, self.indices, self.batch_tokens):
            rows = list(self.features.rows(group))
            walked = walk_rows(rows, HeadDrafter(head, vocab, embed, self.shape, rows))
            found |= {index: text.rounds for index, text in zip(group, walked, strict=True)}
        return [found[index] for index in self.indices]

    def acceptance(self, head: Head, vocab: DraftVocab, seed: int = 0) -> AcceptanceStats:
        """Of all rows together. seed: of the bootstrap. Asserts that there is a round at all."""
        return summarize(self.rounds(head, vocab), seed)


def some_held_out(features: Features, limit: int, seed: int) -> tuple[int, ...]:
    """At most `limit` rows of split "held_out" that do not loop and have a round, by chance but always the same."""
    rows = features.manifest.rows
    # What the target writes of its own accord after the first token takes a round.
    usable = [i for i in features.indices("held_out") if not rows[i].looping and rows[i].num_supervised > 0]
    order = np.random.default_rng(seed).permutation(len(usable))[:limit]
    return tuple(usable[place] for place in sorted(order.tolist()))


def groups(features: Features, indices: Sequence[int], batch_tokens: int) -> Iterable[list[int]]:
    """Texts of similar length together, batch_tokens padded tokens at a time."""
    lengths = {index: features.manifest.rows[index].length for index in indices}
    group: list[int] = []
    for index in sorted(indices, key=lambda index: lengths[index]):
        if group and (len(group) + 1) * lengths[index] > batch_tokens:
            yield group
            group = []
        group.append(index)
    yield group
