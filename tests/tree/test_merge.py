"""Merging a chain into a tree against a plain merge of paths. B requests, K tokens of the chain."""

import math
import random

import pytest
import torch
from engine_checks import check_tree
from tests.tree.test_rerank import make_tree

from eyas.tree.merge import SOURCES, merge_chain
from eyas.tree.tree import Tree
from eyas.tree.verify import verify

Path = tuple[int, ...]


def paths(tree: Tree, row: int) -> dict[Path, float]:
    """The valid nodes below the root as tokens from the root down, with their scores."""
    found: dict[int, Path] = {0: ()}
    for node in range(1, tree.tokens_BM.shape[1]):
        if tree.valid_BM[row, node]:
            found[node] = (*found[int(tree.parents_BM[row, node])], int(tree.tokens_BM[row, node]))
    return {path: float(tree.scores_BM[row, node]) for node, path in found.items() if path}


def path_of(tree: Tree, row: int, node: int) -> Path:
    """The tokens from the root down to a node."""
    found: list[int] = []
    while node:
        found.append(int(tree.tokens_BM[row, node]))
        node = int(tree.parents_BM[row, node])
    return tuple(reversed(found))


def random_tree(pick: random.Random, num_requests: int) -> Tree:
    """Trees over few tokens, so that chains often share nodes with them."""
    parents: list[list[int]] = []
    scores: list[list[float]] = []
    tokens: list[list[int]] = []
    num_nodes = pick.randint(1, 9)
    for _ in range(num_requests):
        parent: list[int] = [0]
        score: list[float] = [0.0]
        token: list[int] = [7]
        for node in range(1, num_nodes):
            above = pick.randrange(node)
            taken = {token[n] for n in range(1, node) if parent[n] == above}
            free = [t for t in range(4) if t not in taken]
            if not free or score[above] == -float("inf") or pick.random() < 0.1:
                node_of = (0, -float("inf"), 0)
            else:
                node_of = (above, score[above] - pick.random(), pick.choice(free))
            parent.append(node_of[0])
            score.append(node_of[1])
            token.append(node_of[2])
        parents.append(parent)
        scores.append(score)
        tokens.append(token)
    tree = make_tree(parents, scores)
    return Tree(torch.tensor(tokens), tree.parents_BM, tree.depths_BM, tree.scores_BM, tree.valid_BM, tree.depth)


@pytest.mark.parametrize("seed", range(200))
def test_paths_are_those_of_tree_and_chain(seed: int) -> None:
    pick = random.Random(seed)
    num_requests, size = pick.randint(1, 3), pick.randint(1, 6)
    tree = random_tree(pick, num_requests)
    tokens = [[pick.randrange(4) for _ in range(size)] for _ in range(num_requests)]
    counts = [pick.randint(0, size) for _ in range(num_requests)]
    scores = [sorted((-2 * pick.random() for _ in range(size)), reverse=True) for _ in range(num_requests)]
    valid_BK = torch.arange(size) < torch.tensor(counts)[:, None]
    merged, sources_BM = merge_chain(tree, torch.tensor(tokens), torch.tensor(scores), valid_BK)
    check_tree(merged)
    for row in range(num_requests):
        drafted = {(): 0.0} | paths(tree, row)
        chain = {tuple(tokens[row][:count]): scores[row][count - 1] for count in range(1, counts[row] + 1)} | {(): 0.0}
        expected: dict[Path, float] = {(): 0.0}
        for path in sorted(drafted.keys() | chain.keys(), key=len)[1:]:
            missed = [1 - math.exp(source[path] - source[path[:-1]]) for source in (drafted, chain) if path in source]
            expected[path] = expected[path[:-1]] + math.log(1 - math.prod(missed))
        del expected[()]
        found = paths(merged, row)
        assert found.keys() == expected.keys()
        for node in range(1, merged.tokens_BM.shape[1]):
            if merged.valid_BM[row, node]:
                path = path_of(merged, row, node)
                is_later = path[:-1] in chain and path[:-1] not in drafted
                own = "copy" if is_later else "branch"
                source = own if path not in drafted else "both" if path in chain else "head"
                assert SOURCES[sources_BM[row, node]] == source
        assert all(found[path] == pytest.approx(expected[path], abs=2e-4) for path in found)


def test_the_path_of_a_copy_is_accepted_below_the_nodes_of_the_tree() -> None:
    """The tree has 1 -> 2; the copy 1 2 3 4. The target says 1 2 3 4 5."""
    tree = make_tree([[0, 0, 1]], [[0.0, -0.5, -1.0]])
    merged, sources_BM = merge_chain(
        tree, torch.tensor([[1, 2, 3, 4]]), -torch.arange(1.0, 5)[None], torch.ones(1, 4).bool()
    )
    says = {(): 1, (1,): 2, (1, 2): 3, (1, 2, 3): 4, (1, 2, 3, 4): 5}
    ids = torch.zeros_like(merged.tokens_BM)
    found: dict[int, Path] = {0: ()}
    for node in range(merged.tokens_BM.shape[1]):
        if node and merged.valid_BM[0, node]:
            found[node] = (*found[int(merged.parents_BM[0, node])], int(merged.tokens_BM[0, node]))
        ids[0, node] = says.get(found.get(node, (-1,)), 0)
    accepted = verify(merged, ids)
    assert accepted.tokens_BS[0, : int(accepted.lengths_B)].tolist() == [1, 2, 3, 4, 5]
    named = [SOURCES[sources_BM[0, node]] for node in accepted.nodes_BS[0, 1:5].tolist()]
    assert named == ["both", "both", "branch", "copy"]
