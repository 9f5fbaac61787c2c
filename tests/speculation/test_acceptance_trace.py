"""What a large tree says about smaller ones, against those smaller ones: real trees, grown and verified.

B requests, K top-k, V vocabulary, M tree nodes, N states. The head and the target are tables over states of the text; a
state follows from the one before and a token, so equal paths have equal logits in every tree.
"""

import pytest
import torch
from tests.tree.reference import grow_tree
from torch import Tensor

from eyas.speculation.acceptance_trace import AcceptanceTrace, trace_BC, trace_from_row
from eyas.speculation.arms import Arm
from eyas.tree.shape import TreeShape, chain_shape
from eyas.tree.tree import Frontier, Tree, rerank
from eyas.tree.verify import AcceptedPath, verify

WORDS, STATES = 40, 5003


class World:
    """A head that is sure or unsure by state, and a target that mostly agrees with it."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        sharpness_N1 = torch.rand(STATES, 1, generator=generator) * 4 + 1
        self.head_NV = torch.randn(STATES, WORDS, generator=generator) * sharpness_N1
        self.said_N = (self.head_NV + 1.5 * torch.randn(STATES, WORDS, generator=generator)).argmax(dim=1)

    @staticmethod
    def after(states: Tensor, tokens: Tensor) -> Tensor:
        return (states * 31 + tokens * 17 + 7) % STATES

    def grow(self, shape: TreeShape, states_B: Tensor) -> Tree:
        states_BK = states_B[:, None]

        def advance(frontier: Frontier) -> Tensor:
            nonlocal states_BK
            if frontier.parents_BK is not None:
                states_BK = states_BK.gather(1, frontier.parents_BK)
            states_BK = self.after(states_BK.expand(-1, frontier.tokens_BK.shape[1]), frontier.tokens_BK)
            return self.head_NV[states_BK]

        return grow_tree(shape, torch.zeros_like(states_B), self.head_NV[states_B], advance, lambda ids: ids)

    def accept(self, tree: Tree, states_B: Tensor) -> AcceptedPath:
        states_BM = states_B[:, None].expand_as(tree.tokens_BM).clone()
        for node in range(1, tree.tokens_BM.shape[1]):
            parents_B1 = tree.parents_BM[:, node : node + 1]
            states_BM[:, node : node + 1] = self.after(states_BM.gather(1, parents_B1), tree.tokens_BM[:, [node]])
        return verify(tree, self.said_N[states_BM])

    def evidence(self, shape: TreeShape, states_B: Tensor) -> list[AcceptanceTrace]:
        """Of each request, as if it ran alone."""
        found = []
        for state in states_B.tolist():
            states_1 = torch.tensor([state])
            tree = self.grow(shape, states_1)
            found += read(Arm("ran", shape), tree, self.accept(tree, states_1))
        return found

    def accepted(self, shape: TreeShape, states_B: Tensor) -> list[int]:
        """Drafted tokens that a tree of this shape accepts."""
        return (self.accept(self.grow(shape, states_B), states_B).lengths_B - 1).tolist()


def read(arm: Arm, tree: Tree, accepted: AcceptedPath) -> list[AcceptanceTrace]:
    rows = trace_BC(tree, accepted, len(tree.tokens_BM)).tolist()
    return [trace_from_row(arm, 0, n, row) for n, row in zip(accepted.lengths_B.tolist(), rows, strict=True)]


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=0)


@pytest.fixture(scope="module")
def states_B() -> Tensor:
    return torch.randint(0, STATES, (150,), generator=torch.Generator().manual_seed(1))


def test_a_smaller_tree_accepts_what_the_evidence_says(world: World, states_B: Tensor) -> None:
    found = world.evidence(TreeShape(5, 3, 30), states_B)
    for nodes in (2, 4, 8, 15, 30):
        truth = world.accepted(TreeShape(5, 3, nodes), states_B)
        assert [one.num_accepted_within(nodes, 5) for one in found] == truth
    assert len({len(one.min_nodes) for one in found}) > 4, "paths of many lengths"


def test_a_shallower_tree_accepts_no_less(world: World, states_B: Tensor) -> None:
    """Deep nodes take no rows there, so others move up: the evidence may fall short, never exceed."""
    found = world.evidence(TreeShape(6, 3, 30), states_B)
    truth = world.accepted(TreeShape(3, 3, 10), states_B)
    said = [one.num_accepted_within(10, 3) for one in found]
    assert all(a <= b for a, b in zip(said, truth, strict=True))
    assert sum(a == b for a, b in zip(said, truth, strict=True)) >= 0.95 * len(truth)


def test_a_chain_accepts_what_the_likeliest_path_did(world: World, states_B: Tensor) -> None:
    found = world.evidence(TreeShape(5, 3, 12), states_B)
    truth = world.accepted(chain_shape(5), states_B)
    refused = [one.chain_accepted < one.chain_offered for one in found]
    assert [one.chain_accepted for one, is_known in zip(found, refused, strict=True) if is_known] == [
        count for count, is_known in zip(truth, refused, strict=True) if is_known
    ]
    for one, count in zip(found, truth, strict=True):
        assert one.chain_accepted <= min(count, one.chain_offered)
    assert 0 < sum(refused) < len(refused), "the likeliest path is refused in some, and runs out of rows in others"


def test_a_chain_is_its_own_evidence(world: World, states_B: Tensor) -> None:
    for one, count in zip(
        world.evidence(chain_shape(4), states_B), world.accepted(chain_shape(4), states_B), strict=True
    ):
        assert (one.chain_accepted, len(one.min_nodes), one.chain_offered) == (count, count, 4)
        assert one.min_nodes == tuple(range(2, count + 2))


def test_in_a_batch_the_likeliest_nodes_of_all_count(world: World, states_B: Tensor) -> None:
    """The rows of a small budget are those that `rerank` would give to this very batch."""
    some_B = states_B[:6]
    wide = world.grow(TreeShape(5, 3, 36), some_B)
    tree, _ = rerank(wide, 6 * 20)
    found = read(Arm("ran", TreeShape(5, 3, 20)), tree, world.accept(tree, some_B))
    for nodes in (2, 3, 6, 12, 20):
        small, _ = rerank(wide, 6 * nodes)
        truth = (world.accept(small, some_B).lengths_B - 1).tolist()
        assert [one.num_accepted_within(nodes, 5) for one in found] == truth
    assert len({len(one.min_nodes) for one in found}) > 1


def test_requests_that_do_not_draft_take_no_part(world: World, states_B: Tensor) -> None:
    """Their lone roots come before every node, and must not count as nodes of the others."""
    some_B = states_B[10:16]
    tree = world.grow(TreeShape(4, 3, 12), some_B)
    drafting_B = torch.tensor([True, False, True, False, False, True])
    alone = Tree(*(tensor[drafting_B] for tensor in _tensors(tree)), depth=tree.depth)
    lone_B1 = ~drafting_B[:, None] & (tree.depths_BM > 0)
    mixed = Tree(
        tree.tokens_BM,
        tree.parents_BM,
        tree.depths_BM,
        tree.scores_BM.masked_fill(lone_B1, -torch.inf),
        tree.valid_BM & ~lone_B1,
        tree.depth,
    )
    mixed_accepted = world.accept(mixed, some_B)
    rows = trace_BC(mixed, mixed_accepted, 3)[drafting_B].tolist()
    expected = trace_BC(alone, world.accept(alone, some_B[drafting_B]), 3).tolist()
    for row, other, length in zip(rows, expected, mixed_accepted.lengths_B[drafting_B].tolist(), strict=True):
        assert row[: length - 1] + row[-2:] == other[: length - 1] + other[-2:]


def _tensors(tree: Tree) -> tuple[Tensor, ...]:
    return tree.tokens_BM, tree.parents_BM, tree.depths_BM, tree.scores_BM, tree.valid_BM
