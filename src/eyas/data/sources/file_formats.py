"""Reads prompt files: splits a file into spans, and reads the values of a span. `source.py` calls it.

    format            what a record is                            segments
    lines, log        a line: JSON, or text in a .txt file        the file
    json              an item of an array, or one of the objects  the file
    csv, arrow        a row                                       the file
    parquet           a row                                       the row groups
    text              the file                                    the file

A span is a range of records of one segment. To add a format, add its ending to FILE_FORMATS and its values to
`_read_segment`. A worker reads the spans of a segment in their order, so the segment is opened once and read once.
Plain lines are faster: their spans are ranges of bytes, which a worker reads without the lines before them.
"""

import hashlib
import io
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import PurePath
from typing import Any, BinaryIO, Literal

from eyas.base.errors import InputError
from eyas.base.storage import StoragePath
from eyas.chat.conversation import is_unicode
from eyas.data.sources import text_stream
from eyas.data.sources.columns import ColumnsConfig
from eyas.data.sources.csv_rows import read_csv_rows
from eyas.data.sources.json_documents import is_json_document, read_documents
from eyas.data.sources.record_formats import NOT_JSON, TOO_LARGE, RejectedRecord
from eyas.data.sources.request_logs import NO_RECORD, parse_log_line
from eyas.data.sources.table_rows import count_group_rows, read_arrow_rows, read_parquet_rows

FileFormat = Literal["lines", "log", "json", "csv", "parquet", "arrow", "text", "grammar"]
FILE_FORMATS: dict[str, FileFormat] = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json", ".txt"), "lines"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".arrow", ".feather"), "arrow"),
    ".parquet": "parquet",
    ".log": "log",
}
"""The formats by ending. The beginning of a JSON file shows if it has one value a line: "lines" or "json"."""
TABLES = ("parquet", "arrow")
NOT_PROMPTS = ("dataset_info.json", "dataset_dict.json", "state.json")  # beside the data that `datasets` saves
SHARD_RECORDS = 1000
SHARD_BYTES = 8 * 2**20
SAMPLED_BYTES = 64 * 2**20
"""A sample reads only random lines of a larger file."""


@dataclass(frozen=True)
class DataFile:
    """A file, and how to read it.

    Attributes:
        path: The path or URL.
        format: The format.
        encoding: The encoding of its text, by its byte-order mark or by the recipe.
        columns: The columns that the recipe names.
    """

    path: StoragePath
    format: FileFormat
    encoding: str
    columns: ColumnsConfig

    @property
    def name(self) -> str:
        """The name without the ending of a compression."""
        return text_stream.strip_compression(self.path.name)

    @property
    def has_byte_spans(self) -> bool:
        """True if spans are ranges of bytes, False if they are ranges of records."""
        return self.format in ("lines", "log") and self.encoding == text_stream.UTF8 and self.name == self.path.name


@dataclass(frozen=True)
class Span:
    """A part of a file that one worker reads at a time.

    Attributes:
        begin: The first byte, or the first record of the segment.
        end: The end, in the same unit; it is not part of the span.
        first_record: The index of the first record in the file.
        num_records: The number of records, blank lines included.
        segment: The index of the segment in the file.
    """

    begin: int
    end: int
    first_record: int
    num_records: int
    segment: int = 0


def is_data_file(name: str) -> bool:
    """Returns True if a file name has a known ending and does not begin with a dot."""
    return not name.startswith(".") and name not in NOT_PROMPTS and _find_ending(name) in FILE_FORMATS


@lru_cache
def _find_ending(name: str) -> str:
    """Returns the ending of a file name without that of a compression: "a.JSONL.gz" -> ".jsonl"."""
    return PurePath(text_stream.strip_compression(name)).suffix.lower()


