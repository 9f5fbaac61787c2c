"""A simulated device for the real engine: a clock in the place of a GPU, and random results in the place of a model.

    host     launch 1 | launch 2 | wait 1 ........ process 1 | launch 3 | wait 2 ... process 2 | launch 4
    device     | piece 1: T seconds ............ | piece 2: T seconds ........ | piece 3: T seconds .......

Each piece of work starts when it is launched or when the piece before has ended, whichever is later, and takes exactly
T seconds. The device needs no processor, so the figures of the engine's host side do not depend on a GPU or a model.

    clock       the host's work takes             waiting for the device
    HostClock   processor time of the thread      sets the clock forward, and takes no time
    WallClock   real time                         sleeps

With the HostClock, a machine that also does other work gives about the same figures as an idle one.

B requests, S path slots, C columns of a result.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import count, cycle
from pathlib import Path
from typing import Protocol, TypeVar

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the small target and head are in tests/
from tests.engine.small import random_draft
from tests.tiny import tiny_target
from torch import Tensor

from eyas.engine.device_stream import WorkEvent, WorkResult
from eyas.engine.engine import Engine
from eyas.engine.request import Request, StopCriteria
from eyas.engine.runner_data import PhaseTimes, PrefillChunk, PrefillOutput, RoundBatch, RoundOutput
from eyas.engine.sampler import Sampler
from eyas.model.target import Target
from eyas.speculation.arms import default_arms
from eyas.speculation.budget import Budget
from eyas.speculation.round_costs import CostTable, batch_sizes
from eyas.tree.shape import TreeShape

Out = TypeVar("Out")

LAYERS = (1, 2, 3)  # captured, of three
NUM_RESULTS = 32  # random results of each batch size, which repeat
ACCEPT = 0.5  # share of the draft tokens at each depth that the stand-in accepts
PROMPT_TOKENS = 64
OUTPUT_TOKENS = (100, 400)
SPIN_S = 0.0005  # a sleep ends late by up to this time, so the last part of a wait is a loop


class Clock(Protocol):
    """The time of host and device, in seconds."""

    def now_s(self) -> float:
        """Returns the time."""
        ...

    def wait_until(self, end_s: float) -> None:
        """Returns when the time is at least `end_s`."""
        ...


class HostClock:
    """The processor time of the calling thread, plus the times that it would have waited for the device."""

    def __init__(self) -> None:
        self._waited_s = 0.0

    def now_s(self) -> float:
        """Returns the time."""
        return time.thread_time() + self._waited_s

    def wait_until(self, end_s: float) -> None:
        """Sets the clock forward."""
        self._waited_s += max(end_s - self.now_s(), 0.0)


class WallClock:
    """The real time."""

    def now_s(self) -> float:
        """Returns the time."""
        return time.perf_counter()

    def wait_until(self, end_s: float) -> None:
        """Sleeps, and loops for the last part of the wait, because a sleep ends late."""
        time.sleep(max(end_s - SPIN_S - time.perf_counter(), 0.0))
        busy_until(self, end_s)


class SimulatedDevice:
    """A DeviceStream whose pieces of work take a given time, one after the other.

    `launch` calls the work at once. So the work must be the host's share alone: to write tables, to queue kernels. Its
    result counts as computed when the piece ends; `wait` returns it then, and not before.

    Attributes:
        seconds: The time of each piece.
        clock: The time of host and device.
        idle_s: The sum of the times between the end of a piece and the start of the next one.
    """

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds = seconds
        self.clock = clock
        self.idle_s = 0.0
        self._end_s: float | None = None

    def launch(self, work: Callable[[], Out]) -> WorkEvent[Out]:
        """Calls the work and queues a piece of `seconds` behind the pieces that were launched before."""
        with torch.inference_mode():
            out = work()
        now_s = self.clock.now_s()
        begin_s = now_s if self._end_s is None else max(now_s, self._end_s)
        self.idle_s += 0.0 if self._end_s is None else begin_s - self._end_s
        end_s = self._end_s = begin_s + self.seconds
        result = WorkResult(out, self.seconds)

        def wait() -> WorkResult[Out]:
            self.clock.wait_until(end_s)
            return result

        return WorkEvent(wait)

    def close(self) -> None:
        """Does nothing."""


def busy_until(clock: Clock, end_s: float) -> None:
    """Keeps the calling thread busy until `clock` shows `end_s`."""
    while clock.now_s() < end_s:
        pass


class RandomResults:
    """A stand-in for prefill and rounds of a ModelRunner: random tokens and random accepted lengths.

    The results are drawn once and repeat, so that a call costs almost nothing. As in a real round, a batch that changes
    costs the host the settings of its requests.
    """

    def __init__(self, sampler: Sampler, token_ids: Sequence[int], seed: int = 0) -> None:
        self._sampler = sampler
        self._token_ids = torch.tensor(token_ids)
        self._generator = torch.Generator().manual_seed(seed)
        self._rounds: dict[tuple[TreeShape | None, tuple[bool, ...]], Iterator[Tensor]] = {}

    def prefill(self, chunks: Sequence[PrefillChunk], num_logprobs: int | None = None) -> PrefillOutput:
        """Returns a random token for each chunk that samples one."""
        return PrefillOutput(self._tokens(sum(chunk.samples_token for chunk in chunks)))

    def round(self, batch: RoundBatch) -> RoundOutput:
        """Returns a random accepted path for each request."""
        self._sampler.batch_for(batch.req_slots)
        drafts = batch.drafts or (False,) * len(batch.req_slots)
        key = batch.shape, drafts
        if key not in self._rounds:
            self._rounds[key] = cycle([self._round_BC(batch.shape, drafts) for _ in range(NUM_RESULTS)])
        num_slots = 1 if batch.shape is None else batch.shape.max_accepted
        return RoundOutput(next(self._rounds[key]), num_slots, PhaseTimes(), prefill=self.prefill(batch.chunks))

    def _tokens(self, *shape: int) -> Tensor:
        return self._token_ids[torch.randint(len(self._token_ids), shape, generator=self._generator)]

    def _round_BC(self, shape: TreeShape | None, drafts: Sequence[bool]) -> Tensor:
        """Returns random results in the layout of `RoundOutput.read_BC`."""
        num_slots, size = (1 if shape is None else shape.max_accepted), len(drafts)
        hits_BS = torch.rand(size, num_slots - 1, generator=self._generator) < ACCEPT
        lengths_B1 = 1 + (hits_BS & torch.tensor(drafts)[:, None]).long().cumprod(1).sum(1, keepdim=True)
        columns = [self._tokens(size, num_slots), lengths_B1, (lengths_B1 < num_slots).long()]
        if shape is not None and shape.top_k > 1:
            min_nodes_S = (2 * torch.arange(1, num_slots)).clamp(max=shape.nodes)
            columns += [min_nodes_S.expand(size, -1), lengths_B1 - 1, torch.full((size, 1), num_slots - 1)]
        return torch.cat(columns, dim=1)


@cache
def load_tiny_target(directory: Path, seed: int = 0) -> Target:
    """Saves and loads a target of three layers with random weights."""
    return Target.load(tiny_target(directory / f"tiny{seed}", layers=len(LAYERS), seed=seed), torch.float32, LAYERS)


def build_stand_in_engine(target: Target, streams: int, device: SimulatedDevice) -> Engine:
    """Builds a real engine with a head and a budget, and replaces its prefill and rounds by `RandomResults`.

    Scheduler, KV cache manager, output processor, request table and sampler settings are the real ones. All arms have
    the same cost in the budget, because each piece takes the device the same time.
    """
    arms = default_arms()
    draft = random_draft(target, arms[-1].shape or TreeShape(8, 4, 32))
    engine = Engine(target, [draft], streams, PROMPT_TOKENS + OUTPUT_TOKENS[1], stream=device)
    engine.scheduler.shares_forwards = False  # as on a GPU
    batches = batch_sizes(streams)
    seconds = ((max(device.seconds, 1e-3),) * len(batches),) * len(arms)
    table = CostTable(tuple(arm.name for arm in arms), batches, PROMPT_TOKENS, seconds, (0.0,) * len(arms))
    engine.policies[0] = Budget(arms, table, lambda num_tokens: 1e-7 * num_tokens)
    put_random_results(engine)
    return engine


def put_random_results(engine: Engine) -> None:
    """Replaces prefill and rounds of an engine by new `RandomResults` over letters."""
    results = RandomResults(engine.runner.sampler, range(32, 58))
    engine.runner.prefill, engine.runner.round = results.prefill, results.round


def endless_requests(wants_text: bool, seed: int = 0) -> Iterator[Request]:
    """Yields requests with random prompts and output lengths, without end."""
    pick = random.Random(seed)
    for number in count():
        prompt_ids = tuple(pick.randrange(256) for _ in range(PROMPT_TOKENS))
        stop = StopCriteria(ignore_eos=True)
        yield Request(f"r{number}", prompt_ids, pick.randint(*OUTPUT_TOKENS), stop=stop, wants_text=wants_text)
