"""What `make prove-...` prints: a JSON object a row."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """One line of a "Measured" list; figure is None where there was nothing to measure, and then ok is false."""

    name: str
    figure: float | None
    target: str
    ok: bool


def print_rows(rows: Iterable[Row]) -> int:
    """Prints each row as it comes. The exit code: 1 if one misses."""
    missed = False
    for row in rows:
        print(json.dumps(asdict(row)), flush=True)
        missed |= not row.ok
    return 1 if missed else 0