def inspect_file(path: StoragePath, encoding: str | None, columns: ColumnsConfig, is_text_whole: bool) -> DataFile:
    """Finds the format and the encoding of a file by its name and its beginning.

    Args:
        path: The file.
        encoding: The encoding of a file without a byte-order mark; None: UTF-8.
        columns: The columns that the recipe names.
        is_text_whole: A .txt file is one prompt. Otherwise each line is one.

    Raises:
        InputError: The ending is unknown, or the file cannot be read.
    """
    name, ending = path.name, _find_ending(path.name)
    if not is_unicode(name):  # the ledger and every id would hold it
        raise InputError(f"The file name {name!r} is not valid UTF-8", "Rename the file")
    file_format = FILE_FORMATS.get(ending)
    if text_stream.strip_compression(name) != name and file_format in (None, *TABLES):
        raise InputError(f"{name} is a compressed file of unknown kind", "Unpack it, or name it .jsonl.gz if it fits")
    if file_format is None:
        kind = "is a spreadsheet" if ending in (".xlsx", ".xls", ".ods") else "has no known file ending"
        fix = "Save it as CSV UTF-8 (.csv), or convert it to JSON lines (.jsonl), Parquet or text (.txt)"
        raise InputError(f"{name} {kind}", fix)
    found = text_stream.UTF8 if file_format in TABLES else text_stream.detect_encoding(path, encoding)
    if ending == ".txt" and is_text_whole:
        file_format = "text"
    elif ending in (".json", ".jsonl", ".ndjson"):
        with text_stream.open_text(path, found, "replace") as text:
            file_format = "json" if is_json_document(text.read(text_stream.READ_CHARS)) else "lines"
    return DataFile(path, file_format, found, columns)


# --- splitting -------------------------------------------------------------------------------------------------------


def split_file(file: DataFile) -> tuple[str, list[Span]]:
    """Reads a file and returns its digest and its spans. Raises InputError for an empty or damaged file."""
    digest = hashlib.sha256()
    with file.path.open() as raw, io.BufferedReader(raw, text_stream.READ_CHARS) as blocks:  # pyright: ignore[reportArgumentType]
        spans = _split_lines(blocks, digest) if file.has_byte_spans else []
        while block := blocks.read(text_stream.READ_CHARS):
            digest.update(block)
        is_empty = not blocks.tell() and file.format != "text"
        if file.format == "parquet" and not is_empty:
            spans = _split_groups(blocks, file)
    if not spans and not is_empty:
        spans = _split_values(_read_segment(file, 0))
    if not spans:
        problem = f"The prompt file {file.path.name} {'is empty' if is_empty else 'has no record'}"
        raise InputError(problem, "Write it again, or leave it out of the sources")
    return f"sha256:{digest.hexdigest()}", spans


SplitFile = Callable[[DataFile], tuple[str, list[Span]]]
"""The type of `split_file`: returns the digest and the spans of a file."""


def split_sample(file: DataFile, count: int, seed: int) -> tuple[str, list[Span]]:
    """Returns spans like `split_file`, from which random records can be drawn without reading a large file.

    The spans of a large file with one record a line are random lines, and its digest is empty. Of a Parquet file only
    the metadata is read.

    Args:
        file: The file.
        count: The number of lines of a large file.
        seed: The seed of the draw.
    """
    size = file.path.size() or 0
    if file.format != "parquet" and not (file.has_byte_spans and size > SAMPLED_BYTES):
        return split_file(file)
    with file.path.open() as raw:
        if file.format == "parquet":
            return "", _split_groups(raw, file)
        lines: dict[int, int] = {}
        for offset in random.Random(seed).sample(range(size), count):
            raw.seek(offset)
            rest = raw.readline(SHARD_BYTES)
            begin = offset + len(rest) if offset + len(rest) < size else raw.seek(0)
            line = raw.readline(SHARD_BYTES)
            if rest.endswith(b"\n") and line.strip():
                lines[begin] = begin + len(line)
    return "", [Span(begin, end, 0, 1) for begin, end in sorted(lines.items())]


def _split_groups(raw: Any, file: DataFile) -> list[Span]:
    """Returns the spans of the row groups of a Parquet file."""
    counts = count_group_rows(raw, file.name)
    return [each for group, rows in enumerate(counts) for each in split_range(rows, sum(counts[:group]), group)]


def split_range(num_records: int, first_record: int = 0, segment: int = 0) -> list[Span]:
    """Returns the spans of a segment with `num_records` records, of which the first is `first_record` of the file."""
    starts = range(0, num_records, SHARD_RECORDS)
    sizes = [min(SHARD_RECORDS, num_records - start) for start in starts]
    return [Span(start, start + n, first_record + start, n, segment) for start, n in zip(starts, sizes, strict=True)]


