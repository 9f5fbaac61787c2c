"""The scale of node probabilities against plain loops over nodes and against known laws."""

import math
import random

import numpy as np
import pytest
import torch
from tests.tree.test_merge import random_tree

from eyas.base.errors import InputError
from eyas.tree.merge import SOURCES
from eyas.tree.node_scale import (
    IDENTITY_N,
    MAX_DEPTH,
    MAX_LOGIT,
    NUM_BINS,
    NodeScale,
    calibrate,
    count_graded,
    read_prior,
)
from eyas.tree.tree import Tree
from eyas.tree.verify import verify


def bin_of(tree: Tree, row: int, node: int) -> int:
    """The bin of the head's probability of a node, given its parent."""
    score, above = (float(tree.scores_BM[row, n]) for n in (node, int(tree.parents_BM[row, node])))
    q = math.exp(min(score - above, -1e-7))
    place = int((math.log(q) - math.log(1 - q) + MAX_LOGIT) / (2 * MAX_LOGIT) * NUM_BINS)
    return min(max(place, 0), NUM_BINS - 1)


@pytest.mark.parametrize("seed", range(60))
def test_graded_nodes_are_the_children_of_accepted_ones(seed: int) -> None:
    pick = random.Random(seed)
    tree = random_tree(pick, pick.randint(1, 3))
    path = verify(tree, torch.randint(4, tree.tokens_BM.shape, generator=torch.Generator().manual_seed(seed)))
    scale, expected = NodeScale(), torch.zeros(len(SOURCES), MAX_DEPTH, NUM_BINS, 2, dtype=torch.int64)
    sources_BM = torch.randint(len(SOURCES), tree.tokens_BM.shape, generator=torch.Generator().manual_seed(seed))
    for row in range(len(tree.tokens_BM)):
        accepted = set(path.nodes_BS[row, : path.lengths_B[row]].tolist())
        for node in range(1, tree.tokens_BM.shape[1]):
            if tree.valid_BM[row, node] and int(tree.parents_BM[row, node]) in accepted:
                cell = expected[sources_BM[row, node], tree.depths_BM[row, node] - 1, bin_of(tree, row, node)]
                cell += torch.tensor([1, node in accepted])
    count_graded(scale.counts_SDN2, tree, tree, sources_BM, path)
    assert torch.equal(scale.counts_SDN2, expected)


def test_nodes_without_a_source_are_the_heads() -> None:
    tree = random_tree(random.Random(3), 2)
    path = verify(tree, tree.tokens_BM.gather(1, tree.parents_BM))
    scale = NodeScale()
    count_graded(scale.counts_SDN2, tree, tree, None, path)
    assert scale.counts_SDN2[0].sum() > 0
    assert scale.counts_SDN2[1:].sum() == 0


@pytest.mark.parametrize("seed", range(60))
def test_calibrated_scores_are_products_of_shares(seed: int) -> None:
    pick = random.Random(seed)
    tree = random_tree(pick, pick.randint(1, 3))
    generator = torch.Generator().manual_seed(seed)
    shares_SDN = torch.rand(len(SOURCES), MAX_DEPTH, NUM_BINS, generator=generator) * 0.98 + 0.01
    sources_BM = torch.randint(len(SOURCES), tree.tokens_BM.shape, generator=generator)
    found = calibrate(tree, sources_BM, shares_SDN.log())
    for row in range(len(tree.tokens_BM)):
        scores = {0: 0.0}
        for node in range(1, tree.tokens_BM.shape[1]):
            if not tree.valid_BM[row, node]:
                assert found.scores_BM[row, node] == -torch.inf
                continue
            place = int(sources_BM[row, node]), int(tree.depths_BM[row, node]) - 1, bin_of(tree, row, node)
            share = shares_SDN[place]
            scores[node] = scores[int(tree.parents_BM[row, node])] + math.log(share)
            assert float(found.scores_BM[row, node]) == pytest.approx(scores[node], abs=1e-4)
    assert torch.equal(found.parents_BM, tree.parents_BM)
    assert torch.equal(found.valid_BM, tree.valid_BM)


def draw_counts(seed: int, shares_N: np.ndarray, num_depths: int, nodes: int) -> np.ndarray:
    """Counts of nodes that are accepted with these shares."""
    pick = np.random.default_rng(seed)
    counts_SDN2 = np.zeros((len(SOURCES), MAX_DEPTH, NUM_BINS, 2), np.int64)
    for depth in range(num_depths):
        graded_N = pick.multinomial(nodes, np.ones(NUM_BINS) / NUM_BINS)
        counts_SDN2[0, depth] = np.stack((graded_N, pick.binomial(graded_N, shares_N)), 1)
    return counts_SDN2


STEPS_N = np.where(np.arange(NUM_BINS) < NUM_BINS // 2, 0.1, 0.95)
"""A law that no logistic function has."""


def test_the_shares_are_those_of_the_nodes() -> None:
    scale = NodeScale()
    scale.learn(draw_counts(0, STEPS_N, 4, 60_000))
    assert scale.shares_SDN[0, :4] == pytest.approx(np.tile(STEPS_N, (4, 1)), abs=0.06)
    edge = NUM_BINS // 2
    far = [n for n in range(NUM_BINS) if abs(n - edge) > 3]
    assert scale.shares_SDN[0, -1, far] == pytest.approx(STEPS_N[far], abs=0.03), "unseen depths are as all depths"


def test_few_nodes_change_little() -> None:
    scale = NodeScale(np.full(NUM_BINS, 0.3))
    scale.learn(draw_counts(1, np.full(NUM_BINS, 0.9), 1, 4))
    assert np.abs(scale.shares_SDN[0] - 0.3).max() < 0.25
    assert scale.shares_SDN[1:] == pytest.approx(np.broadcast_to(IDENTITY_N, scale.shares_SDN[1:].shape)), "no nodes"


def test_the_error_is_that_of_predictions_made_before() -> None:
    first_SDN2, more_SDN2 = draw_counts(0, STEPS_N, 3, 8000), draw_counts(1, STEPS_N, 3, 80_000)
    scale = NodeScale()
    assert scale.errors() == {}
    scale.learn(first_SDN2)
    assert scale.errors().keys() == {"head"}
    assert scale.errors()["head"].ece > 0.08, "p = q was wrong"
    scale.learn(more_SDN2)
    later = scale.errors()["head"]
    assert later.ece < 0.02, "the learned scale is right"
    assert abs(later.bias) < 0.02


def test_the_prior_is_read_back() -> None:
    scale = NodeScale()
    scale.learn(draw_counts(0, STEPS_N, 4, 8000))
    assert np.array_equal(read_prior({"node_shares": scale.head_shares_N.tolist()}), scale.head_shares_N)
    assert np.array_equal(read_prior({}), IDENTITY_N)


@pytest.mark.parametrize("stored", [[0.5], "much", {"0": 0.5}, [1.5] * NUM_BINS, [float("nan")] * NUM_BINS])
def test_wrong_shares_are_refused(stored: object) -> None:
    with pytest.raises(InputError, match="node_shares"):
        read_prior({"node_shares": stored})
