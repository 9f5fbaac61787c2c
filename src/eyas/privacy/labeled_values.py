"""Finds labels in a text, and the values that they announce: "member number KD-4471920", "the PIN of my card is 4821".

Labels are words and phrases such as "card number", "Kundennummer" or "手机号": tables of languages/*/labels.toml. The
detectors of cards, accounts, phones, secrets and of many other kinds ask here which label stands before a value.

This file knows the shapes of other values. A value belongs to the nearest label before it whose shape it has. So
"account holder's phone 0171 555 0199" is no account, and "order id 48213307" is nothing private.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import NamedTuple

from eyas.privacy.case_insensitive import lower_text
from eyas.privacy.cjk_words import WordSet
from eyas.privacy.patterns import fill_parts, load_patterns, read_parts
from eyas.privacy.span import Span
from eyas.privacy.word_lists import UNSPACED, read_by_language, read_data_file, read_words
from eyas.privacy.words import load_matcher, split_words

_TABLES: dict[str, str] = read_data_file("data/label_kinds")["tables"]
_TOKEN = re.compile(r"[0-9A-Za-zÀ-ɏ]+|[^\W_0-9A-Za-zÀ-ɏ]+|#")  # of one script
_CAMEL_TOKEN = re.compile(r"[^\W_]+?(?:(?<=[a-z])(?=[A-Z])|(?![^\W_]))")
_CAMEL = re.compile(r"[a-z][A-Z]")
_IN_CAPITALS = read_words("labels_in_capitals")
_MAX_TOKENS = 6  # of a label
_MAX_LABEL = 40  # characters of a heading
_MAX_SPACE = 2  # characters between two tokens of a label
_STEM_KEY = 3  # characters by which stems are looked up
_FILE = "labeled_values"
_PATTERNS = load_patterns(_FILE)
UNITS = _PATTERNS["units"]
"""Matches behind a number that is an amount."""
_DATE_LABELS = ("BIRTH_DATE", "BORN", "PIN", "PIN_WORD")  # whose values look like dates
_NEAR = 80  # characters before a word for a PIN in which its digits stand
_PRIVATE_TABLES = ("first_person", "private_matters", "private_relations")


class Label(NamedTuple):
    """A label in a text: its position, and what kind of value it announces."""

    start: int
    end: int
    kind: str


class _Dictionary(NamedTuple):
    """All labels, in the forms in which they are looked up.

    Attributes:
        whole: Labels without blanks -> kind.
        stems: The first characters of a stem -> stems and their kinds.
        begins: The beginnings of labels of several words, without blanks.
        unspaced: Labels in scripts without spaces.
    """

    whole: dict[str, str]
    stems: dict[str, list[tuple[str, str]]]
    begins: frozenset[str]
    unspaced: WordSet


@lru_cache(maxsize=16)
def find_labels(text: str) -> tuple[Label, ...]:
    """Returns the labels in a text, in order, the longest at each place. Takes linear time."""
    lower = lower_text(text)
    found = list(_find_words(text, lower))
    if not text.isascii() and UNSPACED.search(text):
        table = _load()
        found += (Label(*at, table.whole[_squeeze(lower[slice(*at)])]) for at in table.unspaced.find_all(lower))
    return tuple(sorted(set(found), key=lambda label: (label.end, -label.start)))


def is_label(text: str) -> bool:
    """Returns True if a whole short text is a label, such as the heading of a column."""
    return len(text) <= _MAX_LABEL and any(at.start == 0 and at.end == len(text) for at in find_labels(text))


def labels_before(text: str, position: int, reach: int) -> Iterator[Label]:
    """Yields the labels that end at most `reach` characters before a position, the nearest first."""
    labels = find_labels(text)
    for k in range(bisect_right(labels, position, key=lambda label: label.end) - 1, -1, -1):
        if labels[k].end < position - reach:
            return
        yield labels[k]


def label_before(text: str, position: int, reach: int, passing: tuple[str, ...] = ()) -> Label | None:
    """Returns the label that announces the value at a position. Labels of the kinds `passing` give way to others."""
    first = None
    for label in labels_before(text, position, reach):
        if label.kind not in passing:
            return label
        first = first or label
    return first


def _find_words(text: str, lower: str) -> Iterator[Label]:
    spans = [match.span() for match in (_CAMEL_TOKEN if _CAMEL.search(text) else _TOKEN).finditer(text)]
    done = 0
    for i, (start, end) in enumerate(spans):
        kind, begins = _look_up(lower[start:end])
        if i < done or not (kind or begins):
            continue
        is_key = text.startswith("=", end)
        if kind and not (is_key or text[start:end].isupper()) and lower[start:end] in _IN_CAPITALS:
            kind = None  # "sin" is a word, SIN is the number of an insurance
        found, k, joined = (Label(start, end, kind), i + 1) if kind else (None, i), i, lower[start:end]
        while begins and k + 1 < min(i + _MAX_TOKENS, len(spans)):
            k, gap, size = k + 1, lower[spans[k][1] : spans[k + 1][0]], len(joined)
            if len(gap) > _MAX_SPACE or "\n" in gap:
                break
            joined += lower[slice(*spans[k])]
            kind, begins = _look_up(joined, size)
            if kind:
                found = Label(start, spans[k][1], kind), k + 1
        label, done = found
        if label:
            yield label


@lru_cache(maxsize=100_000)
def _look_up(joined: str, before: int = 0) -> tuple[str | None, bool]:
    """Returns the kind of a label, and whether a longer label begins like this.

    Args:
        joined: The label without its blanks.
        before: The number of characters before its last word, in which a stem does not end.
    """
    table = _load()
    kind = table.whole.get(joined)
    for stem, kind_of_stem in table.stems.get(joined[:_STEM_KEY], ()) if kind is None else ():
        if joined.startswith(stem) and len(stem) > before and joined[before:].isalpha():
            return kind_of_stem, joined in table.begins
    return kind, joined in table.begins


@cache
def _load() -> _Dictionary:
    whole: dict[str, str] = {}
    stems: dict[str, list[tuple[str, str]]] = {}
    begins: set[str] = set()
    unspaced: set[str] = set()
    numbers = read_by_language("number_words", unaccented=True)
    for table, kind in _TABLES.items():
        for language, entries in read_by_language(table, unaccented=True).items():
            words = numbers.get(language, frozenset()) | numbers["en"]
            # "#" stands for each of these words.
            for form in {entry.replace("#", word) for entry in entries for word in words}:
                key = _squeeze(form)
                if form.endswith("*"):
                    stems.setdefault(key[:_STEM_KEY], []).append((key, kind))
                    continue
                whole.setdefault(key, kind)
                if UNSPACED.search(form):
                    unspaced.add(form)
                tokens = _TOKEN.findall(form)
                begins.update("".join(tokens[:size]) for size in range(1, len(tokens)))
    for group in stems.values():
        group.sort(key=lambda stem: -len(stem[0]))
    joined = WordSet({*unspaced, *(form.replace(" ", "") for form in unspaced)})
    return _Dictionary(whole, stems, frozenset(begins), joined)


def _squeeze(label: str) -> str:
    """Returns a label without blanks and marks. A label of marks only stays."""
    return "".join(_TOKEN.findall(label)) if not UNSPACED.search(label) else label.replace(" ", "").rstrip("*")


# --- values ----------------------------------------------------------------------------------------------------------


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
def count_private_words(text: str, language: str) -> int:
    """Returns how many more words of private life ("my", "patient", "rent") than of public life a text has.

    Args:
        text: The text.
        language: The language of the text (ISO 639-1).
    """
    found = load_matcher((*_PRIVATE_TABLES, "public_matters"), language).find(split_words(text))
    return sum(1 if table in _PRIVATE_TABLES else -1 for _, _, table in found)


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
    """Yields the spans of dates right behind a name, in a text about a birth, or not about public life."""
    ends = {span.end for span in people}
    for match in _PATTERNS.find(text, "date_behind_name"):
        is_birth = any(label.kind in ("BIRTH_DATE", "BORN") for label in find_labels(text))
        if match.start() in ends and (is_birth or count_private_words(text, language) >= 0):
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
        if not (is_private or count_private_words(text, language) > 0):
            continue  # "Marie Curie was born on 7 November 1867"
        start, end = match.span("value")
        while found and found[-1][1] > start:  # the nearer label counts
            found.pop()
        found.append((start, end, rule.kind))
    for start, end, kind in found:
        if kind is not None:
            yield Span(start, end, kind, 0.8, "builtin.label")
