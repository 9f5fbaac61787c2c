"""Values in tables and in the fields of records: the heading of a column, or the key of a field, says what a value is.

Tables: Markdown, CSV with commas, semicolons or tabs, columns set with spaces. A column counts as a whole: its heading
must name a person's data, and most of its cells must look like that. A bare "name" needs more, because products and
countries have names: another personal column, or names of the lists.

Fields: JSON, YAML, TOML, INI, XML, forms, key=value in a log.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eyas.privacy.labels import MAX_LENGTH, PERSONAL, THING, Label, Trust, ValueMatcher, parse_label
from eyas.privacy.span import Span

# Tables.
_CELLS = {
    "|": re.compile(r"[^|]+|(?<=\|)(?=\|)"),
    "\t": re.compile(r"(?:(?<=\t)|^)[^\t]*"),
    ";": re.compile(r"(?:(?<=;)|^)(?:\s*\"(?:[^\"]|\"\")*\"\s*(?=;|$)|[^;]*)"),
    ",": re.compile(r"(?:(?<=,)|^)(?:\s*\"(?:[^\"]|\"\")*\"\s*(?=,|$)|[^,]*)"),
    "  ": re.compile(r"\S+(?: \S+)*"),
}
_RULE = re.compile(r"[\s|:+=_-]+\Z")
_EDGE = " \t\r\u00a0\"'`*_“”„«»"
_BEFORE_HEADING = re.compile(r".*(?:\"\"\"|'''|```\w*|: |=)\s*", re.DOTALL)
_MAX_HEADER = 600  # characters of a line with headings
_MAX_HEADING = 80
_MIN_SHARE = 0.6  # of a column's cells must look like what the heading says

# Fields.
_MARK = re.compile(r"[:=]")
_KEY_END = " \t\"'`*])”\\"
_KEY = re.compile(r"[^\n,;{}(\[|<>&?!\"'`“:=]*\Z")
_COUNT = re.compile(r"(?<=[^\W\d_])[ _#]{0,2}\d{1,2}\Z")  # "Witness 1"
_QUOTED = re.compile(r"[>=]?\s{0,4}\\?([\"'“`])([^\n\"”`]{1,100}?)\\?(?:\1|”)")
_PLAIN = re.compile(
    r"[>=]?[ \t]{0,12}[*_]{0,2}[ \t]{0,2}([^\n\"'`“,;|<>{}\[\]=:#*]{1,100}?)"
    r"(?=\s+[\w.-]+[\"']?[=:]|&[\w-]+=|\s{2}|[\n,;|<>{}\]*#]|\Z| - | – )"
)
_LAST_COMMA = re.compile(r", ?[^\W\d_][^\W\d_.-]+(?: [^\W\d_]\.?)?(?=[ \t]*(?:\n|\Z))")
_BELOW = re.compile(r"[ \t]*\n[ \t]*([^\n:=|{}\[\]\"]{2,60})(?=\n|\Z)")
_ARRAY = re.compile(r"\s{0,4}\[([^\[\]{}]{2,4000})\]")
_STRING = re.compile(r"[\"']([^\"'\n]{2,60})[\"']")
_TAG = re.compile(r"<([A-Za-zÀ-ÿ][\w:.-]{1,40})(?:\s[^<>]{0,80})?>([^<>\n]{2,100})</")
_ROW = re.compile(r"(?m)^[ \t]*\|?[ \t]*\**([^\n|*]{2,40}?)\**[ \t]*\|[ \t]*([^\n|]{2,100}?)[ \t]*\|?[ \t]*$")
_CODE = ("(", "[", ".", "<", "{", "::", "->")
_NEIGHBORS = 3  # fields on each side that say whether a bare "name" is a person's

Cell = tuple[int, int]  # where a value starts and ends in the text


@dataclass(frozen=True)
class _Rows:
    """Cells by row. uneven: rows with a cell more or less, or with blanks behind commas where the header has none."""

    even: list[list[Cell]]
    uneven: list[list[Cell]]


@dataclass(frozen=True)
class _Column:
    """A column with a heading that is known: its cells with a value, and those that look like what the heading says."""

    label: Label
    cells: list[Cell]
    fitting: list[Cell]

    @property
    def is_personal(self) -> bool:
        return self.label.is_entity and len(self.fitting) >= max(1, _MIN_SHARE * len(self.cells))


@dataclass(frozen=True)
class _Field:
    """A field with a key that is known; value is None where it does not look like what the key says."""

    label: Label
    value: Cell | None
    is_whole: bool  # the key is all that stands before the mark


def find_table_values(text: str, matcher: ValueMatcher) -> Iterator[Span]:
    """Yields the cells of personal columns. Its time is linear in the text."""
    lines, start = [], 0
    for line in text.splitlines(keepends=True):
        lines.append((start, start + len(line.rstrip("\r\n"))))
        start += len(line)
    behind = 0  # the line behind the last table
    for i in range(len(lines) - 1):
        if i < behind or lines[i][1] - lines[i][0] > _MAX_HEADER:
            continue
        header = _cut(text, lines[i])
        for mark in _CELLS:
            if mark not in header or not _continues(text, lines, i, mark):
                continue
            labels = [_parse_heading(header[start:end]) for start, end in _split_cells(header, 0, mark)]
            if len(labels) < 2 or not any(label and label.is_entity for label in labels):
                continue
            rows, behind = _read_rows(text, lines, i + 1, mark, width=len(labels), has_blanks=", " in header)
            if len(labels) == 2 and _is_form(text, rows.even):
                continue
            yield from _find_personal_cells(text, labels, rows, matcher)
            break


def _is_form(text: str, rows: Sequence[Sequence[Cell]]) -> bool:
    """Returns True where the first column holds labels: a form, which has no header. find_field_values reads those."""
    return sum(parse_label(_cut(text, row[0])) is not None for row in rows) * 2 > len(rows)


def _continues(text: str, lines: Sequence[Cell], i: int, mark: str) -> bool:
    start, end = lines[i + 1]
    if mark == "  " and i + 2 < len(lines) and _RULE.match(text[start:end]):
        start, end = lines[i + 2]
    return text.find(mark, start, end) >= 0 or (mark != "  " and "+" in text[start:end])


def _parse_heading(cell: str) -> Label | None:
    cell = _BEFORE_HEADING.sub("", cell)
    return parse_label(cell.partition("(")[0].strip(_EDGE)) if len(cell) < _MAX_HEADING else None


def _split_cells(line: str, offset: int, mark: str) -> list[Cell]:
    """Returns the cells of a line without blanks, quotes and emphasis; offset: where the line starts in the text."""
    if mark == "|":
        stripped = line.strip()
        offset += line.find(stripped) if stripped else 0
        if stripped.startswith("|"):
            stripped, offset = stripped[1:], offset + 1
        line = stripped.removesuffix("|")
    cells = []
    for match in _CELLS[mark].finditer(line):
        start, end = _strip(line, *match.span(), _EDGE, _EDGE)
        cells.append((offset + start, offset + end))
    return cells


def _cut(text: str, cell: Cell) -> str:
    return text[cell[0] : cell[1]]


def _strip(text: str, start: int, end: int, before: str, behind: str) -> Cell:
    """Returns the part of text[start:end] without these characters at its edges."""
    while start < end and text[start] in before:
        start += 1
    while end > start and text[end - 1] in behind:
        end -= 1
    return start, end


def _read_rows(
    text: str, lines: Sequence[Cell], first: int, mark: str, width: int, has_blanks: bool
) -> tuple[_Rows, int]:
    """Returns the rows from line `first` on and the line behind them.

    A cell may be missing or hold a comma of its own. Of rows that differ by more, the second ends the table, as another
    header does.
    """
    rows = _Rows([], [])
    odd = 0
    for k in range(first, len(lines)):
        line = _cut(text, lines[k])
        if _RULE.match(line) and line.strip():
            continue
        if mark not in line:
            return rows, k
        cells = _split_cells(line, lines[k][0], mark)
        if len(cells) != width and sum(_parse_heading(_cut(text, cell)) is not None for cell in cells) > 1:
            return rows, k
        odd = odd + 1 if abs(len(cells) - width) > 1 else 0
        if odd > 1:
            return rows, k
        is_prose = mark == "," and not has_blanks and ", " in line and '"' not in line
        (rows.even if len(cells) == width and not is_prose else rows.uneven).append(cells)
    return rows, len(lines)


def _find_personal_cells(
    text: str, labels: Sequence[Label | None], rows: _Rows, matcher: ValueMatcher
) -> Iterator[Span]:
    columns = []
    for place, label in enumerate(labels):
        if label is not None and rows.even:
            # Cells of uneven rows count only where they look like what the heading says.
            cells = [row[place] for row in rows.even if row[place][1] - row[place][0] > 1]
            others = [row[place] for row in rows.uneven if len(row) > place and row[place][1] - row[place][0] > 1]
            cells += [cell for cell in others if matcher.fits(label, _cut(text, cell))]
            fitting = [cell for cell in cells if matcher.fits(label, _cut(text, cell))]
            columns.append(_Column(label, cells, fitting))
    num_things = sum(column.label.kind == THING for column in columns)
    # Columns that say by themselves that the rows are people.
    strong = [
        column
        for column in columns
        if (column.is_personal and _is_strong(column.label))
        or (column.label.kind == PERSONAL and column.cells and not num_things)
    ]
    taken = [
        column
        for column in columns
        if column.is_personal
        and column.label.kind != "LOCATION"
        and _is_about_people(text, column, any(other is not column for other in strong), num_things, matcher)
    ]
    for column in columns:
        place = column.label.kind == "LOCATION" and column.is_personal and bool(taken)
        if place or any(other is column for other in taken):
            yield from (Span(start, end, column.label.kind, 0.8) for start, end in column.fitting)


def _is_strong(label: Label) -> bool:
    return label.kind not in ("LOCATION", "ADDRESS") and (label.kind != "PERSON" or label.trust is Trust.SURE)


def _is_about_people(text: str, column: _Column, others: bool, num_things: int, matcher: ValueMatcher) -> bool:
    """Returns True where a column is personal beyond its heading: by the other columns, or by its own values."""
    label, values = column.label, [_cut(text, cell) for cell in column.fitting]
    if label.kind != "PERSON":
        return label.kind != "ADDRESS" or others or not num_things
    if label.trust is Trust.SURE or others:
        return True
    num_cities = sum(map(matcher.is_city, values))
    if label.trust is Trust.ROLE:
        return num_cities * 2 < len(values)
    if num_cities * 3 >= len(values):
        return False
    num_listed = sum(map(matcher.has_listed_name, values))
    of_several_words = sum(" " in value for value in values) * 2 > len(values)
    if num_things:
        return of_several_words and num_listed * 2 >= len(values)
    return of_several_words or (num_listed > 0 and num_listed * 4 >= len(values))


def find_field_values(text: str, matcher: ValueMatcher) -> Iterator[Span]:
    """Yields the values of personal fields. Its time is linear in the text."""
    fields = list(_find_fields(text, matcher))
    for i, field in enumerate(fields):
        kind, trust = field.label.kind, field.label.trust
        if field.value is None or not field.label.is_entity:
            continue
        if kind == "PERSON" and trust is Trust.ROLE:
            value = _cut(text, field.value)
            if not (field.is_whole or " " in value or "." in value or matcher.has_listed_name(value)):
                continue
        if kind == "PERSON" and trust is Trust.NAME and not (field.is_whole and _is_among_people(fields, i)):
            continue
        if kind in ("LOCATION", "ADDRESS") and not _is_among_people(fields, i):
            continue
        yield Span(*field.value, kind, 0.8)


def _is_among_people(fields: Sequence[_Field], i: int) -> bool:
    """Returns True where the fields around field i are a person's more than a thing's."""
    is_person = fields[i].label.kind == "PERSON"
    num_people = num_things = 0
    for field in (*fields[max(0, i - _NEIGHBORS) : i], *fields[i + 1 : i + 1 + _NEIGHBORS]):
        kind = field.label.kind
        if kind == THING:
            num_things += 1
        elif kind == PERSONAL:
            num_people += 1
        elif field.value is not None and kind != "LOCATION":
            num_people += not (is_person and kind == "PERSON" and field.label.trust is Trust.NAME)
    return num_people > num_things


def _find_fields(text: str, matcher: ValueMatcher) -> Iterator[_Field]:
    if "</" in text:
        for match in _TAG.finditer(text):
            label = parse_label(match[1].rpartition(":")[2])
            if label is not None:
                yield _check_value(text, match.span(2), label, matcher, is_quoted=True)
    if "|" in text:
        for match in _ROW.finditer(text):
            label = parse_label(match[1])
            if label is not None and parse_label(match[2]) is None:
                yield _check_value(text, match.span(2), label, matcher, is_quoted=False)
    for mark in _MARK.finditer(text):
        at = mark.start()
        if at == 0 or text[at - 1] in ":=!/" or text[at + 1 : at + 2] == "/":
            continue
        label, is_whole = _read_key(text, at)
        if label is not None:
            yield from _read_values(text, at + 1, label, is_whole, matcher)


def _read_key(text: str, at: int) -> tuple[Label | None, bool]:
    """Returns the label before the mark, and True where it is all that stands there: else its last words are tried."""
    counted = text[max(0, at - MAX_LENGTH) : at].rstrip(_KEY_END)
    window = _COUNT.sub("", counted)
    if not window or not (window[-1].isalpha() or window[-1] == ")"):
        return None, False
    match = _KEY.search(window.partition("(")[0].rstrip() if window[-1] == ")" else window)
    key = match[0].strip(" \t\r*_>#•-–$@") if match else ""
    label = parse_label(key)
    if label is not None or " " not in key:
        return label, len(window) == len(counted)
    words = key.split()
    tails = (parse_label(" ".join(words[-size:])) for size in (3, 2, 1) if len(words) > size)
    return next(filter(None, tails), None), False


def _read_values(text: str, start: int, label: Label, is_whole: bool, matcher: ValueMatcher) -> Iterator[_Field]:
    is_person = label.kind == "PERSON"
    quoted = _QUOTED.match(text, start)
    if quoted:
        yield _check_value(text, quoted.span(2), label, matcher, is_quoted=True, is_whole=is_whole)
        return
    if is_person and label.trust is not Trust.NAME and text[start : start + 5].lstrip().startswith("["):
        array = _ARRAY.match(text, start)
        for item in _STRING.finditer(text, *array.span(1)) if array else ():
            if matcher.is_name(item[1]):
                yield _Field(Label("PERSON"), item.span(1), True)
        return
    plain = _PLAIN.match(text, start)
    if plain:
        end = plain.end(1)
        if is_person and " " not in plain[1].strip():
            comma = _LAST_COMMA.match(text, end)  # "Fifita, Tevita"
            if comma and matcher.is_name(text[plain.start(1) : comma.end()]):
                end = comma.end()
        if not is_person or not text.startswith(_CODE, end):
            yield _check_value(text, (plain.start(1), end), label, matcher, is_quoted=False, is_whole=is_whole)
        return
    below = _BELOW.match(text, start)
    if below and (not is_person or label.trust is not Trust.NAME):
        yield _check_value(text, below.span(1), label, matcher, is_quoted=False, is_whole=is_whole)


def _check_value(
    text: str, value: Cell, label: Label, matcher: ValueMatcher, is_quoted: bool, is_whole: bool = True
) -> _Field:
    """Returns the field, with its value where that looks like what the key says."""
    start, end = _strip(text, *value, " \t\r\u00a0*_", " \t\r\u00a0*_.")
    found, sure = text[start:end], label.trust is Trust.SURE
    nothing = _Field(label, None, is_whole)
    if not found or not label.is_entity:
        return nothing
    if label.kind != "PERSON":
        return _Field(label, (start, end), is_whole) if matcher.fits(label, found) else nothing
    if parse_label(found) is not None:  # "customer: Customer", a type
        return nothing
    is_closed = is_quoted or not text.startswith(("(", "[", "<", ";", "."), end)
    if is_closed and matcher.is_name(found, sure, any_case=is_quoted or (sure and is_whole)):
        return _Field(label, (start, end), is_whole)
    length = _name_length(found, matcher, sure) if not is_quoted and len(found) > 3 else 0
    return _Field(label, (start, start + length), is_whole) if length else nothing


def _name_length(value: str, matcher: ValueMatcher, sure: bool) -> int:
    """Returns how many characters at the start of a longer value are a name: "Tevita Fifita called today"."""
    words = value.split(" ")[:6]
    for size in range(min(4, len(words) - 1), 1, -1):
        name = " ".join(words[:size]).rstrip(".")
        if matcher.is_name(name, sure) and words[size][:1].islower() != words[size - 1][:1].islower():
            return len(name)
    return 0
