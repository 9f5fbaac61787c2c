"""The records of one piece of a source, one at a time, whatever kind of file they stand in."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from eyas.base.errors import InputError
from eyas.base.storage import StoragePath
from eyas.data.optional_imports import import_extra
from eyas.data.sources.record_formats import READ_KEYS
from eyas.data.sources.request_logs import NO_REQUEST, parse_log_line
from eyas.data.sources.source import Source, SourceFile, SourceShard, read_compressed_lines, read_csv_rows
from eyas.evalsets import FAMILIES, example

BOM = b"\xef\xbb\xbf"
BATCH_ROWS = 256  # of a Parquet file in memory at a time


@dataclass(frozen=True)
class Record:
    """One record that is not blank. value: a JSON value, or a line of text; None where `is_json` is false.

    id: "<source>:<index from 0>". where: "<file>:<line from 1>", for the ledger. task: as the source names it.
    """

    id: str
    location: str
    source: str
    task: str | None
    value: Any
    is_json: bool = True


def read_shard(source: Source, piece: SourceShard) -> Iterator[Record]:
    """InputError for a file that changed or is damaged."""
    file = source.files[piece.file_index]
    if file.format == "grammar":
        yield from _write_grammar_records(source, piece, file)
        return
    count = 0
    for offset, (value, is_json) in enumerate(_read_values(piece, file)):
        count = offset + 1
        if value is not NO_REQUEST:
            where = f"{file.key}:{piece.first_line + offset}"
            yield Record(
                f"{file.source_name}:{piece.first_record + offset}", where, file.source_name, None, value, is_json
            )
    if count != piece.num_records:  # the ledger would name a digest of other records
        raise InputError(
            f"{file.key} with other records than when it was opened",
            "a file that nobody writes to",
            "run the same command again when it is whole",
        )


def _read_values(piece: SourceShard, file: SourceFile) -> Iterator[tuple[Any, bool]]:
    """Value and whether it is JSON, for each record; NO_REQUEST for a blank line, or one of a log without prompt."""
    place = StoragePath(file.url)
    with place.open() as opened:
        if file.format == "parquet":
            yield from ((row, True) for row in _read_parquet_rows(opened, place.name, piece))
        elif file.format == "csv":
            yield from ((row, True) for row in read_csv_rows(opened, place.name))
        elif file.format == "compressed":
            inner = Path(place.name).stem
            for line in read_compressed_lines(opened, place.name):
                yield _parse_line(line, inner, first=False)
        else:
            opened.seek(piece.begin)
            left = piece.end - piece.begin
            while left > 0 and (line := opened.readline(left)):
                left -= len(line)
                yield _parse_line(line, place.name, first=piece.begin == 0 and left + len(line) == piece.end)


def _read_parquet_rows(opened: BinaryIO, name: str, piece: SourceShard) -> Iterator[dict[str, Any]]:
    """Rows of Parquet, of the columns that a shape has a use for: others may hold what Python cannot.

    A cell without a value is no key: in Parquet each row has each column.
    """
    pyarrow = import_extra("pyarrow.parquet")
    try:
        parquet = pyarrow.ParquetFile(opened)
        groups = range(piece.begin, piece.end)
        columns = [column for column in parquet.schema_arrow.names if column in READ_KEYS]
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, row_groups=groups, columns=columns):
            for row in batch.to_pylist() if columns else [{}] * batch.num_rows:
                yield {key: value for key, value in row.items() if value is not None}
    except Exception:  # pyarrow raises classes of its own for each way to be damaged, and its messages quote values
        raise InputError(
            f"{name} with rows that cannot be read", "whole Parquet, text in UTF-8", "fetch or write it again"
        ) from None


def _parse_line(line: bytes, name: str, first: bool) -> tuple[Any, bool]:
    text = line.removeprefix(BOM) if first else line
    if not text.strip():
        return NO_REQUEST, True
    ending = Path(name).suffix.lower()
    if ending == ".log":
        return parse_log_line(text), True
    if ending == ".txt":
        try:
            return text.decode().strip(), True
        except UnicodeDecodeError:
            return None, False
    try:
        return json.loads(text), True
    except (ValueError, RecursionError):
        return None, False


def _write_grammar_records(source: Source, piece: SourceShard, file: SourceFile) -> Iterator[Record]:
    """Conversations of the grammar, family by family in turn."""
    families = list(FAMILIES)
    for count in range(piece.begin, piece.end):
        index, place = divmod(count, len(families))
        written = example(families[place], source.config.path.partition(":")[2], index)
        yield Record(written.id, written.id, file.source_name, written.family, {"messages": written.messages})
