"""The types that all detectors share: a span (the position of a detected value) and the protocol of a detector."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, Protocol, get_args

# ACCOUNT: an IBAN, a bank account, a routing number or a wallet of a crypto currency. SECRET: a key, a password, a PIN,
# a session cookie. GOVERNMENT_ID: also a driving license. DEVICE_ID: a MAC address or an IMEI. VEHICLE: a VIN or a
# number plate. CUSTOMER_ID: the number of a customer, a member or an insurance. HANDLE: a user name in social media.
EntityKind = Literal[
    "PERSON", "LOCATION", "ADDRESS", "EMAIL", "PHONE", "CARD", "ACCOUNT", "GOVERNMENT_ID", "SECRET", "IP_ADDRESS",
    "DEVICE_ID", "VEHICLE", "COORDINATES", "CUSTOMER_ID", "HANDLE", "BIRTH_DATE",
]  # fmt: skip
KINDS: tuple[EntityKind, ...] = get_args(EntityKind)
DROPPED_BY_DEFAULT: tuple[EntityKind, ...] = ("SECRET", "CARD", "ACCOUNT", "GOVERNMENT_ID", "ADDRESS")
REPLACED_BY_DEFAULT: tuple[EntityKind, ...] = tuple(kind for kind in KINDS if kind not in DROPPED_BY_DEFAULT)
# Two spans that overlap become one span, with the kind that comes first here. Kinds that drop a record come first.
_PRECEDENCE = (
    *DROPPED_BY_DEFAULT, "EMAIL", "IP_ADDRESS", "DEVICE_ID", "VEHICLE", "COORDINATES", "BIRTH_DATE", "PHONE",
    "CUSTOMER_ID", "HANDLE", "PERSON", "LOCATION",
)  # fmt: skip


@dataclass(frozen=True, order=True)
class Span:
    """The position of a detected value in a text. A span never holds the value.

    Attributes:
        start: Index of the first character of the value.
        end: Index after its last character: the value is text[start:end].
        kind: One of KINDS, for example "EMAIL".
        score: How sure the detector is, in (0, 1].
        rule: The detector and the rule that found it, for example "builtin.card". `eyas prompts --explain` prints it.
    """

    start: int
    end: int
    kind: str
    score: float = 1.0
    rule: str = ""

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.end, "a span holds at least one character"
        assert self.kind in _PRECEDENCE, f"unknown kind {self.kind}"


in_order = attrgetter("start", "end", "kind", "score", "rule")
"""Returns the key that sorts spans as their comparison does, in less time."""


class Detector(Protocol):
    """A detector of private data in texts. The filter owns its detectors and calls them from one thread only."""

    name: str  # holds the version as well, because it is part of the digest of the filter
    name_languages: frozenset[str]  # languages (ISO 639-1) whose personal names it finds

    def find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        """Returns one list of spans for each text, in the order of `texts`.

        Args:
            texts: The texts to search.
            languages: The language of each text (ISO 639-1).
        """
        ...


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Joins spans that overlap, and returns the result in the order of the text.

    The result covers the same characters as `spans`. A joined span has the kind that comes first in _PRECEDENCE, and
    the score and the rule of its most certain part.
    """
    merged: list[Span] = []
    for span in sorted(spans, key=in_order):
        if merged and span.start < merged[-1].end:
            last = merged[-1]
            kind = min(last.kind, span.kind, key=_PRECEDENCE.index)
            sure = max(last, span, key=lambda part: part.score)
            merged[-1] = Span(last.start, max(last.end, span.end), kind, sure.score, sure.rule)
        else:
            merged.append(span)
    return merged


def split_windows(text: str, size: int, overlap: int) -> Iterator[tuple[int, str]]:
    """Splits a text into windows that overlap; yields the start of each window in the text, and the window.

    Windows of white space are left out. The overlap keeps values whole: a value of at most `overlap` characters that
    one window cuts is complete in the next window.

    Args:
        text: The text.
        size: The number of characters in a window.
        overlap: The number of characters that a window shares with the next one.
    """
    for start in range(0, max(1, len(text) - overlap), size - overlap):
        window = text[start : start + size]
        if window.strip():
            yield start, window
