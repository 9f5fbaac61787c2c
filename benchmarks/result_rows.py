"""Prints the results of a benchmark as rows, one JSON object for each. All `make prove-...` targets use it."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """One measured figure and its target. figure is None if nothing was measured; then ok is False."""

    name: str
    figure: float | None
    target: str
    ok: bool


def print_rows(rows: Iterable[Row]) -> int:
    """Prints each row when it is measured. Returns the exit code: 1 if a row misses its target, otherwise 0."""
    missed = False
    for row in rows:
        print(json.dumps(asdict(row)), flush=True)
        missed |= not row.ok
    return 1 if missed else 0
