"""Finds identifiers by their format: social security numbers, MAC addresses, number plates, coordinates.

Formats are in data/identifiers.toml; python-stdnum computes the checksums. A checksum of one digit is weak: every
tenth random number passes it. Therefore there are two groups of formats. A strong format is enough alone. A weak format
needs a context word near it, such as "passport". labeled_values.py finds any number after the name of an identifier.
"""

import importlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from eyas.privacy.case_insensitive import lower_text
from eyas.privacy.labeled_values import UNITS, is_about_private_life, is_direct, label_before
from eyas.privacy.span import Span
from eyas.privacy.word_lists import read_by_language, read_data_file

_FUNCTION_WORDS = read_by_language("function_words")["en"]
_WORDS_BEFORE, _WORDS_BEHIND = 8, 5  # content words before a weak form, and from its own first group on
_REACH = 200  # characters in which those words are looked for
_VAGUE = ("id", "ref", "reference")  # of an order, or of a customer
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_NEAR = 60  # characters around a weak form in which a context word in a script without spaces is looked for
_STARTS: dict[str, str] = read_data_file("data/identifiers")["starts"]
_SCRIPT = re.compile(r"[\u0400-\u04ff\u0600-\u06ff\u0900-\u097f\u3005-\u9fff\uac00-\ud7af]")


class _Form(NamedTuple):
    """A format of an identifier.

    Attributes:
        pattern: Matches the identifier.
        kind: The kind of its spans.
        check: Returns True if the checksum is right; None if the format has no checksum.
        context: The words of which one must stand near a weak format; empty for a strong format.
        is_personal: The format counts only in a text with other personal data, or about private life.
    """

    pattern: re.Pattern[str]
    kind: str
    check: Callable[[str], bool] | None
    context: tuple[str, ...]
    is_personal: bool


def find_identifiers(text: str, language: str, is_personal: bool) -> Iterator[Span]:
    """Yields the spans of identifiers: in a strong format, or in a weak format near a context word.

    Args:
        text: The text, with plain characters (`plain_text`).
        language: The language of the text (ISO 639-1).
        is_personal: Another detector found personal data in the text.
    """
    lower, forms = lower_text(text), _load_forms()
    for group in _STARTS:
        if group == "scripts" and (text.isascii() or not _SCRIPT.search(text)):
            continue
        if not (first := forms[group][0].search(text)):
            continue
        for form in forms[group][1]:
            if form.context and not any(word in lower for word in form.context):
                continue  # most texts hold no word of a weak form
            if form.is_personal and not (is_personal or is_about_private_life(text, language)):
                continue
            for match in form.pattern.finditer(text, max(0, first.start() - 1)):
                if (form.check is None or form.check(match[0])) and _has_context(lower, match, form):
                    yield Span(*match.span(), form.kind, 0.65 if form.context else 1.0, "builtin.identifier")


def _has_context(lower: str, match: re.Match[str], form: _Form) -> bool:
    """Returns True if a word near the match contains a context word of its format, or if the format has none.

    Near means: among the 8 content words before the match, or the 5 from its start on. Function words do not count.

    Args:
        lower: The text in lower case.
        match: The identifier.
        form: The format of the identifier.
    """
    context = form.context
    label = label_before(match.string, match.start(), _NEAR) if context or form.is_personal else None
    is_named = label is not None and lower[label.start : label.end] not in _VAGUE
    if label and is_named and label.kind == "OTHER" and is_direct(lower, label.end, match.start()):
        return False
    if not context:
        return not (form.is_personal and UNITS.match(lower, match.end()))
    near = lower[max(0, match.start() - _NEAR) : match.end() + _NEAR // 2]
    if any(word in near for word in context if not word.isascii()):
        return True
    before = [word[0] for word in _WORD.finditer(lower, max(0, match.start() - _REACH), match.start())]
    behind = [word[0] for word in _WORD.finditer(lower, match.start(), match.start() + _REACH)]
    beside = [word for word in reversed(before) if word not in _FUNCTION_WORDS][:_WORDS_BEFORE]
    beside += [word for word in behind if word not in _FUNCTION_WORDS][:_WORDS_BEHIND]
    return any(word in other for word in context for other in beside)


@cache
def _load_forms() -> dict[str, tuple[re.Pattern[str], list[_Form]]]:
    """Returns groups of formats (see _STARTS), each with one pattern that matches if any of its formats does."""
    groups: dict[str, list[_Form]] = {group: [] for group in _STARTS}
    for row in read_data_file("data/identifiers")["forms"].values():
        check = importlib.import_module(f"stdnum.{row['check']}").is_valid if "check" in row else None
        context = tuple(row.get("context", "").split())
        # \b is an edge of ASCII letters: Chinese and Japanese letters stand right beside a number.
        pattern = re.compile(row["pattern"], re.ASCII)
        form = _Form(pattern, row.get("kind", "GOVERNMENT_ID"), check, context, row.get("personal", False))
        groups["weak" if context else "strong" if row["pattern"].isascii() else "scripts"].append(form)
    joined = {group: "|".join(form.pattern.pattern for form in forms) for group, forms in groups.items()}
    return {group: (re.compile(f"{_STARTS[group]}(?:{joined[group]})", re.ASCII), groups[group]) for group in _STARTS}
