"""The engine of a server on a GPU: its memory stays within the share, and compiled layers give the same words."""

import dataclasses
from pathlib import Path

import pytest
import torch
from tests.engine.small import LAYERS, random_draft
from tests.tiny import tiny_target

from eyas.base.errors import UsageError
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.engine import Engine
from eyas.engine.engine_builder import EngineOptions, build_async_engine
from eyas.engine.loops import RequestList, overlap_loop
from eyas.engine.request import Request
from eyas.kernels.aot_compile import compile_pair
from eyas.model.target import Target
from eyas.speculation.arms import default_arms
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
SHAPE = TreeShape(4, 3, 12)
SLOTS, CONTEXT = 6, 480


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("llama"), "llama", layers=4)


@pytest.fixture(scope="module")
def pair(place: Path) -> tuple[Target, Eagle3Spec]:
    target = Target.load(place, torch.float32, layers=LAYERS, device=CUDA)
    return target, random_draft(target, SHAPE)


def requests() -> list[Request]:
    generator = torch.Generator().manual_seed(3)
    texts = [tuple(torch.randint(0, 256, (11 + 37 * n,), generator=generator).tolist()) for n in range(10)]
    return [
        Request(f"r{n}", ids, 24, sampling=SamplingParams(0.9, top_p=0.9) if n % 3 == 2 else SamplingParams(), seed=n)
        for n, ids in enumerate(texts)
    ]


def answers(engine: Engine) -> dict[str, list[int]]:
    return {answer.request.id: answer.token_ids for answer in overlap_loop(engine, RequestList(requests()))}


def test_memory_stays_within_its_share(pair: tuple[Target, Eagle3Spec]) -> None:
    target, draft = pair
    total = torch.cuda.mem_get_info(CUDA)[1]
    # A share that leaves 2 GB for this test, beside what other processes use.
    share = (total - torch.cuda.mem_get_info(CUDA)[0] + 2e9) / total
    options = EngineOptions(SLOTS, CONTEXT, memory_share=share, speculation="tree8")
    before = torch.cuda.memory_reserved(CUDA)
    built = build_async_engine(target, [draft], options).engine
    pool = built.kv_cache.pool
    assert pool.num_slots > SLOTS * CONTEXT, "the prefix cache gets what the slots do not need"
    assert 0.5e9 < pool.kv.nbytes < 2e9
    answers(built)
    assert torch.cuda.memory_reserved(CUDA) - before < 2.1e9


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="needs fp8")
def test_fp8_holds_more_tokens_in_the_same_memory(pair: tuple[Target, Eagle3Spec]) -> None:
    """The words are those of plain decoding with the same memory."""
    target, draft = pair
    total = torch.cuda.mem_get_info(CUDA)[1]
    found = {}
    for kv_dtype in (None, "fp8"):
        share = (total - torch.cuda.mem_get_info(CUDA)[0] + 1e9) / total
        options = EngineOptions(SLOTS, CONTEXT, memory_share=share, speculation="tree8", kv_dtype=kv_dtype)
        found[kv_dtype] = build_async_engine(target, [draft], options).engine.kv_cache.pool.num_slots
    assert found["fp8"] > 1.3 * found[None]
    fp8 = torch.float8_e4m3fn
    drafted = answers(Engine(target, [draft], SLOTS, CONTEXT, kv_dtype=fp8))
    assert drafted == answers(Engine(target, (), SLOTS, CONTEXT, kv_dtype=fp8))


def test_too_small_a_share_says_what_to_do(pair: tuple[Target, Eagle3Spec]) -> None:
    target, draft = pair
    with pytest.raises(UsageError, match="room for 0 tokens"):
        build_async_engine(target, [draft], EngineOptions(SLOTS, CONTEXT, memory_share=1e-6))


def test_graphs_are_captured_before_the_first_request(pair: tuple[Target, Eagle3Spec]) -> None:
    target, draft = pair
    options = EngineOptions(4, CONTEXT, memory_tokens=4000, speculation="tree8")
    engine = build_async_engine(target, [draft], options).engine
    assert engine.runner.graphs is not None
    captured = len(engine.runner.graphs)
    assert captured == 4
    greedy = [dataclasses.replace(request, sampling=SamplingParams()) for request in requests()]
    list(overlap_loop(engine, RequestList(greedy)))
    assert len(engine.runner.graphs) == captured


def test_compiled_layers_give_the_same_words(place: Path) -> None:
    found = {}
    for compiled in (False, True):
        target = Target.load(place, torch.float32, layers=LAYERS, device=CUDA)
        draft = dataclasses.replace(random_draft(target, SHAPE), arms=default_arms())
        if compiled:
            assert compile_pair(target, draft.head)
            assert target.compiled_forward is not None
        found[compiled] = answers(Engine(target, [draft], SLOTS, CONTEXT))
    assert found[True] == found[False]
