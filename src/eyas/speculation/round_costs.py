"""Seconds of a round by arm and batch size, measured at start-up and cached. The latency model corrects them later.

A arms, N measured batch sizes.

    seconds of a round = table[arm, batch] + per_token[arm] * (sum of contexts - batch * context)

The whole round is measured, not its parts, because the time between draft, verify and extend counts as well. Batch
sizes are the powers of two up to the slots; between them costs are interpolated. Attention grows with the context and
with the rows that read it, so one long context for each arm gives the slope.
"""

import contextlib
import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eyas.base.errors import StorageError
from eyas.base.provenance import digest_json
from eyas.base.storage import write_json_atomic
from eyas.speculation.arms import Arm
from eyas.speculation.batch_load import BatchLoad

Measure = Callable[[Arm, int, int], float]
"""(arm, batch, context) -> seconds of one round of that many requests, each with that many tokens before its root."""

SCHEMA = 1
TIME_LIMIT_S = 6.0  # for the whole table; cells not measured by then are extrapolated from smaller batch sizes
MAX_ROUNDS = 9  # for one arm, batch size and context
CONTEXT, LONG_CONTEXT = 512, 2048  # tokens
MAX_DISAGREEMENT = 1.1  # two rounds that differ by a larger factor call for a third
MIN_SHARE = 0.25  # of the table's figure: shorter contexts save no more than the rest


@dataclass(frozen=True)
class CostKey:
    """Everything that the seconds depend on; a cached table with another key is not used."""

    machine: str
    target: str  # digest
    head: str  # digest
    dtype: str
    threads: int
    compiled: bool
    version: str


@dataclass(frozen=True)
class CostTable:
    """Seconds of rounds with `context` tokens a request. seconds: by arm and batch size. per_token: slope by arm."""

    arms: tuple[str, ...]
    batches: tuple[int, ...]
    context: int
    seconds: tuple[tuple[float, ...], ...]
    per_token: tuple[float, ...]

    def seconds_at(self, arm: int, batch: int) -> float:
        """Interpolates the seconds of an arm between the nearest two measured batch sizes."""
        batches, seconds = self.batches, self.seconds[arm]
        if len(batches) == 1:
            return seconds[0] * batch / batches[0] if batch > batches[0] else seconds[0]
        right = next((index for index, size in enumerate(batches) if size >= batch), len(batches) - 1)
        right = max(right, 1)
        share = (batch - batches[right - 1]) / (batches[right] - batches[right - 1])
        return seconds[right - 1] + share * (seconds[right] - seconds[right - 1])

    def seconds_for(self, arm: int, load: BatchLoad) -> float:
        """Returns the seconds of a round for this load; requests without speculation count one row each."""
        following, alone = len(load.contexts), sum(load.plain_contexts)
        long = sum(load.contexts) - following * self.context
        plain_s = self.seconds_at(0, load.num_requests) - self.seconds_at(0, following) if load.plain_contexts else 0.0
        plain_s += self.per_token[0] * (alone - len(load.plain_contexts) * self.context)
        base = self.seconds_at(arm, following)
        return max(base + self.per_token[arm] * long + plain_s, MIN_SHARE * base)


def batch_sizes(slots: int) -> tuple[int, ...]:
    """Returns 1, 2, 4, ... and the number of slots."""
    return (*(2**power for power in range(slots.bit_length()) if 2**power < slots), slots)


def measure_cost_table(
    arms: Sequence[Arm], slots: int, limit: int, measure: Measure, time_limit_s: float = TIME_LIMIT_S
) -> CostTable:
    """Measures the table, the smallest rounds first.

    Every arm is measured at the two smallest batch sizes and at a long context, however long that takes; the rest
    within the time limit, and beyond it extrapolated from the arm's last two sizes. The time that is left goes to
    further sweeps over all measured cells, so that arms are compared at the same moments.

    Args:
        limit: the longest context that the engine holds.
        measure: runs one round.
        time_limit_s: for the whole table.
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
        """Measures two rounds, or three if they disagree, because the first of a kind is often slow."""
        run(cell)
        run(cell)
        if max(found[cell]) > MAX_DISAGREEMENT * min(found[cell]):
            run(cell)
        return statistics.median(found[cell])

    numbers = range(len(arms))
    grid = [[first((arm, batch, context)) for batch in batches[:2]] for arm in numbers]
    for arm in numbers if long > context else ():
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
    """Predicts the seconds of the next batch size from the last two."""
    step = (row[-1] - row[-2]) / (batches[index - 1] - batches[index - 2])
    return row[-1] + max(step, 0.0) * (batches[index] - batches[index - 1])


def isotonic(values: Sequence[float]) -> list[float]:
    """Returns the nearest sequence that never falls (pool adjacent violators): a larger batch is never faster."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            before, size = pools.pop()
            mean, count = (mean * count + before * size) / (count + size), count + size
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


def load_or_measure(
    key: CostKey, arms: Sequence[Arm], slots: int, limit: int, measure: Measure, directory: Path | None
) -> CostTable:
    """Returns the cached table of this key, arms and slots, or measures one and caches it. directory None: no cache."""
    fields = {"schema": SCHEMA, "key": asdict(key), "arms": [_arm_fields(arm) for arm in arms]}
    fields |= {"batches": list(batch_sizes(slots)), "context": min(CONTEXT, limit), "limit": min(LONG_CONTEXT, limit)}
    path = None if directory is None else directory / f"round-costs-{digest_json(fields).rpartition(':')[2][:20]}.json"
    if path is not None and (found := _read(path, fields)) is not None:
        return found
    table = measure_cost_table(arms, slots, limit, measure)
    if path is not None:
        # Without a writable cache the next start measures again; this one continues.
        with contextlib.suppress(StorageError):
            write_json_atomic(path, fields | {"seconds": table.seconds, "per_token": table.per_token})
    return table


def _arm_fields(arm: Arm) -> dict[str, Any]:
    return {"name": arm.name, "shape": None if arm.shape is None else asdict(arm.shape)}


def _read(path: Path, fields: dict[str, Any]) -> CostTable | None:
    """Returns None if the file is missing, damaged or has another key: the table can be measured again."""
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
