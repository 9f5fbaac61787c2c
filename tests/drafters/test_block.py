"""The block drafter in the engine: greedy answers are those of plain decoding, and its trees are the best ones.

B requests, K slots, M nodes, W target vocabulary.
"""

import dataclasses
import itertools
import random

import pytest
import torch
from engine_checks import check_tree
from tests.drafters.blocks import SLOTS, block_config, block_spec, random_block
from tests.engine.small import CONTEXT, Spoken, Turns, drive, poison, tokens

from eyas.drafters import drafter as drafter_module
from eyas.drafters.block import BlockDrafter, exact_shape, expand_block
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, overlap_loop
from eyas.model.block_head import BlockHead
from eyas.speculation.arms import Arm, default_arms
from eyas.tree.acceptance_length import acceptance_length
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape
from eyas.tree.tree import TreeGrower

SHAPES = [chain_shape(SLOTS), TreeShape(SLOTS, 3, 10)]
IDS = ["chain", "tree"]


@pytest.fixture(params=["dspark", "dflash"])
def either(request: pytest.FixtureRequest, learned: BlockHead, learned_dflash: BlockHead) -> BlockHead:
    return learned if request.param == "dspark" else learned_dflash


@pytest.mark.parametrize("method", ["dspark", "dflash"])
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_a_random_block_changes_nothing(llama: Spoken, shape: TreeShape, method: str) -> None:
    spec = block_spec(random_block(llama.target, method=method), llama.target, shape)
    for slots in (1, 3):
        assert tokens(drive(Engine(llama.target, [spec], slots, CONTEXT), llama.requests)) == llama.answers


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_the_overlap_loop_gives_the_same_answers(llama: Spoken, either: BlockHead, shape: TreeShape) -> None:
    engine = poison(Engine(llama.target, [block_spec(either, llama.target, shape)], 3, CONTEXT))
    answers = {one.request.id: one for one in overlap_loop(engine, RequestList(llama.requests))}
    assert tokens(answers) == llama.answers
    assert acceptance_length([one.rounds for one in answers.values() if one.accepted]) > 1.7


def accepted_after(engine: Engine, spoken: Spoken) -> list[tuple[str, tuple[int, ...]]]:
    answers = drive(engine, spoken.requests)
    assert tokens(answers) == spoken.answers
    return sorted((name, tuple(answer.accepted)) for name, answer in answers.items())


