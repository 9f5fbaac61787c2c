"""Reads prompt files: splits a file into spans, and reads the values of a span. `source.py` calls it.

To add a format, add its ending to FILE_FORMATS, its spans to `split_file` and its values to `read_values`.

    format             the file, split into spans                          one span
    lines, log         | 1000 lines | 1000 lines | 1000 lines | rest |       a range of bytes
    parquet            | row group  | row group  |                          a row group
    csv, compressed    | file                                        |      the whole file
"""

import csv
import hashlib
import io
import json
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from fsspec.compression import compr
from fsspec.utils import infer_compression

from eyas.base.environment import import_extra
from eyas.base.errors import InputError
from eyas.base.storage import StoragePath
from eyas.chat.conversation import is_unicode
from eyas.data.sources.record_formats import NO_RECORD, READ_KEYS, parse_log_line

FileFormat = Literal["lines", "log", "parquet", "csv", "compressed", "grammar"]
FILE_FORMATS: dict[str, FileFormat] = {
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".json": "lines",
    ".txt": "lines",
    ".log": "log",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".gz": "compressed",
    ".bz2": "compressed",
    ".xz": "compressed",
}
SHARD_RECORDS = 1000
SHARD_BYTES = 8 * 2**20
READ_BYTES = 2**20
BATCH_ROWS = 256  # Parquet rows in memory at a time
BOM = b"\xef\xbb\xbf"
UNREADABLE: Final = object()
"""The value of a line that is not JSON, or not UTF-8 in a .txt file."""


@dataclass(frozen=True)
class Span:
    """A part of a file that one worker reads at a time.

    Attributes:
        begin: The first byte; in a Parquet file, the first row group; for a builtin: source, the first record.
        end: The end, in the same unit; it is not part of the span.
        first_record: The index of the first record in the file.
        num_records: The number of records, blank lines included.
    """

    begin: int
    end: int
    first_record: int
    num_records: int


def is_data_file(name: str) -> bool:
    """Returns True if a file name has a known ending and does not begin with a dot."""
    return not name.startswith(".") and Path(name).suffix.lower() in FILE_FORMATS


def find_format(name: str) -> FileFormat:
    """Returns the format of a file by its name: "a.jsonl" -> "lines". Raises InputError for an unknown ending."""
    if not is_unicode(name):  # the ledger and every id would hold it
        raise InputError(f"The file name {name!r} is not valid UTF-8", "Rename the file")
    found = FILE_FORMATS.get(Path(name).suffix.lower())
    if found is None:
        problem = f"{name} has no known file ending"
        raise InputError(problem, "Convert it to JSON lines (.jsonl), Parquet, CSV or text (.txt)")
    if found == "compressed" and FILE_FORMATS.get(Path(Path(name).stem).suffix.lower()) not in ("lines", "log"):
        raise InputError(f"{name} is a compressed file of unknown kind", "Unpack it, or name it .jsonl.gz if it fits")
    return found


# --- splitting -------------------------------------------------------------------------------------------------------


def split_file(path: StoragePath, file_format: FileFormat) -> tuple[str, list[Span]]:
    """Reads a file once and returns its digest and its spans. Raises InputError for an empty or damaged file."""
    digest = hashlib.sha256()
    with path.open() as file:
        if file_format in ("lines", "log"):
            spans = _split_lines(_read_blocks(file, digest))
        else:
            size = sum(map(len, _read_blocks(file, digest)))
            spans = [] if size == 0 else _split_whole(file, path.name, file_format, size)
    if not spans:
        raise InputError(f"The prompt file {path.name} is empty", "Write it again, or leave it out of the sources")
    return f"sha256:{digest.hexdigest()}", spans


def split_range(num_records: int) -> list[Span]:
    """Returns the spans of a builtin: source with `num_records` conversations, which eyas writes itself."""
    starts = range(0, num_records, SHARD_RECORDS)
    ends = [min(start + SHARD_RECORDS, num_records) for start in starts]
    return [Span(start, end, start, end - start) for start, end in zip(starts, ends, strict=True)]


def _read_blocks(file: BinaryIO, digest: "hashlib._Hash") -> Iterator[bytes]:
    while block := file.read(READ_BYTES):
        digest.update(block)
        yield block


def _split_lines(blocks: Iterator[bytes]) -> list[Span]:
    """Returns spans of SHARD_RECORDS lines. A span with long lines ends at the first line end after SHARD_BYTES."""
    spans: list[Span] = []
    offset = begin = count = first = 0  # offset: bytes before this block
    is_open = False  # after a line that has no end yet
    for block in blocks:
        start = 0
        while (end := block.find(b"\n", start)) >= 0:
            start, count, is_open = end + 1, count + 1, False
            if count == SHARD_RECORDS or offset + start - begin >= SHARD_BYTES:
                spans.append(Span(begin, offset + start, first, count))
                begin, first, count = offset + start, first + count, 0
        is_open = is_open or start < len(block)
        offset += len(block)
    if offset > begin:
        spans.append(Span(begin, offset, first, count + is_open))
    return spans


