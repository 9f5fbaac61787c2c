"""Verification: accepts the path of a tree that the target would have generated anyway.

Legend: B requests, M tree nodes, S = depth + 1 path slots.

`sampling.choose_tokens` gives each node the token that the target puts after it: the argmax, or a sample from the
target's own distribution with the uniform of (seed, position). `verify` follows the child with exactly this token.

    root ─┬─ the ─┬─ cat ─── sat        after root  the      a child has it: continue
          │       └─ dog                after the   dog      a child has it: continue
          └─ a ───── man                after dog   ran      no child has it: ran is the bonus token

    tokens_BS   the   dog  ran  .
    nodes_BS    root  the  dog  .       the nodes whose keys and values stay
    lengths_B   3

Why this is exact: the token after a node is a function of the text up to the node, the request's settings, its seed
and its position, and not of the tree. Along the accepted path that text is the answer itself. So the output equals
plain decoding with the same seed, token for token, wherever both forwards give the same logits. Each uniform serves
one position of the answer, so the answer has the target's distribution. That holds for any tree, even for one built
with knowledge of the uniforms.

The children of a node are accepted with the sum of their probabilities under the target. The target-only rule of EAGLE
and SGLang does the same: it spends one random number on the children and samples a rejected token from the rest, where
this one samples once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.tree.tree import Tree, num_squarings


@dataclass(frozen=True, eq=False)
class AcceptedPath:
    """The accepted path of each tree of a round.

    tokens_BS  int64  [b, i] is the i-th new token; the last of the first lengths_B[b] is the bonus token
    nodes_BS   int64  the accepted path: [b, 0] = 0 (root), [b, i] the node whose token is tokens_BS[b, i - 1]
    lengths_B  int64  1..S: accepted tokens, the bonus token included; also the rows of keys and values to keep
    From lengths_B on, nodes are 0 and tokens are undefined. Node numbers increase along a path and nodes_BS[b, i] >= i,
    so compaction is: row i of the kept run := row nodes_BS[b, i] of the tree. (The bonus token has no row yet.)
    """

    tokens_BS: Tensor
    nodes_BS: Tensor
    lengths_B: Tensor

    def is_accepted_BS(self) -> Tensor:
        """Returns bool: True for the path slots in use."""
        slots_S = torch.arange(self.tokens_BS.shape[1], device=self.tokens_BS.device)
        return slots_S < self.lengths_B[:, None]


def verify(tree: Tree, ids_BM: Tensor) -> AcceptedPath:
    """Returns the path that the target takes. ids_BM[b, i]: the target's next token after node i (`choose_tokens`)."""
    wanted_BM = tree.tokens_BM == ids_BM.gather(1, tree.parents_BM)
    nodes_BS, lengths_B = _follow_path(tree, wanted_BM)
    return AcceptedPath(ids_BM.gather(1, nodes_BS), nodes_BS, lengths_B)


def has_rejected_child(tree: Tree, accepted: AcceptedPath) -> Tensor:
    """Returns bool [B]: True where the tree continued the accepted path and the target rejected all continuations."""
    if tree.is_chain:
        last = tree.tokens_BM.shape[1] - 1
        next_B1 = accepted.lengths_B[:, None]
        return (tree.valid_BM.gather(1, next_B1.clamp(max=last)) & (next_B1 <= last))[:, 0]
    stop_B1 = accepted.nodes_BS.gather(1, accepted.lengths_B[:, None] - 1)
    return ((tree.parents_BM == stop_B1) & tree.valid_BM)[:, 1:].any(dim=1)


def _follow_path(tree: Tree, wanted_BM: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the path of wanted nodes from the root and its length. Each node has at most one wanted child."""
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
