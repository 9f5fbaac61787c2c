"""Acceptance against a walk in plain Python, and the corners of the coin.

Legend: B requests, M tree nodes, W target vocabulary, S path slots.
"""

import math

import pytest
import torch
from torch import Tensor

from eyas.tree.sampling import Sampling, distribution
from eyas.tree.shape import TreeShape, chain
from eyas.tree.tree import Frontier, Tree, grow
from eyas.tree.verify import Accepted, stop_has_children, verify_greedy, verify_greedy_ids, verify_sampling

WORDS = 7
SHAPES = [
    TreeShape(5, 4, 16),
    TreeShape(3, 3, 12),
    TreeShape(2, 2, 12),
    TreeShape(1, 5, 6),
    chain(4),
    TreeShape(2, 1, 6),
]


def random_tree(shape: TreeShape, num_requests: int, generator: torch.Generator) -> Tree:
    def advance(frontier: Frontier) -> Tensor:
        return torch.randn(*frontier.tokens_BK.shape, WORDS, generator=generator) * 3  # peaked: deep trees occur

    root_B = torch.randint(WORDS, (num_requests,), generator=generator)
    return grow(shape, root_B, torch.randn(num_requests, WORDS, generator=generator), advance, lambda ids: ids)


def children(tree: Tree, row: int, node: int) -> list[int]:
    parents, valid = tree.parents_BM[row].tolist(), tree.valid_BM[row].tolist()
    return [i for i in range(1, len(parents)) if parents[i] == node and valid[i]]


def greedy_walk(tree: Tree, row: int, ids: list[int]) -> tuple[list[int], list[int]]:
    """New tokens and the nodes of the path."""
    path, tokens = [0], []
    while True:
        tokens.append(ids[path[-1]])
        following = [i for i in children(tree, row, path[-1]) if int(tree.tokens_BM[row, i]) == tokens[-1]]
        if not following:
            return tokens, path
        path.append(following[0])


def sampling_walk(tree: Tree, row: int, probs: list[list[float]], coins: list[float]) -> tuple[list[int], list[float]]:
    """The nodes of the path, and the weights from which the bonus is drawn."""
    path = [0]
    while True:
        node, total = path[-1], 0.0
        weights = list(probs[node])
        for child in children(tree, row, node):
            token = int(tree.tokens_BM[row, child])
            total += probs[node][token]
            weights[token] = 0.0
            if coins[node] <= total:
                path.append(child)
                break
        else:
            return path, weights


def kept(accepted: Accepted, row: int) -> tuple[list[int], list[int]]:
    length = int(accepted.lengths_B[row])
    return accepted.tokens_BS[row, :length].tolist(), accepted.nodes_BS[row, :length].tolist()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_greedy_equals_the_walk(shape: TreeShape) -> None:
    generator = torch.Generator().manual_seed(0)
    tree = random_tree(shape, 300, generator)
    logits_BMW = torch.randn(300, shape.nodes, WORDS, generator=generator)
    # Most nodes' argmaxes are steered to one of their children, so that long paths occur.
    steer_BM = torch.rand(300, shape.nodes, generator=generator) < 0.75
    for row in range(300):
        for node in range(shape.nodes):
            offspring = children(tree, row, node)
            if offspring and steer_BM[row, node]:
                logits_BMW[row, node, tree.tokens_BM[row, offspring[row % 2 % len(offspring)]]] += 9.0
    accepted = verify_greedy(tree, logits_BMW)
    ids_BM = logits_BMW.argmax(dim=-1)
    assert torch.equal(verify_greedy_ids(tree, ids_BM).tokens_BS, accepted.tokens_BS)
    assert accepted.tokens_BS.shape == accepted.nodes_BS.shape == (300, shape.slots)
    assert set(accepted.lengths_B.tolist()) == set(range(1, min(shape.depth, shape.nodes - 1) + 2))
    offered_B = stop_has_children(tree, accepted)
    for row in range(300):
        tokens, path = greedy_walk(tree, row, ids_BM[row].tolist())
        assert kept(accepted, row) == (tokens, path)
        assert accepted.nodes_BS[row, len(path) :].eq(0).all()
        assert accepted.kept_BS()[row].tolist() == [slot < len(path) for slot in range(shape.slots)]
        assert bool(offered_B[row]) == bool(children(tree, row, path[-1]))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sampling_equals_the_walk(shape: TreeShape) -> None:
    generator = torch.Generator().manual_seed(1)
    tree = random_tree(shape, 300, generator)
    probs_BMW = distribution(torch.randn(300, shape.nodes, WORDS, generator=generator) * 2, Sampling(1.0, top_k=5))
    coins_BM = torch.rand(300, shape.nodes, generator=generator)
    bonus_coins_B = torch.rand(300, generator=generator)
    accepted = verify_sampling(tree, probs_BMW, coins_BM, bonus_coins_B)
    assert int(accepted.lengths_B.max()) > 1 or shape.depth == 1
    for row in range(300):
        path, weights = sampling_walk(tree, row, probs_BMW[row].tolist(), coins_BM[row].tolist())
        tokens, nodes = kept(accepted, row)
        assert nodes == path
        assert tokens[:-1] == tree.tokens_BM[row, path[1:]].tolist()
        goal, total, bonus = float(bonus_coins_B[row]) * sum(weights), 0.0, 0
        for word, weight in enumerate(weights):
            total += weight
            if goal <= total:
                bonus = word
                break
        assert tokens[-1] == bonus
        assert weights[bonus] > 0