def _split_whole(file: BinaryIO, name: str, file_format: FileFormat, size: int) -> list[Span]:
    file.seek(0)
    if file_format == "parquet":
        parquet = import_extra("pyarrow.parquet", "data")
        try:
            metadata = parquet.ParquetFile(file).metadata
        except Exception as error:  # pyarrow raises its own classes for each kind of damage
            raise InputError(f"{name} is not a valid Parquet file", "Download or write it again") from error
        counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        return [Span(group, group + 1, sum(counts[:group]), count) for group, count in enumerate(counts) if count]
    rows = _read_csv_rows(file, name) if file_format == "csv" else _read_compressed_lines(file, name)
    return [Span(0, size, 0, sum(1 for _ in rows))]


# --- reading ---------------------------------------------------------------------------------------------------------


def read_values(path: StoragePath, file_format: FileFormat, span: Span) -> Iterator[Any]:
    """Yields one value for each record of a span.

    Yields NO_RECORD for a blank line or a log line without a prompt, and UNREADABLE for a line that cannot be read.
    Raises InputError for a damaged file.
    """
    with path.open() as file:
        if file_format == "parquet":
            yield from _read_parquet_rows(file, path.name, span)
        elif file_format == "csv":
            yield from _read_csv_rows(file, path.name)
        elif file_format == "compressed":
            inner = Path(path.name).stem
            yield from (_parse_line(line, inner) for line in _read_compressed_lines(file, path.name))
        else:
            file.seek(span.begin)
            left = span.end - span.begin
            while left > 0 and (line := file.readline(left)):
                is_first = span.begin == 0 and left == span.end
                left -= len(line)
                yield _parse_line(line.removeprefix(BOM) if is_first else line, path.name)


def _parse_line(line: bytes, name: str) -> Any:
    if not line.strip():
        return NO_RECORD
    ending = Path(name).suffix.lower()
    if ending == ".log":
        return parse_log_line(line)
    try:
        return line.decode().strip() if ending == ".txt" else json.loads(line)
    except (ValueError, RecursionError):
        return UNREADABLE


def _read_parquet_rows(file: BinaryIO, name: str, span: Span) -> Iterator[dict[str, Any]]:
    """Yields the rows of a span, with only the columns that a record format reads and without empty cells.

    Other columns are not read, because they may hold values that Python cannot represent.
    """
    pyarrow = import_extra("pyarrow.parquet", "data")
    try:
        parquet = pyarrow.ParquetFile(file)
        groups = range(span.begin, span.end)
        columns = [column for column in parquet.schema_arrow.names if column in READ_KEYS]
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, row_groups=groups, columns=columns):
            for row in batch.to_pylist() if columns else [{}] * batch.num_rows:
                yield {key: value for key, value in row.items() if value is not None}
    except Exception:  # pyarrow raises its own classes for each kind of damage, and its messages quote values
        problem = f"{name} has rows that cannot be read"
        raise InputError(problem, "Write it again as Parquet with text in UTF-8") from None


def _read_csv_rows(file: BinaryIO, name: str) -> Iterator[dict[str, str]]:
    """Yields each row of a CSV or TSV file as {heading: value}. Raises InputError for a file that is not CSV."""
    csv.field_size_limit(2**31 - 1)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    # strict: otherwise a quote that is never closed takes all rows after it for one field, without an error.
    rows = csv.DictReader(text, delimiter="\t" if name.lower().endswith(".tsv") else ",", strict=True)
    try:
        yield from rows
    except UnicodeDecodeError:
        raise InputError(f"{name} is not CSV in UTF-8", "Convert it to UTF-8") from None
    except csv.Error:
        raise InputError(
            f"{name} has a misplaced quote in the row that begins at line {rows.line_num + 1}",
            'Put a field with quotes in quotes and double those inside it (""), or write the file with a CSV library',
        ) from None
    finally:
        text.detach()  # the caller closes the file


def _read_compressed_lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Yields the lines of a compressed file. Raises InputError for a damaged file."""
    decompress: Any = compr[infer_compression(name)]  # pyright: ignore[reportArgumentType]
    try:
        with decompress(file, mode="rb") as lines:
            yield from lines
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        raise InputError(f"{name} is damaged or cut off", "Download or write it again") from None
