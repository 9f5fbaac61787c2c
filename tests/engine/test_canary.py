"""Two heads side by side: the target's words with either, nothing of one in the other, and which of them stays."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.pairs import LLAMA_FIRST
from tests.engine.small import CONTEXT, All, Spoken, Turns, check, check_idle, drive, poison, random_draft
from worker_stream import WorkerStream

from eyas.base.errors import UsageError
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.async_engine import AsyncEngine
from eyas.engine.canary import CANARY, FIRST_ANALYSIS, MAIN, CanaryExperiment, CanaryOptions, ratio_of
from eyas.engine.device_stream import DeviceStream, InlineStream
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, overlap_loop, plain_loop
from eyas.engine.request import Request, RequestOutput
from eyas.model.head import Head, HeadConfig
from eyas.model.vocab import DraftVocab
from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.speculation.arms import Arm
from eyas.tree.shape import TreeShape, chain_shape

TREE = TreeShape(4, 3, 12)
LOOPS = {"plain": plain_loop, "overlap": overlap_loop}
STREAMS: dict[str, Callable[[], DeviceStream]] = {"plain": InlineStream, "overlap": WorkerStream}
ARMS = (Arm("off", None), Arm("chain2", chain_shape(2)), Arm("tree", TREE))


def other_draft(spoken: Spoken) -> Eagle3Spec:
    """A head of other sizes: wider inside, fewer heads, a smaller vocabulary."""
    config = HeadConfig.for_target(
        spoken.target.info, 96, intermediate_size=80, aux_layer_ids=spoken.target.aux_layer_ids
    )
    config = replace(config, num_kv_heads=1, num_heads=2)
    head = Head.init(config, 5)
    with torch.no_grad():
        for weight in head.parameters():
            if weight.ndim == 2:
                weight.mul_(5)
    return Eagle3Spec(head.pack_projections(), DraftVocab.from_counts(torch.arange(288), 96), TREE)


def both(spoken: Spoken, main: Eagle3Spec | None = None, canary: Eagle3Spec | None = None, **rest) -> Engine:
    """An engine with two heads; what is read on the device before it is written must show, of both."""
    first = random_draft(spoken.target, TREE) if main is None else replace(main, shape=TREE)
    second = other_draft(spoken) if canary is None else replace(canary, shape=TREE)
    slots, context = rest.pop("slots", 4), rest.pop("context", CONTEXT)
    return poison(Engine(spoken.target, [first, second], slots, context, **rest))


class Split(RequestList):
    """Requests with their heads."""

    def __init__(self, requests: Sequence[Request], heads: Mapping[str, int]) -> None:
        self._left, self._heads = list(requests), heads

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        while self._left and engine.num_free > 0:
            request = self._left.pop(0)
            engine.add(request, self._heads[request.id])
        return bool(self._left)


def split(requests: Sequence[Request], seed: int = 0) -> dict[str, int]:
    pick = random.Random(seed)
    return {request.id: pick.choice((MAIN, CANARY)) for request in requests}


# --- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoken", LLAMA_FIRST, indirect=True)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("policy", ["one tree", "arms for all", "arms for some"])
def test_the_words_are_the_targets_with_either(spoken: Spoken, loop: str, policy: str) -> None:
    """Requests of both heads at once, some without speculation and some with the largest tree at any price."""
    stream = STREAMS[loop]()
    engine = both(spoken, stream=stream)
    if policy != "one tree":
        kind = All if policy == "arms for all" else Turns
        engine.policies[0], engine.policies[1] = kind(ARMS), kind(ARMS[::-1])
    wishes = ("auto", "auto", "auto", "off", "max")
    requests = [
        replace(one, id=f"{one.id} {turn}", speculation=wishes[(place + turn) % 5])
        for turn in range(2)
        for place, one in enumerate(spoken.requests)
    ]
    heads = split(requests)
    found = {}
    for answer in LOOPS[loop](engine, Split(requests, heads)):
        found[answer.request.id] = answer
        if loop == "plain":
            check(engine)
    check_idle(engine)
    stream.close()
    assert {name: one.token_ids for name, one in found.items()} == {
        one.id: spoken.answers[one.id.split()[0]] for one in requests
    }
    assert {name: one.drafter for name, one in found.items()} == heads
    assert len({one.drafter for one in found.values() if any(one.traces)}) == 2


def alone(spoken: Spoken, draft: Eagle3Spec, request: Request) -> RequestOutput:
    return drive(Engine(spoken.target, [replace(draft, shape=TREE)], 1, CONTEXT), [request])[request.id]


def test_each_drafts_as_it_would_alone(llama: Spoken) -> None:
    """Round by round the same acceptance as in an engine with that head only, whatever lies in the prefix cache."""
    drafts = {MAIN: random_draft(llama.target, TREE), CANARY: other_draft(llama)}
    engine = both(llama, slots=3)
    requests = [replace(one, id=f"{one.id} {turn}") for turn in range(3) for one in llama.requests]
    # Each prompt comes three times: behind an answer of the other head, and behind one of its own.
    order = (MAIN, CANARY, CANARY, MAIN, CANARY, MAIN)
    heads = {one.id: order[(int(one.id[1]) + int(one.id[3])) % 6] for one in requests}
    found = {answer.request.id: answer for answer in plain_loop(engine, Split(requests, heads))}
    check_idle(engine)
    assert sum(one.num_cached_tokens > 0 for one in found.values()) > 10
    seen = set()
    for request in requests:
        wanted = alone(llama, drafts[heads[request.id]], request)
        assert found[request.id].accepted == wanted.accepted, request.id
        assert found[request.id].traces == wanted.traces, request.id
        seen.add(tuple(wanted.accepted))
    assert any(max(accepted, default=1) > 1 for accepted in seen), "something is accepted"


def test_rows_that_only_one_head_has_read_are_read_by_the_other(llama: Spoken, learnt: Eagle3Spec) -> None:
    """A head that knows the answers by heart shows it at once if it lacks a prompt's rows."""
    (request,) = (one for one in llama.requests if len(one.prompt_ids) == 17)
    wanted = alone(llama, learnt, request).accepted
    assert sum(wanted) / len(wanted) > 2
    for first, second in ((MAIN, CANARY), (CANARY, MAIN), (CANARY, CANARY)):
        pair = {MAIN: learnt, CANARY: other_draft(llama)}
        if second == CANARY:
            pair = {MAIN: other_draft(llama), CANARY: learnt}
        engine = both(llama, pair[MAIN], pair[CANARY])
        again = replace(request, id="again")
        heads = {request.id: first, "again": second}
        drive_one(engine, request, heads)
        found = drive_one(engine, again, heads)
        assert found.num_cached_tokens > 0
        assert found.accepted == wanted, (first, second)


