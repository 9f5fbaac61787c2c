"""The two loops give the same tokens, over traffic that comes, grows, ends and is cancelled at any moment.

B requests, D hidden, V draft vocabulary.
"""

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from engine_checks import check_engine
from tests.engine.small import (
    CONTEXT,
    Recorded,
    ReplayDrafter,
    Spoken,
    Turns,
    check,
    check_idle,
    drive,
    poison,
    put_drafter,
    random_draft,
    replay_engine,
)
from torch import Tensor
from worker_stream import WorkerStream

from eyas.drafters.eagle3 import Eagle3Drafter, Eagle3Spec
from eyas.engine.device_stream import DeviceStream, InlineStream
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, overlap_loop, plain_loop
from eyas.engine.request import Request, RequestOutput, StopCriteria
from eyas.model.target import Target
from eyas.speculation.arms import Arm
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape

TREE = TreeShape(4, 3, 12)
SMALL = TreeShape(3, 2, 6)  # little room behind each text: many run at once, and give way later
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(),
    SamplingParams(0.8),
    SamplingParams(1.2, top_k=20, presence_penalty=1.0),
    SamplingParams(frequency_penalty=0.7, repetition_penalty=1.1),
)
LOOPS = {"plain": plain_loop, "overlap": overlap_loop}
STREAMS: dict[str, Callable[[], DeviceStream]] = {"inline": InlineStream, "worker": WorkerStream}


@pytest.fixture
def worker() -> Iterator[DeviceStream]:
    stream = WorkerStream()
    yield stream
    stream.close()


# --- what is launched before what is read ----------------------------------------------------------------------------


def serve(engine: Engine, requests: Sequence[Request], loop: str) -> dict[str, list[int]]:
    found = {a.request.id: a.token_ids for a in LOOPS[loop](poison(engine), RequestList(requests))}
    check_idle(engine)
    return found


def test_the_next_round_is_launched_before_the_last_one_is_read(llama: Spoken, worker: DeviceStream) -> None:
    """launch 0, launch 1, wait 0, launch 2, wait 1 ...: but for the ends, two pieces of work are on their way."""
    stream = Recorded(worker)
    engine = Engine(llama.target, [random_draft(llama.target, TREE)], 1, CONTEXT, stream=stream)
    assert serve(engine, llama.requests[1:2], "overlap") == {"r1": llama.answers["r1"]}
    count = sum(kind == "wait" for kind, _ in stream.order)
    launches, waits = [("launch", n) for n in range(count)], [("wait", n) for n in range(count)]
    woven = [event for pair in zip(launches[1:], waits, strict=False) for event in pair]
    assert stream.order == [launches[0], *woven, waits[-1]]
    assert count > 20


