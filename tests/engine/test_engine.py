"""The engine core as a whole: prompts in chunks, preemption, cancelling, who drafts what."""

import dataclasses
from pathlib import Path

import pytest
from engine_checks import check_kv_cache
from tests.drafters.watched import watched_engine
from tests.engine.small import (
    CONTEXT,
    Spoken,
    Turns,
    check,
    check_idle,
    drive,
    poison,
    random_draft,
    replay_engine,
    speak,
    tokens,
)
from tests.model.families import family_target

from eyas.engine import scheduler as scheduler_module
from eyas.engine.engine import Engine
from eyas.engine.request import RequestOutput, Speculation
from eyas.engine.runner_data import RoundBatch, RoundOutput
from eyas.engine.scheduler import PrefillWork, RoundWork
from eyas.speculation.arms import Arm
from eyas.tree.shape import TreeShape, chain_shape

TREE = TreeShape(4, 3, 12)
OFF = Arm("off", None)


# --- prompts in chunks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 512])
@pytest.mark.parametrize("shape", [None, TREE], ids=["baseline", "tree"])
def test_chunks_change_nothing(
    llama: Spoken, shape: TreeShape | None, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "PREFILL_CHUNK", chunk)
    requests = [request for request in llama.requests if chunk > 1 or len(request.prompt_ids) < 70]
    engine = Engine(llama.target, (), 3, CONTEXT) if shape is None else replay_engine(llama, shape, 3)
    assert tokens(drive(engine, requests)) == {r.id: llama.answers[r.id] for r in requests}


