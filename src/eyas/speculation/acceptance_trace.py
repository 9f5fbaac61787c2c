"""Acceptance traces: one round shows the acceptance of its own arm and of every smaller arm.

B requests, M tree nodes, S = depth + 1 path slots.

    the batch's nodes by score     root  root  a0   b0   a1   c0   b1        two requests a, b: B = 2
    rank // B + 1 = min_nodes       1     1    2    2    3    3    4

A round with n nodes a request verifies the first n * B of this list. So an accepted node with `min_nodes` k would have
been verified by every arm with at least k nodes, and by none with fewer: scores fall along a path, so the ancestors of
a node stand before it. With one request, min_nodes = rank + 1.
"""

from bisect import bisect_right
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.speculation.arms import Arm
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree
from eyas.tree.verify import AcceptedPath, verify


@dataclass(frozen=True, slots=True)
class AcceptanceTrace:
    """The accepted path of one request in one round, before a stop token cut the output.

    arm             the arm that drafted
    context         tokens before the root
    min_nodes       for each accepted node, from depth 1 on: the size of the smallest arm that verifies it; ascending
    chain_accepted  the number of accepted nodes, from the first on, that are the most likely child of their parent
    chain_offered   the length of the path of most likely children in the verified tree
    """

    arm: Arm
    context: int
    min_nodes: tuple[int, ...]
    chain_accepted: int
    chain_offered: int

    @property
    def num_tokens(self) -> int:
        """Accepted tokens, the bonus token included."""
        return len(self.min_nodes) + 1

    def num_accepted_within(self, nodes: int, depth: int) -> int:
        """Returns the number of accepted nodes (no bonus token) that a tree of this size would have verified."""
        return min(bisect_right(self.min_nodes, nodes), depth)

    def num_tokens_with(self, shape: TreeShape) -> int | None:
        """Returns the number of tokens that `shape` would have accepted, the bonus token included.

        None if the shape is no part of the one that ran. A chain is a part of a longer chain, and a tree of a larger
        tree with the same top-k.
        """
        ran, depth = self.arm.shape, min(shape.depth, shape.nodes - 1)
        assert ran is not None, "off drafts nothing"
        if ran.top_k != shape.top_k or ran.nodes < shape.nodes or self.arm.depth < depth:
            return None
        return self.num_accepted_within(shape.nodes, depth) + 1


def trace_BC(tree: Tree, accepted: AcceptedPath, num_drafting: int | Tensor) -> Tensor:
    """Returns int64 [B, S + 1] for the host: min_nodes of depths 1..S - 1, chain_accepted, chain_offered.

    Columns from lengths_B - 1 on are undefined. All trees were grown with the same top-k.

    Args:
        num_drafting: requests that draft; the others have a root and nothing else.
    """
    num_requests, num_nodes = tree.tokens_BM.shape
    # By columns: roots come first, and of equal scores a parent comes before its child.
    scores_R = tree.scores_BM.masked_fill(~tree.valid_BM, -torch.inf).T.flatten()
    order_R = scores_R.sort(descending=True, stable=True).indices
    ranks_R = torch.empty_like(order_R)
    ranks_R[order_R] = torch.arange(len(order_R), device=order_R.device)
    num_plain = num_requests - num_drafting
    min_nodes_BM = (ranks_R.view(num_nodes, num_requests).T - num_plain) // num_drafting + 1
    # The chain is the path of a target that always chooses the most likely child.
    chain = verify(tree, _most_likely_child_BM(tree))
    same_BS = (chain.nodes_BS == accepted.nodes_BS) & chain.is_accepted_BS() & accepted.is_accepted_BS()
    chain_accepted_B1 = same_BS.long().cumprod(dim=1).sum(dim=1, keepdim=True) - 1
    min_nodes_BS = min_nodes_BM.gather(1, accepted.nodes_BS[:, 1:])
    return torch.cat((min_nodes_BS, chain_accepted_B1, chain.lengths_B[:, None] - 1), dim=1)


def _most_likely_child_BM(tree: Tree) -> Tensor:
    """Returns the token of each node's most likely child that has a row; -1, which no node has, if there is none."""
    num_nodes = tree.tokens_BM.shape[1]
    nodes_M = torch.arange(num_nodes, device=tree.tokens_BM.device)
    # Children stand in falling order of their scores, so the most likely is the first that names its parent.
    parents_BM = tree.parents_BM.masked_fill(~tree.valid_BM | (nodes_M == 0), num_nodes)
    is_child_BMM = parents_BM[:, None, :] == nodes_M[:, None]
    tokens_BM = tree.tokens_BM.gather(1, is_child_BMM.byte().argmax(dim=2))
    return tokens_BM.masked_fill(~is_child_BMM.any(dim=2), -1)


def trace_from_row(arm: Arm, context: int, length: int, row: list[int]) -> AcceptanceTrace:
    """Builds the trace from one row of `trace_BC` on the host. length: accepted.lengths_B of that request.

    All nodes of a chain are verified, so its length is enough: the row may be empty.
    """
    if arm.is_chain:
        return AcceptanceTrace(
            arm, context, tuple(range(2, length + 1)), chain_accepted=length - 1, chain_offered=arm.depth
        )
    return AcceptanceTrace(arm, context, tuple(row[: length - 1]), chain_accepted=row[-2], chain_offered=row[-1])
