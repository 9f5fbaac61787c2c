"""Finds identifiers that a state or a health service gives to a person, such as social security numbers.

Formats are in data/government_ids.toml; python-stdnum computes the checksums. A checksum of one digit is weak: every
tenth random number passes it. Therefore there are two groups of formats. A strong format is enough alone. A weak format
needs a context word near it, such as "passport". Any number after the name of an identifier is found, too.
"""

import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from eyas.privacy.case_insensitive import CaseInsensitivePattern, lower_text
from eyas.privacy.span import Span
from eyas.privacy.word_lists import read_by_language, read_data_file, read_words

_FUNCTION_WORDS = read_by_language("function_words", "function_words")["en"]
_WORDS_BEFORE, _WORDS_BEHIND = 8, 5  # content words before a weak form, and from its own first group on
_REACH = 200  # characters in which those words are looked for
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# Nothing of the forms fits a text without this: it saves most texts the rest.
_MAY_HOLD = re.compile(r"(?:\d[ ./+-]?){6}|(?=[A-Z]{0,6}\d)[A-Z0-9]{8}|\d[A-Z][A-Z0-9]\d-[A-Z]")

# In a text of this language such a number that passes the checksum is one beside a word that says so.
_HOME = {
    "pl": ("pl.pesel", re.compile(r"(?<![\w.-])\d{11}(?![\w-])")),
    "de": ("de.idnr", re.compile(r"(?<![\w.-])\d{2} ?\d{3} ?\d{3} ?\d{3}(?![\w-])")),
    "sv": ("se.personnummer", re.compile(r"(?<![\w.-])(?:19|20)?\d{10}(?![\w-])")),
    "nl": ("nl.bsn", re.compile(r"(?<![\w.-])\d{9}(?![\w-])")),
}
_OTHER = CaseInsensitivePattern(
    r"(?:nummer|numer|nr|no|id|order\w*|bestel\w*|zam[óo]wieni\w*|rechnung\w*|factuur\w*|faktur\w*|[+€$-]|tel\w*"
    r"|0)[ :.#]{0,3}\Z"
)
# What says, beside such a number, that it is one: a run of digits with a right checksum alone is a number.
_OWN = CaseInsensitivePattern(
    r"pesel|dow[óo]d|ewidencyj|urodz|tożsamo|obywatel|pacjent|ubezpiecz|zameld|steuer|idnr|identifikation|finanzamt"
    r"|elster|personn|person-?nr|född|samordning|folkbok|patient|legitim|\bbsn\b|burgerserv|sofi|persoonsn|geboren"
    r"|patiënt|zorg|belasting|gemeente|digid"
)
_NEAR = 60  # characters before such a number; half as many after it
_LABELS = "|".join(sorted(read_words("government_ids", "labels"), key=lambda label: (-len(label), label)))
_CAPITALS = "|".join(map(str.upper, sorted(read_words("government_ids", "labels_in_capitals"))))
_LABEL = CaseInsensitivePattern(rf"(?<![A-Za-z])(?:{_LABELS}|(?-i:{_CAPITALS}))(?![A-Za-z])")
_BEHIND = re.compile(
    r"[^\n\d]{0,44}?(?<![A-Za-z0-9])(?P<value>(?:[A-Za-z]{1,6}-?|[A-Z]{1,3} )?\d(?:[ ./-]{0,1}[A-Za-z]{0,3}\d"
    r"|[A-Za-z]){4,24}(?:[ -]?[A-Za-z]{1,2}(?![A-Za-z]))?)(?![A-Za-z0-9])"
)
_ON_NEXT_LINE = re.compile(r"[^\n\w]{0,6}\n\s{0,6}(?P<value>[A-Z]{0,4}\d[\dA-Z ./-]{4,24})(?![A-Za-z0-9])")
_DATE = re.compile(r"\d{1,2}[./ -]\d{1,2}[./ -]\d{2,4}\Z|\d{4}[./ -]\d{1,2}[./ -]\d{1,2}\Z|\d{4} ?[-–] ?\d{4}\Z")
_FEW_DIGITS = re.compile(r"\d(?:[ ./-]?[A-Za-z]{0,3}\d){3}")  # what stands after a label holds four digits at least


