"""Runs a whole round as one CUDA graph: one launch instead of about a thousand kernel launches. ModelRunner uses it.

B requests, C columns of a round's result.

There is one graph for each combination of tree shape, drafter, batch size and sampling operations:

    rounds with this combination    what happens
    the first                       runs without a graph: Triton compiles its kernels, buffers are allocated
    the second                      is captured as a CUDA graph without running; then the graph is launched
    later                           request slots and sampling settings are copied into the graph's input tensors;
                                    then the graph is launched

Batches are padded with rows of the last request slot, so there are few batch sizes. All graphs share one memory pool,
because they run one after the other.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eyas.engine.sampler import SamplerBatch

MAX_UNPADDED = 8  # requests up to which a round is not padded; larger ones grow by less than a quarter
MAX_GRAPHS = 512  # each takes some megabytes of the device


GraphRecorder = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], None]]]
"""A function that captures work as a graph without running it. Raises RuntimeError for work that it cannot capture.

It returns the tensor that holds the result after each launch, and the function that launches the graph.
"""


class CudaGraphRecorder:
    """A recorder that captures work on the current CUDA stream."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """Captures the work as a CUDA graph. See `GraphRecorder`."""
        graph = torch.cuda.CUDAGraph()
        # torch.cuda.graph would first wait for the device and give all cached memory back.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            out = work()
        finally:
            graph.capture_end()
        return out, graph.replay


@dataclass(frozen=True, eq=False)
class _Recorded:
    """A captured round.

    Attributes:
        batch: The graph's input tensors: request slots and sampling settings.
        out_BC: The graph's output tensor.
        replay: Launches the graph.
    """

    batch: SamplerBatch
    out_BC: Tensor
    replay: Callable[[], None]


class RoundGraphs:
    """The CUDA graphs of a ModelRunner.

    Attributes:
        disabled_reason: Why no further rounds are captured; None as long as they are.
    """

    def __init__(self, record: GraphRecorder) -> None:
        self.disabled_reason: str | None = None
        self._record = record
        self._recorded: dict[Hashable, _Recorded] = {}
        self._seen: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._recorded)

    @staticmethod
    def padded_size(count: int) -> int:
        """Returns the padded batch size of `count` requests: 1, 2 .. 8, 10, 12, 14, 16, 20, 24, 28, 32, 40 .."""
        step = max(1, (1 << (count - 1).bit_length()) // MAX_UNPADDED)
        return -(-count // step) * step

    def is_warm(self, key: Hashable, batch: SamplerBatch) -> bool:
        """Returns True if the next round of this kind needs no warm-up: its graph is captured, or never will be.

        Args:
            key: tree shape and drafter of the round.
            batch: the padded requests and their sampling settings.
        """
        return self.disabled_reason is not None or _kind(key, batch) in self._recorded

    def run(self, key: Hashable, batch: SamplerBatch, work: Callable[[SamplerBatch], Tensor]) -> Tensor:
        """Runs work(batch) and returns its result. From the second call with the same kind on, launches a CUDA graph.

        The kind of a call is `key`, the batch size and the sampling operations. Calls with the same kind write their
        results to the same tensor, so the caller must copy the result before the next call.

        Args:
            key: tree shape and drafter of the round.
            batch: the padded requests and their sampling settings.
            work: the round. Requirement: from call to call, only the values of `batch` and of other device tensors
                change. A Python value that `work` reads is captured once and stays the same in later launches.
        """
        kind = _kind(key, batch)
        if kind not in self._recorded:
            is_first = kind not in self._seen
            self._seen.add(kind)
            if is_first or self.disabled_reason is not None or not self._record_round(kind, batch, work):
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
            self.disabled_reason = f"A round could not be captured as a CUDA graph: {error}"
            return False
        self._recorded[kind] = _Recorded(own, out_BC, replay)
        if len(self._recorded) == MAX_GRAPHS:
            self.disabled_reason = f"The maximum number of CUDA graphs ({MAX_GRAPHS}) is reached"
        return True


def _kind(key: Hashable, batch: SamplerBatch) -> Hashable:
    return key, len(batch.req_slots_B), batch.settings.ops_key
