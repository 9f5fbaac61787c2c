"""Plans the blocks of requests of a measurement under load, and computes its entries in results.json.

Measurements in this process and over HTTP use the same plan. Each passes a function that runs blocks in all its arms.
Requests a, b, c, ... over time:

    closed loop, 2 streams   a |--------|c |---|d |-----   a stream sends its next request when its answer ends
                             b |-----------|e |------
    open loop                a  b    c d       e           Poisson arrivals, also while earlier requests run
    ramp                     a     b    c   d  e f g       an open loop whose rate grows; each quarter is an entry
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from eyas.bench.config import LoadConfig, Slo
from eyas.bench.request_metrics import BASELINE, SPECULATIVE, BlockResult, compare_arms, summarize_arm

RAMP_WINDOWS = 4  # entries of results.json for a ramp

P = TypeVar("P")
BlocksByArm = Mapping[str, Sequence[BlockResult]]
Points = list[dict[str, Any]]
LoadResults = dict[Literal["concurrency", "rates", "ramp"], Points]
"""Keys of results.json: entries of the closed loop, of the open loop, and of an open loop with a growing rate."""


@dataclass(frozen=True)
class LoadBlock(Generic[P]):
    """The requests of a block. Every arm sends the same requests.

    Attributes:
        prompts: The prompts of the requests.
        first: The number of the first request, counted over all blocks of this load.
        streams: The number of streams of a closed loop.
        arrivals_s: The sending time of each request of an open loop, in seconds after the start of the block. None for
            a closed loop.
    """

    prompts: Sequence[P]
    first: int = 0
    streams: int = 1
    arrivals_s: Sequence[float] | None = None


class LoadPlan(Generic[P]):
    """The requests of a load test.

    A load is a number of streams or an arrival rate. Its requests are cut into blocks, and every arm answers one block
    before the next block begins, so that all arms meet the same conditions. If there are more requests than prompts,
    prompts are used again.
    """

    def __init__(self, pool: Sequence[P], config: LoadConfig) -> None:
        self._pool = pool
        self._config = config
        self._closed = [(n, self._closed_blocks(n)) for n in config.concurrency]
        self._open = [(rate, self._open_blocks(rate, rate)) for rate in config.rates]
        self._ramp = [] if config.ramp is None else self._open_blocks(*config.ramp)

    @property
    def num_points(self) -> int:
        """The number of measured loads; a ramp counts as one."""
        return len(self._closed) + len(self._open) + bool(self._ramp)

    @property
    def num_requests(self) -> int:
        """The number of requests that one arm gets."""
        runs = [blocks for _, blocks in [*self._closed, *self._open]]
        return sum(len(block.prompts) for blocks in [*runs, self._ramp] for block in blocks)

    def take(self, first: int, count: int) -> list[P]:
        """Returns `count` prompts, starting at index `first`; after the last prompt the first one follows."""
        return [self._pool[(first + index) % len(self._pool)] for index in range(count)]

    def measure(self, run: Callable[[Sequence[LoadBlock[P]]], BlocksByArm]) -> LoadResults:
        """Runs all blocks and returns the entries of results.json.

        Args:
            run: Runs the blocks of one load in all arms and returns arm -> results. If a server goes down, it returns
                fewer results or {}.
        """
        closed = [{"n": n} | self._build_point(found) for n, blocks in self._closed if (found := run(blocks))]
        opened = [{"rate": rate} | self._build_point(found) for rate, blocks in self._open if (found := run(blocks))]
        ramp = self._ramp_points(run(self._ramp)) if self._ramp else []
        return {"concurrency": closed, "rates": opened, "ramp": ramp}

    def _build_point(self, results: BlocksByArm) -> dict[str, Any]:
        return build_point(results, self._config.slo, self._config.seed)

    def _closed_blocks(self, streams: int) -> list[LoadBlock[P]]:
        size = streams * self._config.requests_per_stream
        starts = [block * size for block in range(self._config.repeats)]
        return [LoadBlock(self.take(start, size), start, streams) for start in starts]

    def _open_blocks(self, rate: float, last_rate: float) -> list[LoadBlock[P]]:
        blocks: list[LoadBlock[P]] = []
        first = 0
        for number in range(self._config.repeats):
            arrivals_s = poisson_arrivals(rate, last_rate, self._config.block_s, self._config.seed + number)
            blocks.append(LoadBlock(self.take(first, len(arrivals_s)), first, arrivals_s=arrivals_s))
            first += len(arrivals_s)
        return blocks

    def _ramp_points(self, results: BlocksByArm) -> Points:
        """Returns an entry for each window of the ramp that has requests. `rate`: in the middle of the window."""
        arrivals_s = [block.arrivals_s or () for block in self._ramp]
        first, last = self._config.ramp or (0.0, 0.0)
        windows = {
            name: [split_windows(*pair, self._config.block_s) for pair in zip(blocks, arrivals_s, strict=False)]
            for name, blocks in results.items()
        }
        points = []
        for index in range(RAMP_WINDOWS):
            found = {name: [of_block[index] for of_block in blocks] for name, blocks in windows.items()}
            if any(window.samples for blocks in found.values() for window in blocks):
                rate = first + (last - first) * (index + 0.5) / RAMP_WINDOWS
                points.append({"rate": rate} | self._build_point(found))
        return points


def build_point(results: BlocksByArm, slo: Slo, seed: int) -> dict[str, Any]:
    """Returns the metrics of one load for results.json. Requirement: block i has the same requests in every arm."""
    arms = {name: summarize_arm(blocks, slo, seed) for name, blocks in results.items()}
    if BASELINE not in results:
        return {"arms": arms}
    compared = {name: arms.pop(name) for name in (BASELINE, SPECULATIVE)}
    return compared | {"arms": arms} | compare_arms(results[BASELINE], results[SPECULATIVE], seed)


def poisson_arrivals(rate: float, last_rate: float, seconds: float, seed: int) -> list[float]:
    """Returns the arrival times of a Poisson process that lasts `seconds`. The list is never empty.

    The rate grows linearly from `rate` to `last_rate`, in arrivals per second. The times are the inverse of
    Lambda(t) = rate t + (last_rate - rate) t^2 / (2 seconds) at the arrivals of a Poisson process with rate 1.
    """
    rng = random.Random(seed)
    slope = (last_rate - rate) / seconds
    times_s: list[float] = []
    ticks = rng.expovariate(1.0)
    while ticks <= (rate + last_rate) * seconds / 2 or not times_s:
        root = math.sqrt(max(rate * rate + 2 * slope * ticks, 0.0))
        times_s.append(min(2 * ticks / (rate + root), seconds))
        ticks += rng.expovariate(1.0)
    return times_s


def split_windows(block: BlockResult, arrivals_s: Sequence[float], block_s: float) -> list[BlockResult]:
    """Splits an open loop over block_s seconds into RAMP_WINDOWS windows of equal length.

    A window holds the samples of the requests that were sent in it. So its requests are the same in every arm. Its
    `tokens_in_window` counts the tokens that arrived in it, of all requests. An answer with several chunks contributes
    an equal share of its tokens at each chunk.

    Args:
        block: The result of the block.
        arrivals_s: The planned sending time of each request, in seconds after the start of the block.
        block_s: The length of the block.
    """
    seconds = block_s / RAMP_WINDOWS
    due = [min(int(arrival_s / seconds), RAMP_WINDOWS - 1) for arrival_s in arrivals_s]
    start_s = min((one.sent_s - time_s for one, time_s in zip(block.samples, arrivals_s, strict=True)), default=0.0)
    tokens = [0.0] * RAMP_WINDOWS
    for sample in block.succeeded:
        times_s = sample.chunk_times_s or (sample.end_s,)
        for time_s in times_s:
            window = int((time_s - start_s) / seconds)
            if window < RAMP_WINDOWS:
                tokens[window] += (sample.output_tokens or 0) / len(times_s)
    pairs = list(zip(block.samples, due, strict=True))
    windows = [tuple(sample for sample, index in pairs if index == window) for window in range(RAMP_WINDOWS)]
    return [BlockResult(samples, seconds, tokens_in_window=n) for samples, n in zip(windows, tokens, strict=True)]
