"""Rounds that verify copies of earlier text give the answers of plain decoding, in both loops and beside any tree."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from tests.engine.small import (
    CONTEXT,
    ReplayDrafter,
    Spoken,
    check,
    check_idle,
    poison,
    put_drafter,
    random_draft,
    speak,
    tokens,
)
from tests.model.families import family_target
from torch import Tensor
from worker_stream import WorkerStream

from eyas.drafters.drafter import AcceptedTokens
from eyas.engine.device_stream import InlineStream
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, overlap_loop, plain_loop
from eyas.engine.request import Request, RequestOutput
from eyas.speculation.arms import OFF, Arm
from eyas.speculation.batch_load import BatchLoad, CopyChoice, FixedArm, SpeculationDecision
from eyas.speculation.copy_index import COPY, CopyFinder
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape

TREE = TreeShape(4, 3, 12)
ARMS = (OFF, Arm("chain2", chain_shape(2)), Arm("tree12", TREE))
ALONE: tuple[CopyChoice, ...] = ("alone",)
BESIDE: tuple[CopyChoice, ...] = ("beside",)
BOTH: tuple[CopyChoice, ...] = ("alone", "beside", "")
LOOPS = {"plain": (plain_loop, InlineStream), "overlap": (overlap_loop, WorkerStream)}


class CopiesInTurn(FixedArm):
    """Uses the copies of every round, alone or beside an arm, and runs each arm also without them."""

    def __init__(self, choices: Sequence[CopyChoice]) -> None:
        self.arms = ARMS
        self._turns: Iterator[tuple[Arm, CopyChoice]] = cycle([(arm, choice) for arm in ARMS for choice in choices])
        self.used: set[tuple[str, CopyChoice]] = set()

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        arm, choice = next(self._turns)
        drafts = (arm.shape is not None,) * len(load.contexts)
        if not any(load.copies) or (choice == "beside" and arm == OFF):
            choice = ""
        self.used.add((arm.name, choice))
        if choice == "alone":
            return SpeculationDecision(COPY, (False,) * len(load.contexts), arm, load, "alone", 1.0)
        return SpeculationDecision(arm, drafts, arm, load, choice, 1.0)


def run(engine: Engine, requests: Sequence[Request], loop: str) -> dict[str, RequestOutput]:
    """Runs all requests and checks the engine after each step."""
    found = {
        output.request.id: output
        for output in LOOPS[loop][0](poison(engine), RequestList(requests), lambda *_: check(engine))
    }
    check_idle(engine)
    return found


def build(spoken: Spoken, loop: str, slots: int, choices: Sequence[CopyChoice], pool_tokens: int = 10_000) -> Engine:
    draft = random_draft(spoken.target, TREE)
    stream = LOOPS[loop][1]()
    engine = Engine(spoken.target, [draft], slots, CONTEXT, stream=stream, copies=CopyFinder(pool_tokens))
    engine.policies[0] = CopiesInTurn(choices)
    return engine


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("choices", [ALONE, BESIDE, BOTH])
def test_answers_are_those_of_plain_decoding(llama: Spoken, loop: str, choices: Sequence[CopyChoice]) -> None:
    """The second time, the tenant's outputs hold every answer, so that most tokens are copied."""
    engine = build(llama, loop, 3, choices)
    requests = [replace(request, tenant="a") for request in llama.requests]
    assert tokens(run(engine, requests, loop)) == llama.answers
    engine.counters.reset()
    again = run(engine, [replace(request, id=f"{request.id}-again") for request in requests], loop)
    assert {name.removesuffix("-again"): output.token_ids for name, output in again.items()} == llama.answers
    assert engine.counters.copied_tokens > 20
    assert engine.counters.copied_tokens == sum(sum(output.is_copy) for output in again.values())
    assert all(
        draft for output in again.values() for draft, copy in zip(output.is_draft, output.is_copy, strict=False) if copy
    )
    policy = engine.policies[0]
    assert isinstance(policy, CopiesInTurn)
    assert {choice for _, choice in policy.used} >= set(choices)
    engine.stream.close()


@pytest.mark.parametrize("loop", LOOPS)
def test_samples_are_those_of_plain_decoding(llama: Spoken, loop: str) -> None:
    requests = [
        replace(request, sampling=SamplingParams(0.7), seed=n, tenant="a") for n, request in enumerate(llama.requests)
    ]
    plain = tokens({o.request.id: o for o in plain_loop(Engine(llama.target, (), 3, CONTEXT), RequestList(requests))})
    engine = build(llama, loop, 3, ("alone", "beside"))
    assert tokens(run(engine, requests, loop)) == plain
    again = run(engine, [replace(request, id=f"{request.id}-again") for request in requests], loop)
    assert {name.removesuffix("-again"): output.token_ids for name, output in again.items()} == plain
    engine.stream.close()


