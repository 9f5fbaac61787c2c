"""Computes the acceptance of many tree shapes at once. `eyas tune` compares these shapes.

B positions, C candidates of the largest tree (the root is number 0), S = D + 1 path slots, D the depth of the largest
tree, N rows, X shapes.

All shapes with one top_k are computed from one draft at each position. The candidates of a tree of depth d are the
first d levels of any deeper tree (tree.TreeGrower), and the nodes of the tree are its most likely candidates. So only
the largest tree is drafted, with all its candidates. The true answer is a path in this tree. Each node of the path is
ranked among the candidates of the first d levels, for each d:

    needs[d, i]            the nodes that a tree of depth d must have to contain the path's node at depth i: rank + 1
    accepted by (d, n)     1 + the number of i <= d with needs[d, i] <= n, for a tree of depth d with n nodes

The draft at a position depends only on the text before it, not on earlier rounds. So this table gives the rounds of
every shape: a round at position t accepts a tokens, and the next round is at t + a. Each top_k needs its own draft,
because top_k determines which nodes are expanded. Chains (top_k 1) need their own draft, too. The trees of a block head
need one draft: that of the largest top_k has the nodes of all exact trees (drafters.block.exact_shape).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from eyas.evaluation.replay import AnswerSpan, ReplayDrafter, find_answers, true_continuation
from eyas.features.layout import Row
from eyas.tree.intervals import Interval, ratio_interval
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree
from eyas.tree.verify import verify

MAX_POSITIONS = 64  # positions that are drafted at once
MAX_FRONTIER = 512  # nodes that are expanded at once, of all these positions
UNREACHABLE = torch.iinfo(torch.int64).max  # nodes


@dataclass(frozen=True)
class TreeAcceptance:
    """The acceptance length of one tree shape on some rows, with its 95% interval."""

    shape: TreeShape
    acceptance_length: float
    ci95: Interval


@torch.no_grad()
def count_rounds(
    rows: Sequence[Row],
    shapes: Sequence[TreeShape],
    build_drafter: Callable[[TreeShape], ReplayDrafter],
    batch_tokens: int,
) -> np.ndarray:
    """Returns int64 [N, X]: the number of rounds that the answers of row n need with shape x.

    Args:
        rows: The rows with their features.
        shapes: The tree shapes. Requirement: all have the same top_k, or are exact shapes of a block head.
        build_drafter: Returns the drafter of these rows for a tree shape, with `is_exact` False.
        batch_tokens: The most keys that one forward of the head reads, over all positions.
    """
    # The drafted tree has the largest depth and top_k, and all its candidates.
    largest = TreeShape(max(shape.depth for shape in shapes), max(shape.top_k for shape in shapes), 2)
    cover = replace(largest, nodes=largest.candidates + 1)
    drafter = build_drafter(cover)
    answers = [answer for text, row in enumerate(rows) for answer in find_answers(text, row.ids_T, row.loss_mask_T)]
    # From the token before the answer to the last position at which a round can start.
    starts = [(answer, position) for answer in answers for position in range(answer.start - 1, answer.end - 2)]
    starts.sort(key=lambda start: start[1])
    depths, nodes = (np.array([getattr(shape, name) for shape in shapes]) for name in ("depth", "nodes"))
    tables = {id(answer): np.empty((answer.end, len(shapes)), dtype=np.int64) for answer in answers}
    while starts:
        size = max(1, min(MAX_POSITIONS, MAX_FRONTIER // cover.top_k, batch_tokens // (starts[-1][1] + 1)))
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
    """Returns int64 [B, D, D] with needs[d, i] of the module docstring at index [b, d - 1, i - 1].

    It is UNREACHABLE where i > d, or where the largest tree does not contain the path's node at depth i.

    Args:
        tree: The largest tree at each position, with all its candidates.
        truth_BS: The true continuation: the S tokens of the answer after the root.
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
    """Returns the rounds of one answer for each shape. accepted_TX: the tokens that a round at position t accepts."""
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
    """Returns the acceptance length of each shape. rounds_NX: the result of `count_rounds`. seed: of the bootstrap."""
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
