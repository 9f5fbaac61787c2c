"""The rows of a round go to the likeliest nodes of the whole batch: against every choice that keeps trees whole.

B requests, M tree nodes, T rows.
"""

import math
import random
from itertools import combinations

import pytest
import torch
from engine_checks import check_tree

from eyas.tree.tree import Tree, rerank


def make_tree(parents: list[list[int]], scores: list[list[float]]) -> Tree:
    """Trees by parents and scores; tokens are the node numbers."""
    depths = []
    for row in parents:
        depth = [0]
        for parent in row[1:]:
            depth.append(depth[parent] + 1)
        depths.append(depth)
    scores_BM = torch.tensor(scores)
    tokens_BM = torch.arange(scores_BM.shape[1]).expand_as(scores_BM)
    valid_BM = scores_BM > -torch.inf
    tree = Tree(tokens_BM, torch.tensor(parents), torch.tensor(depths), scores_BM, valid_BM, max(map(max, depths)))
    check_tree(tree)
    return tree


def random_tree(pick: random.Random) -> Tree:
    """Up to three requests of up to six nodes. Children are often certain, scores often the same, some are padding."""
    num_requests, num_nodes = pick.randint(1, 3), pick.randint(2, 6)
    parents, scores = [], []
    for _ in range(num_requests):
        parent, score = [0], [0.0]
        num_padding = pick.choice((0, 0, 1)) if num_nodes > 2 else 0
        for node in range(1, num_nodes):
            is_padding = node >= num_nodes - num_padding
            parent.append(0 if is_padding else pick.randrange(node))
            step = math.inf if is_padding else pick.choice((0.0, 0.5, 0.5, 1.0, pick.random()))
            score.append(score[parent[-1]] - step)
        parents.append(parent)
        scores.append(score)
    return make_tree(parents, scores)


def best_total(tree: Tree, num_rows: int) -> float:
    """The most expected tokens that any choice of so many nodes brings: sum of probabilities, trees kept whole."""
    num_requests, num_nodes = tree.tokens_BM.shape
    roots = {request * num_nodes for request in range(num_requests)}
    others = [number for number in range(num_requests * num_nodes) if number not in roots]
    parents, scores = tree.parents_BM.tolist(), tree.scores_BM.flatten().tolist()
    best = -math.inf
    for some in combinations(others, num_rows - num_requests):
        chosen = roots | set(some)
        if all(n - n % num_nodes + parents[n // num_nodes][n % num_nodes] in chosen for n in some):
            best = max(best, sum(math.exp(scores[n]) for n in chosen))
    return best


def test_no_other_choice_is_better() -> None:
    pick = random.Random(0)
    for _ in range(60):
        tree = random_tree(pick)
        num_requests, num_nodes = tree.tokens_BM.shape
        for num_rows in range(num_requests, num_requests * num_nodes + 1):
            found, rows_T = rerank(tree, num_rows)
            check_tree(found)
            assert found.valid_BM[:, 0].all(), "roots stay"
            chosen = list(range(num_requests * num_nodes)) if rows_T is None else rows_T.tolist()
            assert (rows_T is None) == (num_rows == num_requests * num_nodes)
            assert len(chosen) == num_rows
            assert chosen == sorted(set(chosen))
            parents = (tree.parents_BM + torch.arange(num_requests)[:, None] * num_nodes).flatten()
            assert set(parents[chosen].tolist()) <= set(chosen), "an ancestor of a row has a row"
            valid = set(found.valid_BM.flatten().nonzero().flatten().tolist())
            assert valid == {n for n in chosen if tree.scores_BM.flatten()[n] > -math.inf}
            total = float(tree.scores_BM.flatten()[chosen].exp().sum())
            assert total == pytest.approx(best_total(tree, num_rows), abs=1e-5)
            for name in ("tokens_BM", "parents_BM", "depths_BM", "scores_BM"):
                assert torch.equal(getattr(found, name), getattr(tree, name))


def test_a_certain_child_comes_after_its_parent() -> None:
    """Probability 1.0 all the way down, in two requests: the first nodes of the first request, then of the second."""
    tree = make_tree([[0, 0, 1, 2, 3]] * 2, [[0.0] * 5, [0.0, -0.0, 0.0, 0.0, 0.0]])
    for num_rows in range(2, 11):
        found, _ = rerank(tree, num_rows)
        num_first = min(num_rows - 2, 4)
        wanted = [[n <= num_first for n in range(5)], [n <= num_rows - 2 - num_first for n in range(5)]]
        assert found.valid_BM.tolist() == wanted


def test_a_sure_request_gets_the_rows_of_an_unsure_one() -> None:
    tree = make_tree([[0, 0, 0, 1], [0, 0, 1, 2]], [[0.0, -2.0, -3.0, -4.0], [0.0, -0.1, -0.2, -2.5]])
    found, rows_T = rerank(tree, 6)
    assert found.valid_BM.tolist() == [[True, True, False, False], [True, True, True, True]]
    assert rows_T is not None
    assert rows_T.tolist() == [0, 1, 4, 5, 6, 7]


def test_a_request_that_may_not_draft_keeps_its_root() -> None:
    """Its nodes have the score of padding; rows that nobody wants mean nothing."""
    tree = make_tree([[0, 0, 1], [0, 0, 1]], [[0.0, -math.inf, -math.inf], [0.0, -1.0, -2.0]])
    found, _ = rerank(tree, 4)
    assert found.valid_BM.tolist() == [[True, False, False], [True, True, True]]
    found, _ = rerank(tree, 5)
    assert found.valid_BM.tolist() == [[True, False, False], [True, True, True]]
    found, rows_T = rerank(tree, 6)
    assert found.valid_BM.tolist() == [[True, False, False], [True, True, True]]
    assert rows_T is None
