"""The draft tree: its nodes, its attention mask, and its growth (EAGLE-2, arXiv 2406.16858, section 4).

Legend: B requests, V draft vocabulary, M tree nodes, K top-k, C candidates (the root is number 0), P prefix length,
F nodes expanded in all levels, E = nodes expanded so far, R any rows.

Candidates are numbered level by level, so a parent's number is always smaller than its child's (K = 2, depth = 3):

    level      candidates           depth    the candidates are
    (root)        0                 0        the last committed token
    0          1         2          1        the K most likely children of the root
    1        3   4     5   6        2        K children of each of 1 and 2
    2       7 8       9 10          3        K children of each of 3 and 5, the K most likely candidates of level 1
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.tree.shape import TreeShape


@dataclass(frozen=True, eq=False)
class Tree:
    """The draft trees of a batch, one for each request. Tensors may share memory with constants: never write into them.

    tokens_BM   int64  target token ids; node 0 is the root, the last committed token
    parents_BM  int64  node of the parent, always smaller than the node itself; the root is its own parent
    depths_BM   int64  0 at the root; a node's position in the text is the root's position + its depth
    scores_BM   f32    cumulative log-probability under the head; the root has 0, padding -inf
    valid_BM    bool   False for padding: it looks like a child of the root and is never accepted
    depth       an upper limit of depths_BM, known without reading a tensor from the device
    is_chain    True if every node i has depth i and parent i - 1, so that functions need no search for a path
    """

    tokens_BM: Tensor
    parents_BM: Tensor
    depths_BM: Tensor
    scores_BM: Tensor
    valid_BM: Tensor
    depth: int
    is_chain: bool = False

    @classmethod
    def from_chains(cls, tokens_BM: Tensor, valid_BM: Tensor) -> "Tree":
        """Builds trees without branches from tokens of another source (n-gram tables, a small model).

        Args:
            tokens_BM: Target ids; column 0 is the root.
            valid_BM: True for the first columns of each row, which hold tokens, and False for the padding after them.
                The root is always valid. Valid nodes get score 0.
        """
        num_requests, num_nodes = tokens_BM.shape
        depths_M = torch.arange(num_nodes, device=tokens_BM.device)
        depths_BM = torch.where(valid_BM, depths_M, depths_M.clamp(max=1))
        return cls(
            tokens_BM=torch.where(valid_BM, tokens_BM, 0),
            parents_BM=(depths_BM - 1).clamp_(min=0),
            depths_BM=depths_BM,
            scores_BM=torch.zeros(num_requests, num_nodes, device=tokens_BM.device).masked_fill_(~valid_BM, -torch.inf),
            valid_BM=valid_BM,
            depth=num_nodes - 1,
        )

    @classmethod
    def root_only(cls, roots_B: Tensor) -> "Tree":
        """Builds trees with only a root, which a round without drafting verifies."""
        zeros_B1 = torch.zeros_like(roots_B)[:, None]
        valid_B1 = torch.ones_like(zeros_B1, dtype=torch.bool)
        return cls(roots_B[:, None], zeros_B1, zeros_B1, zeros_B1.float(), valid_B1, 0, is_chain=True)

    @classmethod
    def from_subset(cls, roots_B: Tensor, subset: "Tree", requests_b: Tensor) -> "Tree":
        """Builds trees for all requests, of which only some have a draft.

        Args:
            roots_B: The root tokens of all requests.
            subset: The trees of some requests.
            requests_b: The index of the request of each of these trees. Every other request gets only a root.
        """
        tokens_BM = roots_B.new_zeros(len(roots_B), subset.tokens_BM.shape[1])
        tokens_BM[:, 0] = roots_B
        depths_BM = torch.ones_like(tokens_BM)
        depths_BM[:, 0].fill_(0)
        scores_BM = torch.full_like(tokens_BM, -torch.inf, dtype=torch.float32)
        scores_BM[:, 0].fill_(0.0)
        return cls(
            tokens_BM.index_copy(0, requests_b, subset.tokens_BM),
            torch.zeros_like(tokens_BM).index_copy(0, requests_b, subset.parents_BM),
            depths_BM.index_copy(0, requests_b, subset.depths_BM),
            scores_BM.index_copy(0, requests_b, subset.scores_BM),
            (scores_BM > -torch.inf).index_copy(0, requests_b, subset.valid_BM),
            subset.depth,
        )

    def ancestors_BMM(self) -> Tensor:
        """Returns bool: [b, i, j] is True when node j is node i itself or one of its ancestors."""
        nodes_M = torch.arange(self.parents_BM.shape[1], device=self.parents_BM.device)
        # One step up or stay, as a 0/1 matrix; squaring it doubles the steps. Entries count paths: they only grow.
        steps_BMM = (self.parents_BM[:, :, None] == nodes_M).logical_or_(nodes_M[:, None] == nodes_M).float()
        for _ in range(num_squarings(self.depth)):
            steps_BMM = torch.bmm(steps_BMM, steps_BMM).clamp_(max=1.0)
        return steps_BMM > 0


def rerank(tree: Tree, num_rows: int) -> tuple[Tree, Tensor | None]:
    """Selects the nodes with the highest scores among the trees of all requests. The target verifies only these.

    A request may get more nodes than another. All roots are selected. Of nodes with equal scores the one with the
    smaller number is selected first, so a parent is selected before its child.

    Args:
        tree: The trees of all requests.
        num_rows: The number of nodes to select, the roots included.

    Returns:
        The trees, in which unselected nodes are not valid, and rows_T: the numbers (request * M + node) of the selected
        nodes in ascending order. rows_T is None if all nodes are selected.
    """
    num_requests, num_nodes = tree.tokens_BM.shape
    assert num_requests <= num_rows <= num_requests * num_nodes, (num_rows, num_requests, num_nodes)
    if num_rows == num_requests * num_nodes:
        return dataclasses.replace(tree, valid_BM=tree.scores_BM > -torch.inf), None
    scores_BM = tree.scores_BM.clone()
    scores_BM[:, 0].fill_(torch.inf)
    best_T = scores_BM.view(-1).sort(descending=True, stable=True).indices[:num_rows]
    chosen_BM = torch.zeros_like(tree.valid_BM).view(-1).index_fill_(0, best_T, True).view(num_requests, num_nodes)
    valid_BM = chosen_BM & (tree.scores_BM > -torch.inf)
    return dataclasses.replace(tree, valid_BM=valid_BM), best_T.sort().values


def forward_rows(nodes_BS: Tensor, rows_T: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """Returns the row of the forward of each of these nodes.

    Args:
        nodes_BS: indices of nodes in the tree of their request.
        rows_T: the nodes that the forward verified, as indices into all nodes; None if it verified all.
        shape: the numbers of requests and of nodes per tree.
    """
    count, num_nodes = shape
    roots_B1 = torch.arange(0, count * num_nodes, num_nodes, device=nodes_BS.device)[:, None]
    if num_nodes == 1:  # nodes_BS is 0
        return roots_B1
    flat_BS = nodes_BS + roots_B1
    if rows_T is None:
        return flat_BS
    row_of_X = torch.zeros(count * num_nodes, dtype=torch.int64, device=nodes_BS.device)
    row_of_X[rows_T] = torch.arange(len(rows_T), device=nodes_BS.device)
    return row_of_X[flat_BS]


def sum_along_paths(values_BM: Tensor, parents_BM: Tensor, depth: int) -> Tensor:
    """Returns, for each node, the sum of the values of the node and all its ancestors. The root's value must be 0."""
    for _ in range(num_squarings(depth)):
        values_BM = values_BM + values_BM.gather(1, parents_BM)
        parents_BM = parents_BM.gather(1, parents_BM)
    return values_BM