@pytest.mark.parametrize("shares", [False, True], ids=["in turns", "in one forward"])
def test_a_long_prompt_and_a_running_answer(llama: Spoken, shares: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running answers go on while a long prompt is read; so does the reading while they run.

    in turns          P R R | P R P R P R P R P R P R P R P R P R     | R ...
    in one forward    P R R | B B B B B B B B B                       | R ...
                      short   long prompt of 130, 16 at a time          both
    """
    monkeypatch.setattr(scheduler_module, "PREFILL_CHUNK", 16)
    engine = poison(Engine(llama.target, (), 3, CONTEXT))
    engine.scheduler.shares_forwards = shares
    short, long = llama.requests[1], llama.requests[8]
    answer = engine.add(short)
    kinds, counts = [], []
    while not engine.is_idle:
        if len(kinds) == 3:
            long_answer = engine.add(long)
        step = engine.launch()
        assert step is not None
        engine.process(step)
        check(engine)
        is_both = isinstance(step.work, RoundWork) and step.work.prefill is not None
        kinds.append("P" if isinstance(step.work, PrefillWork) else "B" if is_both else "R")
        counts.append(len(answer.token_ids))
    picture = "".join(kinds)
    num_chunks = -(-len(long.prompt_ids) // 16)
    both = ("B" if shares else "PR") * num_chunks
    assert picture[: 3 + len(both)] == "PRR" + both
    assert set(picture[3 + len(both) :]) == {"R"}
    assert counts[3 + len(both) - 1] == 3 + num_chunks, "a token with every round"
    assert answer.token_ids == llama.answers[short.id]
    assert long_answer.token_ids == llama.answers[long.id]


@pytest.mark.parametrize("shape", [None, chain_shape(4), TREE], ids=["baseline", "chain", "tree"])
@pytest.mark.parametrize("num_kept", [0.3, 1.0])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_chunks_in_the_forward_of_a_round_change_nothing(
    llama: Spoken,
    tmp_path: Path,
    family: str,
    num_kept: float,
    shape: TreeShape | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where a round verifies only some nodes of each tree, and where layers have a sliding window."""
    spoken = llama if family == "llama" else speak(family_target(tmp_path, family, layers=4))
    monkeypatch.setattr(scheduler_module, "PREFILL_CHUNK", 12)
    engine = Engine(spoken.target, (), 3, CONTEXT) if shape is None else replay_engine(spoken, shape, 3)
    whole, num_shared = engine.runner.round, 0

    def fewer(batch: RoundBatch) -> RoundOutput:
        nonlocal num_shared
        num_shared += any(chunk.end > chunk.begin for chunk in batch.chunks)
        count = len(batch.req_slots)
        return whole(dataclasses.replace(batch, nodes=count + int(num_kept * (batch.nodes - count))))

    monkeypatch.setattr(engine.runner, "round", fewer)
    assert tokens(drive(engine, spoken.requests)) == {r.id: spoken.answers[r.id] for r in spoken.requests}
    assert num_shared > 10


def test_the_policy_is_told_which_round_has_the_last_chunk_of_a_prompt(
    llama: Spoken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fixed arm drafts in every round nevertheless."""
    monkeypatch.setattr(scheduler_module, "PREFILL_CHUNK", 50)
    engine = replay_engine(llama, TREE, 2)
    engine.add(llama.requests[1])
    rounds: list[RoundWork] = []
    while len(rounds) < 4:
        step = engine.launch()
        assert step is not None
        engine.process(step)
        if isinstance(step.work, RoundWork):
            rounds.append(step.work)
        else:
            engine.add(llama.requests[8])
    told = [work.decision.load.completes_prompt for work in rounds]
    assert told == [False, False, True, False], "130 tokens, 50 at a time"
    assert all(work.batch.shape is not None for work in rounds)


def test_short_prompts_are_read_together_up_to_a_chunk(llama: Spoken, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of 5, 1, 40 and 17 tokens, at most 45 at a time: the third is cut, nobody is read twice."""
    monkeypatch.setattr(scheduler_module, "PREFILL_CHUNK", 45)
    engine = poison(Engine(llama.target, (), 4, CONTEXT))
    answers = [engine.add(request) for request in llama.requests[:4]]
    step = engine.launch()
    assert step is not None
    assert [one.num_committed for one in engine.scheduler.running] == [5, 1, 39, 0]
    engine.process(step)
    assert [len(answer.token_ids) for answer in answers] == [1, 1, 0, 0]
    drive(engine, [])
    assert [answer.token_ids for answer in answers] == [llama.answers[r.id] for r in llama.requests[:4]]


# --- preemption ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fixed", "turns"])
@pytest.mark.parametrize("shape", [None, chain_shape(4), TREE], ids=["baseline", "chain", "tree"])
def test_who_gives_way_goes_on_where_it_was(llama: Spoken, shape: TreeShape | None, policy: str) -> None:
    """Memory for one context and four requests that need more than that together."""
    requests = [r for r in llama.requests if len(r.prompt_ids) < 100]
    if shape is None:
        engine = Engine(llama.target, (), 4, 110, memory_tokens=1)
    else:
        engine, _ = watched_engine(llama, random_draft(llama.target, shape), 4, 110, memory_tokens=1)
        engine.policies[0] = engine.policies[0] if policy == "fixed" else Turns([Arm("on", shape), OFF, OFF])
    counts: dict[str, int] = {}

    def count(answer: RequestOutput, new: int) -> None:
        check(engine)
        counts[answer.request.id] = counts.get(answer.request.id, 0) + new
        assert counts[answer.request.id] == len(answer.token_ids)

    answers = drive(engine, requests, count)
    assert tokens(answers) == {r.id: llama.answers[r.id] for r in requests}
    assert engine.counters.preemptions > 0
    for name, answer in answers.items():
        assert counts[name] == len(answer.token_ids) == len(answer.is_draft) == len(answer.token_times_s)
        assert sum(answer.accepted) == len(answer.token_ids) - 1, "no round counts twice, none is lost"
        assert answer.token_times_s == sorted(answer.token_times_s)
        assert answer.num_cached_tokens == 0, "what a request left itself is no hit"
    assert engine.counters.prompt_tokens == sum(len(r.prompt_ids) for r in requests)
    assert engine.counters.output_tokens == sum(counts.values())


def test_the_newest_gives_way_and_comes_back_first(llama: Spoken) -> None:
    engine = poison(Engine(llama.target, (), 3, 110, memory_tokens=1))
    order = [engine.add(llama.requests[n]) for n in (7, 1, 6)]
    others = [engine.add(llama.requests[n]) for n in (0, 5)]
    finished: list[RequestOutput] = []
    before = 0
    while not engine.is_idle:
        running = [one.state.output for one in engine.scheduler.running]
        step = engine.launch()
        if engine.counters.preemptions > before:
            before = engine.counters.preemptions
            gone = next(
                answer for answer in running[::-1] if answer not in [o.state.output for o in engine.scheduler.running]
            )
            assert gone is running[-1]
            assert engine.scheduler.waiting[0].output is gone
        assert step is not None
        finished += engine.process(step)
    assert before > 0
    assert {id(answer) for answer in finished} == {id(answer) for answer in order + others}
    for answer in finished:
        assert answer.token_ids == llama.answers[answer.request.id]


# --- cancelling ------------------------------------------------------------------------------------------------------


def steps(engine: Engine, count: int) -> None:
    for _ in range(count):
        step = engine.launch()
        assert step is not None
        engine.process(step)
        check(engine)


@pytest.mark.parametrize("in_flight", [False, True], ids=["between steps", "with a step in flight"])
@pytest.mark.parametrize("shape", [None, TREE], ids=["baseline", "tree"])
def test_cancel(llama: Spoken, shape: TreeShape | None, in_flight: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that runs, one whose prompt is being read, one that waits, one that has finished, one that never was."""
    monkeypatch.setattr(scheduler_module, "PREFILL_CHUNK", 32)
    engine = Engine(llama.target, (), 3, CONTEXT) if shape is None else replay_engine(llama, shape, 3)
    poison(engine)
    asked = {n: engine.add(llama.requests[n]) for n in (5, 6, 4, 3, 1)}
    steps(engine, 9)
    assert asked[5].finish_reason is not None
    names = {one.state.output.request.id: one.is_prefilled for one in engine.scheduler.running}
    assert names == {"r6": True, "r4": False, "r3": False}
    assert [job.output.request.id for job in engine.scheduler.waiting] == ["r1"]
    step = engine.launch() if in_flight else None
    shown = len(asked[6].token_ids)
    for name in ("r6", "r4", "r1"):
        assert engine.cancel(name) is asked[int(name[1:])]
        assert asked[int(name[1:])].finish_reason == "cancelled"
        check_kv_cache(engine.kv_cache, [one.kv for one in engine.scheduler.running])
    assert engine.cancel("r5") is engine.cancel("r4") is engine.cancel("nobody") is None
    if step is not None:
        assert [a for a in engine.process(step) if a.finish_reason == "cancelled"] == [], "nobody is told twice"
    assert len(asked[6].token_ids) == shown < len(llama.answers["r6"])
    assert asked[6].token_ids == llama.answers["r6"][:shown]
    assert asked[4].token_ids == asked[1].token_ids == []
    later = [dataclasses.replace(llama.requests[n], id=f"later{n}") for n in (6, 4)]
    answers = drive(engine, later)
    assert asked[3].token_ids == llama.answers["r3"]
    assert {name: a.token_ids for name, a in answers.items() if name != "r3"} == {
        "later6": llama.answers["r6"],
        "later4": llama.answers["r4"],
    }
    assert answers["later6"].num_cached_tokens >= len(llama.requests[6].prompt_ids) - 1, "what was cancelled is known"
    finished = engine.counters.finished
    assert (finished["cancelled"], sum(finished.values())) == (3, 7)
    everyone = {answer.request.id: answer for answer in [*asked.values(), *answers.values()]}
    assert engine.counters.output_tokens == sum(len(answer.token_ids) for answer in everyone.values())


def test_all_cancelled_leaves_nothing_behind(llama: Spoken) -> None:
    engine = poison(replay_engine(llama, TREE, 3))
    for request in llama.requests:
        engine.add(request)
    steps(engine, 4)
    for request in llama.requests:
        engine.cancel(request.id)
    check_idle(engine)
    assert engine.launch() is None
    assert tokens(drive(engine, llama.requests)) == llama.answers


# --- who drafts what -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 4])
def test_arms_may_change_with_every_round(llama: Spoken, slots: int) -> None:
    """Off, chains and trees of several sizes in turn, some requests drafting and some not."""
    arms = [
        Arm("a", TREE),
        OFF,
        Arm("b", chain_shape(3)),
        Arm("c", TreeShape(2, 4, 7)),
        OFF,
        OFF,
        Arm("d", chain_shape(1)),
    ]
    draft = dataclasses.replace(random_draft(llama.target, TREE), arms=tuple(arms))
    engine, drafter = watched_engine(llama, draft, slots)
    engine.policies[0] = Turns(arms)
    assert tokens(drive(engine, llama.requests)) == llama.answers
    assert {length for length, _ in drafter.seen} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("slots", [1, 4])
def test_requests_may_refuse_drafts_or_ask_for_the_most(llama: Spoken, slots: int) -> None:
    wishes: tuple[Speculation, ...] = ("auto", "off", "max")
    requests = [
        dataclasses.replace(r, speculation=wishes[n % 3]) for n, r in enumerate(llama.requests) if r.max_tokens > 2
    ]
    answers = drive(replay_engine(llama, TREE, slots), requests)
    assert tokens(answers) == {r.id: llama.answers[r.id] for r in requests}
    for answer in answers.values():
        if answer.request.speculation == "off":
            assert set(answer.accepted) == {1}
            assert set(answer.offered) == {0}
        else:
            assert max(answer.accepted) > 1


def test_those_who_ask_for_the_most_take_turns_with_the_others(llama: Spoken) -> None:
    """Their trees would be a price that nobody else has asked for: they have rounds of their own, every second one."""
    engine = poison(Engine(llama.target, [random_draft(llama.target, TREE)], 4, CONTEXT))
    for n, speculation in ((1, "max"), (3, "auto"), (6, "off"), (7, "max")):
        engine.add(dataclasses.replace(llama.requests[n], speculation=speculation))
    rounds: list[set[str]] = []
    while len(rounds) < 6:
        step = engine.launch()
        assert step is not None
        engine.process(step)
        if isinstance(step.work, RoundWork):
            rounds.append({one.state.output.request.id for one in step.work.members})
    assert rounds == [{"r1", "r7"}, {"r3", "r6"}] * 3


@pytest.mark.parametrize("shape", [chain_shape(4), TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_fewer_rows_change_nothing(
    llama: Spoken, shape: TreeShape, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round verifies the likeliest nodes of the whole batch; with roots alone it is a round without drafts."""
    engine, _ = watched_engine(llama, random_draft(llama.target, shape), 4)
    whole, accepted = engine.runner.round, []

    def fewer(batch: RoundBatch) -> RoundOutput:
        count = len(batch.req_slots)
        out = whole(dataclasses.replace(batch, nodes=count + int(share * (batch.nodes - count))))
        accepted.extend(out.read_BC[:, out.num_slots].tolist())
        return out

    monkeypatch.setattr(engine.runner, "round", fewer)
    assert tokens(drive(engine, llama.requests)) == llama.answers
    assert (max(accepted) > 1) == (share > 0)
