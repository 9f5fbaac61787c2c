"""A whole round as one CUDA graph: the device gets one command instead of a thousand kernels.

B requests, C columns of what a round reports.

    first round of a kind     run as it is: kernels are compiled, tables are made
    second                    recorded, without being run, then replayed
    later                     lines and settings are copied into the recorded round's own tensors, and it is replayed

A kind is (tree shape and head, batch size, what the sampler has to do). Batch sizes are few: a round is padded with the
spare line, which belongs to nobody. All graphs share one pool of memory, because they run one after the other.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from eyas.engine.sampler import SamplerBatch

MAX_UNPADDED = 8  # up to so many requests a round is not padded; above, by less than a quarter
MAX_GRAPHS = 512  # graphs; each takes some megabytes of the device


class GraphRecorder(Protocol):
    """Records work without doing it: where its result will lie, and what does it. RuntimeError if it cannot."""

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]: ...


class CudaGraphRecorder:
    """`Record` on the current stream."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            out = work()
        return out, graph.replay


@dataclass(frozen=True, eq=False)
class _Recorded:
    """A round and the tensors that it reads and writes."""

    lines: SamplerBatch
    out_BC: Tensor
    replay: Callable[[], None]


class RoundGraphs:
    """The recorded rounds. reason: why no more are recorded; None while they are."""

    def __init__(self, record: GraphRecorder) -> None:
        self.disabled_reason: str | None = None
        self._record = record
        self._recorded: dict[Hashable, _Recorded] = {}
        self._seen: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._recorded)

    @staticmethod
    def padded_size(count: int) -> int:
        """The batch size in which a round for so many runs: 1, 2 .. 8, 10, 12, 14, 16, 20, 24, 28, 32, 40 .."""
        step = max(1, (1 << (count - 1).bit_length()) // MAX_UNPADDED)
        return -(-count // step) * step

    def is_warm(self, shape: Hashable, lines: SamplerBatch) -> bool:
        """Whether the next round of this kind costs what all later ones will."""
        return self.disabled_reason is not None or _kind(shape, lines) in self._recorded

    def run(self, shape: Hashable, lines: SamplerBatch, work: Callable[[SamplerBatch], Tensor]) -> Tensor:
        """work(lines), in one command once the kind is known. The result is overwritten by the next round of its kind.

        work depends on `lines` and on nothing else that changes from round to round but what lies on the device.
        """
        kind = _kind(shape, lines)
        if kind not in self._recorded:
            if kind not in self._seen or self.disabled_reason is not None:
                self._seen.add(kind)
                return work(lines)
            if not self._record_round(kind, lines, work):
                return work(lines)
        known = self._recorded[kind]
        known.lines.req_slots_B.copy_(lines.req_slots_B)
        known.lines.settings.settings_RC.copy_(lines.settings.settings_RC)
        known.replay()
        return known.out_BC

    def _record_round(self, kind: Hashable, lines: SamplerBatch, work: Callable[[SamplerBatch], Tensor]) -> bool:
        settings = replace(lines.settings, settings_RC=lines.settings.settings_RC.clone())
        own = SamplerBatch(lines.req_slots_B.clone(), settings)
        try:
            out_BC, replay = self._record(lambda: work(own))
        except RuntimeError as error:  # a target may ask the host for a number in the middle of its forward
            self.disabled_reason = f"a round could not be recorded: {error}"
            return False
        self._recorded[kind] = _Recorded(own, out_BC, replay)
        if len(self._recorded) == MAX_GRAPHS:
            self.disabled_reason = f"{MAX_GRAPHS} kinds of rounds are recorded"
        return True


def _kind(shape: Hashable, lines: SamplerBatch) -> Hashable:
    return shape, len(lines.req_slots_B), lines.settings.ops_key