def test_acceptance_is_the_same_for_any_chunk_prefix_hit_and_preemption(
    llama: Spoken, either: BlockHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing or misplaced context shows as another number of accepted tokens, not as another answer."""
    spec = block_spec(either, llama.target, chain_shape(SLOTS))
    engine = Engine(llama.target, [spec], 3, CONTEXT)
    cold = accepted_after(engine, llama)
    assert accepted_after(engine, llama) == cold, "all prompts are in the prefix cache"
    monkeypatch.setattr(drafter_module, "MAX_READ_ROWS", 13)
    assert accepted_after(Engine(llama.target, [spec], 3, CONTEXT), llama) == cold, "read piece by piece"
    monkeypatch.setattr("eyas.engine.scheduler.PREFILL_CHUNK", 16)
    assert accepted_after(Engine(llama.target, [spec], 3, CONTEXT), llama) == cold, "prefilled piece by piece"
    tight = Engine(llama.target, [spec], 7, 100, memory_tokens=1)
    preempted = drive(tight, [request for request in llama.requests if len(request.prompt_ids) < 100])
    assert all(llama.answers[name] == found for name, found in tokens(preempted).items())
    assert tight.counters.preemptions > 0
    num_rounds = sum(len(rounds) for name, rounds in cold if name in preempted)
    assert sum(len(one.accepted) for one in preempted.values()) <= num_rounds + tight.counters.preemptions


def test_what_was_answered_without_drafts_is_read_later(llama: Spoken, learned: BlockHead) -> None:
    shape = chain_shape(SLOTS)
    engine = Engine(llama.target, [block_spec(learned, llama.target, shape)], 3, CONTEXT)
    engine.policies[0] = Turns([Arm("on", shape), Arm("off", None), Arm("on", shape), Arm("off", None)])
    answers = drive(engine, llama.requests)
    assert tokens(answers) == llama.answers
    lengths = [length for answer in answers.values() for length in answer.accepted]
    assert lengths.count(SLOTS + 1) > 5, "blocks behind text that was read late are as good as others"


def test_samples_are_those_of_plain_decoding(llama: Spoken, learned: BlockHead) -> None:
    """With the same seed token for token: the random number of a position does not depend on the tree."""
    sampling = SamplingParams(0.9, top_p=0.95)
    requests = [
        dataclasses.replace(request, sampling=sampling, seed=number) for number, request in enumerate(llama.requests)
    ]
    plain = tokens(drive(Engine(llama.target, [], 3, CONTEXT), requests))
    spec = block_spec(learned, llama.target, TreeShape(SLOTS, 3, 10))
    assert tokens(drive(Engine(llama.target, [spec], 3, CONTEXT), requests)) == plain
    assert plain != llama.answers


@pytest.mark.parametrize("nodes", [2, 5, 16])
def test_the_tree_has_the_most_likely_nodes_of_all(llama: Spoken, nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against all paths of a vocabulary of 7 tokens, 3 levels deep."""
    generator = torch.Generator().manual_seed(nodes)
    head = BlockHead.init(block_config(llama.target, 3), 1)
    base_BgW = torch.randn(4, 3, 7, generator=generator) * 2
    table_WW = torch.randn(7, 7, generator=generator) * 2
    monkeypatch.setattr(head, "correction", lambda tokens: table_WW[tokens])
    grower = TreeGrower(exact_shape(TreeShape(3, 2, min(nodes, 8))), torch.device("cpu"))
    root_B = torch.tensor([0, 1, 2, 3])
    tree = grower.grow(root_B, base_BgW[:, 0] + table_WW[root_B], expand_block(head, base_BgW), lambda ids: ids)
    check_tree(tree)
    for b in range(4):
        scores: list[float] = []
        for depth in (1, 2, 3):
            for path in itertools.product(range(7), repeat=depth):
                total, parent = 0.0, int(root_B[b])
                for slot, token in enumerate(path):
                    total += float((base_BgW[b, slot] + table_WW[parent]).log_softmax(-1)[token])
                    parent = token
                scores.append(total)
        wanted = torch.tensor(sorted(scores, reverse=True)[: min(nodes, 8) - 1])
        torch.testing.assert_close(tree.scores_BM[b, 1:].sort(descending=True).values, wanted)


def test_each_slot_sees_the_token_before_it(llama: Spoken) -> None:
    """Without the correction all parents of a level have the same children; with it they differ."""
    head = random_block(llama.target)
    tokens_BK = torch.tensor([[3, 5]])
    assert not torch.equal(*head.correction(tokens_BK)[0])
    head.markov_head.markov_w1.weight.zero_()
    assert not head.correction(tokens_BK).any()


def test_confidence_reacts_to_the_token_before_only(llama: Spoken) -> None:
    head = random_block(llama.target)
    normed_KD = torch.randn(SLOTS, 48)
    before_K = torch.tensor([1, 2, 3, 4])
    changed_K = torch.tensor([1, 2, 9, 4])
    first_K, second_K = (head.confidence(normed_KD, head.markov_head.markov_w1(x)) for x in (before_K, changed_K))
    assert (first_K == second_K).tolist() == [True, True, False, True]


def test_arms_are_not_deeper_than_the_block() -> None:
    assert {arm.depth for arm in default_arms(4)} == {0, 1, 2, 3, 4}
    assert default_arms(8) == default_arms()
    assert "chain5" not in {arm.name for arm in default_arms(4)}


def test_a_stale_scratch_row_is_never_read(llama: Spoken, either: BlockHead) -> None:
    """Rows beyond the committed text and outside the block may hold anything."""
    shape = chain_shape(SLOTS)
    engine = Engine(llama.target, [block_spec(either, llama.target, shape)], 2, CONTEXT)
    drafter = engine.runner.drafters[0]
    assert isinstance(drafter, BlockDrafter)
    drafter.kv.fill_(torch.nan)
    answers = drive(engine, random.Random(0).sample(llama.requests, 5))
    assert all(llama.answers[name] == found for name, found in tokens(answers).items())
    assert max(length for answer in answers.values() for length in answer.accepted) == SLOTS + 1
