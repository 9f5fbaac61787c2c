"""Merges a chain of tokens from another source into draft trees, for example text that was copied.

B requests, M tree nodes, K tokens of the chain.

    tree                     chain           merged: nodes M, M + 1, ... are the tokens that the tree does not have
    root ─┬─ the ─── cat     the cat sat     root ─┬─ the ─── cat ─── sat (node M + 2)
          └─ a                                     └─ a
"""

import torch
from torch import Tensor

from eyas.tree.tree import Tree, num_squarings, sum_along_paths

SOURCES = ("head", "both", "branch", "copy")
"""The sources of a node: the tree, both, the chain's first token that the tree lacks, and the chain's later tokens."""
SURE = -1e-5  # log-probability at most: below it, rounding could put a node above its parent


def merge_chain(tree: Tree, tokens_BK: Tensor, scores_BK: Tensor, valid_BK: Tensor) -> tuple[Tree, Tensor]:
    """Returns trees of M + K nodes, and for each node the index of its source in SOURCES.

    A token that the tree already has on the same path stays one node.

    Both sources estimate the probability that the target accepts such a node, given its parent. The node gets the
    probability that one of two independent sources is right: a token that both name is more likely than each one says.

    Args:
        tree: The trees.
        tokens_BK: Target ids, the continuation of each root.
        scores_BK: For each token, the logarithm of the probability that it and all before it are accepted; falling.
        valid_BK: True for the first tokens of each row, False for padding after them.
    """
    num_nodes = tree.tokens_BM.shape[1]
    size = tokens_BK.shape[1]
    rows_BM = (tree.depths_BM - 1).clamp_(0, size - 1)  # the token of the chain at each node's depth
    same_BM = (tree.tokens_BM == tokens_BK.gather(1, rows_BM)) & valid_BK.gather(1, rows_BM)
    same_BM &= tree.valid_BM & (tree.depths_BM <= size)
    same_BM[:, 0].fill_(True)
    up_BM = tree.parents_BM
    for _ in range(num_squarings(tree.depth)):
        same_BM = same_BM & same_BM.gather(1, up_BM)
        up_BM = up_BM.gather(1, up_BM)
    same_BM[:, 0].fill_(False)
    own_BM = tree.scores_BM - tree.scores_BM.gather(1, tree.parents_BM)  # given the parent
    own_BK = scores_BK.diff(dim=1, prepend=torch.zeros_like(scores_BK[:, :1]))
    probs_BM, theirs_BM = own_BM.exp(), own_BK.gather(1, rows_BM).exp()
    own_BM = torch.where(same_BM, (probs_BM + theirs_BM - probs_BM * theirs_BM).log(), own_BM).clamp_(max=SURE)
    own_BM[:, 0].fill_(0.0)

    num_shared_B1 = same_BM.sum(1, keepdim=True)  # tokens of the chain that are nodes of the tree
    nodes_M = torch.arange(num_nodes, device=tokens_BK.device)
    last_B1 = torch.where(same_BM, nodes_M, 0).amax(1, keepdim=True)
    steps_K = torch.arange(size, device=tokens_BK.device)
    is_new_BK = valid_BK & (steps_K >= num_shared_B1)
    parents_BK = torch.where(steps_K == num_shared_B1, last_B1, num_nodes + steps_K - 1)
    depths_BK = torch.where(is_new_BK, steps_K + 1, 1)
    valid_BM = torch.cat((tree.valid_BM, is_new_BK), 1)
    parents_BM = torch.cat((tree.parents_BM, parents_BK.masked_fill(~is_new_BK, 0)), 1)
    depth = max(tree.depth, size)
    scores_BM = sum_along_paths(torch.cat((own_BM, own_BK), 1), parents_BM, depth).masked_fill_(~valid_BM, -torch.inf)
    tokens_BM = torch.cat((tree.tokens_BM, tokens_BK.masked_fill(~is_new_BK, 0)), 1)
    merged = Tree(tokens_BM, parents_BM, torch.cat((tree.depths_BM, depths_BK), 1), scores_BM, valid_BM, depth)
    return merged, torch.cat((same_BM.long(), 2 + (steps_K > num_shared_B1).long()), 1)
