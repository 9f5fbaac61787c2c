"""Seconds of a round by arm and batch size, measured at start-up and cached. The latency model corrects them later.

A arms, N measured batch sizes.

    seconds of a round = table[arm, batch] + per_token[arm] * (sum of contexts - batch * context)

The whole round is measured, because the time between draft, verify and extend is part of it. The measured batch sizes
are the powers of two up to the number of slots; costs between them are interpolated. `per_token` is the extra time for
each token of context. It is measured for each arm with one long context.
"""

import contextlib
import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eyas.base.errors import StorageError
from eyas.base.provenance import digest_json
from eyas.base.storage import write_json_atomic
from eyas.speculation.arms import Arm
from eyas.speculation.batch_load import BatchLoad

Measure = Callable[[Arm, int, int], float]
"""(arm, batch, context) -> seconds of one round with `batch` requests, each with `context` tokens before its root."""

SCHEMA = 1
TIME_LIMIT_S = 6.0  # for the whole table; cells not measured by then are extrapolated from smaller batch sizes
MAX_ROUNDS = 9  # for one arm, batch size and context
CONTEXT, LONG_CONTEXT = 512, 2048  # tokens
MAX_DISAGREEMENT = 1.1  # two rounds that differ by a larger factor call for a third
MIN_SHARE = 0.25  # a round with short contexts is predicted to take at least this share of the table's seconds


@dataclass(frozen=True)
class CostKey:
    """Everything on which the seconds of a round depend. A cached table with another key is not used.

    Attributes:
        machine: The name of the GPU or processor.
        target: The digest of the target's sizes.
        head: The digest of the head's sizes.
        dtype: The dtype of the KV memory.
        threads: The number of CPU threads of a forward.
        compiled: True if the target runs compiled (kernels/aot_compile.py).
        version: The versions of eyas and torch, and whether the target's layers are packed (kernels/cpu_linear.py).
    """

    machine: str
    target: str
    head: str
    dtype: str
    threads: int
    compiled: bool
    version: str


@dataclass(frozen=True)
class CostTable:
    """The measured costs of rounds.

    Attributes:
        arms: The names of the arms.
        batches: The measured batch sizes, ascending.
        context: The number of tokens before the root of each request in the measured rounds.
        seconds: The seconds of a round: seconds[arm][index of the batch size].
        per_token: For each arm, the extra seconds of a round for each further token of context.
        pad: Returns the batch size with which a round of so many requests runs. CUDA graphs exist for some sizes only;
            elsewhere it is the number itself.
    """

    arms: tuple[str, ...]
    batches: tuple[int, ...]
    context: int
    seconds: tuple[tuple[float, ...], ...]
    per_token: tuple[float, ...]
    pad: Callable[[int], int] = field(default=int, compare=False)

    def seconds_at(self, arm: int, batch: int) -> float:
        """Returns the seconds of an arm at a batch size, interpolated between two measured batch sizes."""
        batch, batches, seconds = self.pad(batch), self.batches, self.seconds[arm]
        if len(batches) == 1:
            return seconds[0] * batch / batches[0] if batch > batches[0] else seconds[0]
        right = next((index for index, size in enumerate(batches) if size >= batch), len(batches) - 1)
        right = max(right, 1)
        share = (batch - batches[right - 1]) / (batches[right] - batches[right - 1])
        return seconds[right - 1] + share * (seconds[right] - seconds[right - 1])

    def seconds_for(self, arm: int, load: BatchLoad) -> float:
        """Returns the seconds of a round with this load. Requests with speculation "off" cost one plain row each."""
        following, alone = len(load.contexts), sum(load.plain_contexts)
        long = sum(load.contexts) - following * self.context
        plain_s = self.seconds_at(0, load.num_requests) - self.seconds_at(0, following) if load.plain_contexts else 0.0
        plain_s += self.per_token[0] * (alone - len(load.plain_contexts) * self.context)
        base = self.seconds_at(arm, following)
        return max(base + self.per_token[arm] * long + plain_s, MIN_SHARE * base)


def batch_sizes(slots: int) -> tuple[int, ...]:
    """Returns the batch sizes to measure: the powers of two below the number of slots, and the number of slots."""
    return (*(2**power for power in range(slots.bit_length()) if 2**power < slots), slots)


