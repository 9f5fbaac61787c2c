"""Personal data that a text's structure gives away, whatever the words: tables, fields, the frame of a letter."""

from collections.abc import Iterator

from eyas.privacy.field import fields
from eyas.privacy.letter_parts import frames
from eyas.privacy.name_lists import Lexicon
from eyas.privacy.span import Span
from eyas.privacy.table import Line, tables
from eyas.privacy.value_matcher import Look


def structured(text: str, lexicon: Lexicon, language: str) -> Iterator[Span]:
    """Spans of all that is found so. Most prompts have a line or two and no mark of any of it: they cost nothing."""
    look = Look(lexicon, language)
    has_lines = "\n" in text
    if has_lines:
        yield from tables(text, _lines(text), look)
    if ":" in text or "=" in text or "</" in text:
        yield from fields(text, look)
    if has_lines or ":" in text:
        yield from frames(text, look)


def _lines(text: str) -> list[Line]:
    lines, begin = [], 0
    for line in text.splitlines(keepends=True):
        lines.append(Line(begin, begin + len(line.rstrip("\r\n"))))
        begin += len(line)
    return lines
