"""Recorded rounds, on a CPU: a stand-in for CUDA's recording runs the same closure over the same tensors.

B requests, C columns of what a round reports.
"""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.engine.small import CONTEXT, All, Spoken, attention_aside, check_idle, drive, poison, random_draft, tokens
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from worker_stream import WorkerStream

import eyas.tree.sampling as sampling
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.cost_profiler import CostProfiler
from eyas.engine.cuda_graphs import RoundGraphs
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, overlap_loop, plain_loop
from eyas.engine.request import Speculation
from eyas.engine.runner_data import RoundBatch, RoundOutput
from eyas.kernels.paged_attention import prepare_dense
from eyas.speculation.arms import Arm, default_arms
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape

TREE = TreeShape(4, 3, 12)
ARMS = (Arm("tree", TREE), Arm("off", None), Arm("chain", chain_shape(3)))
HOST = ("_local_scalar_dense", "nonzero", "lift_fresh", "masked_select", "item", "is_nonzero")


class Rerun:
    """Records by running the work once and undoing what it did; replays by running it again."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.count = 0

    def state(self) -> list[Tensor]:
        """Every tensor that a round changes."""
        runner = self.engine.runner
        holders: list[Any] = [runner.future_map, runner.pool, *runner.drafters, runner.sampler.penalties._tables]
        holders += runner.future_map.head_states
        return [value for holder in holders if holder for value in vars(holder).values() if isinstance(value, Tensor)]

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        before = [tensor.clone() for tensor in self.state()]
        out = work().clone()
        for tensor, held in zip(self.state(), before, strict=True):
            tensor.copy_(held)

        def replay() -> None:
            self.count += 1
            out.copy_(work())

        return out, replay


def with_graphs(engine: Engine) -> tuple[Engine, Rerun]:
    record = Rerun(engine)
    engine.runner.graphs = RoundGraphs(record)
    engine.scheduler.shares_forwards = False  # as on a GPU
    return engine, record


def test_sizes_are_few_and_waste_little() -> None:
    assert [RoundGraphs.padded_size(n) for n in (*range(1, 11), 13, 17, 32, 33, 257)] == [
        *range(1, 9), 10, 10, 14, 20, 32, 40, 320,
    ]  # fmt: skip
    assert all(n <= RoundGraphs.padded_size(n) <= n * 1.25 for n in range(1, 600))
    assert len({RoundGraphs.padded_size(n) for n in range(1, 257)}) == 28


@pytest.mark.parametrize("slots", [1, 3, 9])
def test_the_same_words_through_recorded_rounds(llama: Spoken, learnt: Eagle3Spec, slots: int) -> None:
    """Nine requests over trees, chains and rounds without drafting; at nine streams a line pads the batch."""
    draft = dataclasses.replace(learnt, shape=TREE, arms=ARMS)
    engine, record = with_graphs(Engine(llama.target, [draft], slots, CONTEXT))
    engine.policies[0] = All(ARMS)
    assert tokens(drive(engine, llama.requests)) == llama.answers
    graphs = engine.runner.graphs
    assert graphs is not None
    assert graphs.disabled_reason is None
    assert len(graphs) >= 3
    assert record.count > 5


def test_the_same_words_without_a_head(llama: Spoken) -> None:
    engine, record = with_graphs(Engine(llama.target, (), 4, CONTEXT))
    assert tokens(drive(engine, llama.requests)) == llama.answers
    assert record.count > 20


def test_the_same_draws_and_penalties(llama: Spoken) -> None:
    """Requests with other settings, grammar aside, share graphs by what the sampler has to do."""
    samplings = (
        SamplingParams(0.8),
        SamplingParams(1.2, top_k=20, presence_penalty=1.0),
        SamplingParams(0.7, top_p=0.9),
        SamplingParams(),
    )
    pick = random.Random(2)
    requests = [
        dataclasses.replace(request, sampling=pick.choice(samplings), seed=n, id=f"{request.id} {n}")
        for n, request in enumerate(llama.requests * 2)
    ]
    draft = dataclasses.replace(random_draft(llama.target, TREE), arms=ARMS)
    plain = Engine(llama.target, [draft], 5, CONTEXT)
    plain.policies[0] = All(ARMS)
    expected = tokens(drive(plain, requests))
    engine, record = with_graphs(Engine(llama.target, [draft], 5, CONTEXT))
    engine.policies[0] = All(ARMS)
    assert tokens(drive(engine, requests)) == expected
    assert record.count > 20


@pytest.mark.parametrize("arms", [ARMS, ARMS[:1]], ids=["all arms", "tree"])
def test_rounds_in_which_only_some_requests_draft_are_recorded(
    llama: Spoken, learnt: Eagle3Spec, arms: tuple[Arm, ...]
) -> None:
    """The head states are NaN at first. A request that does not draft reads them, but its drafted nodes are cut off."""
    draft = dataclasses.replace(learnt, shape=TREE, arms=arms)
    engine, record = with_graphs(Engine(llama.target, [draft], 5, CONTEXT))
    engine.policies[0] = All(arms)
    (state,) = engine.runner.future_map.head_states
    state.hidden_RD.fill_(torch.nan)
    state.logits_RV.fill_(torch.nan)
    run_round, recorded = engine.runner.round, []

    def listen(batch: RoundBatch) -> RoundOutput:
        before = record.count
        out = run_round(batch)
        if any(batch.drafts) and not all(batch.drafts):
            recorded.append(record.count > before)
        return out

    engine.runner.round = listen
    requests = [
        dataclasses.replace(r, speculation=("auto", "off", "auto")[n % 3]) for n, r in enumerate(llama.requests)
    ]
    assert {a.request.id: a.token_ids for a in plain_loop(engine, RequestList(requests))} == llama.answers
    assert sum(recorded) >= 5
    assert recorded[-1]


def test_log_probabilities_run_as_they_are(llama: Spoken) -> None:
    """Their rounds need the host."""
    requests = [
        dataclasses.replace(r, logprobs=2 if n % 3 == 0 else None, speculation="off" if n % 3 == 1 else "auto")
        for n, r in enumerate(llama.requests)
    ]
    draft = random_draft(llama.target, TREE)
    engine, _ = with_graphs(Engine(llama.target, [draft], 4, CONTEXT))
    answers = drive(engine, requests)
    assert tokens(answers) == llama.answers
    assert all(len(a.logprobs) == (len(a.token_ids) if a.request.logprobs else 0) for a in answers.values())


def test_with_the_overlapped_loop(llama: Spoken) -> None:
    stream = WorkerStream()
    engine, record = with_graphs(
        poison(Engine(llama.target, [random_draft(llama.target, TREE)], 5, CONTEXT, stream=stream))
    )
    assert {a.request.id: a.token_ids for a in overlap_loop(engine, RequestList(llama.requests))} == llama.answers
    stream.close()
    check_idle(engine)
    assert record.count > 5


def test_a_later_round_changes_no_result(llama: Spoken) -> None:
    """The host reads a round's tokens while the next one, the same recording, is running."""
    engine, record = with_graphs(Engine(llama.target, [random_draft(llama.target, TREE)], 5, CONTEXT))
    round_ = engine.runner.round
    told: list[tuple[Tensor, Tensor]] = []

    def listen(batch: RoundBatch) -> RoundOutput:
        out = round_(batch)
        told.append((out.read_BC, out.read_BC.clone()))
        return out

    engine.runner.round = listen
    drive(engine, llama.requests)
    assert record.count > 5
    assert all(later.equal(at_once) for later, at_once in told)


