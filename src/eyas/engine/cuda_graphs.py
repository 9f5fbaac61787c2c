"""Runs a whole round as one CUDA graph: one launch instead of a thousand kernels. ModelRunner uses it.

B requests, C columns of a round's result.

    first round of a kind     runs as it is: kernels are compiled, tables are made
    second                    is recorded without running, then replayed
    later                     request slots and settings are copied into the graph's own tensors, and it is replayed

A kind is (tree shape and drafter, batch size, operations of the sampler). Rounds are padded with the last request slot,
so there are few batch sizes. All graphs share one memory pool, because they run one after the other.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from eyas.engine.sampler import SamplerBatch

MAX_UNPADDED = 8  # requests up to which a round is not padded; larger ones grow by less than a quarter
MAX_GRAPHS = 512  # each takes some megabytes of the device


class GraphRecorder(Protocol):
    """A function that records work without running it."""

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """Returns the tensor that will hold the result, and a function that replays the work. Raises RuntimeError."""
        ...


class CudaGraphRecorder:
    """A recorder on the current CUDA stream."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """Records the work as a CUDA graph."""
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            out = work()
        return out, graph.replay


@dataclass(frozen=True, eq=False)
class _Recorded:
    """A recorded round and the tensors that it reads and writes."""

    batch: SamplerBatch
    out_BC: Tensor
    replay: Callable[[], None]


class RoundGraphs:
    """The recorded rounds of a ModelRunner. disabled_reason: why no more are recorded; None while they are."""

    def __init__(self, record: GraphRecorder) -> None:
        self.disabled_reason: str | None = None
        self._record = record
        self._recorded: dict[Hashable, _Recorded] = {}
        self._seen: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._recorded)

    @staticmethod
    def padded_size(count: int) -> int:
        """Returns the batch size of the graph for `count` requests: 1, 2 .. 8, 10, 12, 14, 16, 20, 24, 28, 32, 40 .."""
        step = max(1, (1 << (count - 1).bit_length()) // MAX_UNPADDED)
        return -(-count // step) * step

    def is_warm(self, key: Hashable, batch: SamplerBatch) -> bool:
        """Returns True if the next round of this kind takes as long as all later ones will."""
        return self.disabled_reason is not None or _kind(key, batch) in self._recorded

    def run(self, key: Hashable, batch: SamplerBatch, work: Callable[[SamplerBatch], Tensor]) -> Tensor:
        """Runs work(batch), as one graph launch once its kind is recorded. Returns its result.

        The next round of the same kind overwrites the result. Between rounds, `work` depends only on `batch` and on
        tensors of the device.
        """
        kind = _kind(key, batch)
        if kind not in self._recorded:
            if kind not in self._seen or self.disabled_reason is not None:
                self._seen.add(kind)
                return work(batch)
            if not self._record_round(kind, batch, work):
                return work(batch)
        known = self._recorded[kind]
        known.batch.req_slots_B.copy_(batch.req_slots_B)
        known.batch.settings.settings_RC.copy_(batch.settings.settings_RC)
        known.replay()
        return known.out_BC

    def _record_round(self, kind: Hashable, batch: SamplerBatch, work: Callable[[SamplerBatch], Tensor]) -> bool:
        settings = replace(batch.settings, settings_RC=batch.settings.settings_RC.clone())
        own = SamplerBatch(batch.req_slots_B.clone(), settings)
        try:
            out_BC, replay = self._record(lambda: work(own))
        except RuntimeError as error:  # some targets read a number on the host within their forward
            self.disabled_reason = f"A round could not be recorded: {error}"
            return False
        self._recorded[kind] = _Recorded(own, out_BC, replay)
        if len(self._recorded) == MAX_GRAPHS:
            self.disabled_reason = f"{MAX_GRAPHS} kinds of rounds are recorded already"
        return True


def _kind(key: Hashable, batch: SamplerBatch) -> Hashable:
    return key, len(batch.req_slots_B), batch.settings.ops_key
