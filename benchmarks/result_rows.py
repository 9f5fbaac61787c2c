"""Prints the results of a benchmark as rows, one JSON object for each. All `make prove-...` targets use it."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """One measured figure and its target. figure is None if nothing was measured; then ok is False.

    interval is the 95 % confidence interval of a share; rows without one are printed without it.
    """

    name: str
    figure: float | None
    target: str
    ok: bool
    interval: tuple[float, float] | None = None


def print_rows(rows: Iterable[Row]) -> int:
    """Prints each row when it is measured. Returns the exit code: 1 if a row misses its target, otherwise 0."""
    missed = False
    for row in rows:
        values = {name: value for name, value in asdict(row).items() if name != "interval" or value is not None}
        print(json.dumps(values), flush=True)
        missed |= not row.ok
    return 1 if missed else 0