@pytest.mark.parametrize("speculation", ["auto", "off"])
def test_padding_changes_no_evidence(
    llama: Spoken, learnt: Eagle3Spec, monkeypatch: pytest.MonkeyPatch, speculation: Speculation
) -> None:
    """Two requests run as sixteen: what is learnt of the two is what a round of two tells, also if only one drafts."""
    monkeypatch.setattr(RoundGraphs, "padded_size", staticmethod(lambda count: 16))

    requests = [dataclasses.replace(r, speculation=("auto", speculation)[n % 2]) for n, r in enumerate(llama.requests)]

    def evidence(engine: Engine) -> list[list[list[int]]]:
        told: list[list[list[int]]] = []
        round_ = engine.runner.round

        def listen(batch: RoundBatch) -> RoundOutput:
            logits_RV = engine.runner.future_map.head_states[0].logits_RV
            logits_RV[-1, 3] = 100.0  # a spare line that is sure of its tree
            out = round_(batch)
            told.append([row for row, drafts in zip(out.read_BC.tolist(), batch.drafts, strict=False) if drafts])
            return out

        monkeypatch.setattr(engine.runner, "round", listen)
        engine.scheduler.shares_forwards = False
        list(plain_loop(engine, RequestList(requests)))
        return told

    draft = dataclasses.replace(learnt, shape=TREE)
    plain_rounds = evidence(Engine(llama.target, [draft], 2, CONTEXT))
    padded_rounds = evidence(with_graphs(Engine(llama.target, [draft], 2, CONTEXT))[0])
    assert max(row[TREE.max_accepted] for rows in plain_rounds for row in rows) > 3
    for plain, padded in zip(plain_rounds, padded_rounds, strict=True):
        for left, right in zip(plain, padded, strict=True):
            length = left[TREE.max_accepted]
            keep = [*range(length), *range(TREE.max_accepted, TREE.max_accepted + 2 + length - 1), -2, -1]
            assert [left[k] for k in keep] == [right[k] for k in keep]


