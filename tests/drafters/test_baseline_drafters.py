"""Copies and a small model on an engine without a head: the target's words, and the rounds that a walk counts."""

import dataclasses
import random
from pathlib import Path

import pytest
import torch
from drafter_words import AllCopies
from tests.engine.small import CONTEXT, Spoken, drive, poison, speak, tokens
from tests.model.families import family_target
from worker_stream import WorkerStream

from eyas.base.errors import InputError
from eyas.drafters.small_model import SmallModelSpec
from eyas.engine.device_stream import DeviceStream
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, overlap_loop
from eyas.engine.request import Request
from eyas.model.target import Target
from eyas.speculation.copy_index import CopyFinder, CopyIndex
from eyas.tree.shape import chain_shape

DEPTH = 4


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    return speak(family_target(tmp_path_factory.mktemp("target"), "mistral"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Of other weights and another depth, with the same words."""
    torch.manual_seed(7)
    return Target.load(family_target(tmp_path_factory.mktemp("other"), "llama", layers=2), torch.float32, (0,))


def plan(name: str, spoken: Spoken, other: Target, slots: int, stream: DeviceStream | None = None) -> Engine:
    if name == "copies":
        engine = Engine(spoken.target, (), slots, CONTEXT, stream=stream, copies=CopyFinder(0))
        engine.policies[0] = AllCopies()
        return engine
    models = {"small": other, "itself": spoken.target}
    return Engine(spoken.target, [SmallModelSpec(models[name], chain_shape(DEPTH))], slots, CONTEXT, stream=stream)


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("name", ["copies", "small", "itself"])
def test_the_same_words(name: str, slots: int, spoken: Spoken, other: Target) -> None:
    engine = poison(plan(name, spoken, other, slots))
    assert tokens(drive(engine, spoken.requests)) == spoken.answers


@pytest.mark.parametrize("name", ["copies", "small"])
def test_the_same_words_where_rounds_overlap(name: str, spoken: Spoken, other: Target) -> None:
    engine = plan(name, spoken, other, 3, WorkerStream())
    found = {answer.request.id: answer.token_ids for answer in overlap_loop(engine, RequestList(spoken.requests))}
    assert found == spoken.answers


def test_a_model_that_drafts_for_itself_is_always_right(spoken: Spoken, other: Target) -> None:
    """Whatever was accepted before, and with prompts that lie in the prefix cache already."""
    engine = plan("itself", spoken, other, 2)
    for _ in range(2):
        for answer in drive(engine, spoken.requests).values():
            *whole, last = answer.rounds.accepted or [1]
            assert set(whole) <= {DEPTH + 1}
            assert 1 <= last <= DEPTH + 1


def test_copies_accept_what_a_walk_over_the_answers_accepts(spoken: Spoken) -> None:
    """On texts that repeat themselves: each round accepts what the proposed copy and the answer have in common."""
    draw = random.Random(3)
    prompts = [[draw.randrange(20, 28) for _ in range(length)] for length in (6, 30, 90, 200)]
    requests = [Request(str(i), tuple(ids), 60) for i, ids in enumerate(prompts)]
    found = drive(plan("copies", spoken, spoken.target, 1), requests)
    finder, expected = CopyFinder(0), []
    for i, ids in enumerate(prompts):
        text, index, begin = [*ids, *found[str(i)].token_ids], CopyIndex(), len(ids) + 1
        expected.append(accepted := [])
        while begin < len(text):
            copy = finder.propose(index, text[:begin], "", 0)
            rest = text[begin:]
            hits = [] if copy is None else [one == other for one, other in zip(copy.tokens, rest, strict=False)]
            accepted.append(min([*hits, False].index(False) + 1, len(rest)))
            if copy is not None:
                finder.grade(copy, text[:begin], rest[: accepted[-1]])
            begin += accepted[-1]
    assert [found[str(i)].rounds.accepted for i in range(len(prompts))] == [tuple(one) for one in expected]
    assert max(length for one in expected for length in one) > 1


def test_a_model_of_other_words_is_refused(spoken: Spoken, tmp_path: Path) -> None:
    stranger = Target.load(family_target(tmp_path, "qwen3"), torch.float32, (0,))
    stranger.tokenizer.add_tokens(["kestrel"])
    with pytest.raises(InputError, match="The draft model has 288 tokens and the target 288; 1 tokens differ"):
        Engine(spoken.target, [SmallModelSpec(stranger, chain_shape(3))], 1, CONTEXT)
    larger = Target.load(tmp_path, torch.float32, (0,))
    larger.info = dataclasses.replace(larger.info, vocab_size=larger.info.vocab_size + 1)
    with pytest.raises(InputError, match="The draft model has 289 tokens and the target 288; 0 tokens differ"):
        Engine(spoken.target, [SmallModelSpec(larger, chain_shape(3))], 1, CONTEXT)
