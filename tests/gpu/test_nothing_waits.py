"""On a GPU, launched work of real engines runs in a mode of torch in which an operation that waits fails."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.small import CONTEXT, LAYERS, Turns, check_idle, random_draft
from tests.tiny import tiny_target

from eyas.engine.device_stream import CudaStream, WorkEvent
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, overlap_loop
from eyas.engine.request import Request
from eyas.model.target import Target
from eyas.speculation.arms import Arm
from eyas.staging import NUM_BUFFERS, Staging, to_host
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
TREE = TreeShape(4, 3, 12)
ARMS = (Arm("tree", TREE), Arm("off", None), Arm("chain", chain_shape(3)))
SAMPLED = SamplingParams(0.9, top_k=40, top_p=0.95, presence_penalty=0.5, logit_bias={3: 1.0})


class Strict(CudaStream):
    """A stream whose work must not wait. The mode does not see copies from pageable memory that are `non_blocking`."""

    def launch(self, work: Callable[[], Any]) -> WorkEvent[Any]:
        def watched() -> Any:
            torch.cuda.set_sync_debug_mode("error")
            try:
                return work()
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return super().launch(watched)


def requests_of(count: int) -> list[Request]:
    generator = torch.Generator().manual_seed(7)
    lengths = (5, 1, 40, 17, 380, 9, 62, 23, 130)[:count]
    texts = [tuple(torch.randint(0, 256, (length,), generator=generator).tolist()) for length in lengths]
    return [Request(f"r{n}", ids, 20 + n, seed=n) for n, ids in enumerate(texts)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("llama"), "llama", layers=4)


@pytest.mark.parametrize("recorded", [False, True])
def test_no_step_waits(path: Path, recorded: bool) -> None:
    """Prefill, mixed rounds, batch changes, all settings, log-probabilities: first to warm up, then strictly."""
    target = Target.load(path, torch.float32, layers=LAYERS, device=CUDA)
    draft = dataclasses.replace(random_draft(target, TREE), arms=ARMS)
    greedy = requests_of(9)
    sampled = [dataclasses.replace(r, id=f"{r.id} sampled", sampling=SAMPLED, logprobs=2) for r in greedy]
    engine = Engine(target, [draft], 4, CONTEXT)
    engine.policies[0] = Turns(ARMS)
    if not recorded:
        engine.runner.graphs = None
    found = []
    for stream in (CudaStream(CUDA), Strict(CUDA)):
        engine.stream = stream
        requests = [one for pair in zip(greedy, sampled, strict=True) for one in pair]
        found.append({out.request.id: out.token_ids for out in overlap_loop(engine, RequestList(requests))})
        torch.cuda.synchronize()
        check_idle(engine)
        engine.kv_cache.clear_prefix_cache()
    assert len(found[0]) == 18
    assert found[0] == found[1]
    assert engine.counters.device_syncs == 0


def test_the_mode_finds_a_copy() -> None:
    with pytest.raises(RuntimeError, match="synchroniz"):
        Strict(CUDA).launch(lambda: torch.tensor([1, 2], device=CUDA))


def test_copies_while_others_are_in_flight() -> None:
    """The device is kept busy, so that copies wait in the stream while the host fills the next buffers."""
    staging, stream, size = Staging(CUDA), Strict(CUDA), 4000
    busy = torch.randn(2048, 2048, device=CUDA)
    product = busy @ busy
    arrays = [np.random.default_rng(n).integers(0, 9, size).astype(np.int32) for n in range(40)]

    def work(array: np.ndarray) -> torch.Tensor:
        for _ in range(20):
            torch.mm(busy, busy, out=product)
        same_X, words = staging.copy(array, [len(array), 1, 2])
        return to_host(torch.cat((same_X.long() + torch.arange(len(array), device=CUDA), words)))

    events = [stream.launch(lambda array=array: work(array)) for array in arrays]
    assert len(staging._ring) > NUM_BUFFERS, "copies were in flight"
    for array, event in zip(arrays, events, strict=True):
        out = event.wait().out
        assert out.is_pinned()
        assert out.tolist() == [*(array + np.arange(size)).tolist(), size, 1, 2]
