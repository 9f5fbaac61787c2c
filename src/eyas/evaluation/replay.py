"""Acceptance without the target: a known answer is drafted again, round by round, by the serving tree and verification.

B requests, T tokens of a text, M tree nodes, S path slots.

    answer x_s ... x_{e-1}; the prefill gave x_s. At position t the root is x_{t+1}, the last committed token:
    t = s - 1 -> draft a tree at x_{t+1} -> its true continuation is x_{t+2}, x_{t+3}, ... -> accepted a -> t += a

The target's own next token along the accepted path is the next token of the answer, so no forward of it is needed; off
the path every node is refused anyway. That is exact for answers as they were drawn, greedy or at a temperature: serving
takes a child just when the coin of its position draws its token (tree.verify), and what it drew is the answer. It says
nothing of another temperature, for which there are other answers: train.anew.

Held-out answers in pieces: all of them in groups, or the same few again and again while a head is trained.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from eyas.evaluation.head_drafter import HeadDrafter, build_embed
from eyas.features.layout import Row
from eyas.features.reader import Features
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.tree.shape import TreeShape
from eyas.tree.stats import AcceptanceStats, RequestRounds, context_label, summarize
from eyas.tree.tree import Tree
from eyas.tree.verify import has_rejected_child, verify


@dataclass(frozen=True, eq=False)
class AnswerSpan:
    """Tokens [start, end) of a text were generated in one turn. text: which of the drafter's texts it lies in."""

    text: int
    ids_T: Tensor
    start: int
    end: int


class ReplayDrafter(Protocol):
    """What proposes tokens: a head, or something simpler to compare it with."""

    def draft(self, texts: Sequence[int], positions: Sequence[int]) -> Tree:
        """A tree for each named text, its root the token at position + 1. Later tokens must not be looked at."""
        ...


def find_answers(text: int, ids_T: Tensor, loss_mask_T: Tensor) -> list[AnswerSpan]:
    """The answers of a text: its runs of generated tokens."""
    padded = torch.cat((torch.zeros(1), loss_mask_T.float(), torch.zeros(1)))
    edges = padded.diff().nonzero()[:, 0].tolist()
    return [
        AnswerSpan(text, ids_T, start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start > 0
    ]


def replay_answers(answers: Sequence[AnswerSpan], drafter: ReplayDrafter) -> list[RequestRounds]:
    """The rounds of each answer; none for an answer of one token. All answers move together."""
    accepted: list[list[int]] = [[] for _ in answers]
    offered: list[list[int]] = [[] for _ in answers]
    positions = [answer.start - 1 for answer in answers]
    while alive := [i for i, answer in enumerate(answers) if positions[i] + 1 < answer.end - 1]:
        tree = drafter.draft([answers[i].text for i in alive], [positions[i] for i in alive])
        truth_BS = torch.stack([continuation(answers[i], positions[i], tree.depth + 1) for i in alive])
        # After a node of depth d on the true path comes x_{t+2+d}.
        kept = verify(tree, truth_BS.gather(1, tree.depths_BM))
        refused = has_rejected_child(tree, kept).tolist()
        for i, length, was_refused in zip(alive, kept.lengths_B.tolist(), refused, strict=True):
            left = answers[i].end - 1 - (positions[i] + 1)
            cut = length > left
            accepted[i].append(min(length, left))
            offered[i].append(accepted[i][-1] if was_refused and not cut else accepted[i][-1] - 1)
            positions[i] += accepted[i][-1]
    return [RequestRounds(tuple(a), tuple(o)) for a, o in zip(accepted, offered, strict=True)]


def continuation(answer: AnswerSpan, position: int, count: int) -> Tensor:
    """x_{t+2} ... of the answer; zeros after its end, where rounds are cut anyway."""
    tokens = answer.ids_T[position + 2 : min(position + 2 + count, answer.end)]
    return torch.nn.functional.pad(tokens, (0, count - tokens.shape[0]))


@dataclass(frozen=True)
class TextRounds:
    """The rounds of one text, and the position of each one's root."""

    rounds: RequestRounds
    roots: tuple[int, ...]

    def in_context(self, label: str) -> RequestRounds:
        """Returns the rounds whose root lies in a context bucket (`tree.stats.context_label`)."""
        numbers = [number for number, root in enumerate(self.roots) if context_label(root) == label]
        accepted, offered = ([part[i] for i in numbers] for part in (self.rounds.accepted, self.rounds.offered))
        return RequestRounds(tuple(accepted), tuple(offered))


def replay_rows(rows: Sequence[Row], drafter: ReplayDrafter) -> list[TextRounds]:
    """By text: the rounds of its answers one after the other, for they are one prompt's."""
    found: list[list[tuple[AnswerSpan, RequestRounds]]] = [[] for _ in rows]
    turns = [find_answers(text, row.ids_T, row.loss_mask_T) for text, row in enumerate(rows)]
    for number in range(max(len(answers) for answers in turns)):
        answers = [mine[number] for mine in turns if number < len(mine)]
        for answer, rounds in zip(answers, replay_answers(answers, drafter), strict=True):
            found[answer.text].append((answer, rounds))
    return [_join_turns(turns) for turns in found]


def _join_turns(turns: Sequence[tuple[AnswerSpan, RequestRounds]]) -> TextRounds:
    accepted, offered, roots = [], [], []
    for answer, rounds in turns:
        roots += list(itertools.accumulate(rounds.accepted, initial=answer.start))[:-1]
        accepted += rounds.accepted
        offered += rounds.offered
    return TextRounds(RequestRounds(tuple(accepted), tuple(offered)), tuple(roots))


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """The rows of `indices`, and the tree that is drafted on them. batch_tokens: padded tokens of a group."""

    features: Features
    indices: tuple[int, ...]
    target: Target
    shape: TreeShape
    batch_tokens: int

    def select(self, places: Sequence[int]) -> "HeldOutRows":
        """Some of the rows, by their places among `indices`."""
        return replace(self, indices=tuple(self.indices[place] for place in places))

    @torch.no_grad()
    def replay(self, head: Head, vocab: DraftVocab) -> list[RequestRounds]:
        """Of each row, with the head as it is now, in the precision of its weights; it is read, not changed."""
        embed, found = build_embed(self.target, head.lm_head.weight.dtype), {}
        for group in self.features.batches(self.indices, self.batch_tokens):
            rows = list(self.features.rows(group))
            walked = replay_rows(rows, HeadDrafter(head, vocab, embed, self.shape, rows))
            found |= {index: text.rounds for index, text in zip(group, walked, strict=True)}
        return [found[index] for index in self.indices]

    def measure_acceptance(self, head: Head, vocab: DraftVocab, seed: int = 0) -> AcceptanceStats:
        """Of all rows together. seed: of the bootstrap. Asserts that there is a round at all."""
        return summarize(self.replay(head, vocab), seed)


def sample_held_out(features: Features, limit: int, seed: int) -> tuple[int, ...]:
    """At most `limit` rows of split "held_out" that do not loop and have a round, by chance but always the same."""
    rows = features.manifest.rows
    # What the target writes of its own accord after the first token takes a round.
    usable = [i for i in features.indices("held_out") if not rows[i].looping and rows[i].num_supervised > 0]
    order = np.random.default_rng(seed).permutation(len(usable))[:limit]
    return tuple(usable[place] for place in sorted(order.tolist()))
