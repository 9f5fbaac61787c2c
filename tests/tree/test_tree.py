"""Growing against a plain Python EAGLE-2, closure under ties, and masks as pictures.

Legend: B requests, V draft vocabulary, M tree nodes, K top-k, E expanded nodes, R rows of a table, T positions.
"""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from engine_checks import check_tree
from tests.tree.reference import grow_tree, tree_visible, unrolled_chains_visible
from torch import Tensor

from eyas.tree.shape import TreeShape, chain_shape
from eyas.tree.tree import Frontier, Tree

CPU = torch.device("cpu")
NUM_ROWS = 97
SHAPES = [
    TreeShape(5, 4, 16),
    TreeShape(4, 8, 24),
    TreeShape(2, 3, 5),
    TreeShape(1, 4, 4),
    TreeShape(3, 2, 11),  # every candidate
    TreeShape(3, 2, 14),  # more nodes than candidates: 3 are padding
    TreeShape(1, 3, 6),
    chain_shape(6),
    TreeShape(5, 1, 4),
    TreeShape(3, 1, 7),
]


def picture(mask: Tensor) -> list[str]:
    return ["".join("x" if cell else "." for cell in row) for row in mask.tolist()]


@dataclass
class PathDrafter:
    """A head whose logits depend on the whole path from the root: a row of a table, chosen by a hash of the path.

    The hash is followed in two ways, by Frontier.parents and by Frontier.visible, which must agree.
    """

    table_RV: Tensor
    root_B: Tensor
    calls: int = 0

    def to_target(self, ids: Tensor) -> Tensor:
        return ids * 2 + 1  # a draft vocabulary inside a target vocabulary

    def root_logits(self) -> Tensor:
        return self.table_RV[self.root_B % NUM_ROWS]

    def advance(self, frontier: Frontier) -> Tensor:
        assert frontier.level == self.calls
        if frontier.parents_BK is None:
            self.sums_BK = self.root_B[:, None] + frontier.tokens_BK
            self.all_tokens_BE = frontier.tokens_BK
        else:
            self.sums_BK = self.sums_BK.gather(1, frontier.parents_BK) + frontier.tokens_BK
            self.all_tokens_BE = torch.cat([self.all_tokens_BE, frontier.tokens_BK], dim=1)
        seen_BK = (frontier.visible_BKE * self.all_tokens_BE[:, None]).sum(dim=2) + self.root_B[:, None]
        assert torch.equal(seen_BK, self.sums_BK), "visible = the node and its ancestors"
        assert (frontier.visible_BKE.sum(dim=2) == frontier.level + 1).all()
        self.calls += 1
        return self.table_RV[(self.sums_BK + 7 * self.calls) % NUM_ROWS]


@dataclass
class RefNode:
    number: int
    parent: "RefNode | None"
    token: int
    score: float
    depth: int
    path_sum: int


def reference_tree(table_RV: Tensor, root: int, shape: TreeShape) -> list[RefNode]:
    """EAGLE-2 with lists and `sorted`: no tensors but the rows of log-probabilities."""

    def children(node: RefNode, row: int, first_number: int) -> list[RefNode]:
        log_probs = torch.log_softmax(table_RV[row % NUM_ROWS], dim=-1).tolist()
        best = sorted(range(len(log_probs)), key=lambda i: -log_probs[i])[: shape.top_k]
        # Sums are rounded to fp32 like the tree's.
        scores = [torch.tensor(node.score).add(torch.tensor(log_probs[i])).item() for i in best]
        return [
            RefNode(first_number + n, node, 2 * i + 1, score, node.depth + 1, node.path_sum + 2 * i + 1)
            for n, (i, score) in enumerate(zip(best, scores, strict=True))
        ]

    origin = RefNode(0, None, root, 0.0, 0, root)
    everything = [origin]
    level = children(origin, root, 1)
    everything += level
    for number in range(1, shape.depth):
        frontier = sorted(level, key=lambda node: (-node.score, node.number))[: shape.top_k]
        level = []
        for node in frontier:
            level += children(node, node.path_sum + 7 * number, len(everything) + len(level))
        everything += level
    kept = sorted(everything, key=lambda node: (-node.score, node.number))[: shape.nodes]
    return sorted(kept, key=lambda node: node.number)


def random_table(vocabulary: int, seed: int) -> Tensor:
    return torch.randn(NUM_ROWS, vocabulary, generator=torch.Generator().manual_seed(seed)) * 2


