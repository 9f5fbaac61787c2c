"""One thing that was looked at, in words."""

from dataclasses import dataclass
from typing import Literal

from eyas.base.errors import InputError


@dataclass(frozen=True)
class Finding:
    """A "misfit" is unusable, a "warning" costs acceptance at most, an "ok" is right.

    do: what mends it, where that is known.
    """

    weight: Literal["misfit", "warning", "ok"]
    found: str
    expected: str
    do: str | None = None

    def __str__(self) -> str:
        if self.weight == "ok":
            return f"ok: {self.found}; {self.expected}"
        return f"{self.weight}: found {self.found}; expected {self.expected}" + (f"; do {self.do}" if self.do else "")


def refuse(findings: list[Finding], do: str) -> None:
    """`InputError` that names every misfit, if there is one. do: what mends those that do not say it."""
    misfits = [finding for finding in findings if finding.weight == "misfit"]
    if misfits:
        raise InputError(
            " and ".join(finding.found for finding in misfits),
            " and ".join(finding.expected for finding in misfits),
            misfits[0].do or do,
        )
