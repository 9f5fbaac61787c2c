"""Opens a prompt file as text: decompresses it, decodes it, and limits the length of its lines.

    file -> decompress (.gz .bz2 .xz .zst) -> decode (by byte-order mark, or prompts.encoding, or UTF-8) -> text

fsspec and pyarrow decompress. All steps stream: at most one line of MAX_RECORD_CHARS is in memory.
"""

import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import PurePath
from typing import Any, BinaryIO, TextIO

from fsspec.compression import compr

from eyas.base.environment import import_extra
from eyas.base.errors import InputError, UsageError
from eyas.base.storage import StoragePath

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
UTF8 = "utf-8-sig"  # UTF-8, with or without a byte-order mark
READ_CHARS = 2**20
MAX_RECORD_CHARS = 64 * 2**20
"""The limit of one line or record, decompressed. Without it a line of 10 GB, or a small archive, fills the memory."""
# UTF-32 comes first, because its byte-order mark begins with that of UTF-16.
_MARKED = {"utf-8": UTF8, "utf-32-le": "utf-32", "utf-32-be": "utf-32", "utf-16-le": "utf-16", "utf-16-be": "utf-16"}


@lru_cache
def strip_compression(name: str) -> str:
    """Returns the file name without the ending of a compression: "a.jsonl.gz" -> "a.jsonl"."""
    path = PurePath(name)
    return path.stem if path.suffix.lower() in COMPRESSIONS else name


def detect_encoding(path: StoragePath, configured: str | None) -> str:
    """Returns the encoding that the byte-order mark of a file names; without a mark, `configured` or UTF-8."""
    with _open_bytes(path, UTF8) as stream:
        head = stream.read(4)
    found = (name for codec, name in _MARKED.items() if head.startswith("\ufeff".encode(codec)))
    return next(found, configured or UTF8)


@contextmanager
def open_text(path: StoragePath, encoding: str, errors: str = "strict", offset: int = 0) -> Iterator[TextIO]:
    """Opens a file as text. Raises InputError in the `with` body if the file is damaged or has another encoding.

    Args:
        path: The file.
        encoding: The encoding.
        errors: The error handler of the decoder, as for `open`.
        offset: The first byte to read. Requirement: 0 for a compressed file.
    """
    with _open_bytes(path, encoding) as stream:
        if offset:
            stream.seek(offset)
        try:
            text = io.TextIOWrapper(stream, encoding, errors, newline="\n")
        except LookupError:
            problem = f"The encoding {encoding} is unknown"
            raise UsageError(problem, "Set prompts.encoding to latin-1 or cp1252") from None
        yield text


def read_lines(text: TextIO) -> Iterator[str | None]:
    """Yields each line with its line end; None for a line of MAX_RECORD_CHARS or more, which it skips."""
    while line := text.readline(MAX_RECORD_CHARS):
        is_long = len(line) == MAX_RECORD_CHARS
        yield None if is_long else line
        while is_long and line and not line.endswith("\n"):
            line = text.readline(READ_CHARS)


@contextmanager
def _open_bytes(path: StoragePath, encoding: str) -> Iterator[BinaryIO]:
    kind: Any = COMPRESSIONS.get(PurePath(path.name).suffix.lower())
    try:
        with path.open() as file:
            if kind == "zstd":  # pyarrow has the codec; Python has it from 3.14 on
                unpacked = import_extra("pyarrow", "data").input_stream(file, compression=kind)
                yield io.BufferedReader(unpacked, READ_CHARS)
            else:
                decompress: Any = compr[kind]
                yield decompress(file, mode="rb") if kind else file
    except UnicodeError:
        fix = "Set prompts.encoding to its encoding, for example latin-1 or cp1252"
        raise InputError(f"{path.name} is not valid {encoding.removesuffix('-sig').upper()}", fix) from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        raise InputError(f"{path.name} is damaged or cut off", "Download or write it again") from None
