"""Acceptance against a walk in plain Python.

Legend: B requests, M tree nodes, S path slots.
"""

import math
from dataclasses import replace

import pytest
import torch
from tests.tree.reference import grow_tree
from torch import Tensor

from eyas.tree.shape import TreeShape, chain_shape
from eyas.tree.tree import Frontier, Tree
from eyas.tree.verify import AcceptedPath, has_rejected_child, verify

WORDS = 7
SHAPES = [
    TreeShape(5, 4, 16),
    TreeShape(3, 3, 12),
    TreeShape(2, 2, 12),
    TreeShape(1, 5, 6),
    chain_shape(4),
    TreeShape(2, 1, 6),
]


def random_tree(shape: TreeShape, num_requests: int, generator: torch.Generator) -> Tree:
    def advance(frontier: Frontier) -> Tensor:
        return torch.randn(*frontier.tokens_BK.shape, WORDS, generator=generator) * 3  # peaked: deep trees occur

    root_B = torch.randint(WORDS, (num_requests,), generator=generator)
    return grow_tree(shape, root_B, torch.randn(num_requests, WORDS, generator=generator), advance, lambda ids: ids)


def thinned(tree: Tree, generator: torch.Generator) -> Tree:
    """Every third tree loses nodes, and what hangs below them, as where a round has no rows for all."""
    valid_BM = tree.valid_BM.clone()
    valid_BM[::3, 1:] &= torch.rand(valid_BM[::3, 1:].shape, generator=generator) < 0.8
    for _ in range(tree.depth):
        valid_BM &= valid_BM.gather(1, tree.parents_BM)
    return replace(tree, valid_BM=valid_BM)


def children(tree: Tree, row: int, node: int) -> list[int]:
    parents, valid = tree.parents_BM[row].tolist(), tree.valid_BM[row].tolist()
    return [i for i in range(1, len(parents)) if parents[i] == node and valid[i]]


def walk(tree: Tree, row: int, ids: list[int]) -> tuple[list[int], list[int]]:
    """New tokens and the nodes of the path."""
    path, tokens = [0], []
    while True:
        tokens.append(ids[path[-1]])
        following = [i for i in children(tree, row, path[-1]) if int(tree.tokens_BM[row, i]) == tokens[-1]]
        if not following:
            return tokens, path
        path.append(following[0])


def kept(accepted: AcceptedPath, row: int) -> tuple[list[int], list[int]]:
    length = int(accepted.lengths_B[row])
    return accepted.tokens_BS[row, :length].tolist(), accepted.nodes_BS[row, :length].tolist()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_verify_is_the_walk(shape: TreeShape) -> None:
    generator = torch.Generator().manual_seed(0)
    tree = thinned(random_tree(shape, 300, generator), generator)
    ids_BM = torch.randint(WORDS, (300, shape.nodes), generator=generator)
    # Most nodes want one of their children, so that long paths occur.
    steer_BM = torch.rand(300, shape.nodes, generator=generator) < 0.75
    for row in range(300):
        for node in range(shape.nodes):
            offspring = children(tree, row, node)
            if offspring and steer_BM[row, node]:
                ids_BM[row, node] = tree.tokens_BM[row, offspring[row % 2 % len(offspring)]]
    accepted = verify(tree, ids_BM)
    assert accepted.tokens_BS.shape == accepted.nodes_BS.shape == (300, shape.max_accepted)
    assert set(accepted.lengths_B.tolist()) == set(range(1, min(shape.depth, shape.nodes - 1) + 2))
    offered_B = has_rejected_child(tree, accepted)
    for row in range(300):
        tokens, path = walk(tree, row, ids_BM[row].tolist())
        assert kept(accepted, row) == (tokens, path)
        assert accepted.nodes_BS[row, len(path) :].eq(0).all()
        assert accepted.is_accepted_BS()[row].tolist() == [slot < len(path) for slot in range(shape.max_accepted)]
        assert bool(offered_B[row]) == bool(children(tree, row, path[-1]))


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


