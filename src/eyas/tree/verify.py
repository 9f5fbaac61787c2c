"""Verification: accepts the path of a draft tree that the target would have generated without a draft.

Legend: B requests, M tree nodes, S = depth + 1 path slots.

`sampling.choose_tokens` chooses the target's next token after each node: the most likely token, or a sample from the
target's distribution with the uniform random number of (seed, position). `verify` starts at the root. It accepts the
child whose token is the target's next token, and repeats this from the child.

    draft tree                          node    target's next token    child with this token
    root ─┬─ the ─┬─ cat ─── sat        root    the                    the: accepted
          │       └─ dog                the     dog                    dog: accepted
          └─ a ───── man                dog     ran                    none: ran is the bonus token

    result, S = 4
    tokens_BS   the   dog  ran  .       the accepted tokens
    nodes_BS    root  the  dog  .       the nodes whose keys and values stay in the cache
    lengths_B   3

Why the output is exact: the target's next token after a node is a function of the text up to the node, the request's
settings, its seed and the position. It does not depend on the tree. On the accepted path, the text up to a node is the
answer. So the output equals plain decoding with the same seed, token for token, if both give the same logits. Each
position has its own random number, so the answer has the target's distribution, for any draft tree.

The probability that one of a node's children is accepted is the sum of their probabilities under the target. The
target-only rule of EAGLE and SGLang accepts with the same probability. After a rejection it draws a second time, for
the bonus token. This rule draws once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.tree.tree import Tree, num_squarings


@dataclass(frozen=True, eq=False)
class AcceptedPath:
    """The accepted path of each tree of a round.

    Node numbers increase along a path, so nodes_BS[b, i] >= i. To compact the KV cache, copy row nodes_BS[b, i] of the
    tree to row i, for i = 0, 1, ..., lengths_B[b] - 1. The bonus token has no keys and values yet.

    Attributes:
        tokens_BS: int64, the accepted tokens in order. The last one, tokens_BS[b, lengths_B[b] - 1], is the bonus
            token. The values after it are undefined.
        nodes_BS: int64, the nodes of the path. nodes_BS[b, 0] is 0, the root, and nodes_BS[b, i] is the node of
            tokens_BS[b, i - 1]. The values from column lengths_B[b] on are 0.
        lengths_B: int64, 1 to S: the number of accepted tokens, the bonus token included. It is also the number of
            nodes on the path, the root included.
    """

    tokens_BS: Tensor
    nodes_BS: Tensor
    lengths_B: Tensor

    def is_accepted_BS(self) -> Tensor:
        """Returns bool [B, S]: True for the columns that hold an accepted token."""
        return torch.arange(self.tokens_BS.shape[1], device=self.tokens_BS.device) < self.lengths_B[:, None]


def verify(tree: Tree, ids_BM: Tensor) -> AcceptedPath:
    """Returns the accepted path of each tree.

    Args:
        tree: The draft trees.
        ids_BM: The target's next token after each node, from `sampling.choose_tokens`.
    """
    if tree.depth == 0:  # the root alone: node 0 and one token
        return AcceptedPath(ids_BM, tree.parents_BM, tree.depths_BM[:, 0] + 1)
    nodes_BS, lengths_B = _follow_path(tree, tree.tokens_BM == ids_BM.gather(1, tree.parents_BM))
    return AcceptedPath(ids_BM.gather(1, nodes_BS), nodes_BS, lengths_B)


def has_rejected_child(tree: Tree, accepted: AcceptedPath) -> Tensor:
    """Returns bool or int64 [B]: nonzero if the last accepted node has valid children and the target rejected all."""
    if tree.depth == 0:  # the root has no children: 0, as int64 like the other columns that the host reads
        return tree.depths_BM[:, 0]
    if tree.is_chain:
        last = tree.tokens_BM.shape[1] - 1
        next_B1 = accepted.lengths_B[:, None]
        return (tree.valid_BM.gather(1, next_B1.clamp(max=last)) & (next_B1 <= last))[:, 0]
    stop_B1 = accepted.nodes_BS.gather(1, accepted.lengths_B[:, None] - 1)
    return ((tree.parents_BM == stop_B1) & tree.valid_BM)[:, 1:].any(dim=1)


def _follow_path(tree: Tree, wanted_BM: Tensor) -> tuple[Tensor, Tensor]:
    """Returns nodes_BS and lengths_B of the path of wanted nodes from the root. A node has at most one wanted child."""
    num_requests, num_nodes = tree.tokens_BM.shape
    on_path_BM = wanted_BM & tree.valid_BM
    on_path_BM[:, 0].fill_(True)
    nodes_BM = torch.arange(num_nodes, device=on_path_BM.device).expand(num_requests, -1)
    if tree.is_chain:  # node i stands at depth i, below node i - 1
        on_path_BM = on_path_BM.long().cumprod(dim=1)
        return on_path_BM * nodes_BM, on_path_BM.sum(dim=1)
    up_BM = tree.parents_BM
    for doubling in range(num_squarings(tree.depth)):
        if doubling:
            up_BM = up_BM.gather(1, up_BM)
        on_path_BM = on_path_BM & on_path_BM.gather(1, up_BM)
    # Every node writes its number into the slot of its depth; nodes off the path write into an extra slot at the end.
    num_slots = tree.depth + 1
    slots_BM = tree.depths_BM.masked_fill(~on_path_BM, num_slots)
    nodes_BS = slots_BM.new_zeros(num_requests, num_slots + 1).scatter_(1, slots_BM, nodes_BM)[:, :num_slots]
    return nodes_BS, on_path_BM.sum(dim=1)