class Forbid(TorchDispatchMode):
    """Whatever brings a number to the host, or one from there, is an error: CUDA could not record it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in HOST, f"{name} in a round"
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        assert all(i is None or i.dtype != torch.bool for i in indices), "a boolean index has a size that depends"
        return func(*args, **(kwargs or {}))


def test_a_recorded_round_never_talks_to_the_host(llama: Spoken, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every default arm, greedy and drawn with penalties; attention aside, whose CUDA version is tested there."""
    monkeypatch.setattr(sampling, "most_likely", lambda logits_TW: logits_TW.argmax(dim=-1))  # on a CPU, NumPy's
    arms = default_arms()
    draft = dataclasses.replace(random_draft(llama.target, TREE), arms=arms)
    engine, record = with_graphs(Engine(llama.target, [draft], 3, CONTEXT, prepare=attention_aside(prepare_dense)))
    engine.policies[0] = All(arms)

    def strict(work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        def watched() -> Tensor:
            with Forbid():
                return work()

        return record(watched)

    engine.runner.graphs = RoundGraphs(strict)
    samplings = (SamplingParams(), SamplingParams(0.8, presence_penalty=1.0), SamplingParams())
    requests = [
        dataclasses.replace(r, max_tokens=60, sampling=samplings[n % 3]) for n, r in enumerate(llama.requests[:6])
    ]
    for request in requests:
        engine.add(request)
    while not engine.is_idle:
        step = engine.launch()
        assert step is not None
        engine.process(step)
    assert len(engine.runner.graphs) >= len(arms)


def test_what_cannot_be_recorded_runs_as_it_is(llama: Spoken) -> None:
    def refuse(work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        raise RuntimeError("operation not permitted when stream is capturing")

    engine = Engine(llama.target, [random_draft(llama.target, TREE)], 4, CONTEXT)
    engine.runner.graphs = RoundGraphs(refuse)
    assert tokens(drive(engine, llama.requests)) == llama.answers
    assert engine.runner.graphs.disabled_reason is not None
    assert "not permitted" in engine.runner.graphs.disabled_reason
    assert len(engine.runner.graphs) == 0


def test_costs_are_measured_on_recorded_rounds(llama: Spoken) -> None:
    draft = random_draft(llama.target, TREE)
    engine, record = with_graphs(Engine(llama.target, [draft], 2, CONTEXT))
    CostProfiler(engine).measure_round_s(Arm("tree", TREE), 2, 30)
    assert record.count >= 1
    assert engine.runner.is_warm(RoundBatch((0, 1), TREE, 24, (True, True), (0, 0)))
    assert not engine.runner.is_warm(RoundBatch((0,), TREE, 12, (True,), (0,)))
