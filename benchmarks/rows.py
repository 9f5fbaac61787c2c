"""What `make prove-...` prints: a JSON object a row."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of a "Measured" list; figure is None where there was nothing to measure, and then ok is false."""

    name: str
    figure: float | None
    target: str
    ok: bool
