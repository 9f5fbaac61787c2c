"""Finds personal data in tables and fields: the heading of a column, or the key of a field, says what a value is.

Tables: Markdown, CSV with commas, semicolons or tabs, columns separated by spaces. The heading must name personal data,
and most cells of the column must look like that data. A column "name" needs more evidence, because products have names,
too: another personal column, or names of the lexicon.

Fields: JSON, YAML, TOML, INI, XML, forms, key=value in a log.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eyas.privacy.labeled_values import find_values_below
from eyas.privacy.labels import MAX_LENGTH, PERSONAL, THING, Label, Trust, ValueMatcher, parse_label
from eyas.privacy.patterns import load_patterns
from eyas.privacy.span import Span
from eyas.privacy.value_labels import is_label
from eyas.privacy.word_lists import read_data_file

_EXACT = load_patterns("fields").exact
_CELLS = {mark: _EXACT[name] for mark, name in read_data_file("data/fields")["separators"].items()}
_EDGE = " \t\r\u00a0\"'`*_“”„«»"
_MAX_HEADER = 600  # characters of a line with headings
_MAX_HEADING = 80
_MIN_SHARE = 0.6  # of a column's cells must look like what the heading says
_KEY_END = " \t\"'`*])”\\"
_MAX_ABBREVIATION = 4  # characters, with the full stop: "Dr.", "Mlle"
_CODE = ("(", "[", ".", "<", "{", "::", "->")
_NEIGHBORS = 3  # fields on each side that say whether a bare "name" is a person's


class Cell(NamedTuple):
    """A part of a text with its position: a line, a cell of a table, or the value of a field.

    Attributes:
        start: The position of the part in the whole text.
        text: The characters of the part.
    """

    start: int
    text: str

    def strip(self, before: str | None = None, behind: str | None = None) -> "Cell":
        """Returns the part without the characters `before` at its start and the characters `behind` at its end.

        None stands for white space.
        """
        stripped = self.text.lstrip(before)
        return Cell(self.start + len(self.text) - len(stripped), stripped.rstrip(behind))

    def to_span(self, kind: str) -> Span:
        """Returns the span of the part, with the kind `kind`."""
        return Span(self.start, self.start + len(self.text), kind, 0.8, "builtin.field")


Rows = list[list[Cell]]


@dataclass(frozen=True)
class _Column:
    """A column of a table whose heading is a known label.

    Attributes:
        label: The meaning of the heading.
        cells: The cells of the column that are not empty.
        fitting: The cells whose value looks like what the heading says.
    """

    label: Label
    cells: list[Cell]
    fitting: list[Cell]

    @property
    def is_personal(self) -> bool:
        return self.label.is_entity and len(self.fitting) >= max(1, _MIN_SHARE * len(self.cells))


@dataclass(frozen=True)
class _Field:
    """A field whose key is a known label.

    Attributes:
        label: The meaning of the key.
        value: The value; None if it does not look like what the key says.
        is_whole: The key is all the text before the ":" or "=". False for "Please ask customer: Anna".
    """

    label: Label
    value: Cell | None
    is_whole: bool


def find_table_values(text: str, matcher: ValueMatcher) -> Iterator[Span]:
    """Yields the spans of cells in columns with personal data. Takes linear time."""
    lines, start = [], 0
    for line in text.splitlines(keepends=True):
        lines.append(Cell(start, line.rstrip("\r\n")))
        start += len(line)
    behind = 0  # the line after the last table
    for i, header in enumerate(lines[:-1]):
        if i < behind or len(header.text) > _MAX_HEADER:
            continue
        for mark in _CELLS:
            if mark not in header.text or not _continues(lines, i + 1, mark):
                continue
            headings = _split_cells(header, mark)
            labels = [*map(_parse_heading, headings)]
            known = [cell for cell, label in zip(headings, labels, strict=True) if label and label.is_entity]
            if len(labels) < 2 or not (known or any(is_label(cell.text) for cell in headings)):
                continue
            even, uneven, behind = _read_rows(lines, i + 1, mark, len(labels), has_blanks=", " in header.text)
            # A first column of labels: a form, which has no header. find_field_values reads those.
            num_labels = sum(parse_label(row[0].text) is not None for row in even)
            if len(labels) > 2 or num_labels * 2 <= len(even):
                yield from _find_personal_cells(labels, even, uneven, matcher)
                for place, heading in enumerate(headings):
                    yield from find_values_below(heading.text, [row[place] for row in even], matcher.language)
                break


def _continues(lines: Sequence[Cell], i: int, mark: str) -> bool:
    """Returns True if line i may be the line below a header whose columns `mark` separates."""
    if mark != "  ":
        return mark in lines[i].text or "+" in lines[i].text
    following = i + 1 if i + 1 < len(lines) and _EXACT["rule"].match(lines[i].text) else i
    return mark in lines[following].text


def _parse_heading(cell: Cell) -> Label | None:
    heading = _EXACT["before_heading"].sub("", cell.text)
    return parse_label(heading.partition("(")[0].strip(_EDGE)) if len(heading) < _MAX_HEADING else None


def _split_cells(line: Cell, mark: str) -> list[Cell]:
    """Returns the cells of a line, split at the separator `mark`, without blanks, quotes and emphasis around them."""
    start, text = line
    if mark == "|":
        start, text = line.strip()
        start, text = start + text.startswith("|"), text.removeprefix("|").removesuffix("|")
    return [Cell(start + match.start(), match[0]).strip(_EDGE, _EDGE) for match in _CELLS[mark].finditer(text)]


def _read_rows(lines: list[Cell], start: int, mark: str, num_columns: int, has_blanks: bool) -> tuple[Rows, Rows, int]:
    """Reads the rows of a table below its header.

    A row is even if it has one cell for each column. A row is uneven if it has one cell more or less, or if it has ", "
    and the header does not: then a cell is missing, or a cell holds a comma. The table ends before the next header,
    before a line without `mark`, and at the second of two neighboring rows that differ by more than one cell.

    Args:
        lines: All lines of the text.
        start: Index of the line below the header.
        mark: The separator of the columns: "|", a tab, ";", "," or two spaces.
        num_columns: The number of columns in the header.
        has_blanks: The header has ", ", so that ", " in a row is a separator, too.

    Returns:
        The even rows, the uneven rows, and the index of the first line after the table.
    """
    even, uneven, num_odd = [], [], 0
    for k in range(start, len(lines)):
        line = lines[k].text
        if _EXACT["rule"].match(line) and line.strip():
            continue
        cells = _split_cells(lines[k], mark)
        num_odd = num_odd + 1 if abs(len(cells) - num_columns) > 1 else 0
        is_header = len(cells) != num_columns and sum(_parse_heading(cell) is not None for cell in cells) > 1
        if mark not in line or num_odd > 1 or is_header:
            return even, uneven, k
        is_prose = mark == "," and not has_blanks and ", " in line and '"' not in line
        (even if len(cells) == num_columns and not is_prose else uneven).append(cells)
    return even, uneven, len(lines)


def _find_personal_cells(labels: list[Label | None], even: Rows, uneven: Rows, matcher: ValueMatcher) -> Iterator[Span]:
    columns = []
    for place, label in enumerate(labels):
        if label is not None and even:
            cells = [row[place] for row in even if len(row[place].text) > 1]
            # Cells of uneven rows count only where they look like what the heading says.
            others = [row[place] for row in uneven if len(row) > place and len(row[place].text) > 1]
            cells += [cell for cell in others if matcher.fits(label, cell.text)]
            columns.append(_Column(label, cells, [cell for cell in cells if matcher.fits(label, cell.text)]))
    has_things = any(column.label.kind == THING for column in columns)
    # Columns that say by themselves that the rows are people.
    strong = [column for column in columns if _is_strong(column, has_things)]
    is_about_people = False
    personal = (column for column in columns if column.is_personal)
    for column in sorted(personal, key=lambda column: column.label.kind == "LOCATION"):
        if column.label.kind != "LOCATION":
            has_others = any(other is not column for other in strong)
            if not _is_about_people(column, has_others, has_things, matcher):
                continue
            is_about_people = True
        if is_about_people:
            yield from (cell.to_span(column.label.kind) for cell in column.fitting)


def _is_strong(column: _Column, has_things: bool) -> bool:
    kind = column.label.kind
    if kind == PERSONAL:
        return bool(column.cells) and not has_things
    return column.is_personal and kind not in ("LOCATION", "ADDRESS") and column.label.trust is Trust.SURE


def _is_about_people(column: _Column, has_others: bool, has_things: bool, matcher: ValueMatcher) -> bool:
    """Returns True if other columns, or the values of the column, confirm that the column is about people.

    Args:
        column: A column whose heading and values fit.
        has_others: Another column is about people for sure, such as e-mail addresses.
        has_things: Another column is about things, such as prices.
        matcher: Tests the values.
    """
    label, values = column.label, [cell.text for cell in column.fitting]
    if label.kind != "PERSON":
        return label.kind != "ADDRESS" or has_others or not has_things
    if label.trust is Trust.SURE or has_others:
        return True
    num_cities = sum(map(matcher.is_city, values))
    if label.trust is Trust.ROLE:
        return num_cities * 2 < len(values)
    if num_cities * 3 >= len(values):
        return False
    num_listed = sum(map(matcher.has_listed_name, values))
    of_several_words = sum(" " in value for value in values) * 2 > len(values)
    if has_things:
        return of_several_words and num_listed * 2 >= len(values)
    return of_several_words or (num_listed > 0 and num_listed * 4 >= len(values))


def find_field_values(text: str, matcher: ValueMatcher) -> Iterator[Span]:
    """Yields the spans of values in fields with personal data: "name: Anna" -> span of "Anna". Takes linear time."""
    fields = list(_find_fields(text, matcher))
    for i, field in enumerate(fields):
        kind, trust, is_personal = field.label.kind, field.label.trust, True
        if field.value is None:
            continue
        if kind == "PERSON" and trust is Trust.ROLE:
            is_personal = field.is_whole or not field.value.text.isalpha() or matcher.has_listed_name(field.value.text)
        elif kind in ("LOCATION", "ADDRESS") or (kind == "PERSON" and trust is Trust.NAME):
            is_personal = (kind != "PERSON" or field.is_whole) and _is_among_people(fields, i)
        if is_personal:
            yield field.value.to_span(kind)


def _is_among_people(fields: Sequence[_Field], i: int) -> bool:
    """Returns True if the fields beside field i describe a person more often than a thing."""
    is_person = fields[i].label.kind == "PERSON"
    balance = 0
    for field in (*fields[max(0, i - _NEIGHBORS) : i], *fields[i + 1 : i + 1 + _NEIGHBORS]):
        kind = field.label.kind
        if kind in (THING, PERSONAL):
            balance += 1 if kind == PERSONAL else -1
        elif field.value is not None and kind != "LOCATION":
            is_bare_name = is_person and kind == "PERSON" and field.label.trust is Trust.NAME
            balance += 2 if kind in ("EMAIL", "PHONE") else not is_bare_name
    return balance > 0


def _find_fields(text: str, matcher: ValueMatcher) -> Iterator[_Field]:
    if "</" in text:
        for match in _EXACT["tag"].finditer(text):
            label = parse_label(match[1].rpartition(":")[2])
            if label is not None:
                yield _check_value(text, Cell(match.start(2), match[2]), label, matcher, is_quoted=True)
    if "|" in text:
        for match in _EXACT["row"].finditer(text):
            label = parse_label(match[1])
            if label is not None and parse_label(match[2]) is None:
                yield _check_value(text, Cell(match.start(2), match[2]), label, matcher)
    for mark in _EXACT["mark"].finditer(text):
        at = mark.start()
        if at > 0 and text[at - 1] not in ":=!/" and text[at + 1 : at + 2] != "/":
            label, is_whole = _read_key(text, at)
            if label is not None:
                yield from _read_values(text, at + 1, label, is_whole, matcher)


def _read_key(text: str, at: int) -> tuple[Label | None, bool]:
    """Reads the key before the ":" or "=" at position `at`.

    If the whole text before the sign is no known label, its last three, two or one words are tried.

    Returns:
        The label, or None if there is none; and True if the label is all the text before the sign.
    """
    counted = text[max(0, at - MAX_LENGTH) : at].rstrip(_KEY_END)
    window = _EXACT["count"].sub("", counted)
    if not window or not (window[-1].isalpha() or window[-1] == ")"):
        return None, False
    match = _EXACT["key"].search(window.partition("(")[0].rstrip() if window[-1] == ")" else window)
    key = match[0].strip(" \t\r*_>#•-–$@") if match else ""
    label = parse_label(key)
    if label is not None or " " not in key:
        return label, len(window) == len(counted)
    words = key.split()
    tails = (parse_label(" ".join(words[-size:])) for size in (3, 2, 1) if len(words) > size)
    return next(filter(None, tails), None), False


def _read_values(text: str, start: int, label: Label, is_whole: bool, matcher: ValueMatcher) -> Iterator[_Field]:
    is_person = label.kind == "PERSON"
    is_vague = is_person and label.trust is Trust.NAME
    quoted = _EXACT["quoted"].match(text, start)
    if quoted:
        value = Cell(quoted.start(2), quoted[2])
        yield _check_value(text, value, label, matcher, is_quoted=True, is_whole=is_whole)
    elif is_person and not is_vague and text[start : start + 5].lstrip().startswith("["):
        array = _EXACT["array"].match(text, start)
        for item in _EXACT["string"].finditer(text, *array.span(1)) if array else ():
            if matcher.is_name(item[1]):
                yield _Field(Label("PERSON"), Cell(item.start(1), item[1]), True)
    elif plain := _EXACT["plain"].match(text, start):
        value = Cell(plain.start(1), plain[1])
        comma = _EXACT["last_comma"].match(text, plain.end(1)) if is_person and " " not in plain[1].strip() else None
        if comma and matcher.is_name(plain[1] + comma[0]):  # "Fifita, Tevita"
            value = Cell(plain.start(1), plain[1] + comma[0])
        if not is_person or not text.startswith(_CODE, value.start + len(value.text)):
            yield _check_value(text, value, label, matcher, is_whole=is_whole)
    elif not is_vague and (below := _EXACT["below"].match(text, start)):
        yield _check_value(text, Cell(below.start(1), below[1]), label, matcher, is_whole=is_whole)


def _check_value(
    text: str, value: Cell, label: Label, matcher: ValueMatcher, is_quoted: bool = False, is_whole: bool = True
) -> _Field:
    """Returns a field, with its value if the value looks like what the key says.

    Args:
        text: The whole text.
        value: The characters after the key.
        label: The meaning of the key.
        matcher: Tests the value.
        is_quoted: The value stands in quotation marks or in an XML element.
        is_whole: See `_Field`.
    """
    value = value.strip(" \t\r\u00a0*_", " \t\r\u00a0*_.")
    sure = label.trust is Trust.SURE
    if not value.text or not label.is_entity:
        return _Field(label, None, is_whole)
    if label.kind != "PERSON":
        return _Field(label, value if matcher.fits(label, value.text) else None, is_whole)
    if parse_label(value.text) is not None:  # "customer: Customer", a type
        return _Field(label, None, is_whole)
    end = value.start + len(value.text)
    is_pair = text.startswith(";", end) and text[end + 1 : end + 2].isalpha()  # "name=Anna;age=31"
    is_closed = is_quoted or is_pair or not _EXACT["open_end"].match(text, end)
    if is_closed and matcher.is_name(value.text, sure, any_case=is_quoted or (sure and is_whole)):
        return _Field(label, value, is_whole)
    name = "" if is_quoted else _read_name(value.text, matcher, sure)
    return _Field(label, Cell(value.start, name) if name else None, is_whole)


def _read_name(value: str, matcher: ValueMatcher, sure: bool) -> str:
    """Returns the name at the start of a longer value: "Tevita Fifita called today" -> "Tevita Fifita".

    Returns "" if the value starts with no name.

    Args:
        value: The value of a field.
        matcher: Tests the names.
        sure: The key says that the value is a name.
    """
    words = value.split(" ")[:6]
    for size in range(min(4, len(words) - 1), 1, -1):
        name = " ".join(words[:size]).rstrip(".")
        if any(word.endswith(".") and len(word) > _MAX_ABBREVIATION for word in words[: size - 1]):
            continue  # the name is at the end of a sentence: "Anna Fifita. The"
        if matcher.is_name(name, sure) and words[size][:1].islower() != words[size - 1][:1].islower():
            return name
    return ""
