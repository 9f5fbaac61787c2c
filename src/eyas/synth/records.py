"""The records of one piece of a source, one at a time, whatever kind of file they stand in."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.base.storage import Place
from eyas.evalsets import FAMILIES, example
from eyas.synth.extra import need
from eyas.synth.logs import NO_REQUEST, read_log_line
from eyas.synth.sources import File, Piece, Source, csv_rows, decompressed

BOM = b"\xef\xbb\xbf"
BATCH_ROWS = 256  # of a Parquet file in memory at a time


@dataclass(frozen=True)
class Record:
    """One record that is not blank. value: a JSON value, or a line of text; None where `is_json` is false.

    id: "<source>:<index from 0>". where: "<file>:<line from 1>", for the ledger. task: as the source names it.
    """

    id: str
    where: str
    source: str
    task: str | None
    value: Any
    is_json: bool = True


def read_piece(source: Source, piece: Piece) -> Iterator[Record]:
    """InputError for a file that changed or is damaged."""
    file = source.files[piece.file]
    if file.format == "grammar":
        yield from _written(source, piece, file)
        return
    for offset, (value, is_json) in enumerate(_values(piece, file)):
        if value is not None or not is_json:
            where = f"{file.key}:{piece.line + offset}"
            yield Record(f"{file.source}:{piece.first + offset}", where, file.source, None, value, is_json)


def _values(piece: Piece, file: File) -> Iterator[tuple[Any, bool]]:
    """Value and whether it is JSON, for each record; (None, True) for a blank line, or one of a log without prompt."""
    place = Place(file.place)
    with place.open() as opened:
        if file.format == "parquet":
            parquet = need("pyarrow.parquet").ParquetFile(opened)
            for batch in parquet.iter_batches(batch_size=BATCH_ROWS, row_groups=range(piece.begin, piece.end)):
                yield from ((row, True) for row in batch.to_pylist())
        elif file.format == "csv":
            yield from ((row, True) for row in csv_rows(opened, place.name))
        elif file.format == "compressed":
            inner = Path(place.name).stem
            for line in decompressed(opened, place.name):
                yield _line(line, inner, first=False)
        else:
            opened.seek(piece.begin)
            left = piece.end - piece.begin
            while left > 0 and (line := opened.readline(left)):
                left -= len(line)
                yield _line(line, place.name, first=piece.begin == 0 and left + len(line) == piece.end)


def _line(line: bytes, name: str, first: bool) -> tuple[Any, bool]:
    text = line.removeprefix(BOM) if first else line
    if not text.strip():
        return None, True
    ending = Path(name).suffix.lower()
    if ending == ".log":
        value = read_log_line(text)
        return (None, True) if value is NO_REQUEST else (value, True)
    if ending == ".txt":
        try:
            return text.decode().strip(), True
        except UnicodeDecodeError:
            return None, False
    try:
        return json.loads(text), True
    except (ValueError, RecursionError):
        return None, False


def _written(source: Source, piece: Piece, file: File) -> Iterator[Record]:
    """Conversations of the grammar, family by family in turn."""
    families = list(FAMILIES)
    for count in range(piece.begin, piece.end):
        index, place = divmod(count, len(families))
        written = example(families[place], source.config.path.partition(":")[2], index)
        yield Record(written.id, written.id, file.source, written.family, {"messages": written.messages})
