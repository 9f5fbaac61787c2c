"""Launched work waits for nothing: each step of real engines runs under modes in which a synchronous operation fails.

On a CPU a copy between host and device looks like any other operation. So the modes forbid what makes one:
`torch.tensor` of a list, a list as index, a number that is assigned to one element (`x[3] = 5`, not `x[3].fill_(5)`),
a tensor as Python number, shapes that depend on values. Only `eyas.staging` may do it.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from drafter_words import AllCopies
from tests.engine.small import CONTEXT, Spoken, Turns, attention_aside, check_idle, random_draft
from tests.engine.test_canary import other_draft
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import eyas.engine.model_runner as model_runner
import eyas.engine.scheduler as scheduler
import eyas.tree.sampling as sampling
from eyas.drafters.small_model import SmallModelSpec
from eyas.engine.device_stream import InlineStream, WorkEvent
from eyas.engine.engine import Engine
from eyas.engine.grammar import Grammar, GrammarVocab
from eyas.engine.min_length import MinLength
from eyas.engine.request import Request, RequestOutput
from eyas.engine.sampler import Sampler
from eyas.kernels.paged_attention import prepare_dense
from eyas.speculation.arms import Arm
from eyas.speculation.copy_index import CopyFinder
from eyas.staging import Staging
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape

TREE = TreeShape(4, 3, 12)
ARMS = (Arm("tree", TREE), Arm("off", None), Arm("chain", chain_shape(3)))
SYNCHRONOUS = {
    "_local_scalar_dense",
    "_to_cpu",
    "equal",
    "is_nonzero",
    "item",
    "lift_fresh",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
    "_unique",
    "_unique2",
}
MAKES_TENSORS = {torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy}
FACTORIES = {torch.arange, torch.empty, torch.eye, torch.full, torch.ones, torch.zeros}
READS = {Tensor.tolist, Tensor.item, Tensor.cpu, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__}
INDEXING = {Tensor.__getitem__, Tensor.__setitem__}
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(0.8, top_p=0.9, presence_penalty=1.0),
    SamplingParams(1.2, top_k=20, min_p=0.01),
    SamplingParams(repetition_penalty=1.3, logit_bias={3: 2.0, 7: -100.0}),
)


class WaitsError(AssertionError):
    """Launched work made the host wait."""


class ForbidOperations(TorchDispatchMode):
    """No operation whose result the host needs before it can go on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in SYNCHRONOUS:
            raise WaitsError(f"the operation {name}")
        indices = args[1] if name in ("index", "index_put", "index_put_", "_unsafe_index") else ()
        if any(index is not None and index.dtype == torch.bool for index in indices):
            raise WaitsError("a boolean index")
        return func(*args, **(kwargs or {}))