def drive_one(engine: Engine, request: Request, heads: Mapping[str, int]) -> RequestOutput:
    (answer,) = plain_loop(engine, Split([request], heads))
    check_idle(engine)
    return answer


@pytest.mark.parametrize("loop", LOOPS)
def test_cancelled_and_preempted_requests_leave_the_others_words(llama: Spoken, loop: str) -> None:
    stream = STREAMS[loop]()
    engine = both(llama, stream=stream, memory_tokens=1, context=110)
    short = [one for one in llama.requests if len(one.prompt_ids) < 70]
    requests = [replace(one, id=f"{one.id} {turn}") for turn in range(3) for one in short]
    gone = {one.id for one in requests[2::5]}
    found: dict[str, list[int]] = {}

    def cancel(answer: RequestOutput, count: int) -> None:
        if answer.request.id in gone and len(answer.token_ids) > 3:
            engine.cancel(answer.request.id)

    for answer in LOOPS[loop](engine, Split(requests, split(requests, 1)), cancel):
        found[answer.request.id] = answer.token_ids
    check_idle(engine)
    stream.close()
    assert engine.counters.preemptions > 0
    assert set(found) >= {one.id for one in requests} - gone
    for name, ids in found.items():
        assert ids == llama.answers[name.split()[0]][: len(ids)]
        assert name in gone or ids == llama.answers[name.split()[0]]


# --- the trial -------------------------------------------------------------------------------------------------------


def answer_of(name: str, drafter: int, arm: Arm, accepted: Sequence[int]) -> RequestOutput:
    answer = RequestOutput(Request(name, (1,), 99), accepted=list(accepted), drafter=drafter, finish_reason="stop")
    answer.traces = [AcceptanceTrace(arm, 9, tuple(range(2, n + 1)), n - 1, n - 1) for n in accepted]
    return answer


def told(trial: CanaryExperiment, pick: random.Random, count: int, share: float, means: Mapping[int, float]) -> None:
    """Answers of 2 to 8 rounds; how well an answer drafts differs from answer to answer."""
    for number in range(count):
        head = CANARY if pick.random() < share else MAIN
        arm = pick.choice(ARMS[1:])
        ease = pick.gauss(0, 0.1)
        chance = min(max((means[head] - 1) / 4 + ease, 0), 1)
        rounds = [1 + sum(pick.random() < chance for _ in range(arm.depth)) for _ in range(pick.randint(2, 8))]
        trial.observe(answer_of(f"r{number}", head, arm, rounds))


def new_trial(share: float = 0.5, costs: Mapping[str, float] | None = None) -> CanaryExperiment:
    return CanaryExperiment(CanaryOptions(share), [arm.name for arm in ARMS[1:]], costs or {}, lambda event: None)


def test_requests_get_their_head_by_a_stable_hash() -> None:
    trial, again = new_trial(0.1), new_trial(0.1)
    requests = [Request(f"{number:x}-0", (1,), 9) for number in range(20_000)]
    heads = [trial.assign(one) for one in requests]
    assert heads == [again.assign(one) for one in reversed(requests)][::-1]
    assert abs(heads.count(CANARY) / len(heads) - 0.1) < 0.007  # three standard deviations
    wider = [new_trial(0.2).assign(one) for one in requests]
    assert all(wide == CANARY for head, wide in zip(heads, wider, strict=True) if head == CANARY)
    other = CanaryExperiment(CanaryOptions(0.1, seed=1), [], {}, print)
    assert [other.assign(one) for one in requests] != heads
    assert all(trial.assign(replace(one, speculation="off")) == MAIN for one in requests[:200])


