"""Reads the rows of Parquet and Arrow files, which pyarrow decodes.

Only the columns that eyas reads are decoded, because others may hold values that Python cannot represent. A cell
without a value is left out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from eyas.base.environment import import_extra
from eyas.base.errors import InputError
from eyas.data.sources.columns import ColumnsConfig
from eyas.data.sources.record_formats import READ_KEYS

BATCH_ROWS = 256  # Parquet rows in memory at a time
_ARROW_FILE = b"ARROW1"  # an IPC file (Feather) begins with it; an IPC stream, as `datasets` saves it, does not


def count_group_rows(file: BinaryIO, name: str) -> list[int]:
    """Returns the number of rows of each row group of a Parquet file. Raises InputError if the file is damaged."""
    with _convert_arrow_errors(f"{name} is not a valid Parquet file"):
        metadata = import_extra("pyarrow.parquet", "data").ParquetFile(file).metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def read_parquet_rows(file: BinaryIO, name: str, group: int, columns: ColumnsConfig) -> Iterator[dict[str, Any]]:
    """Yields the rows of one row group. Raises InputError if the file is damaged or lacks a column of the recipe."""
    with _convert_arrow_errors(f"{name} has rows that cannot be read"):
        parquet = import_extra("pyarrow.parquet", "data").ParquetFile(file)
        names = _choose_columns(name, parquet.schema_arrow.names, columns)
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, row_groups=[group], columns=names):
            yield from _to_rows(batch)


def read_arrow_rows(file: BinaryIO, name: str, columns: ColumnsConfig) -> Iterator[dict[str, Any]]:
    """Yields the rows of an Arrow file. Raises InputError like `read_parquet_rows`."""
    with _convert_arrow_errors(f"{name} is not a valid Arrow file, or has rows that cannot be read"):
        is_file = file.read(len(_ARROW_FILE)) == _ARROW_FILE
        file.seek(0)
        ipc = import_extra("pyarrow", "data").ipc
        reader = ipc.open_file(file) if is_file else ipc.open_stream(file)
        names = _choose_columns(name, reader.schema.names, columns)
        for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
            yield from _to_rows(batch.select(names))


def _choose_columns(name: str, present: list[str], columns: ColumnsConfig) -> list[str]:
    chosen = columns.choose(name, present)
    return [column for column in present if column in chosen or column.strip().lower() in READ_KEYS]


def _to_rows(batch: Any) -> Iterator[dict[str, Any]]:
    for row in batch.to_pylist() if batch.num_columns else [{}] * batch.num_rows:
        yield {key: value for key, value in row.items() if value is not None}


@contextmanager
def _convert_arrow_errors(problem: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception:  # pyarrow raises its own classes for each kind of damage, and its messages quote values
        raise InputError(problem, "Write it again with text in UTF-8") from None
