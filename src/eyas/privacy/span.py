"""What is found: spans of a kind. A span holds places and never text, so nothing found can leak through it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

KINDS = (
    "PERSON",
    "LOCATION",
    "ADDRESS",
    "EMAIL",
    "PHONE",
    "CARD",
    "ACCOUNT",  # IBAN, bank account, routing number, crypto wallet
    "GOVERNMENT_ID",
    "SECRET",
    "IP_ADDRESS",
)
# Of two spans that overlap, the kind that comes first here stays: what costs the record before what is replaced.
_PRECEDENCE = {
    kind: rank
    for rank, kind in enumerate(
        (
            "SECRET",
            "CARD",
            "ACCOUNT",
            "GOVERNMENT_ID",
            "ADDRESS",
            "EMAIL",
            "IP_ADDRESS",
            "PHONE",
            "PERSON",
            "LOCATION",
        )
    )
}


@dataclass(frozen=True, order=True)
class Span:
    """text[begin:end] is of this kind; score in (0, 1] says how sure the detector is."""

    start: int
    end: int
    kind: str
    score: float = 1.0

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.end, "a span holds at least one character"
        assert self.kind in _PRECEDENCE, f"unknown kind {self.kind}"


class Detector(Protocol):
    """Finds spans in texts. `find` answers in the order of the texts and may be called from one thread only."""

    name: str  # with its version: it goes into the digest of the filter
    name_languages: frozenset[str]  # languages (ISO 639-1) whose personal names it finds

    def find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]: ...


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Spans that do not overlap, in order: together they cover every character that any of `spans` covers.

    Overlapping spans become one, with the kind that ranks first and the highest score.
    """
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.start < merged[-1].end:
            last = merged[-1]
            kind = min(last.kind, span.kind, key=_PRECEDENCE.__getitem__)
            merged[-1] = Span(last.start, max(last.end, span.end), kind, max(last.score, span.score))
        else:
            merged.append(span)
    return merged
