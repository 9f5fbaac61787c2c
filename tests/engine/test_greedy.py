"""Greedy answers are those of transformers' generate, whatever the draft says and whoever shares the batch."""

import dataclasses

import pytest
import torch
from tests.engine.pairs import LLAMA_FIRST
from tests.engine.small import CONTEXT, ReplayDrafter, Spoken, drive, optional, random_draft, replay_engine, tokens

from eyas.drafters.eagle3 import Eagle3Drafter, Eagle3Spec
from eyas.engine.engine import Engine
from eyas.kernels.dispatch import attention_for_device
from eyas.kernels.paged_attention import PrepareAttention, prepare_dense
from eyas.tree.acceptance_length import acceptance_length
from eyas.tree.shape import TreeShape, chain_shape

TREE = TreeShape(4, 3, 12)


@pytest.mark.parametrize("spoken", LLAMA_FIRST, indirect=True)
@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize("shape", [None, chain_shape(4), TREE], ids=["baseline", "chain", "tree"])
def test_a_random_head_changes_nothing(spoken: Spoken, shape: TreeShape | None, slots: int) -> None:
    draft = None if shape is None else random_draft(spoken.target, shape)
    assert tokens(drive(Engine(spoken.target, optional(draft), slots, CONTEXT), spoken.requests)) == spoken.answers


@pytest.mark.parametrize("spoken", LLAMA_FIRST, indirect=True)
@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize("shape", [chain_shape(4), TREE, TreeShape(3, 4, 20)], ids=["chain", "tree", "wide"])
def test_what_is_accepted_moves_to_its_place(spoken: Spoken, shape: TreeShape, slots: int) -> None:
    """Right drafts of every length, at every place of the tree: the rows kept must be those of a text without trees."""
    seen: set[tuple[int, bool]] = set()
    for seed in range(4):
        engine = replay_engine(spoken, shape, slots)
        drafter = engine.runner.drafters[0]
        assert isinstance(drafter, ReplayDrafter)
        drafter.random.seed(seed)
        assert tokens(drive(engine, spoken.requests)) == spoken.answers
        seen |= drafter.seen
        if all_kinds(seen, shape):
            return
    raise AssertionError(f"not every kind of path was accepted: {sorted(seen)} (length, in order)")


def all_kinds(seen: set[tuple[int, bool]], shape: TreeShape) -> bool:
    """Every length, and where there are branches every length above 1 out of order too."""
    lengths = set(range(1, shape.max_accepted + 1))
    out_of_order = {length for length, in_order in seen if not in_order}
    return {length for length, _ in seen} == lengths and (shape.top_k == 1 or out_of_order == lengths - {1})


@pytest.mark.parametrize(
    "prepare", [prepare_dense, attention_for_device(torch.device("cpu"))], ids=["reference", "kernel"]
)
def test_every_attention_gives_the_same_words(spoken: Spoken, prepare: PrepareAttention) -> None:
    """The plain one, which serves where there is no compiler, and what this machine runs."""
    engine = Engine(spoken.target, [random_draft(spoken.target, TREE)], 3, CONTEXT, prepare=prepare)
    assert tokens(drive(engine, spoken.requests)) == spoken.answers


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("shape", [chain_shape(4), TreeShape(4, 2, 8)], ids=["chain", "tree"])
def test_a_learnt_head_is_fast_and_changes_nothing(
    llama: Spoken, learnt: Eagle3Spec, shape: TreeShape, slots: int
) -> None:
    engine = Engine(llama.target, [dataclasses.replace(learnt, shape=shape)], slots, CONTEXT)
    answers = drive(engine, llama.requests)
    assert tokens(answers) == llama.answers
    rounds = [answer.rounds for answer in answers.values() if answer.accepted]
    assert acceptance_length(rounds) > 1.3
    for answer in answers.values():
        assert sum(answer.accepted) == len(answer.token_ids) - 1, "every token but the prefill's belongs to a round"
        assert sum(answer.is_draft) == sum(answer.accepted) - len(answer.accepted) + cut_drafts(answer.is_draft)


def cut_drafts(drafted: list[bool]) -> int:
    """1 where the answer ends with a draft token: its last round was cut before the bonus."""
    return int(drafted[-1])


@pytest.mark.parametrize("shape", [chain_shape(4), TREE], ids=["chain", "tree"])
def test_more_rows_than_the_text_are_never_read(llama: Spoken, shape: TreeShape) -> None:
    """Whatever the memory holds where no text is, the answers are the same: it is full of old requests."""
    engine = replay_engine(llama, shape, 3)
    pool, future_map, drafter = engine.runner.pool, engine.runner.future_map, engine.runner.drafters[0]
    assert isinstance(drafter, Eagle3Drafter)
    assert pool.aux_ZL is not None
    pool.kv.fill_(1e4)
    pool.aux_ZL.fill_(1e4)
    drafter.kv.fill_(-1e4)
    pool.req_to_token_RC.random_(0, pool.num_slots)
    future_map.tokens_RC.random_(0, 256)
    future_map.lengths_R.random_(0, CONTEXT)
    assert tokens(drive(engine, llama.requests)) == llama.answers


def test_an_engine_serves_again(llama: Spoken) -> None:
    engine = replay_engine(llama, TREE, 3)
    assert tokens(drive(engine, llama.requests)) == llama.answers
    assert tokens(drive(engine, reversed(llama.requests))) == llama.answers
    assert drive(engine, []) == {}


def test_no_gradients_are_kept(llama: Spoken, learnt: Eagle3Spec) -> None:
    engine = Engine(llama.target, [learnt], 2, CONTEXT)
    drive(engine, llama.requests[:3])
    runner = engine.runner
    assert isinstance(runner.drafters[0], Eagle3Drafter)
    for tensor in (runner.pool.kv, runner.pool.aux_ZL, runner.drafters[0].kv):
        assert tensor is not None
        assert not tensor.requires_grad
        assert torch.isfinite(tensor).all()
    for tensor in (runner.drafters[0].state.logits_RV, runner.drafters[0].state.hidden_RD):
        assert tensor is not None
        assert not tensor.requires_grad
