"""What the target accepts of a tree: greedy, or lossless sampling by the target-only rule.

Legend: B requests, W target vocabulary, M tree nodes, S = depth + 1 path slots, R any rows.

    tree: root -> a -> b, root -> c        target says: after root "a", after a "x"
    tokens_BS   a  x  .       the accepted a, then the bonus x
    nodes_BS    0  1  .       the nodes whose keys and values stay: the root and a
    lengths_B   2
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.tree.sampling import draw
from eyas.tree.tree import Tree, num_doublings


@dataclass(frozen=True, eq=False)
class Accepted:
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

    def kept_BS(self) -> Tensor:
        """bool: which slots hold something."""
        slots_S = torch.arange(self.tokens_BS.shape[1], device=self.tokens_BS.device)
        return slots_S < self.lengths_B[:, None]


def verify_greedy(tree: Tree, logits_BMW: Tensor) -> Accepted:
    """Accept the path that the target's argmax takes. Ties go to the first index, as in torch.argmax."""
    return verify_greedy_ids(tree, logits_BMW.argmax(dim=-1))


def verify_greedy_ids(tree: Tree, ids_BM: Tensor) -> Accepted:
    """The same from the argmax ids: ids_BM[b, i] is the target's next token after node i."""
    wanted_BM = tree.tokens_BM == ids_BM.gather(1, tree.parents_BM)
    nodes_BS, lengths_B = _walk(tree, wanted_BM)
    return Accepted(ids_BM.gather(1, nodes_BS), nodes_BS, lengths_B)


def verify_sampling(tree: Tree, probs_BMW: Tensor, coins_BM: Tensor, bonus_coins_B: Tensor) -> Accepted:
    """Accept so that every token is distributed as if the target alone had drawn it (SGLang's target-only rule).

    probs_BMW: `sampling.distribution` of the target's logits. Coins are uniform in [0, 1), independent of each other
    and of the tree: coins_BM[b, i] decides among the children of node i, bonus_coins_B draws the last token.

        children of a node:   c1        c2      c3      the rest of the vocabulary
        p                  |  .40   |  .25   | .10  |          .25          |
        coin .55                        ^ accept c2
        coin .80                                          ^ stop: bonus from p with c1, c2, c3 zeroed, renormalised

    Exact for any tree that does not depend on the coins. (Never mix this with the p/q rule, which needs drafts drawn
    from q.) At a leaf nothing is zeroed. A token of probability 0 is never accepted or drawn; padding never is.
    """
    num_words = probs_BMW.shape[2]
    flat_BM = (tree.parents_BM * num_words).add_(tree.tokens_BM)
    probs_BM = probs_BMW.flatten(1).gather(1, flat_BM) * tree.valid_BM
    probs_BM[:, 0].zero_()
    siblings_BMM = tree.parents_BM[:, :, None] == tree.parents_BM[:, None, :]
    up_to_BMM = siblings_BMM.float().tril_()
    cumulative_BM = torch.bmm(up_to_BMM, probs_BM[:, :, None])[:, :, 0]
    coins_BM = coins_BM.gather(1, tree.parents_BM)
    # Not without p > 0: a coin of exactly 0, or a sum that rounds up, must not take what the filters removed.
    under_BM = (coins_BM <= cumulative_BM) & (probs_BM > 0)
    # The first sibling under the coin: one hit among the siblings up to here, and it is this one.
    hits_BM = torch.bmm(up_to_BMM, under_BM.float()[:, :, None])[:, :, 0]
    nodes_BS, lengths_B = _walk(tree, under_BM & (hits_BM == 1))

    last_B1 = lengths_B[:, None] - 1
    stop_B1 = nodes_BS.gather(1, last_B1)
    stop_probs_BW = probs_BMW.gather(1, stop_B1[:, :, None].expand(-1, -1, num_words))[:, 0]
    # probs_BM is the very number that stands in stop_probs_BW, so the difference is exactly 0.
    taken_BM = probs_BM * (tree.parents_BM == stop_B1)
    residual_BW = stop_probs_BW.scatter_add(1, tree.tokens_BM, -taken_BM)
    # All mass in the children and yet none taken: a rounding error of the sum. Any token of p is right then.
    has_residual_B1 = residual_BW.amax(dim=1, keepdim=True) > 0
    bonus_B = draw(torch.where(has_residual_B1, residual_BW, stop_probs_BW), bonus_coins_B)
    tokens_BS = tree.tokens_BM.gather(1, nodes_BS).roll(-1, dims=1).scatter_(1, last_B1, bonus_B[:, None])
    return Accepted(tokens_BS, nodes_BS, lengths_B)


def stop_has_children(tree: Tree, accepted: Accepted) -> Tensor:
    """bool [B]: whether the tree offered a continuation of the accepted path that the target refused."""
    stop_B1 = accepted.nodes_BS.gather(1, accepted.lengths_B[:, None] - 1)
    return ((tree.parents_BM == stop_B1) & tree.valid_BM)[:, 1:].any(dim=1)


def _walk(tree: Tree, chosen_BM: Tensor) -> tuple[Tensor, Tensor]:
    """The path of chosen nodes from the root, and the number of its nodes. At most one child of a node is chosen."""
    num_requests, num_nodes = tree.tokens_BM.shape
    on_path_BM = chosen_BM & tree.valid_BM
    on_path_BM[:, 0].fill_(True)
    up_BM = tree.parents_BM
    for doubling in range(num_doublings(tree.depth)):
        if doubling:
            up_BM = up_BM.gather(1, up_BM)
        on_path_BM = on_path_BM & on_path_BM.gather(1, up_BM)
    # Every node writes its number into the slot of its depth, the nodes off the path into one slot more than there are.
    num_slots = tree.depth + 1
    slots_BM = tree.depths_BM.masked_fill(~on_path_BM, num_slots)
    nodes_BM = torch.arange(num_nodes, device=slots_BM.device).expand(num_requests, -1)
    nodes_BS = slots_BM.new_zeros(num_requests, num_slots + 1).scatter_(1, slots_BM, nodes_BM)[:, :num_slots]
    return nodes_BS, on_path_BM.sum(dim=1)
