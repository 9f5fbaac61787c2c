"""Files written whole or not at all, on this machine's file system."""

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from eyas.base.errors import PlaceError

TEMP_SUFFIX = ".eyas-tmp"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError of the body into a PlaceError that names `path`; for writes that are not `write_atomic`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PlaceError(
                f"no space left while writing {path}",
                "room for the file on that disk",
                "free space and run the same command again: it continues where it stopped",
            ) from error
        raise PlaceError(
            f"{path} cannot be written: {error.strerror or error}",
            "a place that this user may write to",
            "check its permissions, or pass another --out",
        ) from error


def write_atomic(path: Path, data: bytes | str | Iterable[bytes]) -> None:
    """Writes the whole file or nothing: a reader, a kill or a power cut sees the old bytes or the new ones.

    Creates missing parent directories. Raises PlaceError when the disk is full or the place cannot be written; the old
    file then still stands and no part of the new one does.
    """
    with writing(path), _written_beside(path, data) as temp:
        os.replace(temp, path)


def create_atomic(path: Path, data: bytes) -> bool:
    """`write_atomic`, but only where no file of that name is; whether it was written."""
    with writing(path), _written_beside(path, data) as temp:
        try:
            os.link(temp, path)  # unlike a rename it replaces nothing
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):  # no links here: a bucket that is mounted
                raise
            if path.exists():
                return False
            os.replace(temp, path)
    return True


@contextlib.contextmanager
def _written_beside(path: Path, data: bytes | str | Iterable[bytes]) -> Iterator[Path]:
    """A file with the data that has another name, gone when the body ends; then the directory is synced."""
    parts = (data.encode(),) if isinstance(data, str) else (data,) if isinstance(data, bytes) else data
    # A name of its own for each writer, in the same directory: os.replace is atomic only within one file system.
    temp = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TEMP_SUFFIX}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temp.open("xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        yield temp
    finally:
        temp.unlink(missing_ok=True)
    _fsync_directory(path.parent)


def write_json_atomic(path: Path, value: Any) -> None:
    """`write_atomic` of `to_json`."""
    write_atomic(path, to_json(value))


def to_json(value: Any) -> bytes:
    """Indented, keys in the order given, one newline at the end."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def sweep(directory: Path) -> None:
    """Removes what killed writes left below a directory. Call it while nobody else writes there."""
    for path in directory.rglob(f".*{TEMP_SUFFIX}"):
        path.unlink(missing_ok=True)


def _fsync_directory(directory: Path) -> None:
    # The rename is durable only once the directory is; some file systems refuse to sync one, and lose nothing else.
    fd = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)
