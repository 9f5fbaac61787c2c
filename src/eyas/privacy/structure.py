"""Personal data that a text's structure gives away, whatever the words: tables, fields, the frame of a letter."""

from collections.abc import Iterator

from eyas.privacy.fields import find_field_values
from eyas.privacy.letters import find_letter_names
from eyas.privacy.lexicon import Lexicon
from eyas.privacy.span import Span
from eyas.privacy.tables import Line, find_table_values
from eyas.privacy.value_matcher import ValueMatcher


def find_structured(text: str, lexicon: Lexicon, language: str) -> Iterator[Span]:
    """Spans of all that is found so. Most prompts have a line or two and no mark of any of it: they cost nothing."""
    look = ValueMatcher(lexicon, language)
    has_lines = "\n" in text
    if has_lines:
        yield from find_table_values(text, _lines(text), look)
    if ":" in text or "=" in text or "</" in text:
        yield from find_field_values(text, look)
    if has_lines or ":" in text:
        yield from find_letter_names(text, look)


def _lines(text: str) -> list[Line]:
    lines, begin = [], 0
    for line in text.splitlines(keepends=True):
        lines.append(Line(begin, begin + len(line.rstrip("\r\n"))))
        begin += len(line)
    return lines
