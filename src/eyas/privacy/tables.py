"""Tables in a text: Markdown, CSV with commas, semicolons or tabs, columns set with spaces. A header names a column.

A column counts as a whole: its header must name a person's data, and most of its cells must look like that. A bare
"name" needs more, because products and countries have names: another personal column, or names of the lists.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eyas.privacy.labels import Label, Trust, parse_label
from eyas.privacy.span import Span
from eyas.privacy.value_matcher import ValueMatcher

_SPLITS = {
    "|": re.compile(r"[^|]+|(?<=\|)(?=\|)"),
    "\t": re.compile(r"(?:(?<=\t)|^)[^\t]*"),
    ";": re.compile(r"(?:(?<=;)|^)(?:\s*\"(?:[^\"]|\"\")*\"\s*(?=;|$)|[^;]*)"),
    ",": re.compile(r"(?:(?<=,)|^)(?:\s*\"(?:[^\"]|\"\")*\"\s*(?=,|$)|[^,]*)"),
    "  ": re.compile(r"\S+(?: \S+)*"),
}
_RULE = re.compile(r"[\s|:+=_-]+\Z")
_EDGE = " \t\r\u00a0\"'`*_“”„«»"
_BEFORE = re.compile(r".*(?:\"\"\"|'''|```\w*|: |=)\s*", re.DOTALL)  # what stands before a header on its line
_HEADER_LENGTH = 600
_MOST = 0.6  # of a column's cells must look like what the header says


@dataclass(frozen=True)
class Line:
    """text[begin:end] is one line without its end."""

    begin: int
    end: int


@dataclass(frozen=True)
class _Rows:
    """Cells by row. uneven: rows with a cell more or less, or with blanks behind commas where the header has none."""

    even: list[list[tuple[int, int]]]
    uneven: list[list[tuple[int, int]]]


@dataclass(frozen=True)
class _Column:
    place: int
    label: Label
    cells: tuple[tuple[int, int], ...]  # where the values stand that are no blanks


def find_table_values(text: str, lines: Sequence[Line], look: ValueMatcher) -> Iterator[Span]:
    """Spans of the cells of personal columns. Linear in the text."""
    after = 0
    for i in range(len(lines) - 1):
        if i < after or lines[i].end - lines[i].begin > _HEADER_LENGTH:
            continue
        header = text[lines[i].begin : lines[i].end]
        for mark, split in _SPLITS.items():
            if mark not in header or not _goes_on(text, lines, i, mark):
                continue
            heads = [_labelled(header[begin:end]) for begin, end in _cells(header, 0, split)]
            if len(heads) < 2 or not any(head and head.kind not in ("", "-") for head in heads):
                continue
            rows, after = _rows(text, lines, i + 1, mark, len(heads), ", " in header)
            if len(heads) == 2 and _is_form(text, rows.even):
                continue
            yield from _personal(text, heads, rows, look)
            break


def _is_form(text: str, rows: Sequence[Sequence[tuple[int, int]]]) -> bool:
    """Whether the first column holds labels: a form, which has no header. fields reads those."""
    firsts = [text[row[0][0] : row[0][1]] for row in rows]
    return sum(parse_label(first) is not None for first in firsts) * 2 > len(firsts)


def _goes_on(text: str, lines: Sequence[Line], i: int, mark: str) -> bool:
    following = lines[i + 1]
    if mark == "  " and i + 2 < len(lines) and _RULE.match(text[following.begin : following.end]):
        following = lines[i + 2]
    return text.find(mark, following.begin, following.end) >= 0 or (
        mark != "  " and "+" in text[following.begin : following.end]
    )


def _labelled(cell: str) -> Label | None:
    cell = _BEFORE.sub("", cell)
    return parse_label(cell.partition("(")[0].strip(_EDGE)) if len(cell) < 80 else None


def _cells(line: str, offset: int, split: re.Pattern[str]) -> list[tuple[int, int]]:
    """Where the cells of a line begin and end, without blanks, quotes and emphasis; offset: where the line begins."""
    if split is _SPLITS["|"]:
        stripped = line.strip()
        offset += line.find(stripped) if stripped else 0
        if stripped.startswith("|"):
            stripped, offset = stripped[1:], offset + 1
        line = stripped.removesuffix("|")
    result = []
    for match in split.finditer(line):
        begin, end = match.start(), match.end()
        while begin < end and line[begin] in _EDGE:
            begin += 1
        while end > begin and line[end - 1] in _EDGE:
            end -= 1
        result.append((offset + begin, offset + end))
    return result


def _rows(text: str, lines: Sequence[Line], first: int, mark: str, width: int, has_blanks: bool) -> tuple[_Rows, int]:
    """The rows below a header and the line behind them. A cell may be missing or hold a comma of its own; of rows that
    differ by more, the second ends the table, as another header does."""
    rows = _Rows([], [])
    k, odd = first, 0
    while k < len(lines):
        line = text[lines[k].begin : lines[k].end]
        if _RULE.match(line) and line.strip():
            k += 1
            continue
        if mark not in line:
            break
        cells = _cells(line, lines[k].begin, _SPLITS[mark])
        if len(cells) != width and sum(_labelled(text[b:e]) is not None for b, e in cells) > 1:
            break
        odd = odd + 1 if abs(len(cells) - width) > 1 else 0
        if odd > 1:
            break
        is_prose = mark == "," and not has_blanks and ", " in line and '"' not in line
        (rows.even if len(cells) == width and not is_prose else rows.uneven).append(cells)
        k += 1
    return rows, k


def _personal(text: str, heads: Sequence[Label | None], rows: _Rows, look: ValueMatcher) -> Iterator[Span]:
    columns = []
    for place, head in enumerate(heads):
        if head is not None and rows.even:  # uneven rows count only where they look like what the header says
            cells = [row[place] for row in rows.even if row[place][1] - row[place][0] > 1]
            others = [row[place] for row in rows.uneven if len(row) > place]
            cells += [(b, e) for b, e in others if e - b > 1 and _fits(text[b:e], head, look)]
            columns.append(_Column(place, head, tuple(cells)))
    things = sum(column.label.is_thing for column in columns)
    fitting = {
        column.place: [(b, e) for b, e in column.cells if _fits(text[b:e], column.label, look)] for column in columns
    }
    personal = {
        column.place
        for column in columns
        if column.label.kind not in ("", "-") and len(fitting[column.place]) >= max(1, _MOST * len(column.cells))
    }
    strong = {  # columns that say by themselves that the rows are people
        column.place
        for column in columns
        if (column.place in personal and _is_strong(column.label))
        or (column.label.kind == "" and any(e > b for b, e in column.cells) and not things)
    }
    taken = set()
    for column in columns:
        if column.place not in personal or column.label.kind == "LOCATION":
            continue
        others = bool(strong - {column.place})
        values = [text[b:e] for b, e in fitting[column.place]]
        if _is_enough(column.label, values, others, things, look):
            taken.add(column.place)
    if taken:
        taken |= {column.place for column in columns if column.place in personal and column.label.kind == "LOCATION"}
    for column in columns:
        if column.place in taken:
            yield from (Span(b, e, column.label.kind, 0.8) for b, e in fitting[column.place])


def _fits(value: str, head: Label, look: ValueMatcher) -> bool:
    return look.matches(head.kind, value, head.trust is Trust.SURE)


def _is_strong(head: Label) -> bool:
    return head.kind not in ("LOCATION", "ADDRESS") and (head.kind != "PERSON" or head.trust is Trust.SURE)


def _is_enough(head: Label, values: Sequence[str], others: bool, things: int, look: ValueMatcher) -> bool:
    """Whether a column is personal beyond its header: by the other columns, or by its own values."""
    if head.kind != "PERSON":
        return head.kind != "ADDRESS" or others or not things
    if head.trust is Trust.SURE or others:
        return True
    known = sum(look.has_listed_name(value) for value in values)
    cities = sum(look.is_city(value) for value in values)
    if head.trust is Trust.ROLE:
        return cities * 2 < len(values)
    if cities * 3 >= len(values):
        return False
    several = sum(" " in value for value in values) * 2 > len(values)
    if things:
        return several and known * 2 >= len(values)
    return several or (known > 0 and known * 4 >= len(values))
