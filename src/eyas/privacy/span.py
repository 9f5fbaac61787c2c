"""Spans: what every detector returns, and the protocol of a detector. A span holds positions and never text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

# An ACCOUNT is an IBAN, a bank account, a routing number or a wallet of a crypto currency.
EntityKind = Literal[
    "PERSON", "LOCATION", "ADDRESS", "EMAIL", "PHONE", "CARD", "ACCOUNT", "GOVERNMENT_ID", "SECRET", "IP_ADDRESS"
]
KINDS: tuple[EntityKind, ...] = get_args(EntityKind)
DROPPED_BY_DEFAULT: tuple[EntityKind, ...] = ("SECRET", "CARD", "ACCOUNT", "GOVERNMENT_ID", "ADDRESS")
# Of two spans that overlap, the kind that comes first here stays: what drops the record before what is replaced.
_PRECEDENCE = (*DROPPED_BY_DEFAULT, "EMAIL", "IP_ADDRESS", "PHONE", "PERSON", "LOCATION")


@dataclass(frozen=True, order=True)
class Span:
    """A detected value: text[start:end] is of this kind; score in (0, 1] says how sure the detector is."""

    start: int
    end: int
    kind: str
    score: float = 1.0

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.end, "a span holds at least one character"
        assert self.kind in _PRECEDENCE, f"unknown kind {self.kind}"


class Detector(Protocol):
    """A detector of private data in texts. The filter owns its detectors and calls them from one thread only."""

    name: str  # with its version: it goes into the digest of the filter
    name_languages: frozenset[str]  # languages (ISO 639-1) whose personal names it finds

    def find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        """Returns the spans of each text, in the order of the texts."""
        ...


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Returns spans that do not overlap, in order: together they cover every character that any of `spans` covers.

    Overlapping spans become one, with the kind that takes precedence and the highest score.
    """
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.start < merged[-1].end:
            last = merged[-1]
            kind = min(last.kind, span.kind, key=_PRECEDENCE.index)
            merged[-1] = Span(last.start, max(last.end, span.end), kind, max(last.score, span.score))
        else:
            merged.append(span)
    return merged


def split_windows(text: str, size: int, overlap: int) -> Iterator[tuple[int, str]]:
    """Yields the text in windows of `size` characters, each with its position; blank windows are left out.

    Two windows share `overlap` characters: a value of at most that length that is cut at an edge is whole in the other.
    """
    for start in range(0, max(1, len(text) - overlap), size - overlap):
        window = text[start : start + size]
        if window.strip():
            yield start, window