@dataclass(frozen=True)
class _Form:
    """A format of an identifier.

    Attributes:
        pattern: Matches the identifier.
        check: Returns True if the checksum is right; None if the format has no checksum.
        context: The words of which one must stand near a weak format; empty for a strong format.
    """

    pattern: re.Pattern[str]
    check: Callable[[str], bool] | None
    context: tuple[str, ...]


def find_government_ids(text: str, language: str) -> Iterator[Span]:
    """Yields the spans of identifiers: after their name, in a strong format, or in a weak format near a context word.

    In Polish, German, Swedish and Dutch texts, the number of the country's citizens is searched as well.

    Args:
        text: The text.
        language: The language of the text (ISO 639-1).
    """
    if _FEW_DIGITS.search(text):
        yield from _find_labeled(text)
    if _MAY_HOLD.search(text):
        yield from _find_forms(text)
    if language in _HOME:
        module, pattern = _HOME[language]
        for match in pattern.finditer(text):
            if (
                not _OTHER.search(text, max(0, match.start() - 24), match.start())
                and _OWN.search(text, max(0, match.start() - _NEAR), match.end() + _NEAR // 2)
                and load_checksum(module)(match[0])
            ):
                yield Span(match.start(), match.end(), "GOVERNMENT_ID", 0.5)


def _find_forms(text: str) -> Iterator[Span]:
    lower = lower_text(text)
    for any_of_them, forms in _load_forms():
        first = any_of_them.search(text)
        for form in forms if first else ():
            if form.context and not any(word in lower for word in form.context):
                continue  # most texts hold no word of a weak form
            for match in form.pattern.finditer(text, first.start() if first else 0):
                if (form.check is None or form.check(match[0])) and _has_context(lower, match, form.context):
                    yield Span(*match.span(), "GOVERNMENT_ID", 0.65 if form.context else 1.0)


def _has_context(lower: str, match: re.Match[str], context: tuple[str, ...]) -> bool:
    """Returns True if a word near the match contains a word of `context`, or if `context` is empty.

    Near means: among the 8 content words before the match, or the 5 from its start on. Function words do not count.

    Args:
        lower: The text in lower case.
        match: The identifier.
        context: The context words of its format.
    """
    if not context:
        return True
    before = [word[0] for word in _WORD.finditer(lower, max(0, match.start() - _REACH), match.start())]
    behind = [word[0] for word in _WORD.finditer(lower, match.start(), match.start() + _REACH)]
    beside = [word for word in reversed(before) if word not in _FUNCTION_WORDS][:_WORDS_BEFORE]
    beside += [word for word in behind if word not in _FUNCTION_WORDS][:_WORDS_BEHIND]
    return any(word in other for word in context for other in beside)


def _find_labeled(text: str) -> Iterator[Span]:
    for label in _LABEL.finditer(text):
        match = _BEHIND.match(text, label.end()) or _ON_NEXT_LINE.match(text, label.end())
        if not match:
            continue
        value = match["value"].rstrip(" ./-")
        digits = sum(char.isdigit() for char in value)
        signs = sum(char.isalnum() for char in value)
        if signs >= 6 and digits >= (4 if signs > digits else 6) and not _DATE.match(value):
            yield Span(match.start("value"), match.start("value") + len(value), "GOVERNMENT_ID", 0.8)


def load_checksum(module: str) -> Callable[[str], bool]:
    """Returns the function of python-stdnum that checks a number. module: for example "us.ssn"."""
    return importlib.import_module(f"stdnum.{module}").is_valid


@cache
def _load_forms() -> tuple[tuple[re.Pattern[str], list[_Form]], ...]:
    """Returns two groups of formats, strong and weak, each with one pattern that matches if any of its formats does."""
    strong, weak = [], []
    for row in read_data_file("government_ids")["forms"].values():
        check = load_checksum(row["check"]) if "check" in row else None
        form = _Form(re.compile(row["pattern"]), check, tuple(row.get("context", "").split()))
        (weak if form.context else strong).append(form)
    # In every strong form a digit stands after six letters at most; a weak form begins with a digit or a capital.
    return tuple(
        (re.compile(rf"\b(?={start})(?:{'|'.join(form.pattern.pattern for form in forms)})"), forms)
        for start, forms in ((r"[A-Za-zÑ]{0,6}[ -]?\d", strong), (r"[A-Z\d]", weak))
    )
