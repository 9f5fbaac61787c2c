"""Finds values that a label announces: "member number KD-4471920", "geb. 12.04.1983", "the PIN of my card is 4821".

The labels are words of languages/*/labels.toml; this file knows the shapes of the values. A value belongs to the
nearest label before it whose shape it has. So "account holder's phone 0171 555 0199" is no account, and "order id
48213307" is nothing private.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import NamedTuple

from eyas.privacy.patterns import fill_parts, load_patterns, read_parts
from eyas.privacy.phrase_matcher import load_matcher
from eyas.privacy.span import Span
from eyas.privacy.value_labels import find_labels, is_label
from eyas.privacy.words import split_words

_FILE = "labeled_values"
_PATTERNS = load_patterns(_FILE)
UNITS = _PATTERNS["units"]
"""Matches behind a number that is an amount."""
_DATE_LABELS = ("BIRTH_DATE", "BORN", "PIN", "PIN_WORD")  # whose values look like dates
_NEAR = 80  # characters before a word for a PIN in which its digits stand
_PRIVATE_TABLES = ("first_person", "private_matters", "private_relations")


class _Rule(NamedTuple):
    """A rule for the values after labels, a row of data/labeled_values.toml.

    Attributes:
        pattern: Matches from the end of the label to the end of the value.
        signs: Matches the letters and digits of the value.
        kind: The kind of the value; None for a value that is nothing private.
    """

    pattern: re.Pattern[str]
    signs: re.Pattern[str]
    kind: str | None


@cache
def _load_rules() -> Mapping[str, _Rule]:
    """Returns what a label announces (see value_labels.py) -> the rule for what stands after it."""
    parts, rules = read_parts(_FILE), dict[str, _Rule]()
    for label, row in parts["rules"].items():
        pattern = fill_parts("{rule}", {**parts, **row})
        rules[label] = _Rule(re.compile(pattern), re.compile(row.get("signs", ".*")), row.get("kind"))
    return rules


def is_direct(text: str, start: int, end: int) -> bool:
    """Returns True if text[start:end], between a label and a value, holds only words such as "number" and "is"."""
    return _PATTERNS["between"].fullmatch(text, start, end) is not None


@lru_cache(maxsize=4)
def is_about_private_life(text: str, language: str) -> bool:
    """Returns True if a text has more words of private life ("my", "patient", "rent") than of public life.

    Args:
        text: The text.
        language: The language of the text (ISO 639-1).
    """
    found = load_matcher((*_PRIVATE_TABLES, "public_matters"), language).find(split_words(text))
    return sum(1 if table in _PRIVATE_TABLES else -1 for _, _, table in found) > 0


def find_values_below(heading: str, cells: Iterable[tuple[int, str]], language: str) -> Iterator[Span]:
    """Yields the spans of values in a column of a table, whose heading is a label.

    Args:
        heading: The heading of the column.
        cells: The position and the text of each cell.
        language: The language of the text (ISO 639-1).
    """
    before = f"{heading}: "
    for start, value in cells if is_label(heading) else ():
        for span in find_labeled_values(before + value, language):
            if span.start >= len(before):
                yield replace(span, start=span.start - len(before) + start, end=span.end - len(before) + start)


def find_birth_dates(text: str, people: Iterable[Span], language: str) -> Iterator[Span]:
    """Yields the spans of dates right behind a name, in a text about a birth or about private life."""
    ends = {span.end for span in people}
    for match in _PATTERNS.find(text, "date_behind_name"):
        is_birth = any(label.kind in ("BIRTH_DATE", "BORN") for label in find_labels(text))
        if match.start() in ends and (is_birth or is_about_private_life(text, language)):
            yield Span(*match.span("value"), "BIRTH_DATE", 0.6, "builtin.label")


def find_labeled_values(text: str, language: str) -> Iterator[Span]:
    """Yields the spans of values after a label. Takes linear time.

    Args:
        text: The text, with plain characters (`plain_text`).
        language: The language of the text (ISO 639-1).
    """
    found: list[tuple[int, int, str | None]] = []
    for label in find_labels(text):
        if label.kind == "PIN_WORD":
            first = max(0, label.start - _NEAR)
            before = _PATTERNS["pin_before"].search(text[first : label.start])
            found += [(first + before.start("value"), first + before.end("value"), "SECRET")] if before else []
        rule = _load_rules().get(label.kind)
        match = rule.pattern.match(text, label.end) if rule else None
        if rule is None or match is None:
            continue
        value = match["value"]
        is_date = label.kind not in _DATE_LABELS and _PATTERNS["date"].fullmatch(value)
        signs = "".join(filter(str.isalnum, value))
        if is_date or not rule.signs.fullmatch(signs) or UNITS.match(text, match.end()):
            continue
        is_private = label.kind != "BORN" or _PATTERNS["numeric_date"].match(value)
        if not (is_private or is_about_private_life(text, language)):
            continue  # "Marie Curie was born on 7 November 1867"
        start, end = match.span("value")
        while found and found[-1][1] > start:  # the nearer label counts
            found.pop()
        found.append((start, end, rule.kind))
    for start, end, kind in found:
        if kind is not None:
            yield Span(start, end, kind, 0.8, "builtin.label")
