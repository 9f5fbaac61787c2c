"""Replays known answers: drafts trees round by round and verifies them with the known tokens, without the target.

B requests, T tokens of a text, M tree nodes, S path slots.

The answer is x_s ... x_{e-1}. The prefill of serving generated x_s. A round starts at a position t, at first s - 1:

1. The drafter drafts a tree whose root is x_{t+1}, the last known token.
2. The tree is compared with the true continuation x_{t+2}, x_{t+3}, ... of the answer. It accepts a tokens.
3. The next round starts at position t + a.

On the accepted path, the next token of the target is the next token of the answer. So no forward of the target is
needed. Nodes that are not on this path are rejected, as in serving. The accepted lengths are exact for the temperature
at which the answer was sampled: serving accepts a child if the random number of its position samples the child's token
(tree.verify), and the sampled tokens are the answer. For another temperature, evaluation.resample samples new answers.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from eyas.evaluation.head_drafter import build_head_drafter
from eyas.features.layout import Row
from eyas.features.reader import Features
from eyas.model.head import DraftHead
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.tree.acceptance_length import RequestRounds, join_rounds
from eyas.tree.node_scale import count_graded
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree
from eyas.tree.verify import has_rejected_child, verify


@dataclass(frozen=True, eq=False)
class AnswerSpan:
    """An answer: the tokens [start, end) of a text, which the target generated in one turn.

    Attributes:
        text: The index of the text in its batch.
        ids_T: The token ids of the whole text.
        start: The position of the first generated token.
        end: The position after the last generated token.
    """

    text: int
    ids_T: Tensor
    start: int
    end: int


class ReplayDrafter(Protocol):
    """A drafter over a batch of texts: the head, prompt lookup or a 4-gram table."""

    def draft(self, texts: Sequence[int], positions: Sequence[int]) -> Tree:
        """Returns a tree for each text.

        Args:
            texts: The indices of the texts in the batch.
            positions: For each of these texts, the position before the root. The drafter must not use later tokens.
        """
        ...


def find_answers(text: int, ids_T: Tensor, loss_mask_T: Tensor) -> list[AnswerSpan]:
    """Returns the answers of a text: its runs of generated tokens. text: the index of the text in its batch."""
    edges = torch.cat((torch.zeros(1), loss_mask_T.float(), torch.zeros(1))).diff().nonzero()[:, 0].tolist()
    spans = zip(edges[::2], edges[1::2], strict=True)
    return [AnswerSpan(text, ids_T, start, end) for start, end in spans if start > 0]


def find_turns(row: str, ids_T: Tensor, loss_mask_T: Tensor) -> list[tuple[int, AnswerSpan]]:
    """Returns the answers of a text with their numbers in the conversation, from 1.

    Args:
        row: The id of the row. If a row has only one answer of a conversation, it ends with "#" and the answer's index.
        ids_T: The token ids of the text.
        loss_mask_T: True for generated tokens.
    """
    index = row.rpartition("#")[2] if "#" in row else ""
    return list(enumerate(find_answers(0, ids_T, loss_mask_T), 1 + int(index) if index.isdecimal() else 1))


def replay_answers(
    answers: Sequence[AnswerSpan], drafter: ReplayDrafter, counts_SDN2: Tensor | None = None
) -> list[RequestRounds]:
    """Returns the rounds of each answer. Replays all answers in one batch. An answer of one token has no rounds.

    Args:
        answers: The answers.
        drafter: Drafts the trees.
        counts_SDN2: Gets the graded nodes of all rounds (`NodeScale.counts_SDN2`). Nodes after the end are left out.
    """
    accepted: list[list[int]] = [[] for _ in answers]
    offered: list[list[int]] = [[] for _ in answers]
    positions = [answer.start - 1 for answer in answers]
    while running := [i for i, answer in enumerate(answers) if positions[i] + 1 < answer.end - 1]:
        tree = drafter.draft([answers[i].text for i in running], [positions[i] for i in running])
        truth_BS = torch.stack([true_continuation(answers[i], positions[i], tree.depth + 1) for i in running])
        # The token after a node of depth d on the true path is x_{t+2+d}.
        path = verify(tree, truth_BS.gather(1, tree.depths_BM))
        if counts_SDN2 is not None:
            left_B1 = torch.tensor([[answers[i].end - 2 - positions[i]] for i in running])
            known = replace(tree, valid_BM=tree.valid_BM & (tree.depths_BM <= left_B1))  # no token after the end
            count_graded(counts_SDN2, known, tree, None, path)
        rejected = has_rejected_child(tree, path).tolist()
        for i, length, was_rejected in zip(running, path.lengths_B.tolist(), rejected, strict=True):
            left = answers[i].end - 1 - (positions[i] + 1)
            accepted[i].append(min(length, left))
            offered[i].append(accepted[i][-1] if was_rejected and length <= left else accepted[i][-1] - 1)
            positions[i] += accepted[i][-1]
    return [RequestRounds(tuple(a), tuple(o)) for a, o in zip(accepted, offered, strict=True)]


def true_continuation(answer: AnswerSpan, position: int, count: int) -> Tensor:
    """Returns the `count` tokens of the answer from `position` + 2 on, with zeros after the end of the answer."""
    tokens = answer.ids_T[position + 2 : min(position + 2 + count, answer.end)]
    return torch.nn.functional.pad(tokens, (0, count - tokens.shape[0]))


@dataclass(frozen=True)
class TextRounds:
    """The rounds of all answers of one text. roots: the position of the tree's root in each round."""

    rounds: RequestRounds
    roots: tuple[int, ...]

    def split(self, label_of: Callable[[int], str]) -> dict[str, RequestRounds]:
        """Returns the rounds by label. label_of: gives the label of a root's position, for example "<=256"."""
        numbers: dict[str, list[int]] = {}
        for number, root in enumerate(self.roots):
            numbers.setdefault(label_of(root), []).append(number)
        accepted, offered = self.rounds.accepted, self.rounds.offered
        return {
            label: RequestRounds(tuple(accepted[i] for i in some), tuple(offered[i] for i in some))
            for label, some in numbers.items()
        }