def measure_cost_table(
    arms: Sequence[Arm], slots: int, limit: int, measure: Measure, time_limit_s: float = TIME_LIMIT_S
) -> CostTable:
    """Measures the cost table, the smallest batch sizes first.

    Each arm is always measured at the two smallest batch sizes and at a long context. Larger batch sizes are measured
    while the time limit allows it, and otherwise extrapolated from the two batch sizes before. In the time that is
    left, all measured combinations are measured again, one after the other, so that a slow moment affects all arms.
    With a time limit of 0, each arm runs once at the two smallest batch sizes, and never at a long context.

    Args:
        arms: the arms to measure.
        slots: the largest batch size.
        limit: the longest context that the engine holds, in tokens.
        measure: runs one round and returns its seconds.
        time_limit_s: the time limit for the whole table, in seconds.
    """
    batches, context, long = batch_sizes(slots), min(CONTEXT, limit), min(LONG_CONTEXT, limit)
    found: dict[_Cell, list[float]] = {}
    spent_s = 0.0

    def run(cell: _Cell) -> None:
        nonlocal spent_s
        arm, batch, tokens = cell
        once_s = measure(arms[arm], batch, tokens)
        found.setdefault(cell, []).append(once_s)
        spent_s += once_s

    def first(cell: _Cell) -> float:
        """Measures a combination twice, and a third time if the two times differ much. Returns the median."""
        run(cell)
        if time_limit_s:
            run(cell)
        if max(found[cell]) > MAX_DISAGREEMENT * min(found[cell]):
            run(cell)
        return statistics.median(found[cell])

    numbers = range(len(arms))
    grid = [[first((arm, batch, context)) for batch in batches[:2]] for arm in numbers]
    for arm in numbers if long > context and time_limit_s else ():
        first((arm, 1, long))
    for index, batch in enumerate(batches[2:], start=2):
        for arm, row in enumerate(grid):
            guess_s = _extrapolate(row, batches, index)
            row.append(first((arm, batch, context)) if spent_s + 2 * guess_s <= time_limit_s else guess_s)
    for _ in range(MAX_ROUNDS - 2):
        if spent_s + sum(map(min, found.values())) > time_limit_s:
            break
        for cell in list(found):
            run(cell)
    medians = {cell: statistics.median(times) for cell, times in found.items()}
    seconds, per_token = [], []
    for arm in numbers:
        row: list[float] = []
        for index, batch in enumerate(batches):
            cell = (arm, batch, context)
            row.append(medians[cell] if cell in medians else _extrapolate(row, batches, index))
        seconds.append(tuple(isotonic(row)))
        per_token.append(max(medians.get((arm, 1, long), 0.0) - row[0], 0.0) / max(long - context, 1))
    return CostTable(tuple(arm.name for arm in arms), batches, context, tuple(seconds), tuple(per_token))


_Cell = tuple[int, int, int]
"""Arm, batch size, context."""


def _extrapolate(row: Sequence[float], batches: Sequence[int], index: int) -> float:
    """Returns the seconds at batches[index], extrapolated linearly from the two batch sizes before."""
    step = (row[-1] - row[-2]) / (batches[index - 1] - batches[index - 2])
    return row[-1] + max(step, 0.0) * (batches[index] - batches[index - 1])


def isotonic(values: Sequence[float]) -> list[float]:
    """Returns the non-decreasing sequence that is nearest to `values` (pool adjacent violators).

    It corrects measurements in which a larger batch was faster than a smaller one.
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            before, size = pools.pop()
            mean, count = (mean * count + before * size) / (count + size), count + size
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


def load_or_measure(
    key: CostKey,
    arms: Sequence[Arm],
    slots: int,
    limit: int,
    measure: Measure,
    directory: Path | None,
    time_limit_s: float = TIME_LIMIT_S,
) -> CostTable:
    """Returns the cached cost table, or measures the table and caches it. A limit of 0 is not cached.

    Args:
        key: a table that was cached with another key, other arms or other slots is not used.
        arms: the arms to measure.
        slots: the largest batch size.
        limit: the longest context that the engine holds, in tokens.
        measure: runs one round and returns its seconds.
        directory: the cache directory; None to measure without a cache.
        time_limit_s: the time limit of the measurement, in seconds.
    """
    fields = {"schema": SCHEMA, "key": asdict(key), "arms": [asdict(arm) for arm in arms]}
    fields |= {"batches": list(batch_sizes(slots)), "context": min(CONTEXT, limit), "limit": min(LONG_CONTEXT, limit)}
    path = None if directory is None else directory / f"round-costs-{digest_json(fields).rpartition(':')[2][:20]}.json"
    if path is not None and (found := _read(path, fields)) is not None:
        return found
    table = measure_cost_table(arms, slots, limit, measure, time_limit_s)
    if path is not None and time_limit_s:
        # Without a writable cache the next start measures again; this one continues.
        with contextlib.suppress(StorageError):
            write_json_atomic(path, fields | {"seconds": table.seconds, "per_token": table.per_token})
    return table


def _read(path: Path, fields: dict[str, Any]) -> CostTable | None:
    """Reads a cached table. Returns None if the file is missing or damaged, or does not have these `fields`."""
    try:
        content = json.loads(path.read_bytes())
        if any(content[name] != value for name, value in fields.items()):
            return None
        seconds = tuple(tuple(float(value) for value in row) for row in content["seconds"])
        per_token = tuple(float(value) for value in content["per_token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    arms = tuple(arm["name"] for arm in fields["arms"])
    sizes = {len(row) for row in seconds}
    whole = len(seconds) == len(per_token) == len(arms) and sizes == {len(fields["batches"])}
    sound = all(math.isfinite(value) and value > 0 for row in seconds for value in row)
    if not (whole and sound and all(math.isfinite(value) and value >= 0 for value in per_token)):
        return None
    return CostTable(arms, tuple(fields["batches"]), fields["context"], seconds, per_token)