def peaked_table(vocabulary: int, seed: int) -> Tensor:
    """bf16 logits, many rows with a probability of exactly 1.0, and equal scores all over; none equal within a row."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.arange(vocabulary, dtype=torch.float32)
    patterns = [-64.0 * steps, -0.5 * steps, -0.25 * steps]  # the first: exactly 1.0, then exp(-64)
    rows = [
        patterns[int(torch.randint(3, (1,), generator=generator))][torch.randperm(vocabulary, generator=generator)]
        for _ in range(NUM_ROWS)
    ]
    return torch.stack(rows).to(torch.bfloat16)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("make_table", [random_table, peaked_table])
def test_growing_equals_the_plain_python_reference(shape: TreeShape, make_table) -> None:
    for seed in range(4):
        table_RV = make_table(12, seed)
        root_B = torch.arange(5) * 13 + seed
        drafter = PathDrafter(table_RV, root_B)
        tree = grow_tree(shape, root_B, drafter.root_logits(), drafter.advance, drafter.to_target)
        check_tree(tree)
        assert drafter.calls == shape.depth - 1
        assert tree.tokens_BM.shape == (5, shape.nodes)
        assert tree.depth == shape.depth
        for row, root in enumerate(root_B.tolist()):
            expected = reference_tree(table_RV.float(), root, shape)
            place = {node.number: index for index, node in enumerate(expected)}
            count = len(expected)
            assert tree.valid_BM[row].tolist() == [True] * count + [False] * (shape.nodes - count)
            assert tree.tokens_BM[row, :count].tolist() == [node.token for node in expected]
            assert tree.depths_BM[row, :count].tolist() == [node.depth for node in expected]
            assert tree.scores_BM[row, :count].tolist() == [node.score for node in expected]
            parents = [place[node.parent.number] if node.parent else 0 for node in expected]
            assert tree.parents_BM[row, :count].tolist() == parents


def test_the_peaked_table_does_hold_ties_and_certainties() -> None:
    log_probs_RV = torch.log_softmax(peaked_table(12, 0).float(), dim=-1)
    assert int((log_probs_RV.max(dim=-1).values == 0.0).sum()) > 10
    drafter = PathDrafter(peaked_table(12, 0), torch.arange(5) * 13)
    tree = grow_tree(SHAPES[1], drafter.root_B, drafter.root_logits(), drafter.advance, drafter.to_target)
    equal_to_parent_BM = (tree.scores_BM == tree.scores_BM.gather(1, tree.parents_BM))[:, 1:]
    assert bool(equal_to_parent_BM.any()), "a child as likely as its parent"


def test_a_certain_child_never_displaces_its_parent() -> None:
    """Two siblings of equal score, one with a certain line below it; room for all but one: who must give way?

        root -> a (-0.69) -> a1 (-0.69) -> a11 (-0.69)       all three certain, equal to their parents
             -> b (-0.69) -> b1 (-0.69) -> b11 (-0.69)

    The earliest candidates win: a and b before a1 and b1. The reference of EAGLE, whose top-k is unstable,
    may keep a11 without a.
    """
    certain = torch.tensor([0.0, -200.0, -300.0])
    halves = torch.tensor([0.0, 0.0, -200.0])
    root_B = torch.zeros(3, dtype=torch.int64)
    for nodes in range(2, 12):
        tree = grow_tree(
            TreeShape(3, 2, nodes), root_B, halves.expand(3, 3), lambda _: certain.expand(3, 2, 3), lambda ids: ids
        )
        check_tree(tree)
        if nodes == 6:
            assert tree.depths_BM[0].tolist() == [0, 1, 1, 2, 2, 3]
            assert tree.parents_BM[0].tolist() == [0, 0, 0, 1, 2, 3]
            assert tree.scores_BM[0, 1:].tolist() == pytest.approx([-math.log(2)] * 5)


@pytest.mark.parametrize("shape", [TreeShape(4, 3, 9), chain_shape(4)], ids=str)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_broken_head_still_gives_a_tree(shape: TreeShape, poison: float) -> None:
    for poisoned_level in range(shape.depth):

        def advance(frontier: Frontier, level: int = poisoned_level) -> Tensor:
            logits = torch.randn(2, shape.top_k, 7)
            logits[0] = poison if frontier.level + 1 == level else logits[0]
            return logits

        root_logits = torch.randn(2, 7)
        root_logits[0] = poison if poisoned_level == 0 else root_logits[0]
        tree = grow_tree(shape, torch.zeros(2, dtype=torch.int64), root_logits, advance, lambda ids: ids)
        check_tree(tree)
        assert bool(tree.valid_BM[1].all())
        assert bool((tree.depths_BM[0][tree.valid_BM[0]] <= poisoned_level).all())


def test_rows_of_a_batch_do_not_touch_each_other() -> None:
    table_RV, root_B = random_table(12, 3), torch.tensor([5, 60])
    together = PathDrafter(table_RV, root_B)
    tree = grow_tree(SHAPES[0], root_B, together.root_logits(), together.advance, together.to_target)
    for row in range(2):
        alone = PathDrafter(table_RV, root_B[row : row + 1])
        single = grow_tree(SHAPES[0], alone.root_B, alone.root_logits(), alone.advance, alone.to_target)
        assert torch.equal(single.tokens_BM[0], tree.tokens_BM[row])
        assert torch.equal(single.parents_BM[0], tree.parents_BM[row])


def small_tree() -> Tree:
    """0 -> 1 -> 3 -> 5, 1 -> 4, 0 -> 2, and 6 is padding."""
    return Tree(
        tokens_BM=torch.tensor([[9, 1, 2, 3, 4, 5, 0]]),
        parents_BM=torch.tensor([[0, 0, 0, 1, 1, 3, 0]]),
        depths_BM=torch.tensor([[0, 1, 1, 2, 2, 3, 1]]),
        scores_BM=torch.tensor([[0.0, -1.0, -2.0, -1.5, -3.0, -1.5, -math.inf]]),
        valid_BM=torch.tensor([[True] * 6 + [False]]),
        depth=3,
    )


def test_ancestors_picture() -> None:
    tree = small_tree()
    check_tree(tree)
    assert picture(tree.ancestors_BMM()[0]) == [
        "x......",
        "xx.....",
        "x.x....",
        "xx.x...",
        "xx..x..",
        "xx.x.x.",
        "x.....x",  # padding sees something, so that its softmax is not 0 / 0
    ]


def test_visible_picture() -> None:
    assert picture(tree_visible(small_tree(), torch.tensor([2]), 4)[0, :4]) == [
        "xx.." + "x......",
        "xx.." + "xx.....",
        "xx.." + "x.x....",
        "xx.." + "xx.x...",
    ]


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 8, 9])
def test_ancestors_of_a_long_chain(depth: int) -> None:
    tokens_BM = torch.zeros(2, depth + 1, dtype=torch.int64)
    tree = Tree.from_chains(tokens_BM, torch.ones_like(tokens_BM, dtype=torch.bool))
    assert torch.equal(tree.ancestors_BMM()[1], torch.ones(depth + 1, depth + 1, dtype=torch.bool).tril())


def test_chains_found_elsewhere_may_be_shorter_than_their_row() -> None:
    valid_BM = torch.tensor([[True, True, True, True], [True, True, False, False], [True, False, False, False]])
    tree = Tree.from_chains(torch.arange(12).reshape(3, 4), valid_BM)
    check_tree(tree)
    assert tree.parents_BM.tolist() == [[0, 0, 1, 2], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert tree.depths_BM.tolist() == [[0, 1, 2, 3], [0, 1, 1, 1], [0, 1, 1, 1]]


def test_parallel_chains_picture() -> None:
    visible = unrolled_chains_visible(num_positions=4, depth=2, device=CPU)
    assert picture(visible.reshape(12, 12)) == [
        "x... .... ....".replace(" ", ""),
        "xx.. .... ....".replace(" ", ""),
        "xxx. .... ....".replace(" ", ""),
        "xxxx .... ....".replace(" ", ""),
        "x... x... ....".replace(" ", ""),
        "xx.. .x.. ....".replace(" ", ""),
        "xxx. ..x. ....".replace(" ", ""),
        "xxxx ...x ....".replace(" ", ""),
        "x... x... x...".replace(" ", ""),
        "xx.. .x.. .x..".replace(" ", ""),
        "xxx. ..x. ..x.".replace(" ", ""),
        "xxxx ...x ...x".replace(" ", ""),
    ]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("parents precede children", {"parents_BM": torch.tensor([[0, 0, 0, 4, 1, 3, 0]])}),
        ("a child is one deeper", {"depths_BM": torch.tensor([[0, 1, 1, 2, 3, 3, 1]])}),
        ("no likelier", {"scores_BM": torch.tensor([[0.0, -1.0, -2.0, -0.5, -3.0, -1.5, -math.inf]])}),
        ("closed", {"valid_BM": torch.tensor([[True, False, True, True, True, True, False]])}),
        ("distinct", {"tokens_BM": torch.tensor([[9, 1, 1, 3, 4, 5, 0]])}),
    ],
)
def test_check_finds_what_is_wrong(name: str, change: dict[str, Any]) -> None:
    tree = small_tree()
    fields: dict[str, Any] = {
        key: getattr(tree, key) for key in ("tokens_BM", "parents_BM", "depths_BM", "scores_BM", "valid_BM")
    }
    with pytest.raises(AssertionError, match=name):
        check_tree(Tree(**(fields | change), depth=3))
