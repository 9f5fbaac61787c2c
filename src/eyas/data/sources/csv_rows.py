"""Reads the rows of a CSV file. It finds the delimiter and the quotes from the first lines.

    sep=;                   Excel's first line names the delimiter
    question;answer         otherwise it is the delimiter with which most rows have as many cells as the header
    "a ""b"" c";1,5         quotes are doubled, or have a backslash before them, or are '...'; a cell may hold line ends
    "a" b<TAB>3             cells between tabs may hold bare quotes

If no delimiter stands in the header, the file has one column, and a delimiter in a row belongs to its text.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TextIO

from eyas.base.errors import InputError
from eyas.data.sources.columns import ColumnsConfig
from eyas.data.sources.record_formats import WRONG_COLUMNS, RejectedRecord
from eyas.data.sources.text_stream import MAX_RECORD_CHARS, READ_CHARS, read_lines

DELIMITERS = (",", ";", "\t", "|", "\x01", "\x1f", "^", "~", ":")
USUAL_DELIMITERS = DELIMITERS[:4]
NO_DELIMITER = "\x1e"  # stands in no text
SAMPLE_LINES = 200
MIN_SHARE = 0.5
"""Share of the rows of the sample that must have as many cells as the header."""
# A cell in quotes with a quote inside it that has a backslash before it.
_ESCAPED = re.compile(
    r"""(?:^|[,;\t|])"(?:[^"\\]|\\[^"])*+\\"(?:[^"\\]|\\.)*+"(?=[,;\t|\r\n]|\Z)""", re.MULTILINE | re.DOTALL
)
_SEP = re.compile(r'"?sep=([^"\r\n])"?\s*', re.IGNORECASE)


def read_csv_rows(text: TextIO, name: str, columns: ColumnsConfig) -> Iterator[Any]:
    """Yields each row as {heading: cell} without empty cells; a RejectedRecord for a row with more cells than headings.

    Args:
        text: The file.
        name: Its name without the ending of a compression, for messages and for the ending .tsv.
        columns: The columns that the recipe names.

    Raises:
        InputError: A quote is misplaced, a line is too long, or a column is missing.
    """
    csv.field_size_limit(MAX_RECORD_CHARS // 4)  # the module takes four bytes for a character
    lines = _read_lines(text, name)
    sample: list[str] = []
    while len(sample) < SAMPLE_LINES and sum(map(len, sample)) < READ_CHARS and (line := next(lines, "")):
        sample.append(line)
    separator = _SEP.fullmatch(sample[0]) if sample else None
    delimiters = ("\t", *DELIMITERS) if name.lower().endswith(".tsv") else DELIMITERS
    skipped = 1 if separator else 0
    style = _find_style(sample[skipped:], (separator[1],) if separator else delimiters)
    # strict: otherwise a quote that is never closed takes all rows after it for one cell, without an error.
    rows = csv.reader(chain(sample[skipped:], lines), strict=True, **style)
    end = 0  # the last line of the row before
    try:
        header = [heading.strip() for heading in next(filter(None, rows), ())]
        columns.choose(name, header)
        end = rows.line_num
        for row in rows:
            if any(row[len(header) :]):
                yield RejectedRecord(WRONG_COLUMNS, None)
            elif row:
                yield {heading: cell for heading, cell in zip(header, row, strict=False) if cell}
            end = rows.line_num
    except csv.Error:
        problem = f"{name} has a misplaced quote in the row that begins at line {skipped + end + 1}"
        fix = 'Put a field with quotes in quotes and double those inside it (""), or write the file with a CSV library'
        raise InputError(problem, fix) from None


def _read_lines(text: TextIO, name: str) -> Iterator[str]:
    for number, line in enumerate(read_lines(text), 1):
        if line is None:
            raise InputError(f"Line {number} of {name} has more than {MAX_RECORD_CHARS >> 20} MiB", "Split it")
        yield line


def _find_style(sample: Sequence[str], delimiters: Sequence[str]) -> dict[str, Any]:
    """Returns the arguments of csv.reader with which the most rows of the sample are as long as its header."""
    bases: list[dict[str, Any]] = [{"quotechar": "'" if sample and sample[0].startswith("'") else '"'}]
    if _ESCAPED.search("".join(sample)):
        bases.append({"escapechar": "\\", "doublequote": False})
    styles: list[dict[str, Any]] = [base | {"delimiter": delimiter} for base in bases for delimiter in delimiters]
    if "\t" in delimiters:
        styles.append({"delimiter": "\t", "quoting": csv.QUOTE_NONE})
    best = max(styles, key=lambda style: _measure_fit(sample, style, 2))
    if _measure_fit(sample, best, 2) >= MIN_SHARE:
        return best
    for style in styles:  # the file is damaged, which the reader will notice
        if style["delimiter"] in USUAL_DELIMITERS and len(next(csv.reader(sample, **style), [])) > 1:
            return style
    single = ({**base, "delimiter": NO_DELIMITER} for base in bases)
    return max(single, key=lambda style: _measure_fit(sample, style, 1))


def _measure_fit(sample: Sequence[str], style: dict[str, Any], min_headings: int) -> float:
    """Returns the share of the rows that are as long as the header; 0 for a misplaced quote or too few headings."""
    rows: list[list[str]] = []
    try:
        rows.extend(filter(None, csv.reader(sample, strict=True, **style)))
    except csv.Error as error:
        if "end of data" not in str(error):  # the sample may end inside a cell
            return 0
    if not rows or len(rows[0]) < min_headings:
        return 0
    width = len(rows[0])
    return sum(len(row) >= width and not any(row[width:]) for row in rows) / len(rows)
