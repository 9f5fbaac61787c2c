"""Tells values of public documentation, such as test cards and example.com, from values of a person."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache

from eyas.privacy.case_insensitive import plain_text
from eyas.privacy.span import KINDS, Span
from eyas.privacy.word_lists import read_data_file

_MARKS = re.compile(r"[\W_]+")
_RUNS = ("0123456789" * 3, "9876543210" * 3)  # "1234 5678 9012 3456" stands for a number
_KINDS_WITH_RUNS = ("CARD", "ACCOUNT", "GOVERNMENT_ID", "CUSTOMER_ID", "DEVICE_ID")
_MIN_RUN = 5  # digits


def without_documentation(text: str, spans: Iterable[Span]) -> Iterator[Span]:
    """Yields the spans whose values are not from public documentation.

    Args:
        text: The text.
        spans: Spans of this text.
    """
    return (span for span in spans if not is_documentation(span.kind, text[span.start : span.end]))


@lru_cache(maxsize=1000)  # several detectors find the same value
def is_documentation(kind: str, value: str) -> bool:
    """Returns True for a value of data/documentation_values.toml, and for a number such as 1234567890 or 0000000.

    Args:
        kind: The kind of the value.
        value: The value.
    """
    value = plain_text(value).strip()
    squeezed = _MARKS.sub("", value).casefold()
    if kind in _KINDS_WITH_RUNS and squeezed.isdigit() and len(squeezed) >= _MIN_RUN:
        starts_run = squeezed[0] in "019" and any(squeezed in run for run in _RUNS)
        if starts_run or len(set(squeezed)) == 1:
            return True
    values, pattern = _load()[kind]
    return squeezed in values or pattern.fullmatch(value) is not None


@cache
def _load() -> Mapping[str, tuple[set[str], re.Pattern[str]]]:
    """Returns the values of each kind, in lower case without marks, and one pattern for further ones."""
    found = defaultdict[str, tuple[set[str], list[str]]](lambda: (set(), ["(?!)"]))
    for group in read_data_file("data/documentation_values")["groups"].values():
        for kind in group["kinds"].split():
            values, patterns = found[kind]
            values.update(_MARKS.sub("", value).casefold() for value in group.get("values", "").split())
            patterns += (f"(?:{pattern})" for pattern in group.get("patterns", ()))
    return {kind: (found[kind][0], re.compile("|".join(found[kind][1]), re.IGNORECASE)) for kind in KINDS}
