"""What the target accepts of a tree: the path that it would have written anyway.

Legend: B requests, M tree nodes, S = depth + 1 path slots.

`sampling.choose` has given each node the token that the target puts after it: the argmax, or a draw from the target's
own distribution with the coin of (seed, position). `verify` follows the child that carries this very token.

    root ─┬─ the ─┬─ cat ─── sat        after root  the      a child carries it: go on
          │       └─ dog                after the   dog      a child carries it: go on
          └─ a ───── man                after dog   ran      no child does: ran is the bonus

    tokens_BS   the   dog  ran  .
    nodes_BS    root  the  dog  .       the nodes whose keys and values stay
    lengths_B   3

Why this is exact. The token after a node is a function of the text up to it, the request's settings, its seed and its
position. The tree is not among the arguments. Along the accepted path that text is the answer itself, so what comes
out is what plain decoding writes with the same seed, token for token, wherever both forwards give the same logits.
Each coin is uniform and serves one position of the answer, so the answer is distributed as the target's. That holds
for any tree, even for one that knows the coins.

The children of a node are accepted with the sum of their probabilities under the target, as by the target-only rule
of EAGLE and SGLang: that one spends a coin on the children and draws a refused token from the rest, this one draws
once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.tree.tree import Tree, num_squarings


@dataclass(frozen=True, eq=False)
class AcceptedPath:
    """What one round keeps of each tree.

    tokens_BS  int64  [b, i] is the i-th new token; the last of the first lengths_B[b] is the bonus
    nodes_BS   int64  the accepted path: [b, 0] = 0 (root), [b, i] the node whose token is tokens_BS[b, i - 1]
    lengths_B  int64  1..S: accepted tokens, the bonus included; equally the rows of keys and values to keep
    From lengths_B on, nodes are 0 and tokens mean nothing. Node numbers grow along a path and nodes_BS[b, i] >= i, so
    compacting is: row i of the kept run := row nodes_BS[b, i] of the tree. (The bonus has no row yet.)
    """

    tokens_BS: Tensor
    nodes_BS: Tensor
    lengths_B: Tensor

    def is_accepted_BS(self) -> Tensor:
        """bool: which slots hold something."""
        slots_S = torch.arange(self.tokens_BS.shape[1], device=self.tokens_BS.device)
        return slots_S < self.lengths_B[:, None]


def verify(tree: Tree, ids_BM: Tensor) -> AcceptedPath:
    """Accept the path that the target takes. ids_BM[b, i]: its next token after node i, as `choose` gives it."""
    wanted_BM = tree.tokens_BM == ids_BM.gather(1, tree.parents_BM)
    nodes_BS, lengths_B = _follow_path(tree, wanted_BM)
    return AcceptedPath(ids_BM.gather(1, nodes_BS), nodes_BS, lengths_B)


def has_rejected_child(tree: Tree, accepted: AcceptedPath) -> Tensor:
    """bool [B]: whether the tree offered a continuation of the accepted path that the target refused."""
    if tree.is_chain:
        last = tree.tokens_BM.shape[1] - 1
        next_B1 = accepted.lengths_B[:, None]
        return (tree.valid_BM.gather(1, next_B1.clamp(max=last)) & (next_B1 <= last))[:, 0]
    stop_B1 = accepted.nodes_BS.gather(1, accepted.lengths_B[:, None] - 1)
    return ((tree.parents_BM == stop_B1) & tree.valid_BM)[:, 1:].any(dim=1)


def _follow_path(tree: Tree, wanted_BM: Tensor) -> tuple[Tensor, Tensor]:
    """The path of wanted nodes from the root, and the number of its nodes. At most one child of a node is wanted."""
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
    # Every node writes its number into the slot of its depth, the nodes off the path into one slot more than there are.
    num_slots = tree.depth + 1
    slots_BM = tree.depths_BM.masked_fill(~on_path_BM, num_slots)
    nodes_BS = slots_BM.new_zeros(num_requests, num_slots + 1).scatter_(1, slots_BM, nodes_BM)[:, :num_slots]
    return nodes_BS, on_path_BM.sum(dim=1)