def test_temperature_zero_is_greedy_whatever_the_coins() -> None:
    generator = torch.Generator().manual_seed(2)
    tree = random_tree(SHAPES[0], 500, generator)
    logits_BMW = torch.randn(500, 16, WORDS, generator=generator)
    greedy = verify_greedy(tree, logits_BMW)
    for coins_BM in (torch.rand(500, 16, generator=generator), torch.zeros(500, 16), torch.ones(500, 16)):
        sampled = verify_sampling(tree, distribution(logits_BMW, Sampling()), coins_BM, coins_BM[:, 0])
        assert torch.equal(sampled.lengths_B, greedy.lengths_B)
        assert all(kept(sampled, row) == kept(greedy, row) for row in range(500))


def two_children(valid: list[bool]) -> Tree:
    """root -> token 1, root -> token 2, and perhaps padding."""
    return Tree(
        tokens_BM=torch.tensor([[0, 1, 2, 0]]),
        parents_BM=torch.zeros(1, 4, dtype=torch.int64),
        depths_BM=torch.tensor([[0, 1, 1, 1]]),
        scores_BM=torch.tensor([[0.0, -1.0, -1.0, -math.inf]]),
        valid_BM=torch.tensor([valid]),
        depth=1,
    )


def verdict(tree: Tree, root_probs: list[float], coin: float, bonus_coin: float) -> list[int]:
    probs_BMW = torch.tensor(root_probs).expand(1, 4, len(root_probs)).contiguous()
    accepted = verify_sampling(tree, probs_BMW, torch.full((1, 4), coin), torch.tensor([bonus_coin]))
    return kept(accepted, 0)[0]


def test_coin_zero_does_not_accept_what_the_filters_removed() -> None:
    assert verdict(two_children([True, True, True, False]), [0.5, 0.0, 0.5, 0.0], coin=0.0, bonus_coin=0.0) == [2, 0]


def test_coin_one_stays_inside_the_vocabulary() -> None:
    assert verdict(two_children([True, True, True, False]), [0.2, 0.3, 0.1, 0.4], coin=1.0, bonus_coin=1.0) == [3]


def test_mass_lost_to_rounding_still_gives_a_token_of_the_target() -> None:
    """Children hold all the mass, but it sums to less than the coin: the residual is empty."""
    probs = [0.0, 0.5, 0.5 - 2.0**-10, 0.0]
    assert verdict(two_children([True, True, True, False]), probs, coin=1.0, bonus_coin=0.9) == [2]


def test_padding_is_never_accepted_nor_taken_from_the_residual() -> None:
    """Nodes 2 and 3 are padding with tokens 2 and 0; greedy would like token 2, sampling has mass only there."""
    tree = two_children([True, True, False, False])
    assert kept(verify_greedy_ids(tree, torch.full((1, 4), 2)), 0) == ([2], [0])
    for coin in (0.0, 0.3, 1.0):
        assert verdict(tree, [0.0, 0.0, 1.0, 0.0], coin, bonus_coin=0.5) == [2]
        assert verdict(tree, [1.0, 0.0, 0.0, 0.0], coin, bonus_coin=0.5) == [0]
    probs_BMW = torch.tensor([0.0, 0.0, 1.0, 0.0]).expand(1, 4, 4).contiguous()
    coins_BM = torch.zeros(1, 4)
    assert verify_sampling(tree, probs_BMW, coins_BM, torch.tensor([0.5])).lengths_B.tolist() == [1]