def replay_rows(rows: Sequence[Row], drafter: ReplayDrafter, counts_SDN2: Tensor | None = None) -> list[TextRounds]:
    """Returns the rounds of each text. The rounds of all answers of a text are joined, as if it were one request.

    Args:
        rows: The texts.
        drafter: Drafts the trees.
        counts_SDN2: As in `replay_answers`.
    """
    replayed: list[list[tuple[AnswerSpan, RequestRounds]]] = [[] for _ in rows]
    texts = [find_answers(text, row.ids_T, row.loss_mask_T) for text, row in enumerate(rows)]
    for turn in range(max(len(answers) for answers in texts)):
        answers = [answers[turn] for answers in texts if turn < len(answers)]
        for answer, rounds in zip(answers, replay_answers(answers, drafter, counts_SDN2), strict=True):
            replayed[answer.text].append((answer, rounds))
    return [_join_turns(turns) for turns in replayed]


def _join_turns(turns: Sequence[tuple[AnswerSpan, RequestRounds]]) -> TextRounds:
    """Joins the rounds of the answers of one text, in the order of the turns."""
    begins = (list(itertools.accumulate(rounds.accepted, initial=answer.start))[:-1] for answer, rounds in turns)
    return TextRounds(join_rounds(rounds for _, rounds in turns), tuple(itertools.chain.from_iterable(begins)))


@torch.no_grad()
def replay_heads(
    features: Features,
    indices: Sequence[int],
    heads: Sequence[tuple[DraftHead, DraftVocab]],
    target: Target,
    shape: TreeShape,
    batch_tokens: int,
    counts_SDN2: Tensor | None = None,
) -> list[dict[int, RequestRounds]]:
    """Replays the same rows with several heads. Reads or computes the features of each row only once.

    Args:
        features: The features of the rows.
        indices: The indices of the rows in `Manifest.rows`.
        heads: The heads with their draft vocabularies. Requirement: all have one dtype.
        target: The target of the heads.
        shape: The draft tree.
        batch_tokens: The most tokens of the rows that are replayed together, padding included.
        counts_SDN2: As in `replay_answers`.

    Returns:
        For each head, the index of each row -> its rounds.
    """
    rounds: list[dict[int, RequestRounds]] = [{} for _ in heads]
    for batch in features.batches(indices, batch_tokens):
        rows = list(features.rows(batch))
        for (head, vocab), by_index in zip(heads, rounds, strict=True):
            texts = replay_rows(rows, build_head_drafter(head, vocab, target, shape, rows), counts_SDN2)
            by_index |= {index: text.rounds for index, text in zip(batch, texts, strict=True)}
    return rounds


# --- held-out rows that training evaluates repeatedly ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """Held-out rows and the settings of their replay. Training selects the weights that need the fewest rounds on them.

    Attributes:
        features: The features of the rows.
        indices: The indices of the rows in `Manifest.rows`.
        target: The target of the head.
        shape: The draft tree.
        batch_tokens: The most tokens of the rows that are replayed together, padding included.
    """

    features: Features
    indices: tuple[int, ...]
    target: Target
    shape: TreeShape
    batch_tokens: int

    def select(self, numbers: Sequence[int]) -> "HeldOutRows":
        """Returns a HeldOutRows with the rows `indices[number]` only."""
        return replace(self, indices=tuple(self.indices[number] for number in numbers))

    def replay(self, head: DraftHead, vocab: DraftVocab) -> list[RequestRounds]:
        """Returns the rounds of each row with this head. The head runs in the dtype of its weights."""
        settings = (self.target, self.shape, self.batch_tokens)
        (rounds,) = replay_heads(self.features, self.indices, [(head, vocab)], *settings)
        return [rounds[index] for index in self.indices]


def sample_held_out(features: Features, limit: int, seed: int) -> tuple[int, ...]:
    """Returns the indices of at most `limit` random held-out rows.

    Rows whose answer repeats itself, and rows without a round, are left out. The same seed gives the same rows.
    """
    rows = features.manifest.rows
    # A supervised token means a second generated token, so at least one round.
    usable = [i for i in features.indices("held_out") if not rows[i].looping and rows[i].num_supervised > 0]
    chosen = np.random.default_rng(seed).permutation(len(usable))[:limit]
    return tuple(usable[number] for number in sorted(chosen.tolist()))
