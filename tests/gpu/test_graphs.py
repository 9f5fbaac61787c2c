"""Rounds recorded as CUDA graphs: the words of rounds that are not, and no waiting in between."""

import dataclasses
from pathlib import Path

import pytest
import torch
from tests.engine.small import LAYERS, All, check_idle, random_draft
from tests.tiny import tiny_target

from eyas.engine.cuda_graphs import RoundGraphs
from eyas.engine.device_stream import CudaStream
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, overlap_loop, plain_loop
from eyas.engine.request import Request
from eyas.model.target import Target
from eyas.speculation.arms import Arm
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
TREE = TreeShape(4, 3, 12)
SAMPLINGS = {"greedy": SamplingParams(), "drawn": SamplingParams(0.9, top_p=0.95, presence_penalty=0.5)}
ARMS = (Arm("tree", TREE), Arm("off", None), Arm("chain", chain_shape(3)))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    path: Path = tiny_target(tmp_path_factory.mktemp("llama"), "llama", layers=4)
    return Target.load(path, torch.float32, layers=LAYERS, device=CUDA)


def requests(sampling: SamplingParams) -> list[Request]:
    generator = torch.Generator().manual_seed(7)
    lengths = (5, 1, 40, 17, 380, 9, 62, 23, 130) * 2
    texts = [tuple(torch.randint(0, 256, (length,), generator=generator).tolist()) for length in lengths]
    return [Request(f"r{n}", ids, 20 + n, sampling=sampling, seed=n) for n, ids in enumerate(texts)]


def answers(engine: Engine, asked: list[Request], loop: str) -> dict[str, list[int]]:
    engine.policies[0] = All(ARMS)
    loops = {"plain": plain_loop, "overlap": overlap_loop}
    found = {a.request.id: a.token_ids for a in loops[loop](engine, RequestList(asked))}
    torch.cuda.synchronize()
    check_idle(engine)
    return found


@pytest.mark.parametrize("loop", ["plain", "overlap"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("slots", [1, 5, 9])
def test_the_same_words(target: Target, slots: int, sampling: SamplingParams, loop: str) -> None:
    draft = dataclasses.replace(random_draft(target, TREE), arms=ARMS)
    found = {}
    for recorded in (False, True):
        engine = Engine(target, [draft], slots, 512, stream=CudaStream(CUDA))
        assert isinstance(engine.runner.graphs, RoundGraphs)
        if not recorded:
            engine.runner.graphs = None
        found[recorded] = answers(engine, requests(sampling), loop)
        if recorded:
            assert engine.runner.graphs is not None
            assert engine.runner.graphs.disabled_reason is None
            assert len(engine.runner.graphs) >= 3
    assert found[True] == found[False]
