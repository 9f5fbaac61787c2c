"""Penalties inside trees against each path read as plain text.

Legend: B requests, M tree nodes, S path slots, T rows, D depth, W vocabulary.
"""

from collections.abc import Sequence

import pytest
import torch
from tests.tree.reference import adjusted, grow_tree
from torch import Tensor

from eyas.base.errors import InputError
from eyas.staging import Staging
from eyas.tree.penalties import NodePaths, PenaltyState
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape
from eyas.tree.tree import Frontier, Tree

WORDS = 11
CPU = torch.device("cpu")
SETTINGS = [
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(repetition_penalty=0.7),
    SamplingParams(presence_penalty=0.8),
    SamplingParams(frequency_penalty=-0.4),
    SamplingParams(logit_bias={2: 3.5, 7: -100.0}),
    SamplingParams(0.8, 5, 0.9, 0.1, 2.7, -1.1, 0.6, {0: -1.0, 3: 2.0}),
    SamplingParams(0.5),
]
SHAPES = [TreeShape(4, 3, 14), TreeShape(2, 2, 9), chain_shape(5), TreeShape(1, 4, 4)]


def random_trees(shape: TreeShape, num_requests: int, generator: torch.Generator) -> Tree:
    """Few words and deep trees: paths repeat words, their own and those of the text."""

    def advance(frontier: Frontier) -> Tensor:
        return torch.randn(*frontier.tokens_BK.shape, WORDS, generator=generator) * 3

    root_B = torch.randint(WORDS, (num_requests,), generator=generator)
    return grow_tree(shape, root_B, torch.randn(num_requests, WORDS, generator=generator), advance, lambda ids: ids)


def random_ids(least: int, most: int, generator: torch.Generator) -> list[int]:
    count = int(torch.randint(least, most + 1, (1,), generator=generator))
    return torch.randint(WORDS, (count,), generator=generator).tolist()


def path_of(tree: Tree, row: int, node: int) -> list[int]:
    """The tokens below the root, down to the node."""
    out = []
    while node:
        out.append(int(tree.tokens_BM[row, node]))
        node = int(tree.parents_BM[row, node])
    return out[::-1]


def test_paths_as_a_picture() -> None:
    """root 9 -> 5 -> 5 -> 2 and root -> 7, request by request; the node's own token comes first."""
    tree = Tree(
        tokens_BM=torch.tensor([[9, 5, 7, 5, 2]]),
        parents_BM=torch.tensor([[0, 0, 0, 1, 3]]),
        depths_BM=torch.tensor([[0, 1, 1, 2, 3]]),
        scores_BM=torch.zeros(1, 5),
        valid_BM=torch.ones(1, 5, dtype=torch.bool),
        depth=3,
    )

    def picture(paths: NodePaths) -> list[str]:
        rows = zip(paths.tokens_TD.tolist(), paths.present_TD.tolist(), strict=True)
        return ["".join(str(t) if there else "." for t, there in zip(*row, strict=True)) for row in rows]

    assert picture(NodePaths.from_tree(tree)) == ["...", "5..", "7..", "55.", "255"]
    assert picture(NodePaths.from_tree(tree, torch.tensor([4, 0, 2]))) == ["255", "...", "7.."]
    lone = Tree.from_chains(torch.tensor([[3], [4]]), torch.ones(2, 1, dtype=torch.bool))
    assert picture(NodePaths.from_tree(lone)) == ["", ""]