@pytest.mark.parametrize("loop", LOOPS)
def test_the_head_reads_what_copies_have_added(llama: Spoken, loop: str) -> None:
    """Rounds of copies alone and of the head take turns. The drafter asserts that it continues the true text."""
    engine = build(llama, loop, 3, ("alone", ""))
    drafter = put_drafter(engine, random_draft(llama.target, TREE), ReplayDrafter)
    assert isinstance(drafter, ReplayDrafter)
    drafter.texts = llama.texts
    requests = [replace(request, tenant="a") for request in llama.requests]
    assert tokens(run(engine, requests, loop)) == llama.answers
    again = run(engine, [replace(request, id=f"{request.id}-again") for request in requests], loop)
    assert {name.removesuffix("-again"): output.token_ids for name, output in again.items()} == llama.answers
    assert engine.counters.rounds_by_arm["copy"] > 5
    assert len(drafter.seen) > 5
    engine.stream.close()


class ReadingDrafter(ReplayDrafter):
    """Asserts that no column of a text is left out. A text is read from its first column on, or again from before."""

    read_to: dict[int, int]  # request slot -> the number of columns that were read

    def read(self, req_slots: Sequence[int], draft_lags: Sequence[int]) -> None:
        for slot, lag in zip(req_slots, draft_lags, strict=True):
            length = int(self.future_map.lengths_R[slot])
            assert 0 <= length - lag <= self.read_to.get(slot, 0)
            self.read_to[slot] = length
        super().read(req_slots, draft_lags)

    def extend(self, req_slots_B: Tensor, lengths_B: Tensor, accepted_B: Tensor, fresh: AcceptedTokens) -> None:
        for slot, length, count in zip(req_slots_B.tolist(), lengths_B.tolist(), accepted_B.tolist(), strict=True):
            assert self.read_to[slot] == length
            self.read_to[slot] += count
        super().extend(req_slots_B, lengths_B, accepted_B, fresh)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("slots", [1, 3])
def test_the_head_leaves_out_nothing(llama: Spoken, loop: str, slots: int) -> None:
    """Also where it is told to read while the length of a copy is not known yet. Each text has its own request slot."""
    engine = build(llama, loop, slots, ("alone", "", "", "alone"))
    drafter = put_drafter(engine, random_draft(llama.target, TREE), ReadingDrafter)
    assert isinstance(drafter, ReadingDrafter)
    drafter.texts, drafter.read_to = llama.texts, {}
    assert engine.copies is not None
    start = engine.runner.future_map.start_sequence

    def started(req_slot: int, ids: Tensor, length: int) -> None:
        drafter.read_to[req_slot] = length
        start(req_slot, ids, length)

    engine.runner.future_map.start_sequence = started
    for request in llama.requests:
        engine.copies.store("a", request.id, llama.answers[request.id])
    requests = [replace(request, tenant="a") for request in llama.requests]
    assert tokens(run(engine, requests, loop)) == llama.answers
    assert engine.counters.copied_tokens > 20
    engine.stream.close()


def test_nothing_is_copied_from_another_tenant(llama: Spoken) -> None:
    engine = build(llama, "plain", 3, ("alone",))
    run(engine, [replace(request, tenant="a") for request in llama.requests], "plain")
    copied = {}
    for tenant in ("a", "b", ""):
        engine.counters.reset()
        run(engine, [replace(one, id=f"{one.id}{tenant}x", tenant=tenant) for one in llama.requests], "plain")
        copied[tenant] = engine.counters.copied_tokens
    assert copied["b"] == copied[""] < copied["a"]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", ["mistral", "llama4"])
def test_windows_and_chunks_of_the_target_hold(name: str, loop: str, tmp_path: Path) -> None:
    """Beside a tree, a forward computes some of the nodes only, so a row of it is not the slot with its number."""
    spoken = speak(family_target(tmp_path, name, layers=4), count=5)
    engine = build(spoken, loop, 3, BESIDE)
    requests = [replace(request, tenant="a") for request in spoken.requests]
    assert tokens(run(engine, requests, loop)) == spoken.answers
    again = run(engine, [replace(request, id=f"{request.id}-again") for request in requests], loop)
    assert {name.removesuffix("-again"): output.token_ids for name, output in again.items()} == spoken.answers
    engine.stream.close()


def test_tokens_behind_the_end_of_an_output_are_not_counted(llama: Spoken) -> None:
    """The copy is longer than what is left of the output."""
    (request,) = [one for one in llama.requests if one.max_tokens == 30]
    engine = build(llama, "plain", 1, ALONE)
    assert engine.copies is not None
    engine.copies.store("a", "before", llama.answers[request.id])
    short = replace(request, tenant="a", max_tokens=5)
    (output,) = run(engine, [short], "plain").values()
    assert output.token_ids == llama.answers[request.id][:5]
    assert 0 < engine.counters.copied_tokens == sum(output.is_copy) < 5
