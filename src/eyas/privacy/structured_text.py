"""Finds personal data in tables and fields: the heading of a column, or the key of a field, says what a value is.

Fields: JSON, YAML, TOML, INI, XML, forms, key=value in a log. The key must name personal data, and the value must look
like that data. A field "name" needs another field of a person beside it, because products have names, too.

Tables: Markdown, CSV with commas, semicolons or tabs, columns separated by spaces. The cells of a row are fields, whose
keys are the headings.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from eyas.privacy.dictionary import is_known
from eyas.privacy.labeled_values import find_values_below, is_label
from eyas.privacy.labels import MAX_LENGTH, PERSONAL, THING, Label, Trust, fits, has_listed_name, is_name, parse_label
from eyas.privacy.patterns import load_patterns
from eyas.privacy.span import Span
from eyas.privacy.word_lists import load_lexicon, read_data_file

_PATTERNS = load_patterns("fields")
_CELLS = {mark: _PATTERNS[name] for mark, name in read_data_file("data/fields")["separators"].items()}
_EDGE = " \t\r\u00a0\"'`*_“”„«»"
_MAX_HEADER = 600  # characters of a line with headings
_MAX_HEADING = 80
_KEY_END = " \t\"'`*])”\\"
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


Rows = list[list[Cell]]


class _Field(NamedTuple):
    """A field whose key is a known label.

    Attributes:
        label: The meaning of the key.
        value: The value; None if it does not look like what the key says.
    """

    label: Label
    value: Cell | None


def find_structured(text: str, language: str) -> Iterator[Span]:
    """Yields the spans of personal data in tables and in fields: "name: Anna" -> span of "Anna". Takes linear time.

    Args:
        text: The text.
        language: The language of the text (ISO 639-1).
    """
    if "\n" in text:
        yield from _find_table_values(text, language)
    if ":" in text or "=" in text or "</" in text:
        yield from _select_personal(list(_find_fields(text, language)), language)
        yield from _find_user_names(text)


def _find_table_values(text: str, language: str) -> Iterator[Span]:
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
            rows, behind = _read_rows(lines, i + 1, mark, len(labels), has_blanks=", " in header.text)
            # A first column of labels: a form, which has no header. find_field_values reads those.
            num_labels = sum(parse_label(row[0].text) is not None for row in rows)
            if len(labels) > 2 or num_labels * 2 <= len(rows):
                for row in rows:
                    known = [(cell, label) for cell, label in zip(row, labels, strict=False) if label]
                    fields = [_check_value(text, *cell_and_label, language, is_quoted=True) for cell_and_label in known]
                    yield from _select_personal(fields, language, is_row=True)
                for place, heading in enumerate(headings):
                    cells = [row[place] for row in rows if len(row) > place]
                    yield from find_values_below(heading.text, cells, language)
                break


def _continues(lines: Sequence[Cell], i: int, mark: str) -> bool:
    """Returns True if line i may be the line below a header whose columns `mark` separates."""
    if mark != "  ":
        return mark in lines[i].text or "+" in lines[i].text
    following = i + 1 if i + 1 < len(lines) and _PATTERNS["rule"].match(lines[i].text) else i
    return mark in lines[following].text


def _parse_heading(cell: Cell) -> Label | None:
    heading = _PATTERNS["before_heading"].sub("", cell.text)
    return parse_label(heading.partition("(")[0].strip(_EDGE)) if len(heading) < _MAX_HEADING else None


def _split_cells(line: Cell, mark: str) -> list[Cell]:
    """Returns the cells of a line, split at the separator `mark`, without blanks, quotes and emphasis around them."""
    start, text = line
    if mark == "|":
        start, text = line.strip()
        start, text = start + text.startswith("|"), text.removeprefix("|").removesuffix("|")
    return [Cell(start + match.start(), match[0]).strip(_EDGE, _EDGE) for match in _CELLS[mark].finditer(text)]


def _read_rows(lines: list[Cell], start: int, mark: str, num_columns: int, has_blanks: bool) -> tuple[Rows, int]:
    """Reads the rows of a table below its header.

    The table ends before the next header, before a line without cells or `mark`, before prose, and at the second of two
    neighboring rows that have at least two cells more or less than the header.

    Args:
        lines: All lines of the text.
        start: Index of the line below the header.
        mark: The separator of the columns: "|", a tab, ";", "," or two spaces.
        num_columns: The number of columns in the header.
        has_blanks: The header has ", ". Otherwise a row with ", " and without quotation marks is prose.

    Returns:
        The rows, and the index of the first line after the table.
    """
    rows: Rows = []
    num_odd = 0
    for k in range(start, len(lines)):
        line = lines[k].text
        if _PATTERNS["rule"].match(line) and line.strip():
            continue
        cells = _split_cells(lines[k], mark)
        num_odd = num_odd + 1 if abs(len(cells) - num_columns) > 1 else 0
        is_header = len(cells) != num_columns and sum(_parse_heading(cell) is not None for cell in cells) > 1
        is_prose = mark == "," and not has_blanks and ", " in line and '"' not in line
        if not cells or mark not in line or num_odd > 1 or is_header or is_prose:
            return rows, k
        rows.append(cells)
    return rows, len(lines)


def _select_personal(fields: Sequence[_Field], language: str, is_row: bool = False) -> Iterator[Span]:
    """Yields the spans of the fields that describe a person: fields of a text, or the cells of a row."""
    for i, (label, value) in enumerate(fields):
        if value is None:
            continue
        is_personal = True
        if label.kind == "PERSON" and label.trust is Trust.ROLE:
            is_word = value.text.isalpha() and is_known(value.text.casefold(), language)
            is_personal = not is_word or has_listed_name(value.text)
        elif label.kind in ("LOCATION", "ADDRESS") or (label.kind == "PERSON" and label.trust is Trust.NAME):
            # A row has no more fields than those beside the name: a name of two words is enough.
            is_full_name = is_row and label.kind == "PERSON" and " " in value.text
            is_personal = _weigh_neighbors(fields, i) + is_full_name > 0
        if is_personal:
            yield Span(value.start, value.start + len(value.text), label.kind, 0.8, "builtin.field")


def _weigh_neighbors(fields: Sequence[_Field], i: int) -> int:
    """Returns a positive number if the fields beside field i describe a person more often than a thing."""
    is_person = fields[i].label.kind == "PERSON"
    balance = 0
    for field in (*fields[max(0, i - _NEIGHBORS) : i], *fields[i + 1 : i + 1 + _NEIGHBORS]):
        kind = field.label.kind
        if kind in (THING, PERSONAL):
            balance += 1 if kind == PERSONAL else -1
        elif field.value is not None and kind != "LOCATION":
            is_bare_name = is_person and kind == "PERSON" and field.label.trust is Trust.NAME
            balance += 2 if kind in ("EMAIL", "PHONE") else not is_bare_name
    return balance


def _find_fields(text: str, language: str) -> Iterator[_Field]:
    if "</" in text:
        for match in _PATTERNS["tag"].finditer(text):
            if label := parse_label(match[1].rpartition(":")[2]):
                yield _check_value(text, Cell(match.start(2), match[2]), label, language, is_quoted=True)
    if "|" in text:
        for match in _PATTERNS["row"].finditer(text):
            if (label := parse_label(match[1])) and parse_label(match[2]) is None:
                yield _check_value(text, Cell(match.start(2), match[2]), label, language)
    for mark in _PATTERNS["mark"].finditer(text):
        at = mark.start()
        is_sign = at > 0 and text[at - 1] not in ":=!/" and text[at + 1 : at + 2] != "/"
        if is_sign and (label := _read_key(text, at)):
            yield from _read_values(text, at + 1, label, language)


def _read_key(text: str, at: int) -> Label | None:
    """Returns the meaning of the key before the ":" or "=" at position `at`; None if it is no known label.

    If the whole text before the sign is no label, its last three, two or one words are tried: "info customer=Anna".
    """
    window = _PATTERNS["count"].sub("", text[max(0, at - MAX_LENGTH) : at].rstrip(_KEY_END))
    if not window or not (window[-1].isalpha() or window[-1] == ")"):
        return None
    match = _PATTERNS["key"].search(window.partition("(")[0].rstrip() if window[-1] == ")" else window)
    key = match[0].strip(" \t\r*_>#•-–$@") if match else ""
    words = key.split()
    tails = (" ".join(words[-size:]) for size in (3, 2, 1) if len(words) > size)
    return next(filter(None, map(parse_label, (key, *tails))), None)


def _read_values(text: str, start: int, label: Label, language: str) -> Iterator[_Field]:
    is_person = label.kind == "PERSON"
    is_vague = is_person and label.trust is Trust.NAME
    if quoted := _PATTERNS["quoted"].match(text, start):
        yield _check_value(text, Cell(quoted.start(2), quoted[2]), label, language, is_quoted=True)
    elif is_person and not is_vague and text[start : start + 5].lstrip().startswith("["):
        array = _PATTERNS["array"].match(text, start)
        for item in _PATTERNS["string"].finditer(text, *array.span(1)) if array else ():
            if is_name(item[1], language):
                yield _Field(Label("PERSON"), Cell(item.start(1), item[1]))
    elif plain := _PATTERNS["plain"].match(text, start):
        value = Cell(plain.start(1), plain[1])
        comma = _PATTERNS["last_comma"].match(text, plain.end(1)) if is_person and " " not in plain[1].strip() else None
        if comma and is_name(plain[1] + comma[0], language):  # "Fifita, Tevita"
            value = Cell(plain.start(1), plain[1] + comma[0])
        if not is_person or not text.startswith(_CODE, value.start + len(value.text)):
            yield _check_value(text, value, label, language)
    elif not is_vague and (below := _PATTERNS["below"].match(text, start)):
        yield _check_value(text, Cell(below.start(1), below[1]), label, language)


def _check_value(text: str, value: Cell, label: Label, language: str, is_quoted: bool = False) -> _Field:
    """Returns a field, with its value if the value looks like what the key says.

    Args:
        text: The whole text.
        value: The characters after the key.
        label: The meaning of the key.
        language: The language of the text (ISO 639-1).
        is_quoted: The value stands in quotation marks, in an XML element or in a table.
    """
    value = value.strip(" \t\r\u00a0*_", " \t\r\u00a0*_.")
    if not value.text or not label.is_entity:
        return _Field(label, None)
    if label.kind != "PERSON":
        return _Field(label, value if fits(label, value.text) else None)
    sure, end = label.trust is Trust.SURE, value.start + len(value.text)
    is_pair = text.startswith(";", end) and text[end + 1 : end + 2].isalpha()  # "name=Anna;age=31"
    is_closed = is_quoted or is_pair or not _PATTERNS["open_end"].match(text, end)
    is_type = parse_label(value.text) is not None  # "customer: Customer"
    fits_label = is_closed and not is_type and is_name(value.text, language, sure, any_case=is_quoted or sure)
    return _Field(label, value if fits_label else None)


def _find_user_names(text: str) -> Iterator[Span]:
    """Yields the spans of user names that consist of two names: "user=anna.schmidt"."""
    lexicon = load_lexicon()
    for match in _PATTERNS.find(text, "user_name"):
        first, last = match[1].casefold(), match[3].casefold()
        if first in lexicon.sure_names or (match[2] == "." and lexicon.common.isdisjoint((first, last))):
            yield Span(match.start(1), match.end(), "PERSON", 0.7, "builtin.field")
