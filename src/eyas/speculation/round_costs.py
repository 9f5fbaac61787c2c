"""What a round costs, by arm and batch size: measured at start-up, kept in a cache, then followed by real rounds.

A arms, N measured batch sizes.

    seconds of a round = (table[arm, batch] + per_token[arm] * (sum of contexts - batch * context)) * correction

The whole round is measured, not its parts: draft, verify and extend also cost what lies between them, and one figure
for all of it needs no model of how they add up. Batch sizes are the powers of two up to the slots; between them the
cost is taken on the line that joins them. Attention grows with the context and with the rows that read it, so one long
context for each arm gives the slope.
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
from eyas.speculation.policy import BatchLoad

Measure = Callable[[Arm, int, int], float]
"""(arm, batch, context) -> seconds of one round of that many requests, each with that many tokens before its root."""

SCHEMA = 1
TIME_LIMIT_S = 6.0  # for the whole table; what is not measured by then is taken from the smaller batch sizes
MAX_ROUNDS = 9  # of one arm, batch size and context
CONTEXT, LONG_CONTEXT = 512, 2048  # tokens
MAX_DISAGREEMENT = 1.1  # of two rounds that differ by more one was disturbed
MIN_SHARE = 0.25  # of the table's figure: what shorter contexts can save at most


@dataclass(frozen=True)
class CostKey:
    """What the seconds depend on: a cached table of another key is not used."""

    machine: str
    target: str  # digest
    head: str  # digest
    dtype: str
    threads: int
    compiled: bool
    version: str


@dataclass(frozen=True)
class CostTable:
    """Seconds of whole rounds with `context` tokens a request. seconds: by arm, by batch size; per_token: by arm."""

    arms: tuple[str, ...]
    batches: tuple[int, ...]
    context: int
    seconds: tuple[tuple[float, ...], ...]
    per_token: tuple[float, ...]

    def seconds_at(self, arm: int, batch: int) -> float:
        """Seconds on the line through the nearest two measured batch sizes."""
        batches, seconds = self.batches, self.seconds[arm]
        if len(batches) == 1:
            return seconds[0] * batch / batches[0] if batch > batches[0] else seconds[0]
        right = next((place for place, size in enumerate(batches) if size >= batch), len(batches) - 1)
        right = max(right, 1)
        share = (batch - batches[right - 1]) / (batches[right] - batches[right - 1])
        return seconds[right - 1] + share * (seconds[right] - seconds[right - 1])

    def seconds_for(self, arm: int, load: BatchLoad) -> float:
        """Seconds of a round for this load: those who follow the arm, and a row each for the others."""
        following, alone = len(load.contexts), sum(load.plain_contexts)
        long = sum(load.contexts) - following * self.context
        fixed = self.seconds_at(0, load.num_requests) - self.seconds_at(0, following) if load.plain_contexts else 0.0
        fixed += self.per_token[0] * (alone - len(load.plain_contexts) * self.context)
        base = self.seconds_at(arm, following)
        return max(base + self.per_token[arm] * long + fixed, MIN_SHARE * base)


def batch_sizes(slots: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the slots themselves."""
    return (*(2**power for power in range(slots.bit_length()) if 2**power < slots), slots)


def measure_cost_table(
    arms: Sequence[Arm], slots: int, limit: int, measure: Measure, time_limit_s: float = TIME_LIMIT_S
) -> CostTable:
    """Measure within allowance_s. limit: the longest context that the engine holds.

    The smallest rounds come first. Every arm is measured at the two smallest batch sizes and at a long context,
    whatever it takes; the rest as far as the allowance goes, and then on the line through the arm's last two sizes.
    What time is left goes to sweeps over all that was measured, so that arms are compared in the same moments.
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
        """Two rounds, or three where they disagree: the first of a kind is often slow."""
        run(cell)
        run(cell)
        if max(found[cell]) > MAX_DISAGREEMENT * min(found[cell]):
            run(cell)
        return statistics.median(found[cell])

    numbers = range(len(arms))
    grid = [[first((arm, batch, context)) for batch in batches[:2]] for arm in numbers]
    for arm in numbers if long > context else ():
        first((arm, 1, long))
    for place, batch in enumerate(batches[2:], start=2):
        for arm, row in enumerate(grid):
            guess_s = _extrapolate(row, batches, place)
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
        for place, batch in enumerate(batches):
            cell = (arm, batch, context)
            row.append(medians[cell] if cell in medians else _extrapolate(row, batches, place))
        seconds.append(tuple(isotonic(row)))
        per_token.append(max(medians.get((arm, 1, long), 0.0) - row[0], 0.0) / max(long - context, 1))
    return CostTable(tuple(arm.name for arm in arms), batches, context, tuple(seconds), tuple(per_token))


_Cell = tuple[int, int, int]
"""Arm, batch size, context."""


def _extrapolate(row: Sequence[float], batches: Sequence[int], place: int) -> float:
    """The figure of the next batch size, on the line through the last two."""
    step = (row[-1] - row[-2]) / (batches[place - 1] - batches[place - 2])
    return row[-1] + max(step, 0.0) * (batches[place] - batches[place - 1])


def isotonic(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls (pool adjacent violators): a larger batch is not faster."""
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
    """The cached table of this key, arms and slots, or a fresh one, which is kept. directory None: no cache."""
    fields = {"schema": SCHEMA, "key": asdict(key), "arms": [_arm_fields(arm) for arm in arms]}
    fields |= {"batches": list(batch_sizes(slots)), "context": min(CONTEXT, limit), "limit": min(LONG_CONTEXT, limit)}
    path = None if directory is None else directory / f"round-costs-{digest_json(fields).rpartition(':')[2][:20]}.json"
    if path is not None and (found := _read(path, fields)) is not None:
        return found
    table = measure_cost_table(arms, slots, limit, measure)
    if path is not None:
        # A cache that cannot be written costs the next start a few seconds; this one can go on.
        with contextlib.suppress(StorageError):
            write_json_atomic(path, fields | {"seconds": table.seconds, "per_token": table.per_token})
    return table


def _arm_fields(arm: Arm) -> dict[str, Any]:
    return {"name": arm.name, "shape": None if arm.shape is None else asdict(arm.shape)}


def _read(path: Path, fields: dict[str, Any]) -> CostTable | None:
    """None when the file is missing, damaged or of another key: a table can always be measured again."""
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