def num_squarings(depth: int) -> int:
    """Returns how often the 0/1 matrix node -> parent must be squared until it maps every node to all its ancestors."""
    return (depth - 1).bit_length() if depth else 0


@dataclass(frozen=True, eq=False)
class Frontier:
    """The K nodes of one level that the head expands next. All have the same position in the text.

    Attributes:
        level: The level; 0 for the children of the root.
        tokens_BK: int64, target ids.
        parents_BK: int64, the index of each node's parent among the K nodes of the previous level's frontier. None in
            level 0.
        visible_BKE: bool, True where a node attends to an expanded node: its ancestors and itself. The columns are the
            E = (level + 1) * K nodes of all frontiers so far, level by level. Every node also attends to the committed
            text and the root, which have no columns here.
    """

    level: int
    tokens_BK: Tensor
    parents_BK: Tensor | None
    visible_BKE: Tensor


ExpandFn = Callable[[Frontier], Tensor]
ToTargetFn = Callable[[Tensor], Tensor]


class TreeGrower:
    """A builder of draft trees of one shape. It owns constant index tensors and keeps no state between rounds."""

    def __init__(self, shape: TreeShape, device: torch.device) -> None:
        self.shape = shape
        depth, top_k = shape.depth, shape.top_k
        self._num_padding = max(0, shape.nodes - 1 - shape.candidates)
        level_sizes = [top_k] + [top_k * top_k] * (depth - 1)
        # Each candidate's parent in the list [root, frontier 0, frontier 1, ...]; padding is below the root.
        slots = [0] + [0] * top_k
        for level in range(1, depth):
            slots += [1 + (level - 1) * top_k + child // top_k for child in range(top_k * top_k)]
        depths = [0] + [level + 1 for level, size in enumerate(level_sizes) for _ in range(size)]
        bases = [0] + [1] * top_k
        for level in range(1, depth - 1):
            bases += [1 + sum(level_sizes[:level])] * top_k

        def table(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        self._slots_C = table(slots + [0] * self._num_padding)
        self._depths_C = table(depths + [1] * self._num_padding)
        self._bases_F = table(bases)
        self._first_1F = table([0, *range(top_k)])[None]
        self._eye_1KK = torch.eye(top_k, dtype=torch.bool, device=device)[None]
        self._root_score_11 = torch.zeros(1, 1, device=device)
        self._padding_scores_1C = torch.full((1, self._num_padding), -torch.inf, device=device)
        self._padding_tokens_1C = table([0] * self._num_padding)[None]
        # top_k = 1 needs no ranking: candidate c is the child of c - 1, and the first nodes are the most likely.
        self._chain_parents_1M = table([0, *range(depth)] + [0] * self._num_padding)[None, : shape.nodes]
        self._chain_zeros_11 = table([0])[None]
        self._chain_visible_11E = torch.ones(1, 1, depth, dtype=torch.bool, device=device)

    def grow(self, root_B: Tensor, logits_BV: Tensor, expand: ExpandFn, to_target: ToTargetFn) -> Tree:
        """Grows one tree for each request. No tensor shape depends on data, and there is no host synchronization.

        The nodes of a tree are the candidates with the highest scores. Of equal scores the smaller candidate number is
        selected first. So the parent of a node is always in the tree, even if the node has probability 1.0 (EAGLE's
        reference code attaches such a node to a wrong parent). A NaN logit counts as -inf, so the tree stays valid.

        Args:
            root_B: The last committed token of each request.
            logits_BV: The head's logits at the root, from the extend of the round before.
            expand: Runs the head on a frontier and returns the logits [B, K, V] of its nodes. It is called depth - 1
                times and must itself keep the hidden states between calls.
            to_target: Converts draft ids of any shape to target ids.
        """
        levels = self._chain_levels if self.shape.top_k == 1 else self._tree_levels
        scores, tokens, picks = levels(root_B, logits_BV, expand, to_target)
        num_requests = root_B.shape[0]
        if self._num_padding:
            scores.append(self._padding_scores_1C.expand(num_requests, -1))
            tokens.append(self._padding_tokens_1C.expand(num_requests, -1))
        scores_BC = torch.cat(scores, dim=1).nan_to_num_(nan=-torch.inf, neginf=-torch.inf)
        tokens_BC = torch.cat(tokens, dim=1)
        if self.shape.top_k == 1:
            num_nodes = self.shape.nodes
            scores_BM, tokens_BM = scores_BC[:, :num_nodes], tokens_BC[:, :num_nodes]
            parents_BM = self._chain_parents_1M.expand(num_requests, -1)
            depths_BM = self._depths_C[:num_nodes].expand(num_requests, -1)
        else:
            best_BM = scores_BC.sort(dim=1, descending=True, stable=True).indices[:, : self.shape.nodes]
            chosen_BM = best_BM.sort(dim=1).values
            scores_BM, tokens_BM = scores_BC.gather(1, chosen_BM), tokens_BC.gather(1, chosen_BM)
            expanded_BF = torch.cat(picks, dim=1) + self._bases_F
            parents_BM = torch.searchsorted(chosen_BM, expanded_BF.gather(1, self._slots_C.take(chosen_BM)))
            depths_BM = self._depths_C.take(chosen_BM)
        is_chain = self.shape.top_k == 1 and self.shape.nodes == self.shape.depth + 1
        return Tree(tokens_BM, parents_BM, depths_BM, scores_BM, scores_BM > -torch.inf, self.shape.depth, is_chain)

    def _tree_levels(
        self, root_B: Tensor, logits_BV: Tensor, expand: ExpandFn, to_target: ToTargetFn
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Returns three lists: per level the candidates' scores, their tokens, and the candidates that are expanded."""
        num_requests, top_k = root_B.shape[0], self.shape.top_k
        eye_BKK = self._eye_1KK.expand(num_requests, -1, -1)
        frontier_scores_BK, ids_BK = _top_log_probs(logits_BV, top_k)
        frontier = Frontier(0, to_target(ids_BK), None, eye_BKK)
        scores = [self._root_score_11.expand(num_requests, 1), frontier_scores_BK]
        tokens = [root_B[:, None], frontier.tokens_BK]
        picks = [self._first_1F.expand(num_requests, -1)]
        for level in range(1, self.shape.depth):
            log_probs_BKK, ids_BKK = _top_log_probs(expand(frontier), top_k)
            scores_BC = log_probs_BKK.add_(frontier_scores_BK[:, :, None]).flatten(1)
            tokens_BC = to_target(ids_BKK).flatten(1)
            scores.append(scores_BC)
            tokens.append(tokens_BC)
            if level + 1 < self.shape.depth:
                ranked_BC, order_BC = scores_BC.sort(dim=1, descending=True, stable=True)
                frontier_scores_BK, picks_BK = ranked_BC[:, :top_k], order_BC[:, :top_k]
                parents_BK = picks_BK // top_k
                rows_BKE = parents_BK[:, :, None].expand(-1, -1, level * top_k)
                visible_BKE = torch.cat([frontier.visible_BKE.gather(1, rows_BKE), eye_BKK], dim=2)
                frontier = Frontier(level, tokens_BC.gather(1, picks_BK), parents_BK, visible_BKE)
                picks.append(picks_BK)
        return scores, tokens, picks

    def _chain_levels(
        self, root_B: Tensor, logits_BV: Tensor, expand: ExpandFn, to_target: ToTargetFn
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Returns the scores and tokens of `_tree_levels` for a chain (K = 1), and an empty list: all are expanded."""
        num_requests = root_B.shape[0]
        score_B1, ids_B1 = _top_log_probs(logits_BV, 1)
        scores = [self._root_score_11.expand(num_requests, 1), score_B1]
        tokens = [root_B[:, None], to_target(ids_B1)]
        parents_B1 = None
        for level in range(1, self.shape.depth):
            visible_B1E = self._chain_visible_11E[:, :, :level].expand(num_requests, -1, -1)
            logits_B1V = expand(Frontier(level - 1, tokens[-1], parents_B1, visible_B1E))
            parents_B1 = self._chain_zeros_11.expand(num_requests, -1)
            log_prob_B1, ids_B1 = _top_log_probs(logits_B1V[:, 0], 1)
            scores.append(log_prob_B1.add_(scores[-1]))
            tokens.append(to_target(ids_B1))
        return scores, tokens, []


def _top_log_probs(logits_RV: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Returns the log-probabilities (fp32) of the K most likely draft tokens of each row, and their draft ids.

    It calls log_softmax, which takes half the time of logsumexp on a CPU, although it writes V values.
    """
    assert logits_RV.shape[-1] >= top_k, f"a draft vocabulary of {logits_RV.shape[-1]} has no top {top_k}"
    values, ids = logits_RV.log_softmax(dim=-1, dtype=torch.float32).topk(top_k, dim=-1)
    return values.clamp_(max=0.0), ids
