"""Where answers end: at a stop token, at their limit, at the context's end; and what is refused."""

import dataclasses
import random
from collections.abc import Iterator

import pytest
from tests.engine.small import CONTEXT, Spoken, drive, generate, optional, random_draft, replay_engine

from eyas.base.errors import InputError
from eyas.engine.engine import Engine
from eyas.engine.request import Request, StopCriteria
from eyas.model.target import Target
from eyas.tree.shape import TreeShape, chain_shape

TREE = TreeShape(5, 2, 9)


@pytest.fixture
def stopping(llama: Spoken) -> Iterator[Spoken]:
    """The same target, but tokens from the middle of four answers stop it too."""
    facts = llama.target.info
    places = (("r1", 3), ("r3", 8), ("r6", 1), ("r7", 19))
    eos_ids = (*facts.eos_ids, *{llama.answers[name][place] for name, place in places})
    llama.target.info = dataclasses.replace(facts, eos_ids=eos_ids)
    yield dataclasses.replace(llama, answers=generate(llama.path, llama.requests, eos_ids))
    llama.target.info = facts


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("shape", [chain_shape(5), TREE], ids=["chain", "tree"])
def test_a_stop_token_inside_an_accepted_run_ends_it(
    stopping: Spoken, llama: Spoken, shape: TreeShape, slots: int
) -> None:
    assert any(stopping.answers[name] != llama.answers[name] for name in llama.answers)
    cut = 0
    # The drafter knows how the text would go on, so runs reach beyond the stop token.
    engine = replay_engine(llama, shape, slots)
    for answer in drive(engine, stopping.requests).values():
        assert answer.token_ids == stopping.answers[answer.request.id]
        stopped = answer.token_ids[-1] in stopping.target.info.eos_ids
        assert answer.finish_reason == ("stop" if stopped else "length")
        cut += stopped and answer.is_draft[-1]
    assert cut > 0, "a stop token was itself a draft token"


@pytest.mark.parametrize("shape", [None, TREE])
def test_a_request_has_stop_ids_of_its_own(llama: Spoken, shape: TreeShape | None) -> None:
    """They end its answer alone, like an end of turn; and `ignore_eos` takes the target's own away."""
    places = {"r1": 3, "r3": 8, "r6": 1}
    requests = [
        dataclasses.replace(r, stop=StopCriteria(ids=(llama.answers[r.id][places[r.id]], 283))) if r.id in places else r
        for r in llama.requests
    ]
    engine = Engine(llama.target, (), 3, CONTEXT) if shape is None else replay_engine(llama, shape, 3)
    for name, answer in drive(engine, requests).items():
        wanted = llama.answers[name]
        end = wanted.index(wanted[places[name]]) + 1 if name in places else len(wanted)
        assert answer.token_ids == wanted[:end]
        assert answer.finish_reason == (
            "stop" if name in places or wanted[-1] in llama.target.info.eos_ids else "length"
        )


@pytest.mark.parametrize("shape", [None, TREE])
def test_the_end_of_a_turn_may_be_ignored(stopping: Spoken, llama: Spoken, shape: TreeShape | None) -> None:
    requests = [
        dataclasses.replace(r, stop=StopCriteria(ignore_eos=True))
        for r in llama.requests
        if len(stopping.answers[r.id]) < len(llama.answers[r.id]) == r.max_tokens
    ]
    assert len(requests) >= 2
    engine = Engine(llama.target, (), 3, CONTEXT) if shape is None else replay_engine(llama, shape, 3)
    heeds = dataclasses.replace(requests[0], id="heeds", stop=StopCriteria())
    answers = drive(engine, [*requests, heeds])
    assert answers["heeds"].token_ids == stopping.answers[requests[0].id]
    for request in requests:
        assert answers[request.id].token_ids == llama.answers[request.id]
        assert answers[request.id].finish_reason == "length"


def decoded(target: Target, ids: list[int]) -> str:
    text = target.tokenizer.decode(ids, skip_special_tokens=True)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("shape", [None, chain_shape(5), TREE])
