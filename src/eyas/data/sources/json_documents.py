"""Streams the records of a JSON file that is no JSON lines: an array, an array below a key, or objects in a row.

    [{...}, {...}]                              records are the items
    {"version": 1, "data": [{...}, {...}]}      records are the items below a key of RECORD_KEYS or columns.records
    {...} {...}                                 records are the objects, indented or not
    {"prompt": {"0": "...", "1": "..."}}        records are the rows of the columns, as pandas writes them by default
    {"a": {...}, "b": {...}}                    records are the values, if they are all known and the object is not

Only one record is in memory at a time. An object of the last two forms must be smaller than MAX_RECORD_CHARS.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

from eyas.base.errors import InputError
from eyas.data.sources.record_formats import READ_KEYS, is_known_record, is_message
from eyas.data.sources.text_stream import MAX_RECORD_CHARS, READ_CHARS

RECORD_KEYS = (
    *("data", "records", "rows", "items", "examples", "samples", "instances", "entries", "results", "documents"),
    *("prompts", "questions", "queries", "conversations", "dialogues", "train", "validation", "test", "dataset"),
)
MARGIN_CHARS = 1000  # read ahead, so that a separator is in memory as a whole
_DECODER = json.JSONDecoder()
_KEY = re.compile(r'[\s,{]*"((?:[^"\\]|\\.)*+)"\s*:\s*')
# Between two records: a comma, or the end of an array and the beginning of another one.
_SEPARATOR = re.compile(rf'\s*(?:,\s*|\]\s*(?:,\s*"(?:{"|".join(RECORD_KEYS)})"\s*:\s*)?\[\s*)*')


def is_json_document(sample: str) -> bool:
    """Returns True if a file that begins with `sample` has one of the forms above, False if it has a value a line."""
    if not sample.lstrip().startswith(("[", "{")):
        return False
    lines = [line for line in sample.split("\n") if line.strip()]
    num_complete = sum(not line[end:].strip() for line in lines if (end := _decode(line, 0)[1]))
    return len(lines) == 1 or 2 * num_complete < len(lines)


def read_documents(text: TextIO, name: str, records_key: str | None = None) -> Iterator[Any]:
    """Yields the records of a file.

    Args:
        text: The file.
        name: Its name, for messages.
        records_key: The dotted key of the array of records; None: any key of RECORD_KEYS.

    Raises:
        InputError: The file is not valid JSON, ends too early, or has a record of more than MAX_RECORD_CHARS.
    """
    window, line, is_end = text.read(READ_CHARS), 1, False
    position = _find_records(window, records_key)
    closing = "]" if position else ""
    while True:
        position = _skip(window, position)
        has_margin = is_end or len(window) - position > MARGIN_CHARS
        if has_margin and window[position : position + 1] == closing:
            return
        value, end = _decode(window, position) if has_margin else (None, 0)
        if end and (end < len(window) or is_end):  # otherwise a number may go on
            yield from _to_rows(value) if isinstance(value, dict) and not closing else [value]
            position = end
            continue
        line += window.count("\n", 0, position)
        window = window[position:]
        if is_end:
            raise InputError(f"{name} is not valid JSON or is cut off, at line {line}", "Write it again")
        if len(window) > MAX_RECORD_CHARS:
            problem = f"{name} has a record of more than {MAX_RECORD_CHARS >> 20} MiB at line {line}"
            raise InputError(problem, "Name the key of its array of records: prompts.columns.records=KEY")
        block = text.read(max(READ_CHARS, len(window)))
        window, position, is_end = window + block, 0, not block


def _decode(text: str, position: int) -> tuple[Any, int]:
    """Returns the JSON value that begins at `position`, and its end; the end is 0 if there is no whole value."""
    try:
        return _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError):
        return None, 0


def _skip(text: str, position: int) -> int:
    match = _SEPARATOR.match(text, position)
    return match.end() if match else position


def _find_records(text: str, records_key: str | None) -> int:
    """Returns the position of the first item of the array of records; 0 if the records are the values of the file."""
    position = _skip(text, 0)
    if text[position : position + 1] == "[":
        return 0 if is_message(_decode(text, _skip(text, position + 1))[0]) else position + 1
    head, _, rest = (records_key or "").partition(".")
    while match := _KEY.match(text, position):
        key, position = match[1], match.end()
        char = text[position : position + 1]
        if key == head if head else key in RECORD_KEYS:
            if rest and char == "{":
                head, _, rest = rest.partition(".")
                continue
            first, end = _decode(text, _skip(text, position + 1))
            is_record = not end or isinstance(first, dict) or key not in READ_KEYS
            if char == "[" and is_record and not is_message(first):
                return position + 1
        position = _decode(text, position)[1] or len(text)
    return 0


def _to_rows(fields: dict[str, Any]) -> Iterator[Any]:
    columns, items = list(fields.values()), fields.get("data")
    is_table = columns and all(isinstance(column, dict) and column.keys() == columns[0].keys() for column in columns)
    if isinstance(fields.get("columns"), list) and isinstance(items, list):  # pandas, orient="split"
        yield from (dict(zip(fields["columns"], item, strict=False)) for item in items if isinstance(item, list))
    elif is_table and columns[0] and all(map(str.isdecimal, columns[0])):
        yield from ({key: column[index] for key, column in fields.items()} for index in columns[0])
    elif len(columns) > 1 and all(map(is_known_record, columns)) and not is_known_record(fields):
        yield from columns
    else:
        yield fields
