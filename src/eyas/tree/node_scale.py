"""Turns the probabilities that a head gives its nodes into the probabilities that the target accepts them.

B requests, M tree nodes, D depths, N bins of the logit of q.

    q                  the head's probability of a node, given its parent
    shares_DN[d, n]    of the nodes at depth d whose logit(q) is in bin n, the share that the target accepts

A node is *graded* in a round that accepts its parent, because only then the target says whether the node is right. The
device counts graded and accepted nodes by depth and bin, and the host computes the shares. Head and copies of earlier
text compete for the rows of a round on this common scale.

The shares are a table because no formula fits: greedy targets accept almost all nodes with q above 0.6, and about as
many of those with 0.02 as with 0.2. A logistic function of logit(q) with an intercept for each depth, as in vLLM's
acceptance estimator (vllm#52228), was wrong by 5 % on the embedded pair.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eyas.base.errors import InputError
from eyas.tree.tree import Tree, sum_along_paths
from eyas.tree.verify import AcceptedPath

MAX_DEPTH = 16  # deeper nodes count as this depth
MAX_LOGIT, NUM_BINS = 8.0, 64
ERROR_BINS = 16  # of `NodeScale.error`: few, because chance alone makes small bins differ
MIN_NODES = 500  # graded nodes: with fewer, chance alone is an error of some percent
PRIOR_WEIGHT, DEPTH_WEIGHT = 4.0, 16.0  # nodes of a bin: trust in acceptance.json, and in the share of all depths
SMOOTHING_n = np.array([1.0, 2.0, 3.0, 2.0, 1.0]) / 3  # how much a bin also counts the nodes of its neighbors
MAX_SHARE = 0.9999  # below 1, so that rounding puts no node above its parent
HALF_LIFE = 40_000.0  # graded nodes after which old ones count half
IDENTITY_N = 1 / (1 + np.exp(MAX_LOGIT - (np.arange(NUM_BINS) + 0.5) * (2 * MAX_LOGIT / NUM_BINS)))  # p = q


def count_graded(counts_DN2: Tensor, tree: Tree, scores_BM: Tensor, accepted: AcceptedPath) -> None:
    """Adds the graded nodes of verified trees to the counts. It does not wait for the device.

    Args:
        counts_DN2: The numbers of graded nodes, and of accepted ones among them.
        tree: The verified trees. Their first M nodes are those of the head.
        scores_BM: The head's cumulative log-probabilities of these M nodes.
        accepted: The accepted paths.
    """
    on_path_BM = torch.zeros_like(tree.valid_BM).scatter_(1, accepted.nodes_BS, True)[:, : scores_BM.shape[1]]
    whole = tree.parents_BM, tree.depths_BM, tree.valid_BM
    parents_BM, depths_BM, valid_BM = (part_BM[:, : scores_BM.shape[1]] for part_BM in whole)
    graded_BM = on_path_BM.gather(1, parents_BM) & valid_BM & (depths_BM > 0) & (scores_BM > -torch.inf)
    grades_BM2 = torch.stack((graded_BM, graded_BM & on_path_BM), 2).long()
    counts_DN2.view(-1, 2).index_add_(0, _cells(scores_BM, parents_BM, depths_BM).view(-1), grades_BM2.view(-1, 2))


def calibrate(tree: Tree, log_shares_DN: Tensor) -> Tree:
    """Returns the trees with calibrated scores: the logarithm of the probability that the target accepts the path.

    Args:
        tree: The trees of a head. Scores fall along a path, before and after.
        log_shares_DN: The logarithm of the shares of a `NodeScale`.
    """
    scores_BM = log_shares_DN.take(_cells(tree.scores_BM, tree.parents_BM, tree.depths_BM))
    scores_BM = sum_along_paths(scores_BM.masked_fill_(tree.depths_BM == 0, 0.0), tree.parents_BM, tree.depth)
    return dataclasses.replace(tree, scores_BM=scores_BM.masked_fill(~tree.valid_BM, -torch.inf))


def _cells(scores_BM: Tensor, parents_BM: Tensor, depths_BM: Tensor) -> Tensor:
    """Returns the place of each node in a table [D, N], as the index of its flat values."""
    log_q_BM = (scores_BM - scores_BM.gather(1, parents_BM)).clamp_(max=-1e-7)
    logits_BM = log_q_BM - (-log_q_BM.expm1()).log()
    bins_BM = ((logits_BM / MAX_LOGIT + 1) * (NUM_BINS / 2)).clamp_(0, NUM_BINS - 1).long()
    return (depths_BM - 1).clamp(0, MAX_DEPTH - 1) * NUM_BINS + bins_BM


@dataclass(frozen=True)
class ScaleError:
    """How far a scale was from what happened.

    Attributes:
        ece: The expected calibration error of the worst depth: the mean distance of predicted and accepted shares.
        bias: The expected accepted nodes, divided by the accepted ones, minus 1.
    """

    ece: float
    bias: float

    @classmethod
    def of(cls, checked_DN3: NDArray[Any]) -> "ScaleError | None":
        """Returns the error from counts by depth and bin; None as long as no depth has MIN_NODES graded nodes.

        Args:
            checked_DN3: The graded nodes, the accepted ones among them, and how many were predicted to be accepted.
        """
        graded_DN, accepted_DN, predicted_DN = np.moveaxis(checked_DN3, 2, 0)
        enough_D = graded_DN.sum(1) >= MIN_NODES
        if not enough_D.any():
            return None
        gaps_D = np.abs(predicted_DN - accepted_DN).sum(1)[enough_D] / graded_DN.sum(1)[enough_D]
        return cls(float(gaps_D.max()), float(predicted_DN.sum() / max(accepted_DN.sum(), 1.0)) - 1)


class NodeScale:
    """The scale of one head. It starts from acceptance.json and learns from the rounds of the engine.

    Attributes:
        shares_DN: The scale.
        shares_N: The shares of all depths together.
        counts_DN2: What `count_graded` has counted, on the device of the head.
    """

    def __init__(self, prior_N: NDArray[Any] = IDENTITY_N, device: torch.device | str = "cpu") -> None:
        """Initializes the scale. prior_N: the shares to start from, for every depth; by default p = q."""
        self.counts_DN2 = torch.zeros(MAX_DEPTH, NUM_BINS, 2, dtype=torch.int64, device=device)
        self.shares_N = self._prior_N = prior_N
        self.shares_DN = np.tile(prior_N, (MAX_DEPTH, 1))
        self._read_DN2 = np.zeros((MAX_DEPTH, NUM_BINS, 2), np.int64)
        self._kept_DN2 = np.zeros((MAX_DEPTH, NUM_BINS, 2))
        self._checked_DN3 = np.zeros((MAX_DEPTH, NUM_BINS, 3))  # graded, accepted, predicted to be accepted

    def learn(self, counts_DN2: NDArray[np.int64]) -> None:
        """Compares the nodes counted since the last call with the scale, then computes it anew.

        Args:
            counts_DN2: `NodeScale.counts_DN2` on the host.
        """
        new_DN2, self._read_DN2 = counts_DN2 - self._read_DN2, counts_DN2.copy()
        fade = 0.5 ** (new_DN2[..., 0].sum() / HALF_LIFE)
        predicted_DN = self.shares_DN * new_DN2[..., 0]
        self._checked_DN3 = self._checked_DN3 * fade + np.concatenate((new_DN2, predicted_DN[..., None]), 2)
        self._kept_DN2 = self._kept_DN2 * fade + new_DN2
        graded_DN, accepted_DN = np.moveaxis(self._kept_DN2, 2, 0)
        graded_N, accepted_N = (
            np.convolve(part_DN.sum(0), SMOOTHING_n, "same") for part_DN in (graded_DN, accepted_DN)
        )
        self.shares_N = (accepted_N + PRIOR_WEIGHT * self._prior_N) / (graded_N + PRIOR_WEIGHT)
        shares_DN = (accepted_DN + DEPTH_WEIGHT * self.shares_N) / (graded_DN + DEPTH_WEIGHT)
        self.shares_DN = shares_DN.clip(1 - MAX_SHARE, MAX_SHARE)

    def error(self) -> ScaleError | None:
        """Returns the error of past predictions; None as long as no depth has MIN_NODES graded nodes."""
        return ScaleError.of(self._checked_DN3.reshape(MAX_DEPTH, ERROR_BINS, -1, 3).sum(2))


def read_prior(acceptance: Mapping[str, Any] | None) -> NDArray[Any]:
    """Returns the shares in the content of acceptance.json; p = q if it has none.

    Raises:
        InputError: The key `node_shares` does not have the form that `eyas eval` writes.
    """
    try:
        prior_N = np.array((acceptance or {}).get("node_shares", IDENTITY_N), np.float64)
    except (TypeError, ValueError):
        prior_N = np.zeros(0)
    if prior_N.shape != (NUM_BINS,) or not ((prior_N > 0) & (prior_N < 1)).all():
        problem = "The key `node_shares` of acceptance.json has a wrong form"
        raise InputError(problem, "Run `eyas eval` again, or remove it")
    return prior_N