class ForbidCalls(TorchFunctionMode):
    """No call that makes a tensor of Python numbers, or numbers of a tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in MAKES_TENSORS | READS:
            raise WaitsError(f"a call of {func.__name__}")
        if func in FACTORIES and args != (0,) and (kwargs or {}).get("device") is None:
            raise WaitsError(f"{func.__name__} on the host")
        if func in INDEXING:
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(part, list | np.ndarray) for part in parts):
                raise WaitsError("a list as index")
            if func is Tensor.__setitem__ and isinstance(args[2], list | np.ndarray):
                raise WaitsError("a list as value")
        return func(*args, **(kwargs or {}))


@contextmanager
def forbidden():
    with ForbidOperations(), ForbidCalls():
        yield


@contextmanager
def permitted():
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch._C.DisableTorchFunction())
        yield


ATTENTION_ASIDE = attention_aside(prepare_dense, permitted)


def permit(monkeypatch: pytest.MonkeyPatch, holder: Any, name: str) -> list[str]:
    """Lets one function copy or read. Returns a list that gets its name with every call."""
    inner, calls = getattr(holder, name), []

    def outer(*args: Any, **named: Any) -> Any:
        calls.append(name)
        with permitted():
            return inner(*args, **named)

    monkeypatch.setattr(holder, name, outer)
    return calls


class Strict(InlineStream):
    """A stream whose work must not wait."""

    def launch(self, work: Callable[[], Any]) -> WorkEvent[Any]:
        def watched() -> Any:
            with forbidden():
                return work()

        return super().launch(watched)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of what may copy to the device. Two functions are those of a GPU: on a CPU, NumPy computes them."""
    monkeypatch.setattr(sampling, "most_likely", lambda logits_TW: logits_TW.argmax(dim=-1))
    monkeypatch.setattr(sampling, "_sort_ascending", lambda values_TW: values_TW.sort(dim=-1).values)
    permit(monkeypatch, model_runner, "to_host")
    return permit(monkeypatch, Staging, "copy")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of what may wait for the device."""
    permit(monkeypatch, Sampler, "_allowed")  # grammars run on the host, over values that were read before
    return permit(monkeypatch, Staging, "read_now")


def run(engine: Engine, requests: Sequence[Request], cancels: int = 0, seed: int = 0) -> dict[str, RequestOutput]:
    """Adds the requests one after the other while others run, and cancels some of those that run."""
    pick, left, outputs = random.Random(seed), list(requests), {}
    while left or not engine.is_idle:
        while left and engine.num_free > 0:
            request = left.pop(0)
            outputs[request.id] = engine.add(request, pick.randrange(max(len(engine.policies), 1)))
        if cancels and pick.random() < 0.1 and engine.scheduler.running:
            engine.cancel(pick.choice(engine.scheduler.running).state.output.request.id)
            cancels -= 1
        step = engine.launch()
        if step is not None:
            engine.process(step)
    check_idle(engine)
    assert cancels == 0
    return outputs


def requests_of(llama: Spoken) -> list[Request]:
    """Requests of all settings: sampled, penalized, biased, with log-probabilities, trees, and without speculation."""
    return [
        replace(
            request,
            id=f"{request.id} {turn}",
            max_tokens=25,
            sampling=SAMPLINGS[(number + turn) % 4],
            seed=number,
            logprobs=(None, 0, 3)[(number + turn) % 3],
            speculation=("auto", "auto", "off", "max")[(number + turn) % 4],
            wants_rounds=number % 4 == 0,
        )
        for turn in range(2)
        for number, request in enumerate(llama.requests)
        if len(request.prompt_ids) < 70
    ]


@pytest.mark.parametrize("memory_tokens", [None, 1], ids=["roomy", "tight"])
def test_no_step_waits(
    llama: Spoken, monkeypatch: pytest.MonkeyPatch, copies: list[str], reads: list[str], memory_tokens: int | None
) -> None:
    """Two heads, prompts in chunks, rounds in which some draft, preemption, cancellation, and all sampling settings."""
    monkeypatch.setattr(scheduler, "PREFILL_CHUNK", 16)
    requests = requests_of(llama)
    drafters = [replace(draft, arms=ARMS) for draft in (random_draft(llama.target, TREE), other_draft(llama))]
    outputs = []
    for stream in (InlineStream(), Strict()):
        engine = Engine(
            llama.target,
            drafters,
            4,
            110,
            memory_tokens=memory_tokens,
            prepare=ATTENTION_ASIDE,
            stream=stream,
        )
        engine.policies[:] = Turns(ARMS), Turns(ARMS[::-1])
        outputs.append(run(engine, requests, cancels=3))
        assert (engine.counters.preemptions > 0) == (memory_tokens is not None)
        assert engine.counters.finished["cancelled"] == 3
        assert engine.counters.device_syncs == 0
    plain, strict = ({name: one.token_ids for name, one in found.items()} for found in outputs)
    assert plain == strict
    assert copies
    assert not reads


@pytest.mark.parametrize("kind", ["none", "copies", "small model"])
def test_no_step_waits_with_other_drafters(llama: Spoken, copies: list[str], reads: list[str], kind: str) -> None:
    shape = chain_shape(3)
    drafters = {
        "none": [],
        "copies": [],
        "small model": [SmallModelSpec(llama.target, shape)],
    }
    finder = CopyFinder(1000) if kind == "copies" else None
    if finder is not None:
        for request in llama.requests[:4]:
            finder.store("a", request.id, llama.answers[request.id])
    engine = Engine(llama.target, drafters[kind], 4, CONTEXT, prepare=ATTENTION_ASIDE, stream=Strict(), copies=finder)
    if drafters[kind]:
        engine.policies[0] = Turns((Arm("chain", shape), Arm("off", None)))
    elif finder is not None:
        engine.policies[0] = AllCopies()
    outputs = run(engine, [replace(request, tenant="a") for request in llama.requests[:4]])
    assert (engine.counters.copied_tokens > 20) == (kind == "copies")
    assert {name: one.token_ids for name, one in outputs.items()} == {
        request.id: llama.answers[request.id] for request in llama.requests[:4]
    }
    assert not reads


def test_a_prefill_is_one_copy(llama: Spoken, copies: list[str], reads: list[str]) -> None:
    """The table, the prompt with its metadata, and the settings of the batch: three copies for four new requests."""
    engine = Engine(llama.target, [random_draft(llama.target, TREE)], 4, CONTEXT, prepare=ATTENTION_ASIDE)
    for request in llama.requests[:4]:
        engine.add(request)
    counts = []
    while not engine.is_idle:
        step = engine.launch()
        assert step is not None
        engine.process(step)
        counts.append(len(copies))
    assert counts[0] == 3
    assert counts[1] - counts[0] <= 2, "the head reads the prompts; the table may grow"
    assert max(after - before for before, after in pairwise(counts)) <= 2


# --- grammars --------------------------------------------------------------------------------------------------------


def test_grammars_wait_twice_a_round_and_each_time_is_counted(
    llama: Spoken, monkeypatch: pytest.MonkeyPatch, copies: list[str], reads: list[str]
) -> None:
    """A round reads its trees before the mask and the accepted tokens after it; a prefill reads its first tokens."""
    tokenizer, vocab_size = llama.target.tokenizer, llama.target.info.vocab_size
    vocab = GrammarVocab(tokenizer, vocab_size, llama.target.info.eos_ids)
    rules = [Grammar.regex(vocab, "[a-f]{20}"), MinLength(9, llama.target.info.eos_ids, vocab_size), None]
    requests = [
        replace(request, grammar=rules[number % 3], max_tokens=20) for number, request in enumerate(llama.requests[:6])
    ]
    draft = replace(random_draft(llama.target, TREE), arms=ARMS)
    engine = Engine(llama.target, [draft], 2, CONTEXT, prepare=ATTENTION_ASIDE, stream=Strict())
    engine.policies[0] = Turns(ARMS)
    expected: list[int] = []

    def count(name: str, inner: Callable[..., Any]) -> None:
        def outer(batch: Any, *rest: Any) -> Any:
            chunks, members = (batch, ()) if name == "prefill" else (batch.chunks, batch.req_slots)
            sampling = [one.req_slot for one in chunks if one.samples_token]
            needs_host = engine.runner.sampler.needs_host
            expected.append(needs_host(sampling) + 2 * needs_host(members))
            return inner(batch, *rest)

        monkeypatch.setattr(engine.runner, name, outer)

    count("prefill", engine.runner.prefill)
    count("round", engine.runner.round)
    outputs = run(engine, requests)
    assert engine.counters.device_syncs == len(reads) == sum(expected)
    assert {0, 1, 2, 3} == set(expected)
    texts = [tokenizer.decode(outputs[request.id].token_ids) for request in requests[::3]]
    assert all(len(text) == 20 and set(text) <= set("abcdef") for text in texts), texts


# --- the modes find what waits ---------------------------------------------------------------------------------------


def old_batch_for(sampler: Sampler, inner: Callable[..., Any]) -> Callable[..., Any]:
    def batch_for(req_slots: tuple[int, ...], size: int | None = None) -> Any:
        return replace(inner(req_slots, size), req_slots_B=torch.tensor(req_slots, device=sampler.staging.device))

    return batch_for


WAITING: dict[str, tuple[str, Callable[..., Callable[..., Any]]]] = {
    "a copied list": ("batch_for", old_batch_for),
    "a list as index": ("next_B", lambda _, inner: lambda logits, *rest: inner(logits[[*range(len(logits))]], *rest)),
    "a list as value": ("admit", lambda sampler, _: lambda slot, *rest: sampler.seeds_R.__setitem__([slot], 1)),
    "a number as value": ("admit", lambda sampler, _: lambda slot, *rest: sampler.seeds_R.__setitem__(slot, 1)),
    "a number": ("accept", lambda _, inner: lambda batch, path: inner(batch, path) or int(path.lengths_B[0])),
    "numbers": ("accept", lambda _, inner: lambda batch, path: inner(batch, path) or path.lengths_B.tolist()),
    "a condition": ("accept", lambda _, inner: lambda batch, path: inner(batch, path) if path.lengths_B[0] > 0 else 0),
    "a selection": ("next_B", lambda _, inner: lambda x, *rest: inner(x[x[:, 0].isfinite()], *rest)),
    "a search": ("accept", lambda _, inner: lambda batch, path: inner(batch, path) or path.lengths_B.nonzero()),
    "a tensor of the host": ("accept", lambda _, inner: lambda *rest: inner(*rest) or torch.ones(3)),
    "an array": ("admit", lambda _, inner: lambda *rest: inner(*rest) or torch.from_numpy(np.ones(3))),
}


@pytest.mark.parametrize("name", WAITING)
def test_one_transfer_put_back_is_found(
    llama: Spoken, monkeypatch: pytest.MonkeyPatch, copies: list[str], reads: list[str], name: str
) -> None:
    engine = Engine(
        llama.target,
        [random_draft(llama.target, TREE)],
        2,
        CONTEXT,
        prepare=ATTENTION_ASIDE,
        stream=Strict(),
    )
    sampler, (method, change) = engine.runner.sampler, WAITING[name]
    monkeypatch.setattr(sampler, method, change(sampler, getattr(sampler, method)))
    with pytest.raises(WaitsError):
        run(engine, llama.requests[:2])
