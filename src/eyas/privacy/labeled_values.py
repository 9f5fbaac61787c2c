"""Finds values that a label announces: "member number KD-4471920", "geb. 12.04.1983", "the PIN of my card is 4821".

The labels are words of languages/*/labels.toml; this file knows the shapes of the values. A value belongs to the
nearest label before it whose shape it has. So "account holder's phone 0171 555 0199" is no account, and "order id
48213307" is nothing private.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from eyas.privacy.phrase_matcher import load_matcher
from eyas.privacy.span import EntityKind, Span
from eyas.privacy.value_labels import find_labels, is_label, words_of
from eyas.privacy.words import split_words

_WORDS, COPULAS = words_of("words_before_values"), words_of("value_copulas")
# Between a label and its value: only such words; or any words with "is", a colon or an equals sign at the end; or any.
_DIRECT = rf"[^\w\n]{{0,6}}(?:\n\s{{0,6}})?(?:{_WORDS}[^\w\n]{{0,4}}){{0,3}}"
_BETWEEN = re.compile(_DIRECT, re.IGNORECASE)
_STATED = rf"(?:{_DIRECT}|[^\n\d]{{0,50}}?(?:{COPULAS}|[:=])[^\w\n]{{0,4}})"
_SIGNED = rf"[^\w\n]{{0,3}}(?:(?<=[号號])|[:=：]|{COPULAS}|(?:at|on|auf|sur|en|em|su|op|på|na|на) )[^\w\n]{{0,3}}"
_LOOSE = rf"(?:{_DIRECT}|[^\n\d]{{0,44}}?)"
_NUMBER = (
    r"(?:[A-Za-z]{1,6}-?|(?-i:[A-Z]{1,3}) )?\d(?:[ ./-]?[A-Za-z]{0,3}\d|[A-Za-z]){2,24}"
    r"(?:-?[A-Za-z]{1,2}(?![A-Za-z])| (?-i:[A-Z]{1,2})(?![A-Za-z]))?"
)
_MONTH_NAME = r"(?:[^\W\d_]|[\u0900-\u0963]){3,14}\.?"
NUMERIC_DATE = (
    r"(?:\d{1,2}[./ -]{1,2}\d{1,2}[./ -]{1,2}(?:\d{4}|\d\d)"
    r"|(?:19|20)\d\d(?:[./-]|[年년] ?)\d{1,2}(?:[./-]|[月월] ?)\d{1,2}[日일]?"
    r"|(?:昭和|平成|令和|大正)\d{1,2}年 ?\d{1,2}月 ?\d{1,2}日)"
)
_WRITTEN_DATE = (
    rf"(?:\d{{1,2}}(?:\.|st|nd|rd|th|º|er|-?го)?[ -]?(?:(?:de|of|d'|का) ?)?{_MONTH_NAME},?[ -](?:del? )?(?:19|20)\d\d"
    rf"|{_MONTH_NAME} \d{{1,2}}(?:st|nd|rd|th)?,? (?:19|20)\d\d"
    r"|\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?!\d)|(?:19|20)\d\d年)"
)
_PLATE = (
    r"(?-i:(?=[^\n]{0,9}\d)(?:[^\W_a-zà-ÿ]{1,4}[ ·-]{0,3}){1,3}[^\W_a-zà-ÿ]{1,6}"
    r"|[a-z]{1,3}-[a-z]{1,2} ?\d{1,4}|[a-z]{1,3}\d{2,4}[a-z]{0,3}|\d{3,4}[a-z]{2,3})"
)
UNITS = re.compile(
    r"(?i)[ ]?(?:€|\$|£|₹|₽|¥|%|°|euros?\b|eur\b|usd\b|dollars?\b|kr\b|z[łl]\b|pln\b|sek\b|gbp\b"
    r"|元|円|원|руб|रुप|(?:days?|hours?|minutes?|years?|points?|pages?|people|members|users|customers|items|km|kg|mb|gb|tokens|words"
    r"|characters|digits)\b)"
)
_NUMERIC = re.compile(NUMERIC_DATE)
_DATE_BEFORE_BIRTH = re.compile(
    rf"(?P<value>{NUMERIC_DATE}|(?:19|20)\d\d[年년] ?\d{{1,2}}[月월])[に에 ]{{0,2}}(?:出生|生|생|출생|태어)"
)
_OLD_DATE = re.compile(rf"(?<!\d)(?=[^\n]{{0,18}}(?:19[2-9]|20[01])\d)(?P<value>{NUMERIC_DATE}|{_WRITTEN_DATE})(?!\d)")
_CONDITION = re.compile(rf"(?i){words_of('conditions')}".replace(r"\*", r"[^\W\d_]*"))
_NEAR = 80  # characters between a date of birth and a medical condition
_PRIVATE_TABLES = ("first_person", "private_matters", "private_relations")
_DATE = re.compile(rf"(?:{NUMERIC_DATE}|(?:19|20)\d\d ?[-/] ?(?:19|20)\d\d|(?:19|20)\d\d)\Z")


@dataclass(frozen=True)
class _Rule:
    """A rule for the values after labels.

    Attributes:
        kind: The kind of the value; None for a value that is nothing private.
        pattern: Matches from the end of the label to the end of the value.
        check: Tests the letters and digits of the value.
    """

    kind: EntityKind | None
    pattern: re.Pattern[str]
    check: Callable[[str], bool] = lambda signs: True


def _rule(kind: EntityKind | None, gap: str, value: str, check: Callable[[str], bool] = lambda signs: True) -> _Rule:
    return _Rule(kind, re.compile(rf"(?i){gap}(?<![A-Za-z0-9])(?P<value>{value})(?![A-Za-z0-9]|[.,]\d)"), check)


def _count_digits(signs: str) -> int:
    return sum(map(str.isdigit, signs))


def _is_identifier(signs: str) -> bool:
    num_digits = _count_digits(signs)
    return len(signs) >= 6 and num_digits >= (4 if len(signs) > num_digits else 6)


# What a label announces (see value_labels.py) -> what stands after it.
_RULES = {
    "ACCOUNT": _rule("ACCOUNT", _LOOSE, r"\d(?:[ ./-]{0,2}\d){5,29}"),
    "GOVERNMENT_ID": _rule("GOVERNMENT_ID", _LOOSE, _NUMBER, _is_identifier),
    "CUSTOMER_ID": _rule("CUSTOMER_ID", _STATED, _NUMBER, lambda signs: len(signs) >= 5 and _count_digits(signs) >= 4),
    "DEVICE_ID": _rule(
        "DEVICE_ID",
        _STATED,
        r"(?:[0-9a-f]{2}[:-]?){5}[0-9a-f]{2}|\d(?:[ -]?\d){12,19}|(?=[a-f-]{0,8}\d)[0-9a-f-]{16,36}",
    ),
    "VEHICLE": _rule("VEHICLE", _STATED, rf"[A-HJ-NPR-Z0-9]{{11,17}}|{_PLATE}", lambda signs: 4 <= len(signs) <= 17),
    "COORDINATES": _rule(
        "COORDINATES", _STATED, r"-?\d{1,3}\.\d{3,}°?(?: ?[NSEW])?(?:[,; /]{1,3}-?\d{1,3}\.\d{3,}°?(?: ?[NSEW])?)?"
    ),
    "BIRTH_DATE": _rule("BIRTH_DATE", _STATED, rf"{NUMERIC_DATE}|{_WRITTEN_DATE}"),
    "BORN": _rule("BIRTH_DATE", _DIRECT, rf"{NUMERIC_DATE}|{_WRITTEN_DATE}"),
    "HANDLE": _rule("HANDLE", rf"(?:{_STATED}(?=@)|{_SIGNED})", r"@?(?=[\d_.]*[a-z])(?=@|[a-z]*[\d_.])[\w.]{2,28}\w"),
    "SECRET": _rule("SECRET", rf"[^\w\n]{{0,2}}(?:{COPULAS}|[:=])[^\w\n]{{0,3}}", r"\d{4,8}"),
    "PIN": _rule(
        "SECRET", _STATED, r"\d(?:[ -]?\d){2,7}|(?=[A-Z]{0,3}\d)[A-Z0-9#*]{4,10}", lambda signs: not signs.isalpha()
    ),
    "PHONE": _rule(None, _LOOSE, r"\+?\(?\d(?:[ ./()-]{0,3}\d){5,18}"),
    "OTHER": _rule(None, _DIRECT, r"[A-Za-z#-]{0,6}\d[A-Za-z0-9]*(?:[-/.:][A-Za-z0-9]+)*"),
}


def is_direct(text: str, start: int, end: int) -> bool:
    """Returns True if text[start:end], between a label and a value, holds only words such as "number" and "is"."""
    return _BETWEEN.fullmatch(text, start, end) is not None


def is_about_private_life(text: str, language: str) -> bool:
    """Returns True if a text has more words of private life ("my", "patient", "rent") than of public life.

    Args:
        text: The text.
        language: The language of the text (ISO 639-1).
    """
    tables = [
        table for _, _, table in load_matcher((*_PRIVATE_TABLES, "public_matters"), language).find(split_words(text))
    ]
    return sum(1 if table in _PRIVATE_TABLES else -1 for table in tables) > 0


def _is_private_birth(text: str, match: re.Match[str], language: str) -> bool:
    """Returns True if a medical condition stands beside a date of birth, or if the text is about private life."""
    near = text[max(0, match.start() - _NEAR) : match.end() + _NEAR]
    others = text[: max(0, match.start() - len("born"))] + text[match.end() :]  # "born on" is a word of private life
    return _CONDITION.search(near) is not None or is_about_private_life(others, language)


def _is_medical(text: str, language: str) -> bool:
    """Returns True if a text names two medical conditions, or one in a text about private life."""
    conditions = {match[0].casefold() for match in _CONDITION.finditer(text)}
    return len(conditions) > 1 or (len(conditions) == 1 and is_about_private_life(text, language))


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


def find_labeled_values(text: str, language: str) -> Iterator[Span]:
    """Yields the spans of values after a label. Takes linear time.

    Args:
        text: The text, with plain characters (`plain_text`).
        language: The language of the text (ISO 639-1).
    """
    found: list[tuple[int, int, EntityKind | None]] = []
    for label in find_labels(text):
        rule = _RULES.get(label.kind)
        match = rule.pattern.match(text, label.end) if rule else None
        if rule is None or match is None:
            continue
        value = match["value"]
        signs = "".join(filter(str.isalnum, value))
        is_date = label.kind not in ("BIRTH_DATE", "BORN", "PIN") and _DATE.match(value)
        if is_date or not rule.check(signs) or UNITS.match(text, match.end()):
            continue
        if label.kind == "BORN" and not _NUMERIC.match(value) and not _is_private_birth(text, match, language):
            continue  # "Marie Curie was born on 7 November 1867"
        start, end = match.span("value")
        while found and found[-1][1] > start:  # the nearer label counts
            found.pop()
        found.append((start, end, rule.kind))
    for match in _DATE_BEFORE_BIRTH.finditer(text):
        if _is_private_birth(text, match, language):
            found.append((*match.span("value"), "BIRTH_DATE"))
    dates = list(_OLD_DATE.finditer(text))
    if dates and _is_medical(text, language):
        found.extend((*match.span("value"), "BIRTH_DATE") for match in dates)
    for start, end, kind in found:
        if kind is not None:
            yield Span(start, end, kind, 0.8, "builtin.label")