def test_the_plain_loop_reads_each_step_before_the_next(llama: Spoken, worker: DeviceStream) -> None:
    stream = Recorded(worker)
    engine = Engine(llama.target, [random_draft(llama.target, TREE)], 3, CONTEXT, stream=stream)
    serve(engine, llama.requests, "plain")
    kinds = [kind for kind, _ in stream.order]
    assert kinds == ["launch", "wait"] * (len(kinds) // 2)


def test_a_round_that_nobody_needs_is_not_launched(llama: Spoken) -> None:
    """One token from prefill, one with each round: where the limit is known, overlap costs no round."""
    request = dataclasses.replace(llama.requests[1], max_tokens=8)
    orders = {}
    for loop in LOOPS:
        stream = Recorded(InlineStream())
        serve(Engine(llama.target, (), 1, CONTEXT, stream=stream), [request], loop)
        orders[loop] = sum(kind == "launch" for kind, _ in stream.order)
    assert orders == {"plain": 8, "overlap": 8}


# --- the same tokens -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Coming:
    """A request, the tick at which it comes, and how many ticks later it is cancelled, if it is."""

    request: Request
    tick: int
    cancel_after: int | None


class Traffic:
    """A `Source` by the clock of its own calls."""

    def __init__(self, coming: Sequence[Coming]) -> None:
        self.coming = sorted(coming, key=lambda one: one.tick)
        self.cancels: list[tuple[int, str]] = []
        self.cancelled: dict[str, RequestOutput] = {}
        self.tick = 0

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        self.tick += 1
        if may_wait and self.coming:
            self.tick = max(self.tick, self.coming[0].tick)
        while self.coming and self.coming[0].tick <= self.tick:
            one = self.coming.pop(0)
            engine.add(one.request)
            if one.cancel_after is not None:
                self.cancels.append((self.tick + one.cancel_after, one.request.id))
        for _, name in [cancel for cancel in self.cancels if cancel[0] <= self.tick]:
            answer = engine.cancel(name)
            if answer is not None:
                self.cancelled[name] = answer
        self.cancels = [cancel for cancel in self.cancels if cancel[0] > self.tick]
        return bool(self.coming)


@dataclass(frozen=True)
class Asked:
    """Requests whose prompts often begin alike, with the answers that each gets alone, without a head."""

    target: Target
    requests: tuple[Request, ...]
    answers: dict[str, RequestOutput]

    @property
    def texts(self) -> list[list[int]]:
        return [[*request.prompt_ids, *self.answers[request.id].token_ids] for request in self.requests]

    def engine(self, slots: int, context: int, memory_tokens: int | None, stream: DeviceStream) -> Engine:
        """With a drafter that knows the answers, and another arm in every round."""
        arms = (Arm("tree", SMALL), Arm("tree", SMALL), Arm("off", None), Arm("chain", chain_shape(2)))
        draft = dataclasses.replace(random_draft(self.target, SMALL), arms=arms)
        engine = poison(Engine(self.target, [draft], slots, context, memory_tokens=memory_tokens, stream=stream))
        drafter = put_drafter(engine, draft, ReplayDrafter)
        assert isinstance(drafter, ReplayDrafter)
        drafter.texts, engine.policies[0] = self.texts, Turns(arms)
        return engine


@pytest.fixture(scope="module")
def asked(shallow_target: Target) -> Asked:
    pick = random.Random(11)
    bases = [[pick.randrange(256) for _ in range(length)] for length in (12, 30)]
    requests = []
    for n in range(20):
        begin = pick.choice(bases)
        prompt = begin[: pick.randint(0, len(begin))] + [pick.randrange(256) for _ in range(pick.randint(1, 10))]
        stop = StopCriteria(ids=tuple(pick.sample(range(256), 4))) if pick.random() < 0.3 else StopCriteria()
        speculation = "off" if pick.random() < 0.1 else "max" if pick.random() < 0.1 else "auto"
        request = Request(f"q{n}", tuple(prompt), pick.choice((1, 15, 60)), stop=stop, speculation=speculation)
        sampling, told = pick.choice(SAMPLINGS), pick.choice((None, None, 0, 3))
        told = {"logprobs": told, "wants_rounds": n % 3 == 0}
        requests.append(dataclasses.replace(request, sampling=sampling, seed=n, **told))
    answers = {r.id: drive(Engine(shallow_target, (), 1, 90), [r])[r.id] for r in requests}
    assert len({answer.finish_reason for answer in answers.values()}) == 2
    return Asked(shallow_target, tuple(requests), answers)


@pytest.mark.parametrize("memory_tokens", [None, 1], ids=["roomy", "tight"])
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("stream_name", STREAMS)
def test_the_same_tokens_whatever_comes(asked: Asked, stream_name: str, loop: str, memory_tokens: int | None) -> None:
    """Each answer is the one that its request gets alone, or as much of it as there was when it was cancelled."""
    preemptions, num_cut, num_hits = 0, 0, 0
    trees: list[int | None] = []  # how many nodes were accepted
    for seed in range(2):
        pick = random.Random(seed)
        coming = [
            Coming(r, pick.randint(0, 10), pick.randint(0, 60) if pick.random() < 0.3 else None) for r in asked.requests
        ]
        stream = STREAMS[stream_name]()
        engine, traffic = asked.engine(5, 90, memory_tokens, stream), Traffic(coming)
        counts: dict[str, int] = {}

        def count(answer: RequestOutput, new: int, counts: dict[str, int] = counts, engine: Engine = engine) -> None:
            check_engine(engine)
            trees.append(check_tree(answer, new))
            counts[answer.request.id] = counts.get(answer.request.id, 0) + new

        answers = {a.request.id: a for a in LOOPS[loop](engine, traffic, count)}
        stream.close()
        check_idle(engine)
        assert len(answers) + len(traffic.cancelled) == len(asked.requests)
        for request in asked.requests:
            alone = asked.answers[request.id]
            if request.id in traffic.cancelled:
                some = traffic.cancelled[request.id]
                assert some.finish_reason == "cancelled"
                assert some.token_ids == alone.token_ids[: len(some.token_ids)]
                assert len(some.token_ids) < len(alone.token_ids)
                num_cut += len(some.token_ids) > 0
            else:
                some = answers[request.id]
                assert (some.token_ids, some.finish_reason) == (alone.token_ids, alone.finish_reason), (
                    seed,
                    request.id,
                )
                assert sum(some.accepted) == len(some.token_ids) - 1
            assert counts.get(request.id, 0) == len(some.token_ids)
            assert_told(some, alone)
            num_hits += some.num_cached_tokens > 0
        preemptions += engine.counters.preemptions
    assert (preemptions > 0) == (memory_tokens is not None)
    assert num_cut > 0
    assert num_hits > 20
    told = [path for path in trees if path is not None]
    assert {0, 1, 3} <= set(told), "refused at the root, in part, never"


def assert_told(some: RequestOutput, alone: RequestOutput) -> None:
    """Log-probabilities belong to the tokens that came, and are those of the answer alone."""
    if some.request.logprobs is None:
        assert some.logprobs == []
        return
    assert [told.token for told in some.logprobs] == some.token_ids
    for told, wanted in zip(some.logprobs, alone.logprobs, strict=False):
        assert told.logprob == pytest.approx(wanted.logprob, abs=1e-4)
        assert [token for token, _ in told.top] == [token for token, _ in wanted.top]
        assert len(told.top) == some.request.logprobs


def check_tree(answer: RequestOutput, new: int) -> int | None:
    """The tree of the round that gave the newest tokens is what the answer says of them; how many it accepted."""
    if not answer.request.wants_rounds or len(answer.token_ids) == new or answer.proposed[-1] == 0:
        assert answer.draft_tree is None
        return None
    if answer.draft_tree is None:  # it drafted, but others' nodes were likelier
        assert not any(answer.is_draft[-new:])
        return None
    tokens, parents, path = answer.draft_tree.tokens, answer.draft_tree.parents, list(answer.draft_tree.path)
    text = [*answer.request.prompt_ids, *answer.token_ids]
    assert tokens[0] == text[-new - 1]
    assert parents[0] == 0
    assert all(parent < node for node, parent in enumerate(parents) if node)
    assert [parents[node] for node in path] == [0, *path][:-1]
    assert answer.is_draft[-new:] == [True] * len(path) + [False] * (new - len(path))
    assert [tokens[node] for node in path] == answer.token_ids[-new:][: len(path)]
    if len(path) < new:  # the bonus, which no child of the path's end carries
        end = [0, *path][-1]
        assert text[-1] not in [tokens[node] for node, parent in enumerate(parents) if node and parent == end]
    return len(path)


def test_overlap_with_one_line_and_with_many(llama: Spoken, worker: DeviceStream) -> None:
    for slots in (1, 8):
        engine = replay_engine(llama, TREE, slots, stream=worker)
        assert serve(engine, llama.requests, "overlap") == llama.answers


@pytest.mark.parametrize("loop", LOOPS)
def test_a_source_that_ends_while_answers_run(llama: Spoken, loop: str) -> None:
    engine = poison(Engine(llama.target, (), 9, CONTEXT))
    answers = LOOPS[loop](engine, RequestList(llama.requests), lambda *_: check_engine(engine))
    assert {a.request.id: a.token_ids for a in answers} == llama.answers
    assert list(LOOPS[loop](engine, RequestList([]))) == []


# --- the poison ------------------------------------------------------------------------------------------------------


class Forgetful(Eagle3Drafter):
    """Never reads a prompt."""

    def read(self, req_slots: Sequence[int], draft_lags: Sequence[int]) -> None:
        pass


@pytest.mark.parametrize("loop", LOOPS)
def test_a_draft_without_read_is_caught(llama: Spoken, worker: DeviceStream, loop: str) -> None:
    draft: Eagle3Spec = random_draft(llama.target, TREE)
    engine = Engine(llama.target, [draft], 2, CONTEXT, stream=worker)
    put_drafter(engine, draft, Forgetful)
    with pytest.raises(AssertionError, match="the head state is read before written"):
        serve(engine, llama.requests[:1], loop)


def test_a_round_that_publishes_no_tokens_is_caught(llama: Spoken, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(llama.target, (), 1, CONTEXT)
    future_map = engine.runner.future_map

    def lengths_only(req_slots_B: Tensor, tokens_BS: Tensor, lengths_B: Tensor, accepted_B: Tensor) -> None:
        future_map.lengths_R[req_slots_B] = lengths_B + accepted_B

    monkeypatch.setattr(future_map, "publish", lengths_only)
    with pytest.raises(AssertionError, match="a root is read before it is written"):
        serve(engine, llama.requests[:1], "overlap")


def test_each_state_of_the_head_is_used_once(llama: Spoken) -> None:
    """Two trees from one `read`: the second would draft from what the first one used up."""
    draft = random_draft(llama.target, TREE)
    engine = poison(Engine(llama.target, [draft], 1, CONTEXT))
    engine.add(llama.requests[0])
    for _ in range(3):
        step = engine.launch()
        assert step is not None
        engine.process(step)
    check(engine)
    drafter, future_map = engine.runner.drafters[0], engine.runner.future_map
    assert drafter is not None
    line_1 = torch.tensor([engine.scheduler.running[0].kv.req_slot])
    length_1 = future_map.lengths_R[line_1]
    with torch.inference_mode():
        drafter.draft(line_1, length_1, future_map.roots_B(line_1, length_1), TREE)
        with pytest.raises(AssertionError, match="the head state is read before written"):
            drafter.draft(line_1, length_1, future_map.roots_B(line_1, length_1), TREE)
