"""Runs thousands of mixed requests through a real engine on a CPU, with a detector around all launched work.

A detector watches the work and counts operations that would make the host wait for a GPU. On a CPU they cost nothing,
so no other test notices them.
"""

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from engine_checks import check_engine
from simulated_device import LAYERS
from tests.engine.small import Turns, attention_aside, random_draft
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from eyas.engine.device_stream import InlineStream, WorkEvent
from eyas.engine.engine import Engine
from eyas.engine.loops import overlap_loop
from eyas.engine.min_length import MinLength
from eyas.engine.request import Request, StopCriteria
from eyas.engine.sampler import Sampler
from eyas.kernels.dispatch import attention_for_device
from eyas.model.target import Target
from eyas.speculation.arms import Arm
from eyas.staging import Staging
from eyas.tree import sampling
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape

Out = TypeVar("Out")
Watch = Callable[[], AbstractContextManager[object]]
"""Returns a context manager that watches the operations of one piece of launched work."""

SLOTS = 24
CONTEXT = 128
MEMORY_TOKENS = 500  # too few for 24 requests, so that some are preempted
TREE = TreeShape(2, 2, 4)
ARMS = (Arm("tree", TREE), Arm("off", None), Arm("chain", chain_shape(2)), Arm("tree", TREE))
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(),
    SamplingParams(0.8),
    SamplingParams(1.2, top_k=20, presence_penalty=1.0),
    SamplingParams(0.9, top_p=0.9, min_p=0.02),
    SamplingParams(frequency_penalty=0.7, repetition_penalty=1.1, logit_bias={7: 3.0}),
)
# Copies between host and device; grammars, which run over values that were read before; what NumPy computes on CPUs.
HOST_WORK: tuple[tuple[Any, str], ...] = (
    (Staging, "copy"),
    (Staging, "read_now"),
    (Sampler, "_allowed"),
    (sampling, "_sort_ascending"),
    (sampling, "most_likely"),
)
HOST_READS = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal"}


class Detector(Protocol):
    """Counts forbidden operations of launched work, by name."""

    counts: Counter[str]

    def watch(self) -> AbstractContextManager[object]:
        """Returns a context manager that counts the forbidden operations within."""
        ...