def test_padding_is_never_accepted() -> None:
    """Nodes 2 and 3 are padding with tokens 2 and 0, which the target wants."""
    tree = two_children([True, True, False, False])
    assert kept(verify(tree, torch.full((1, 4), 2)), 0) == ([2], [0])
    assert kept(verify(tree, torch.full((1, 4), 0)), 0) == ([0], [0])
    assert kept(verify(tree, torch.full((1, 4), 1)), 0) == ([1, 1], [0, 1])
    assert kept(verify(two_children([True, True, True, False]), torch.full((1, 4), 2)), 0) == ([2, 2], [0, 2])


def test_a_lone_root_gives_its_token() -> None:
    """Plain decoding is the same function on a tree of one node."""
    tree = Tree.from_chains(torch.tensor([[3], [4]]), torch.ones(2, 1, dtype=torch.bool))
    accepted = verify(tree, torch.tensor([[5], [6]]))
    assert accepted.lengths_B.tolist() == [1, 1]
    assert accepted.tokens_BS.tolist() == [[5], [6]]
    assert not has_rejected_child(tree, accepted).any()


def test_a_wanted_node_below_a_refused_one_is_not_accepted() -> None:
    """root -> 1 -> 2, and the target wants 5 after the root: that 2 would be right after 1 does not matter."""
    tree = Tree.from_chains(torch.tensor([[0, 1, 2]]), torch.ones(1, 3, dtype=torch.bool))
    assert kept(verify(tree, torch.tensor([[5, 2, 2]])), 0) == ([5], [0])
    assert kept(verify(tree, torch.tensor([[1, 2, 6]])), 0) == ([1, 2, 6], [0, 1, 2])


def test_nothing_is_read_on_the_host() -> None:
    """Meta tensors hold no data: what reads or branches on it fails."""
    tree = random_tree(SHAPES[0], 3, torch.Generator().manual_seed(0))
    parts = (tree.tokens_BM, tree.parents_BM, tree.depths_BM, tree.scores_BM, tree.valid_BM)
    tokens_BM, parents_BM, depths_BM, scores_BM, valid_BM = (part.to("meta") for part in parts)
    meta = Tree(tokens_BM, parents_BM, depths_BM, scores_BM, valid_BM, tree.depth)
    accepted = verify(meta, meta.tokens_BM)
    assert has_rejected_child(meta, accepted).shape == (3,)


@pytest.mark.parametrize("shape", [chain_shape(1), chain_shape(5), TreeShape(depth=5, top_k=1, nodes=4)])
def test_a_chain_needs_no_search(shape: TreeShape) -> None:
    """The same as for any tree, with nodes left out at its end."""
    generator = torch.Generator().manual_seed(3)
    tree = random_tree(shape, 200, generator)
    assert tree.is_chain == (shape.nodes == shape.depth + 1)
    lengths_B1 = torch.randint(1, shape.nodes + 1, (200, 1), generator=generator)
    tree = replace(tree, valid_BM=torch.arange(shape.nodes) < lengths_B1)
    ids_BM = torch.randint(0, 40, (200, shape.nodes), generator=generator)
    right_BM = torch.rand(200, shape.nodes, generator=generator) < 0.8
    ids_BM[:, :-1] = torch.where(right_BM[:, 1:], tree.tokens_BM[:, 1:], ids_BM[:, :-1])
    found, wanted = verify(tree, ids_BM), verify(replace(tree, is_chain=False), ids_BM)
    assert found.lengths_B.unique().numel() == shape.nodes
    assert torch.equal(found.lengths_B, wanted.lengths_B)
    assert torch.equal(found.nodes_BS, wanted.nodes_BS)
    assert torch.equal(found.tokens_BS[found.is_accepted_BS()], wanted.tokens_BS[wanted.is_accepted_BS()])
    refused_B = has_rejected_child(replace(tree, is_chain=False), wanted)
    assert torch.equal(has_rejected_child(tree, found), refused_B)
    assert 0 < int(refused_B.sum()) < 200
