"""Computes the acceptance of many trees at once: one draft at each position serves every depth and number of nodes.

B positions, C candidates of the largest tree (the root is number 0), S = D + 1 path slots, D its depth, N rows, X
shapes.

With a fixed top-k, growing a tree does not depend on where it stops (tree.TreeGrower): the candidates of a shallower
tree are the first levels of the deeper one, and its nodes are the most likely of them. So the largest tree is grown
with all its candidates. The path of the true answer is looked up in it, and each node of the path is ranked among the
candidates of the first d levels, for each d:

    needs[d, i]            nodes that a tree of depth d needs so that it contains the path's node at depth i: rank + 1
    accepted by (d, n)     1 + the number of i <= d with needs[d, i] <= n     (scores fall along a path: needs never do)

The draft at a position depends only on the text before it, not on earlier rounds. So these tables give the rounds of
every tree: a round at t accepts a tokens, and the next round is at t + a. top_k cannot vary within one draft, because
it determines which nodes are expanded. A chain is not part of a tree either: its path may not be among the most likely.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from eyas.evaluation.head_drafter import HeadDrafter
from eyas.evaluation.replay import AnswerSpan, find_answers, true_continuation
from eyas.features.layout import Row
from eyas.model.head import Head
from eyas.model.vocab import DraftVocab
from eyas.tree.intervals import Interval, ratio_interval
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree
from eyas.tree.verify import verify

MAX_POSITIONS = 64  # positions drafted at once
UNREACHABLE = torch.iinfo(torch.int64).max  # nodes


@dataclass(frozen=True)
class TreeAcceptance:
    """The acceptance length of one tree on some prompts, with its 95% interval."""

    shape: TreeShape
    acceptance_length: float
    ci95: Interval


def covering_shape(shapes: Sequence[TreeShape]) -> TreeShape:
    """Returns the tree of the largest depth with all candidates. Asserts that all shapes have the same top-k."""
    (top_k,) = {shape.top_k for shape in shapes}
    largest = TreeShape(max(shape.depth for shape in shapes), top_k, 2)
    return replace(largest, nodes=largest.candidates + 1)


@torch.no_grad()
def count_rounds(
    rows: Sequence[Row],
    shapes: Sequence[TreeShape],
    head: Head,
    vocab: DraftVocab,
    embed: Callable[[Tensor], Tensor],
    batch_tokens: int,
) -> np.ndarray:
    """Returns int64 [N, X]: the rounds that each tree takes for the answers of each row.

    Args:
        rows: Texts with features.
        shapes: Trees of the same top-k.
        head: The head that drafts.
        vocab: Its draft vocabulary.
        embed: The target's embedding (`head_drafter.build_embed`).
        batch_tokens: Keys that are read at once.
    """
    drafter = HeadDrafter(head, vocab, embed, covering_shape(shapes), rows)
    answers = [answer for text, row in enumerate(rows) for answer in find_answers(text, row.ids_T, row.loss_mask_T)]
    # From the token before the answer to the last position at which a round can start.
    starts = [(answer, position) for answer in answers for position in range(answer.start - 1, answer.end - 2)]
    starts.sort(key=lambda start: start[1])
    depths, nodes = (np.array([getattr(shape, name) for shape in shapes]) for name in ("depth", "nodes"))
    tables = {id(answer): np.empty((answer.end, len(shapes)), dtype=np.int64) for answer in answers}
    while starts:
        size = max(1, min(MAX_POSITIONS, batch_tokens // (starts[-1][1] + 1)))
        batch, starts = starts[-size:], starts[:-size]
        tree = drafter.draft([answer.text for answer, _ in batch], [position for _, position in batch])
        truth_BS = torch.stack([true_continuation(*start, tree.depth + 1) for start in batch])
        needs_BDD = min_nodes_needed(tree, truth_BS).numpy()
        accepted_BX = 1 + (needs_BDD[:, depths - 1] <= nodes[:, None]).sum(-1)
        for (answer, position), accepted_X in zip(batch, accepted_BX, strict=True):
            tables[id(answer)][position] = accepted_X
    rounds_NX = np.zeros((len(rows), len(shapes)), dtype=np.int64)
    for answer in answers:
        rounds_NX[answer.text] += _count_answer_rounds(tables[id(answer)], answer)
    return rounds_NX


def min_nodes_needed(tree: Tree, truth_BS: Tensor) -> Tensor:
    """Returns int64 [B, D, D]: needs[b, d - 1, i - 1] of the drawing, UNREACHABLE where no tree of depth d accepts.

    Args:
        tree: Trees grown with all their candidates.
        truth_BS: The target's tokens after the root, then after those, and so on.
    """
    path = verify(tree, truth_BS.gather(1, tree.depths_BM))
    path_BD, on_path_BD = path.nodes_BS[:, 1:], path.is_accepted_BS()[:, 1:]
    scores_BD1 = tree.scores_BM.gather(1, path_BD)[:, :, None]
    numbers_C = torch.arange(tree.scores_BM.shape[1])
    equal_before_BDC = (tree.scores_BM[:, None] == scores_BD1) & (numbers_C < path_BD[:, :, None])
    before_BDC = (tree.scores_BM[:, None] > scores_BD1) | equal_before_BDC
    by_depth = []
    for depth in range(1, tree.depth + 1):
        needs_BD = (before_BDC & (tree.depths_BM <= depth)[:, None]).sum(-1) + 1
        reachable_BD = on_path_BD & (torch.arange(1, tree.depth + 1) <= depth)
        by_depth.append(needs_BD.masked_fill(~reachable_BD, UNREACHABLE))
    return torch.stack(by_depth, 1)


def _count_answer_rounds(accepted_TX: np.ndarray, answer: AnswerSpan) -> np.ndarray:
    """Returns the rounds of one answer for each shape, if a round at position t accepts accepted_TX[t] tokens."""
    count_X = np.zeros(accepted_TX.shape[1], dtype=np.int64)
    position_X = np.full_like(count_X, answer.start - 1)
    while (running_X := position_X < answer.end - 2).any():
        count_X += running_X
        clipped_X = np.minimum(position_X, answer.end - 3)
        position_X += np.where(running_X, accepted_TX[clipped_X, np.arange(len(count_X))], 0)
    return count_X


def acceptance_lengths(
    shapes: Sequence[TreeShape], rows: Sequence[Row], rounds_NX: np.ndarray, seed: int
) -> list[TreeAcceptance]:
    """Returns the acceptance of each shape from `count_rounds`. Rounds give each token of an answer but the first."""
    answers = [find_answers(0, row.ids_T, row.loss_mask_T) for row in rows]
    tokens_N = np.array([sum(answer.end - answer.start - 1 for answer in spans) for spans in answers])
    has_rounds_N = tokens_N > 0
    return [
        TreeAcceptance(
            shape,
            float(tokens_N.sum() / rounds_NX[:, x].sum()),
            ratio_interval(tokens_N[has_rounds_N], rounds_NX[has_rounds_N, x], seed),
        )
        for x, shape in enumerate(shapes)
    ]