def test_a_worse_head_gets_nothing_more_and_a_better_one_everything() -> None:
    for canary, state, share in ((2.5, "returned", 0.0), (3.5, "promoted", 1.0)):
        said: list[str] = []
        trial = CanaryExperiment(CanaryOptions(0.3), [arm.name for arm in ARMS[1:]], {}, said.append)
        told(trial, random.Random(0), 4000, 0.3, {MAIN: 3.0, CANARY: canary})
        assert (trial.state, trial.share) == (state, share)
        assert "All new requests go to" in said[-1]
        assert {trial.assign(Request(str(n), (1,), 9)) for n in range(50)} == {CANARY if share else MAIN}


def test_the_same_head_twice_is_rarely_told_apart() -> None:
    """At most 5% of such trials end, however often they look: a hundred of them, four looks each."""
    pick, ended = random.Random(3), 0
    for _ in range(100):
        trial = new_trial()
        told(trial, pick, FIRST_ANALYSIS * 2 * 9, 0.5, {MAIN: 3.0, CANARY: 3.0})
        assert trial.state != "running" or trial._num_analyses >= 3
        ended += trial.state != "running"
    assert ended <= 11  # three standard deviations above the five that may


def test_the_ratio_by_hand_and_its_interval_by_resampling() -> None:
    pick = np.random.default_rng(0)
    rounds = {name: pick.integers(1, 30, (size, 2)).astype(float) for name, size in ((MAIN, 400), (CANARY, 150))}
    means = {MAIN: (2.0, 3.0), CANARY: (2.2, 3.6)}
    tokens = {name: pick.poisson(rounds[name] * means[name]).astype(float) for name in rounds}
    costs = np.array([1.0, 1.2])

    def ratio(main: np.ndarray, canary: np.ndarray) -> float:
        usual = tokens[MAIN][main].sum(axis=0) / rounds[MAIN][main].sum(axis=0)
        return tokens[CANARY][canary].sum() / (rounds[CANARY][canary] * usual * costs).sum()

    found = ratio_of(rounds[MAIN], tokens[MAIN], rounds[CANARY], tokens[CANARY], costs, 0.95)
    assert found is not None
    assert found.value == pytest.approx(ratio(np.arange(400), np.arange(150)))
    drawn = [ratio(pick.integers(0, 400, 400), pick.integers(0, 150, 150)) for _ in range(4000)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert found.interval.low == pytest.approx(low, abs=0.1 * (high - low))
    assert found.interval.high == pytest.approx(high, abs=0.1 * (high - low))


def test_arms_are_compared_with_themselves_and_cost_counts() -> None:
    """The canary ran trees, the main head mostly chains: no head is better for that. A dear head has to earn it."""
    pick = random.Random(1)
    trial, dear = new_trial(), new_trial(costs={"chain2": 1.5, "tree": 1.5})
    for number in range(4000):
        head = (MAIN, CANARY)[number % 2]
        arm = ARMS[2] if pick.random() < (0.9 if head == CANARY else 0.1) else ARMS[1]
        one = answer_of(str(number), head, arm, [1 + sum(pick.random() < 0.5 for _ in range(arm.depth))] * 10)
        trial.observe(one)
        dear.observe(one)
    assert trial.state == "running"
    assert trial.ratio is not None
    assert trial.ratio.value == pytest.approx(1, abs=0.1)
    assert dear.state == "returned"


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(UsageError, match="--canary-share"):
        CanaryOptions(share)


@pytest.mark.parametrize("learnt_is_canary", [False, True])
def test_a_service_returns_to_the_better_head(llama: Spoken, learnt: Eagle3Spec, learnt_is_canary: bool) -> None:
    """A head that knows the answers by heart beside a random one, on whichever side."""
    poor = random_draft(llama.target, TREE, seed=3)
    pair = (poor, learnt) if learnt_is_canary else (learnt, poor)
    engine = Engine(llama.target, [replace(one, shape=TREE) for one in pair], 4, CONTEXT)
    service = AsyncEngine(engine, 10**6)
    said: list[str] = []
    service.canary = CanaryExperiment(CanaryOptions(0.5), [engine.policies[0].arms[0].name], {}, said.append)
    found: dict[str, RequestOutput] = {}
    requests = [replace(one, id=f"{one.id} {n}") for n in range(16) for one in llama.requests if one.max_tokens > 19]

    def take(answer: RequestOutput, count: int) -> None:
        if answer.finish_reason is not None:
            found[answer.request.id] = answer

    service.start()
    for request in requests:
        service.submit(request, take)
    assert service.drain(120)
    standing = service.stats().canary
    assert standing is not None
    assert standing.state == ("promoted" if learnt_is_canary else "returned"), standing
    assert len(said) == 1
    assert all(one.token_ids == llama.answers[name.split()[0]] for name, one in found.items())
    assert sum(standing.rounds.values()) == sum(len(one.accepted) for one in found.values())
    late = Request("late", (1, 2, 3), 4)
    assert service.canary.assign(late) == (CANARY if learnt_is_canary else MAIN)


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