def admitted(prompts: list[list[int]], answers: Sequence[list[int]], lines: list[int]) -> PenaltyState:
    """One request for each of the settings, in the given lines of a state that other requests have used before."""
    state = PenaltyState(len(SETTINGS) + 3, WORDS, Staging(CPU))
    for line in range(state.num_slots):
        state.admit(line, SETTINGS[5], list(range(WORDS)), [1, 1, 4])
    for line, sampling, prompt, answer in zip(lines, SETTINGS, prompts, answers, strict=True):
        state.admit(line, sampling, prompt, answer)
    return state


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_node_sees_its_path(shape: TreeShape, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    count = len(SETTINGS)
    lines = (torch.randperm(count + 3, generator=generator)[:count]).tolist()
    prompts = [random_ids(1, 6, generator) for _ in SETTINGS]
    answers = [random_ids(0, 5, generator) for _ in SETTINGS]
    tree = random_trees(shape, count, generator)
    logits_TW = (torch.randn(count * shape.nodes, WORDS, generator=generator) * 3).to(dtype)
    logits_TW[::5, 4] = -torch.inf  # as a grammar leaves it
    state = admitted(prompts, answers, lines)
    lines_T = torch.tensor(lines).repeat_interleave(shape.nodes)
    ours_TW = state.apply(logits_TW, lines_T, NodePaths.from_tree(tree))
    assert ours_TW.dtype == torch.float32
    for row in range(count * shape.nodes):
        request, node = divmod(row, shape.nodes)
        text = answers[request] + path_of(tree, request, node)
        expected_W = adjusted(logits_TW[row], SETTINGS[request], prompts[request], text)
        torch.testing.assert_close(ours_TW[row], expected_W, rtol=1e-6, atol=1e-6)
    some_T = torch.randperm(count * shape.nodes, generator=generator)[:9]
    assert torch.equal(
        state.apply(logits_TW[some_T], lines_T[some_T], NodePaths.from_tree(tree, some_T)), ours_TW[some_T]
    )
    roots_T = torch.arange(count) * shape.nodes
    assert torch.equal(state.apply(logits_TW[roots_T], lines_T[roots_T], None), ours_TW[roots_T])


def test_what_was_accepted_counts_as_if_it_had_always_been_there() -> None:
    generator = torch.Generator().manual_seed(4)
    count = len(SETTINGS)
    prompts = [random_ids(1, 6, generator) for _ in SETTINGS]
    answers: list[list[int]] = [[] for _ in SETTINGS]
    lines = list(range(count))[::-1]
    state = admitted(prompts, answers, lines)
    logits_TW = torch.randn(count, WORDS, generator=generator) * 3
    for _ in range(6):
        tokens_BS = torch.randint(WORDS, (count, 4), generator=generator)
        lengths_B = torch.randint(1, 5, (count,), generator=generator)
        state.update(
            torch.tensor(lines), tokens_BS.masked_fill(torch.arange(4) >= lengths_B[:, None], 2**40), lengths_B
        )
        for b in range(count):
            answers[b] += tokens_BS[b, : int(lengths_B[b])].tolist()
    fresh = admitted(prompts, answers, lines)
    lines_T = torch.tensor(lines)
    assert torch.equal(state.apply(logits_TW, lines_T, None), fresh.apply(logits_TW, lines_T, None))
    assert not torch.equal(state.apply(logits_TW, lines_T, None)[:6], logits_TW[:6])


def test_a_request_without_penalties_keeps_its_bits() -> None:
    """Beside others that have some: with what it and they have said, on a path, and with logits of every kind."""
    state = PenaltyState(2, 4, Staging(CPU))
    state.admit(0, SamplingParams(1.0), [1, 2], [1, 1, 3])
    state.admit(1, SETTINGS[0], [1, 2], [1, 1, 3])
    logits_TW = torch.tensor([[3.7e-5, -2.9, 1e30, -torch.inf]]).repeat(2, 1)
    paths = NodePaths(torch.tensor([[2, 2], [2, 2]]), torch.tensor([[True, True], [True, True]]))
    ours_TW = state.apply(logits_TW, torch.tensor([0, 1]), paths)
    assert torch.equal(ours_TW[0], logits_TW[0])
    assert not torch.equal(ours_TW[1], logits_TW[1])


def test_nothing_is_kept_until_somebody_asks() -> None:
    state = PenaltyState(2**40, 2**20, Staging(CPU))  # tables of this size could not be made
    state.admit(7, SamplingParams(0.8, top_p=0.9), [1, 2, 3])
    state.update(torch.tensor([7]), torch.tensor([[1, 2]]), torch.tensor([2]))
    logits_TW = torch.randn(2, 9)
    assert state.apply(logits_TW, torch.tensor([7, 7]), None) is logits_TW


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InputError, match="logit_bias names token 11, but the target's token ids are below 11"):
        PenaltyState(2, WORDS, Staging(CPU)).admit(0, SamplingParams(logit_bias={11: 1.0}), [1])


def test_nothing_is_read_on_the_host() -> None:
    """Meta tensors hold no data: what reads or branches on it fails."""
    meta = torch.device("meta")
    state = PenaltyState(3, WORDS, Staging(meta))
    state.admit(1, SETTINGS[5], [1, 2], [3])
    tree = Tree.from_chains(torch.zeros(2, 4, dtype=torch.int64), torch.ones(2, 4, dtype=torch.bool))
    tokens_BM, parents_BM, valid_BM = (part.to(meta) for part in (tree.tokens_BM, tree.parents_BM, tree.valid_BM))
    tree = Tree(tokens_BM, parents_BM, parents_BM, parents_BM.float(), valid_BM, 3)
    lines_B = torch.zeros(2, dtype=torch.int64, device=meta)
    state.update(lines_B, tokens_BM, lines_B)
    lines_T = torch.zeros(8, dtype=torch.int64, device=meta)
    assert state.apply(torch.zeros(8, WORDS, device=meta), lines_T, NodePaths.from_tree(tree)).shape == (8, WORDS)