def test_a_stop_string_ends_the_answer_wherever_it_stands(llama: Spoken, shape: TreeShape | None) -> None:
    """Across tokens and inside accepted runs; the text is cut before it, the tokens behind the one that ends it."""
    target, pick = llama.target, random.Random(5)
    requests, wanted, ends = [], {}, {}
    for request in llama.requests:
        whole = decoded(target, llama.answers[request.id])
        ascii_only = [i for i in range(len(whole) - 2) if whole[i : i + 3].isascii()]
        stop = whole[(i := pick.choice(ascii_only)) : i + 3] if ascii_only else "never"
        requests.append(dataclasses.replace(request, stop=StopCriteria(strings=(stop, "nor this")), wants_text=True))
        wanted[request.id] = whole.split(stop)[0]
        ends[request.id] = stop in whole
    assert sum(ends.values()) >= 3
    engine = Engine(target, (), 3, CONTEXT) if shape is None else replay_engine(llama, shape, 3)
    for name, answer in drive(engine, requests).items():
        assert answer.text == wanted[name]
        assert answer.token_ids == llama.answers[name][: len(answer.token_ids)]
        if ends[name]:
            assert answer.finish_reason == "stop"
            assert answer.text == decoded(target, answer.token_ids)[:-3]
        else:
            assert answer.token_ids == llama.answers[name]
        assert sum(answer.accepted) == len(answer.token_ids) - 1


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_the_limit_cuts_inside_a_run(llama: Spoken, max_tokens: int) -> None:
    requests = [dataclasses.replace(r, max_tokens=max_tokens) for r in llama.requests if r.max_tokens >= 12]
    answers = drive(replay_engine(llama, TREE, 3), requests)
    for name, answer in answers.items():
        wanted = llama.answers[name][:max_tokens]
        assert answer.token_ids == wanted
        assert answer.finish_reason == ("stop" if wanted[-1] in llama.target.info.eos_ids else "length")
        assert len(answer.is_draft) == len(answer.token_times_s) == len(wanted)
        assert sum(answer.accepted) == len(wanted) - 1


@pytest.mark.parametrize("room", range(1, 9))
@pytest.mark.parametrize("shape", [None, chain_shape(5), TREE, TreeShape(3, 6, 30)])
def test_the_context_may_be_used_to_its_last_token(llama: Spoken, shape: TreeShape | None, room: int) -> None:
    """Trees near the end of the context find room in the pools; the answer is cut, not refused."""
    request = llama.requests[4]
    context = len(request.prompt_ids) + room
    if shape is None:
        engine = Engine(llama.target, (), 2, context)
    else:
        engine = replay_engine(llama, shape, 2, context)
    short = llama.requests[1]
    answers = drive(engine, [request, short])
    assert answers[request.id].token_ids == llama.answers[request.id][:room]
    assert answers[request.id].finish_reason == "length"
    assert answers[short.id].token_ids == llama.answers[short.id]


def test_the_context_ends_where_the_target_does(llama: Spoken) -> None:
    limit = llama.target.info.max_positions
    for draft in (None, random_draft(llama.target, TREE)):
        engine = Engine(llama.target, optional(draft), 1, 10 * limit)
        assert engine.max_context == limit
        answer = drive(engine, [Request("long", tuple(range(250)) * 2, 10 * limit)])["long"]
        assert 500 + len(answer.token_ids) == limit or answer.finish_reason == "stop"


@pytest.mark.parametrize("shape", [None, TREE])
def test_a_prompt_without_room_is_refused_by_name(llama: Spoken, shape: TreeShape | None) -> None:
    draft = None if shape is None else random_draft(llama.target, shape)
    engine = Engine(llama.target, optional(draft), 2, 40)
    first = engine.add(llama.requests[0])
    with pytest.raises(InputError, match=r"prompt of request r2 has 40 tokens.*at most 39"):
        engine.add(llama.requests[2])
    assert len(engine.scheduler.waiting) == 1, "the refused prompt does not wait"
    drive(engine, [])
    assert first.token_ids == llama.answers["r0"]


@pytest.mark.parametrize(("prompt_ids", "max_tokens", "said"), [((), 4, "has no tokens"), ((1, 2), 0, "max_tokens=0")])
def test_an_empty_request_is_refused(llama: Spoken, prompt_ids: tuple[int, ...], max_tokens: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Engine(llama.target, (), 1, CONTEXT).add(Request("x", prompt_ids, max_tokens))


def test_answers_of_one_token(llama: Spoken) -> None:
    requests = [dataclasses.replace(request, max_tokens=1) for request in llama.requests]
    for answer in drive(replay_engine(llama, TREE, 3), requests).values():
        assert answer.token_ids == llama.answers[answer.request.id][:1]
        assert (answer.accepted, answer.is_draft, answer.tpot_s) == ([], [False], None)
        assert answer.ttft_s > 0


def test_times_and_rounds_are_those_of_the_tokens(llama: Spoken) -> None:
    for answer in drive(replay_engine(llama, TREE, 3), llama.requests).values():
        times = answer.token_times_s
        assert len(times) == len(answer.token_ids)
        assert times == sorted(times)
        assert times[0] == answer.ttft_s > 0
        rounds = [len({*times[1:]})] if len(times) > 1 else [0]
        assert rounds == [len(answer.accepted)], "tokens of a round share its time"
        if len(times) > 1:
            assert answer.tpot_s == pytest.approx((times[-1] - times[0]) / (len(times) - 1))
        assert answer.rounds.accepted == tuple(answer.accepted)
