"""Replays known answers round by round with the tree and verification of serving, without running the target.

B requests, T tokens of a text, M tree nodes, S path slots.

    answer x_s ... x_{e-1}; prefill gave x_s. At position t the root is x_{t+1}, the last committed token:
    t = s - 1 -> draft a tree at x_{t+1} -> its true continuation is x_{t+2}, x_{t+3}, ... -> accepted a -> t += a

Along the accepted path the target's next token is the next token of the answer, so its forward is not needed. Nodes off
the path are rejected in any case. This is exact for answers as they were sampled, greedily or at a temperature: serving
accepts a child exactly when the random number of its position samples its token (tree.verify), and the sampled tokens
are the answer. It gives no figure for another temperature; evaluation.resample samples answers for that.
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
from eyas.tree.acceptance_length import RequestRounds, context_label
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree
from eyas.tree.verify import has_rejected_child, verify


@dataclass(frozen=True, eq=False)
class AnswerSpan:
    """The tokens [start, end) of a text, generated in one turn. text: the index of the text in its batch."""

    text: int
    ids_T: Tensor
    start: int
    end: int


class ReplayDrafter(Protocol):
    """A drafter over a batch of texts: the head, or a reference without a model."""

    def draft(self, texts: Sequence[int], positions: Sequence[int]) -> Tree:
        """Returns a tree for each of these texts. Its root is the token at position + 1; later tokens are not used."""
        ...


def find_answers(text: int, ids_T: Tensor, loss_mask_T: Tensor) -> list[AnswerSpan]:
    """Returns the answers of a text: its runs of generated tokens."""
    padded = torch.cat((torch.zeros(1), loss_mask_T.float(), torch.zeros(1)))
    edges = padded.diff().nonzero()[:, 0].tolist()
    spans = zip(edges[::2], edges[1::2], strict=True)
    return [AnswerSpan(text, ids_T, start, end) for start, end in spans if start > 0]


def replay_answers(answers: Sequence[AnswerSpan], drafter: ReplayDrafter) -> list[RequestRounds]:
    """Returns the rounds of each answer, none for an answer of one token. All answers advance in one batch."""
    accepted: list[list[int]] = [[] for _ in answers]
    offered: list[list[int]] = [[] for _ in answers]
    positions = [answer.start - 1 for answer in answers]
    while running := [i for i, answer in enumerate(answers) if positions[i] + 1 < answer.end - 1]:
        tree = drafter.draft([answers[i].text for i in running], [positions[i] for i in running])
        truth_BS = torch.stack([true_continuation(answers[i], positions[i], tree.depth + 1) for i in running])
        # The token after a node of depth d on the true path is x_{t+2+d}.
        path = verify(tree, truth_BS.gather(1, tree.depths_BM))
        rejected = has_rejected_child(tree, path).tolist()
        for i, length, was_rejected in zip(running, path.lengths_B.tolist(), rejected, strict=True):
            left = answers[i].end - 1 - (positions[i] + 1)
            is_cut = length > left
            accepted[i].append(min(length, left))
            offered[i].append(accepted[i][-1] if was_rejected and not is_cut else accepted[i][-1] - 1)
            positions[i] += accepted[i][-1]
    return [RequestRounds(tuple(a), tuple(o)) for a, o in zip(accepted, offered, strict=True)]


def true_continuation(answer: AnswerSpan, position: int, count: int) -> Tensor:
    """Returns x_{t+2} ... of the answer, `count` tokens; zeros after its end, where rounds are cut anyway."""
    tokens = answer.ids_T[position + 2 : min(position + 2 + count, answer.end)]
    return torch.nn.functional.pad(tokens, (0, count - tokens.shape[0]))


@dataclass(frozen=True)
class TextRounds:
    """The rounds of one text, and the position of each round's root."""

    rounds: RequestRounds
    roots: tuple[int, ...]

    def in_context(self, label: str) -> RequestRounds:
        """Returns the rounds whose root is in a context bucket (`tree.acceptance_length.context_label`)."""
        numbers = [number for number, root in enumerate(self.roots) if context_label(root) == label]
        accepted, offered = ([part[i] for i in numbers] for part in (self.rounds.accepted, self.rounds.offered))
        return RequestRounds(tuple(accepted), tuple(offered))


