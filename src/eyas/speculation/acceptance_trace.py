"""Acceptance traces: one round shows what its own arm accepted, and what every smaller arm would have accepted.

B requests, M tree nodes, S = depth + 1 path slots.

The nodes of the whole batch are sorted by score, the most likely first. Here are two requests (B = 2), with the nodes
a0, a1, ... and b0, b1, ...:

    rank                            0     1    2    3    4    5    6
    node                            root  root a0   b0   a1   a2   b1
    min_nodes = rank // B + 1       1     1    2    2    3    3    4

A round with n nodes per request verifies the first n * B nodes of this list. So every arm with at least `min_nodes`
nodes would have verified the node, and no smaller arm would have. Scores fall along a path, so the ancestors of a node
have lower ranks. With one request, min_nodes = rank + 1.
"""

from bisect import bisect_right
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.speculation.arms import Arm
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree, sum_along_paths
from eyas.tree.verify import AcceptedPath


@dataclass(frozen=True, slots=True)
class AcceptanceTrace:
    """The accepted path of one request in one round. Tokens after a stop token are still part of it.

    Attributes:
        arm: The arm that drafted.
        context: The number of tokens before the root.
        min_nodes: For each accepted node, from depth 1 on, the number of nodes of the smallest arm that would have
            verified it. The numbers ascend.
        chain_accepted: The number of accepted nodes before the first one that is not the most likely child of its
            parent.
        chain_offered: The length of the path of most likely children in the verified tree.
    """

    arm: Arm
    context: int
    min_nodes: tuple[int, ...]
    chain_accepted: int
    chain_offered: int

    def num_accepted_within(self, nodes: int, depth: int) -> int:
        """Returns the number of accepted nodes (no bonus token) that a tree of this size would have verified."""
        return min(bisect_right(self.min_nodes, nodes), depth)

    def num_tokens_with(self, shape: TreeShape) -> int | None:
        """Returns the number of tokens that a tree of `shape` would have accepted, the bonus token included.

        Returns None if the trace cannot show it. The trace shows it for shapes with the top-k of the tree that ran and
        no more depth or nodes: shorter chains, and smaller trees.
        """
        ran, depth = self.arm.shape, min(shape.depth, shape.nodes - 1)
        assert ran is not None, "the arm `off` drafts nothing"
        if ran.top_k != shape.top_k or ran.nodes < shape.nodes or self.arm.depth < depth:
            return None
        return self.num_accepted_within(shape.nodes, depth) + 1


def trace_BC(tree: Tree, accepted: AcceptedPath, num_drafting: int | Tensor) -> Tensor:
    """Computes on the device what each request's round shows about smaller draft trees: its acceptance trace.

    `trace_from_row` turns a row of the result into an `AcceptanceTrace` on the host.

    Args:
        tree: the verified trees. Requirement: all have the same top-k.
        accepted: the accepted paths.
        num_drafting: the number of requests that draft; the trees of the other requests have only a root.

    Returns:
        int64 [B, S + 1]. Column d - 1, for d from 1 to S - 1, is `AcceptanceTrace.min_nodes` of the accepted node at
        depth d; it is undefined from the accepted length on. The last two columns are chain_accepted and chain_offered.
    """
    num_requests, num_nodes = tree.tokens_BM.shape
    # By columns: roots come first, and of equal scores a parent comes before its child.
    scores_R = tree.scores_BM.masked_fill(~tree.valid_BM, -torch.inf).T.flatten()
    ranks_R = scores_R.sort(descending=True, stable=True).indices.argsort()
    num_plain = num_requests - num_drafting
    min_nodes_BM = (ranks_R.view(num_nodes, num_requests).T - num_plain) // num_drafting + 1
    # The chain is the path of a target that always chooses the most likely child.
    is_off_chain_BM = sum_along_paths((~_is_most_likely_BM(tree)).long(), tree.parents_BM, tree.depth) > 0
    on_path_BS = ~is_off_chain_BM.gather(1, accepted.nodes_BS) & accepted.is_accepted_BS()
    chain_accepted_B1 = on_path_BS.sum(dim=1, keepdim=True) - 1
    chain_offered_B1 = (~is_off_chain_BM).sum(dim=1, keepdim=True) - 1
    min_nodes_BS = min_nodes_BM.gather(1, accepted.nodes_BS[:, 1:])
    return torch.cat((min_nodes_BS, chain_accepted_B1, chain_offered_B1), dim=1)


def _is_most_likely_BM(tree: Tree) -> Tensor:
    """Returns bool: True for the root and for each verified node that is the most likely of its verified siblings."""
    num_nodes = tree.tokens_BM.shape[1]
    nodes_M = torch.arange(num_nodes, device=tree.tokens_BM.device)
    # Children stand in falling order of their scores, so the most likely is the first that names its parent.
    parents_BM = tree.parents_BM.masked_fill(~tree.valid_BM | (nodes_M == 0), num_nodes)
    return (parents_BM[:, :, None] == parents_BM[:, None, :]).byte().argmax(dim=2) == nodes_M


def trace_from_row(arm: Arm, context: int, length: int, row: list[int]) -> AcceptanceTrace:
    """Builds the acceptance trace of one request in one round, on the host.

    Args:
        arm: the arm that drafted.
        context: the number of tokens before the root.
        length: the number of accepted tokens, the bonus token included (`accepted.lengths_B`).
        row: the request's row of `trace_BC`. It may be empty for a chain, whose trace follows from `length`.
    """
    if arm.is_chain:
        nodes = tuple(range(2, length + 1))
        return AcceptanceTrace(arm, context, nodes, chain_accepted=length - 1, chain_offered=arm.depth)
    return AcceptanceTrace(arm, context, tuple(row[: length - 1]), chain_accepted=row[-2], chain_offered=row[-1])
