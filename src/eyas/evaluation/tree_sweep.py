"""Acceptance of many trees at once: one drafting at each position serves every depth and every number of nodes.

B positions, C candidates of the largest tree (the root is number 0), S = D + 1 path slots, D its depth.

Growing a tree with one top-k does not depend on where it stops (tree.TreeGrower): the candidates of a shallower tree
are the first levels of the deeper one's, and its nodes are the likeliest of them. So the largest tree is grown with all
its candidates, the answer's path through them is looked up, and each node of the path is ranked among the candidates of
the first d levels, for each d:

    needs[d, i]            nodes that a tree of depth d must have to hold the path's node at depth i: its rank + 1
    accepted by (d, n)     1 + how many i <= d have needs[d, i] <= n      (scores fall along a path: needs never do)

What is drafted at a position depends on the text before it alone, not on the rounds that led there. So the rounds of
every tree are read off these tables: a round at t accepts a tokens, the next one is at t + a. top_k is not free: what
is expanded depends on it, and a chain is no part of a tree (its path may fall out of the likeliest).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from eyas.evaluation.head_drafter import HeadDrafter
from eyas.evaluation.replay import AnswerSpan, continuation, find_answers
from eyas.features.layout import Row
from eyas.model.head import Head
from eyas.model.vocab import DraftVocab
from eyas.tree.shape import TreeShape
from eyas.tree.stats import Interval, ratio_interval
from eyas.tree.tree import Tree
from eyas.tree.verify import verify

MAX_POSITIONS = 64  # drafted at a time
UNREACHABLE = torch.iinfo(torch.int64).max  # nodes


@dataclass(frozen=True)
class TreeAcceptance:
    """Acceptance length of one tree on some prompts, with its 95% interval."""

    shape: TreeShape
    acceptance_length: float
    ci95: Interval


def covering_shape(shapes: Sequence[TreeShape]) -> TreeShape:
    """The tree of which all these are pieces, none of its candidates left out. Asserts that they have one top-k."""
    (top_k,) = {shape.top_k for shape in shapes}
    whole = TreeShape(max(shape.depth for shape in shapes), top_k, 2)
    return replace(whole, nodes=whole.candidates + 1)


@torch.no_grad()
def count_rounds(
    rows: Sequence[Row],
    shapes: Sequence[TreeShape],
    head: Head,
    vocab: DraftVocab,
    embed: Callable[[Tensor], Tensor],
    batch_tokens: int,
) -> np.ndarray:
    """int64 [rows, shapes]: rounds that each tree takes for the answers of each row. All shapes have one top-k.

    batch_tokens: columns of keys that are looked at together.
    """
    whole = covering_shape(shapes)
    drafter = HeadDrafter(head, vocab, embed, whole, rows)
    answers = [answer for text, row in enumerate(rows) for answer in find_answers(text, row.ids_T, row.loss_mask_T)]
    places = [
        (answer, position) for answer in answers for position in range(answer.start - 1, answer.end - 2)
    ]  # from the token before the answer to the last position that a round can begin at
    places.sort(key=lambda place: place[1])
    depths, nodes = (np.array([getattr(shape, name) for shape in shapes]) for name in ("depth", "nodes"))
    tables = {id(answer): np.empty((answer.end, len(shapes)), dtype=np.int64) for answer in answers}
    while places:
        size = max(1, min(MAX_POSITIONS, batch_tokens // (places[-1][1] + 1)))
        some, places = places[-size:], places[:-size]
        tree = drafter.draft([answer.text for answer, _ in some], [position for _, position in some])
        needs_BDD = min_nodes_needed(
            tree, torch.stack([continuation(*place, tree.depth + 1) for place in some])
        ).numpy()
        accepted_BX = 1 + (needs_BDD[:, depths - 1] <= nodes[:, None]).sum(-1)
        for (answer, position), accepted_X in zip(some, accepted_BX, strict=True):
            tables[id(answer)][position] = accepted_X
    found = np.zeros((len(rows), len(shapes)), dtype=np.int64)
    for answer in answers:
        found[answer.text] += _count_answer_rounds(tables[id(answer)], answer)
    return found


def min_nodes_needed(tree: Tree, truth_BS: Tensor) -> Tensor:
    """int64 [B, D, D]: needs[b, d - 1, i - 1] of the module's picture; NEVER where no tree of depth d accepts.

    tree: grown with all its candidates. truth_BS: what the target says after the root, after that, and so on.
    """
    kept = verify(tree, truth_BS.gather(1, tree.depths_BM))
    path_BD, on_path_BD = kept.nodes_BS[:, 1:], kept.is_accepted_BS()[:, 1:]
    scores_BD1 = tree.scores_BM.gather(1, path_BD)[:, :, None]
    numbers_C = torch.arange(tree.scores_BM.shape[1])
    equal_first_BDC = (tree.scores_BM[:, None] == scores_BD1) & (numbers_C < path_BD[:, :, None])
    before_BDC = (tree.scores_BM[:, None] > scores_BD1) | equal_first_BDC
    found = []
    for depth in range(1, tree.depth + 1):
        needs_BD = (before_BDC & (tree.depths_BM <= depth)[:, None]).sum(-1) + 1
        holds_BD = on_path_BD & (torch.arange(1, tree.depth + 1) <= depth)
        found.append(needs_BD.masked_fill(~holds_BD, UNREACHABLE))
    return torch.stack(found, 1)


def _count_answer_rounds(accepted_TX: np.ndarray, answer: AnswerSpan) -> np.ndarray:
    """By shape: rounds of one answer, where a round at position t accepts accepted_TX[t]."""
    count_X = np.zeros(accepted_TX.shape[1], dtype=np.int64)
    position_X = np.full_like(count_X, answer.start - 1)
    while (runs_X := position_X < answer.end - 2).any():
        count_X += runs_X
        at_X = np.minimum(position_X, answer.end - 3)
        position_X += np.where(runs_X, accepted_TX[at_X, np.arange(len(count_X))], 0)
    return count_X


def acceptance_lengths(
    shapes: Sequence[TreeShape], rows: Sequence[Row], rounds_NX: np.ndarray, seed: int
) -> list[TreeAcceptance]:
    """From `count_rounds`: every token of an answer but its first, which the prefill gives, comes in a round."""
    tokens_N = np.array([sum(a.end - a.start - 1 for a in find_answers(0, row.ids_T, row.loss_mask_T)) for row in rows])
    some_N = tokens_N > 0
    return [
        TreeAcceptance(
            shape,
            float(tokens_N.sum() / rounds_NX[:, x].sum()),
            ratio_interval(tokens_N[some_N], rounds_NX[some_N, x], seed),
        )
        for x, shape in enumerate(shapes)
    ]
