"""Turns the probabilities that drafters give their nodes into the probabilities that the target accepts them.

B requests, M tree nodes, S sources of a node (`merge.SOURCES`), D depths, N bins of the logit of q.

    q                      the probability of a node, given its parent, as its source says
    shares_SDN[s, d, n]    of the nodes of source s at depth d whose logit(q) is in bin n, the share that the target
                           accepts

A node is *graded* in a round that accepts its parent, because only then the target says whether the node is right. The
device counts graded and accepted nodes by source, depth and bin, and the host computes the shares. Head and copies of
earlier text compete for the rows of a round on this common scale. A copied token is accepted far more often if the head
names it, too, than if the head names others, so these nodes are counted apart.

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
from eyas.tree.merge import SOURCES
from eyas.tree.tree import Tree, sum_along_paths
from eyas.tree.verify import AcceptedPath

MAX_DEPTH = 16  # deeper nodes count as this depth
MAX_LOGIT, NUM_BINS = 8.0, 64
ERROR_BINS = 16  # of `NodeScale.errors`: few, because chance alone makes small bins differ
MIN_NODES = 500  # graded nodes: with fewer, chance alone is an error of some percent
PRIOR_WEIGHT, DEPTH_WEIGHT = 4.0, 16.0  # nodes of a bin: trust in acceptance.json, and in the share of all depths
SMOOTHING_n = np.array([1.0, 2.0, 3.0, 2.0, 1.0]) / 3  # how much a bin also counts the nodes of its neighbors
MAX_SHARE = 0.9999  # below 1, so that rounding puts no node above its parent
HALF_LIFE = 40_000.0  # graded nodes after which old ones count half
IDENTITY_N = 1 / (1 + np.exp(MAX_LOGIT - (np.arange(NUM_BINS) + 0.5) * (2 * MAX_LOGIT / NUM_BINS)))  # p = q


def count_graded(counts_SDN2: Tensor, tree: Tree, drafted: Tree, sources_BM: Tensor | None, path: AcceptedPath) -> None:
    """Adds the graded nodes of verified trees to the counts. It does not wait for the device.

    Args:
        counts_SDN2: The numbers of graded nodes, and of accepted ones among them.
        tree: The verified trees.
        drafted: The same trees with the scores before `calibrate`.
        sources_BM: The sources of the nodes; None if all are the head's.
        path: The accepted paths.
    """
    on_path_BM = torch.zeros_like(tree.valid_BM).scatter_(1, path.nodes_BS, True)
    graded_BM = on_path_BM.gather(1, tree.parents_BM) & tree.valid_BM & (tree.depths_BM > 0)
    grades_BM2 = torch.stack((graded_BM, graded_BM & on_path_BM), 2).long()
    counts_SDN2.view(-1, 2).index_add_(0, _cells(drafted, sources_BM).view(-1), grades_BM2.view(-1, 2))


def calibrate(tree: Tree, sources_BM: Tensor, log_shares_SDN: Tensor) -> Tree:
    """Returns the trees with calibrated scores: the logarithm of the probability that the target accepts the path.

    Args:
        tree: The trees. Scores fall along a path, before and after.
        sources_BM: The sources of the nodes.
        log_shares_SDN: The logarithm of the shares of a `NodeScale`.
    """
    scores_BM = log_shares_SDN.take(_cells(tree, sources_BM)).masked_fill_(tree.depths_BM == 0, 0.0)
    scores_BM = sum_along_paths(scores_BM, tree.parents_BM, tree.depth)
    return dataclasses.replace(tree, scores_BM=scores_BM.masked_fill(~tree.valid_BM, -torch.inf))


def _cells(tree: Tree, sources_BM: Tensor | None) -> Tensor:
    """Returns the place of each node in a table [S, D, N], as the index of its flat values."""
    log_q_BM = (tree.scores_BM - tree.scores_BM.gather(1, tree.parents_BM)).clamp_(max=-1e-7)
    logits_BM = (log_q_BM - (-log_q_BM.expm1()).log()).nan_to_num_(nan=0.0)
    bins_BM = ((logits_BM / MAX_LOGIT + 1) * (NUM_BINS / 2)).clamp_(0, NUM_BINS - 1).long()
    rows_BM = (tree.depths_BM - 1).clamp(0, MAX_DEPTH - 1)
    return (rows_BM if sources_BM is None else rows_BM + sources_BM * MAX_DEPTH) * NUM_BINS + bins_BM


@dataclass(frozen=True)
class ScaleError:
    """The distance between a scale and what happened.

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
        shares_SDN: The scale.
        log_shares_SDN: float32, the logarithm of the shares.
        counts_SDN2: What `count_graded` has counted since the host last read it, on the device of the head.
    """

    def __init__(self, prior_N: NDArray[Any] = IDENTITY_N, device: torch.device | str = "cpu") -> None:
        """Initializes the scale. prior_N: the first shares of the head's nodes. Other sources start from p = q."""
        shape = len(SOURCES), MAX_DEPTH, NUM_BINS
        self.counts_SDN2 = torch.zeros(*shape, 2, dtype=torch.int64, device=device)
        self._prior_SN = np.stack([prior_N, *[IDENTITY_N] * (len(SOURCES) - 1)])
        self._set_shares(np.broadcast_to(self._prior_SN[:, None], shape))
        self._kept_SDN2 = np.zeros((*shape, 2))
        self._checked_SDN3 = np.zeros((*shape, 3))  # graded, accepted, predicted to be accepted

    @property
    def head_shares_N(self) -> NDArray[Any]:
        """The shares of the head's nodes of all depths together."""
        return self._shares_of_all_depths()[0]

    def learn(self, counts_SDN2: NDArray[np.int64]) -> None:
        """Compares counted nodes with the scale, then computes it anew.

        Args:
            counts_SDN2: The nodes counted since the last call, on the host.
        """
        fade = 0.5 ** (counts_SDN2[..., 0].sum() / HALF_LIFE)
        predicted_SDN = self.shares_SDN * counts_SDN2[..., 0]
        self._checked_SDN3 = self._checked_SDN3 * fade + np.concatenate((counts_SDN2, predicted_SDN[..., None]), -1)
        self._kept_SDN2 = self._kept_SDN2 * fade + counts_SDN2
        graded_SDN, accepted_SDN = np.moveaxis(self._kept_SDN2, -1, 0)
        all_S1N = self._shares_of_all_depths()[:, None]
        shares_SDN = (accepted_SDN + DEPTH_WEIGHT * all_S1N) / (graded_SDN + DEPTH_WEIGHT)
        self._set_shares(shares_SDN.clip(1 - MAX_SHARE, MAX_SHARE))

    def errors(self) -> dict[str, ScaleError]:
        """Returns the errors of past predictions by source, as far as a depth has MIN_NODES graded nodes."""
        checked_SDN3 = self._checked_SDN3.reshape(len(SOURCES), MAX_DEPTH, ERROR_BINS, -1, 3).sum(3)
        found = {source: ScaleError.of(part_DN3) for source, part_DN3 in zip(SOURCES, checked_SDN3, strict=True)}
        return {source: error for source, error in found.items() if error is not None}

    def _set_shares(self, shares_SDN: NDArray[Any]) -> None:
        self.shares_SDN, self.log_shares_SDN = shares_SDN, np.log(shares_SDN).astype(np.float32)

    def _shares_of_all_depths(self) -> NDArray[Any]:
        """Returns, by source and bin, the shares of all depths together, smoothed over neighboring bins."""
        sums_SN2 = self._kept_SDN2.sum(1)
        padded_SN2 = np.pad(sums_SN2, ((0, 0), (len(SMOOTHING_n) // 2,) * 2, (0, 0)))
        smooth_SN2 = np.lib.stride_tricks.sliding_window_view(padded_SN2, len(SMOOTHING_n), axis=1) @ SMOOTHING_n
        weighted_SN = smooth_SN2[..., 1] + PRIOR_WEIGHT * self._prior_SN
        return weighted_SN / (smooth_SN2[..., 0] + PRIOR_WEIGHT)


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