class HostReads:
    """A detector of host reads (`item`, `tolist`, boolean indices) and of Python lists that become device tensors.

    A Python number that is written into a tensor does not count: on a GPU it is a fill.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def watch(self) -> AbstractContextManager[object]:
        """Returns a dispatch mode that counts."""
        return _CountingMode(self.counts)


class _CountingMode(TorchDispatchMode):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in HOST_READS:
            self._counts[name] += 1
        elif name == "resolve_neg":  # the only operator that `Tensor.tolist` of a CPU tensor calls
            self._counts["tolist"] += 1
        elif name == "lift_fresh" and args[0].ndim > 0:
            self._counts["list to tensor"] += 1
        elif name in ("index", "index_put", "index_put_"):
            self._counts["boolean index"] += any(i is not None and i.dtype == torch.bool for i in args[1])
        return func(*args, **(kwargs or {}))


class WatchedStream:
    """A stream that runs launched work at once, inside a context manager of the detector."""

    def __init__(self, watch: Watch) -> None:
        self._stream = InlineStream()
        self._watch = watch

    def launch(self, work: Callable[[], Out]) -> WorkEvent[Out]:
        """Runs the work."""

        def watched() -> Out:
            with self._watch():
                return work()

        return self._stream.launch(watched)

    def close(self) -> None:
        """Does nothing."""


@dataclass(frozen=True)
class Mix:
    """The kinds of requests in a run. The row of forbidden operations passes only if all kinds occurred."""

    finished: int
    cancelled: int
    preemptions: int
    grammars: int
    logprobs: int
    drafters: int

    @property
    def is_mixed(self) -> bool:
        """True if the run contained requests of every kind."""
        kinds = (self.finished, self.cancelled, self.preemptions, self.grammars, self.logprobs)
        return all(count > 0 for count in kinds) and self.drafters == 2


class MixedTraffic:
    """A source of random requests. It cancels every eighth of them some steps after it was added."""

    def __init__(self, target: Target, num_requests: int, seed: int = 0) -> None:
        self._pick = random.Random(seed)
        self._rule = MinLength(6, tuple(target.info.eos_ids), target.info.vocab_size)
        self._num_left = num_requests
        self._cancels: list[tuple[int, str]] = []
        self._step = 0
        self._prefixes = [self._tokens(length) for length in (8, 24)]
        self.counts: Counter[str] = Counter()

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        """Adds requests until all slots are taken, and cancels those whose time has come."""
        self._step += 1
        for _, name in [cancel for cancel in self._cancels if cancel[0] <= self._step]:
            self.counts["cancelled"] += engine.cancel(name) is not None
        self._cancels = [cancel for cancel in self._cancels if cancel[0] > self._step]
        while self._num_left and engine.num_free > 0:
            self._num_left -= 1
            request, drafter = self._request(f"q{self._num_left}"), self._pick.randrange(2)
            engine.add(request, drafter)
            self.counts[f"drafter {drafter}"] += 1
            self.counts["grammars"] += request.grammar is not None
            self.counts["logprobs"] += request.logprobs is not None
            if self._pick.random() < 0.125:
                self._cancels.append((self._step + self._pick.randint(1, 12), request.id))
        return self._num_left > 0

    def _tokens(self, length: int) -> tuple[int, ...]:
        return tuple(self._pick.randrange(256) for _ in range(length))

    def _request(self, name: str) -> Request:
        pick = self._pick
        prefix = pick.choice(self._prefixes)
        return Request(
            name,
            prefix[: pick.randint(0, len(prefix))] + self._tokens(pick.randint(1, 20)),
            pick.choices((1, 2, 3, 4, 70), (4, 4, 4, 4, 2))[0],
            sampling=pick.choice(SAMPLINGS),
            seed=pick.randrange(1000),
            stop=StopCriteria(ids=self._tokens(4)),
            speculation=pick.choices(("auto", "off", "max"), (18, 1, 1))[0],
            grammar=self._rule if pick.random() < 0.125 else None,
            logprobs=pick.choice((None, None, None, 0, 3)),
            wants_rounds=pick.random() < 0.1,
        )


def run_mixed_requests(target: Target, num_requests: int, watch: Watch) -> Mix:
    """Runs random requests with two random heads, few KV slots and the overlap loop.

    Args:
        target: a small target that captures `simulated_device.LAYERS`.
        num_requests: the number of requests.
        watch: called for each piece of launched work; see `Watch`.
    """
    assert target.aux_layer_ids == LAYERS, "the heads read these layers"
    drafts = [dataclasses.replace(random_draft(target, TREE, seed), arms=ARMS) for seed in range(2)]
    engine = Engine(
        target,
        drafts,
        SLOTS,
        CONTEXT,
        memory_tokens=MEMORY_TOKENS,
        stream=WatchedStream(watch),
        prepare=attention_aside(attention_for_device(torch.device("cpu"))),
    )
    engine.policies[:] = [Turns(ARMS), Turns(ARMS)]
    traffic = MixedTraffic(target, num_requests)
    with _unwatched_host_work():
        outputs = list(overlap_loop(engine, traffic))
    check_engine(engine)
    counts = traffic.counts
    return Mix(
        finished=len(outputs),
        cancelled=counts["cancelled"],
        preemptions=engine.counters.preemptions,
        grammars=counts["grammars"],
        logprobs=counts["logprobs"],
        drafters=sum(counts[f"drafter {drafter}"] > 0 for drafter in range(2)),
    )


@contextmanager
def _unwatched_host_work() -> Iterator[None]:
    """Hides what does not wait for a GPU from detectors, or is counted as a wait elsewhere (`Staging.read_now`)."""
    kept = [(holder, name, getattr(holder, name)) for holder, name in HOST_WORK]

    def hide(function: Callable[..., Any]) -> Callable[..., Any]:
        def unwatched(*args: Any) -> Any:
            with _disable_current_modes():
                return function(*args)

        return unwatched

    for holder, name, function in kept:
        setattr(holder, name, hide(function))
    try:
        yield
    finally:
        for holder, name, function in kept:
            setattr(holder, name, function)