def _split_lines(file: BinaryIO, digest: "hashlib._Hash") -> list[Span]:
    """Returns spans of SHARD_RECORDS lines. A span with long lines ends at the first line end after SHARD_BYTES."""
    spans: list[Span] = []
    offset = begin = count = first = 0
    is_open = False  # within a line of more than READ_CHARS
    while line := file.readline(text_stream.READ_CHARS):
        digest.update(line)
        offset += len(line)
        count += not is_open
        is_open = not line.endswith(b"\n")
        if not is_open and (count == SHARD_RECORDS or offset - begin >= SHARD_BYTES):
            spans.append(Span(begin, offset, first, count))
            begin, first, count = offset, first + count, 0
    return [*spans, Span(begin, offset, first, count)] if offset > begin else spans


def _split_values(values: Iterable[Any]) -> list[Span]:
    """Returns spans of SHARD_RECORDS values. A span with long values ends when it has SHARD_BYTES characters."""
    ends, size = [0], 0
    number = 0
    for number, value in enumerate(values, 1):
        size += len(str(value))
        if number - ends[-1] == SHARD_RECORDS or size >= SHARD_BYTES:
            ends.append(number)
            size = 0
    ends += [number] if number > ends[-1] else []
    return [Span(begin, end, begin, end - begin) for begin, end in pairwise(ends)]


# --- reading ---------------------------------------------------------------------------------------------------------


def read_values(file: DataFile, digest: str, span: Span) -> Iterator[Any]:
    """Yields one value for each record of a span.

    Yields NO_RECORD for a blank line or a log line without a prompt, and a RejectedRecord for a record that cannot be
    read.

    Args:
        file: The file.
        digest: Its digest.
        span: A span of it.

    Raises:
        InputError: The file is damaged.
    """
    if file.has_byte_spans:
        with text_stream.open_text(file.path, text_stream.UTF8, "surrogateescape", span.begin) as text:
            yield from (_parse_line(line, file) for line in islice(text_stream.read_lines(text), span.num_records))
        return
    found: list[Any] = []
    for _ in range(2):
        for number, value in _open_segment(file, digest, span.segment):
            if number >= span.begin and number - span.begin == len(found):
                found.append(value)
            if number + 1 >= span.end:
                break
        if found:
            break
        _open_segment.cache_clear()  # a later span was read before, so begin again
    yield from found


@lru_cache(maxsize=1)
def _open_segment(file: DataFile, digest: str, segment: int) -> Iterator[tuple[int, Any]]:
    """Opens a segment and returns its numbered values.

    It stays open until another one is opened, because the next span begins where this one ends. `digest` is a key of
    the cache: a file that was written anew is opened again.
    """
    return enumerate(_read_segment(file, segment))


def _read_segment(file: DataFile, segment: int) -> Iterator[Any]:
    """Yields the values of all records of a segment."""
    if file.format in TABLES:
        with file.path.open() as raw:
            if file.format == "arrow":
                yield from read_arrow_rows(raw, file.name, file.columns)
            else:
                yield from read_parquet_rows(raw, file.name, segment, file.columns)
        return
    errors = "strict" if file.format in ("csv", "json") else "surrogateescape"
    with text_stream.open_text(file.path, file.encoding, errors) as text:
        if file.format == "csv":
            yield from read_csv_rows(text, file.name, file.columns)
        elif file.format == "json":
            yield from read_documents(text, file.name, file.columns.records)
        elif file.format == "text":
            whole = text.read(text_stream.MAX_RECORD_CHARS)
            yield _parse_line(None if len(whole) == text_stream.MAX_RECORD_CHARS else whole, file)
        else:
            yield from (_parse_line(line, file) for line in text_stream.read_lines(text))


def _parse_line(line: str | None, file: DataFile) -> Any:
    if line is None:
        return RejectedRecord(TOO_LARGE, None)
    if not line.strip():
        return NO_RECORD
    if file.format == "log":
        return parse_log_line(line)
    try:
        line.encode()  # fails for bytes that the decoder could not read
        return line.strip() if _find_ending(file.name) == ".txt" else json.loads(line)
    except (ValueError, RecursionError):
        return RejectedRecord(NOT_JSON, None)
