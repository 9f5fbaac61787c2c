"""Prints the results of a benchmark as rows, one JSON object for each. All `make prove-...` targets use it."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

OPTIONAL = ("interval", "note")


@dataclass(frozen=True)
class Row:
    """One measured figure and its target.

    figure is None if nothing was measured. ok is then False, or None if this machine cannot measure it.

    interval is the 95 % confidence interval of a share, and note says more about the figure; rows without them are
    printed without them.
    """

    name: str
    figure: float | None
    target: str
    ok: bool | None
    interval: tuple[float, float] | None = None
    note: str = ""


def print_rows(rows: Iterable[Row]) -> int:
    """Prints each row when it is measured. Returns the exit code: 1 if a row misses its target, otherwise 0."""
    missed = False
    for row in rows:
        values = {name: value for name, value in asdict(row).items() if name not in OPTIONAL or value}
        print(json.dumps(values), flush=True)
        missed |= not row.ok
    return 1 if missed else 0