def replay_rows(rows: Sequence[Row], drafter: ReplayDrafter) -> list[TextRounds]:
    """Returns the rounds of each text. The answers of a conversation follow each other and count as one request."""
    replayed: list[list[tuple[AnswerSpan, RequestRounds]]] = [[] for _ in rows]
    texts = [find_answers(text, row.ids_T, row.loss_mask_T) for text, row in enumerate(rows)]
    for turn in range(max(len(answers) for answers in texts)):
        answers = [answers[turn] for answers in texts if turn < len(answers)]
        for answer, rounds in zip(answers, replay_answers(answers, drafter), strict=True):
            replayed[answer.text].append((answer, rounds))
    return [_join_turns(turns) for turns in replayed]


def _join_turns(turns: Sequence[tuple[AnswerSpan, RequestRounds]]) -> TextRounds:
    accepted, offered, roots = [], [], []
    for answer, rounds in turns:
        roots += list(itertools.accumulate(rounds.accepted, initial=answer.start))[:-1]
        accepted += rounds.accepted
        offered += rounds.offered
    return TextRounds(RequestRounds(tuple(accepted), tuple(offered)), tuple(roots))


@torch.no_grad()
def replay_heads(
    features: Features,
    indices: Sequence[int],
    heads: Sequence[tuple[Head, DraftVocab]],
    target: Target,
    shape: TreeShape,
    batch_tokens: int,
) -> list[dict[int, RequestRounds]]:
    """Returns for each head the rounds of each row by its index. Every row is read, or computed, once for all heads.

    Args:
        features: The features of the rows.
        indices: The rows.
        heads: Heads of one dtype, with their draft vocabularies.
        target: The target of the heads.
        shape: The tree.
        batch_tokens: Padded tokens of the rows that are replayed together.
    """
    embed = build_embed(target, heads[0][0].lm_head.weight.dtype)
    rounds: list[dict[int, RequestRounds]] = [{} for _ in heads]
    for batch in features.batches(indices, batch_tokens):
        rows = list(features.rows(batch))
        for (head, vocab), by_index in zip(heads, rounds, strict=True):
            texts = replay_rows(rows, HeadDrafter(head, vocab, embed, shape, rows))
            by_index |= {index: text.rounds for index, text in zip(batch, texts, strict=True)}
    return rounds


# --- the same held-out rows again and again, while a head is trained -------------------------------------------------


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """Held-out rows, and the tree that is drafted on them. Training selects checkpoints by their rounds.

    batch_tokens: padded tokens of the rows that are replayed together.
    """

    features: Features
    indices: tuple[int, ...]
    target: Target
    shape: TreeShape
    batch_tokens: int

    def select(self, numbers: Sequence[int]) -> "HeldOutRows":
        """Returns some of the rows, by their index in `indices`."""
        return replace(self, indices=tuple(self.indices[number] for number in numbers))

    def replay(self, head: Head, vocab: DraftVocab) -> list[RequestRounds]:
        """Returns the rounds of each row with this head, in the dtype of its weights."""
        settings = (self.target, self.shape, self.batch_tokens)
        (rounds,) = replay_heads(self.features, self.indices, [(head, vocab)], *settings)
        return [rounds[index] for index in self.indices]


def sample_held_out(features: Features, limit: int, seed: int) -> tuple[int, ...]:
    """Returns at most `limit` random held-out rows that do not loop and have a round; the same rows for one seed."""
    rows = features.manifest.rows
    # A supervised token means a second generated token, so at least one round.
    usable = [i for i in features.indices("held_out") if not rows[i].looping and rows[i].num_supervised > 0]
    chosen = np.random.default_rng(seed).permutation(len(usable))[:limit]
    return tuple(usable[number] for number in sorted(chosen.tolist()))
