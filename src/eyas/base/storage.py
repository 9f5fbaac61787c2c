"""A place for files behind any fsspec URL: a local path, memory://, gs://, s3://.

What a store must do for eyas, and does (GCS, S3, a file system, memory): an object appears whole or not at all, is read
back as it was written, and can be written on the condition that there is none yet (`create_if_absent`).
"""

import contextlib
import errno
import json
import os
import posixpath
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Union, cast

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from eyas.base.errors import EyasError, InputError, StorageError, UsageError

TEMP_SUFFIX = ".eyas-tmp"


@contextlib.contextmanager
def convert_write_errors(path: Path) -> Iterator[None]:
    """Turns an OSError of the body into a StorageError that names `path`; for writes that are not `write_atomic`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                f"no space left while writing {path}",
                "room for the file on that disk",
                "free space and run the same command again: it continues where it stopped",
            ) from error
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}",
            "a place that this user may write to",
            "check its permissions, or pass another --out",
        ) from error


def write_atomic(path: Path, data: bytes | str | Iterable[bytes]) -> None:
    """Writes the whole file or nothing: a reader, a kill or a power cut sees the old bytes or the new ones.

    Creates missing parents. Raises StorageError when the disk is full or the place cannot be written; the old
    file then still stands and no part of the new one does.
    """
    with convert_write_errors(path), _temp_file(path, data) as temp:
        os.replace(temp, path)


def create_atomic(path: Path, data: bytes) -> bool:
    """`write_atomic`, but only where no file of that name is; whether it was written."""
    with convert_write_errors(path), _temp_file(path, data) as temp:
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
def _temp_file(path: Path, data: bytes | str | Iterable[bytes]) -> Iterator[Path]:
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


def remove_temp_files(directory: Path) -> None:
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


GLOB_PATTERN = re.compile(r"[*?\[]")
# Which extra of eyas brings the package behind a protocol (pyproject.toml).
EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}
# Listings are not kept (others write, too), and what GCS stores is compared with what was sent: gcsfs does neither by
# itself.
FILESYSTEM_OPTIONS: dict[str, dict[str, Any]] = {
    "gs": {"use_listings_cache": False, "consistency": "md5"},
    "s3": {"use_listings_cache": False},
}
READ_ATTEMPTS = (
    3  # at a read that comes back short; what a store refuses for the moment, its package asks for again itself
)


@dataclass(frozen=True)
class StoragePath:
    """A file or directory, named by a URL or a local path. Making one touches nothing."""

    url: str

    @staticmethod
    def of(where: Union["StoragePath", Path, str]) -> "StoragePath":
        """The place itself, or that of a path or URL."""
        return where if isinstance(where, StoragePath) else StoragePath(str(where))

    def __str__(self) -> str:
        return self.url

    def join(self, *names: str) -> "StoragePath":
        """The place below this one: `Place("gs://b/run").join("head", "config.json")`."""
        if "://" not in self.url:
            return StoragePath(str(Path(self.url, *names)))
        return StoragePath(
            "/".join([self.url.rstrip("/"), *names]) if not self.url.endswith("://") else self.url + "/".join(names)
        )

    @property
    def is_local(self) -> bool:
        """Whether the place is on this machine's file system, so that `path` may be used."""
        return isinstance(self._filesystem[0], LocalFileSystem)

    @property
    def path(self) -> Path:
        """The local path; only where `is_local`."""
        assert self.is_local, f"{self.url} is not on this machine"
        return Path(self._filesystem[1])

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self._filesystem[1].rstrip("/"))

    # --- looking -----------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether a file or directory is there. An object store has no empty directories."""
        fs, path = self._filesystem
        with self._convert_read_errors():
            return fs.exists(path)

    def size(self) -> int | None:
        """Bytes of the file; None where there is none."""
        fs, path = self._filesystem
        try:
            with self._convert_read_errors():
                return int(fs.info(path)["size"])
        except FileNotFoundError:
            return None

    def list_files(self) -> list[str]:
        """Relative names of every file below, sorted; empty where nothing is. Leftovers of killed writes are not."""
        fs, path = self._filesystem
        with self._convert_read_errors():
            names = (posixpath.relpath(name, path) for name in fs.find(path))
        return sorted(name for name in names if not name.endswith(TEMP_SUFFIX))

    def list_details(self) -> dict[str, dict[str, Any]]:
        """What the store says of each file below, by relative name: `size` and, where it keeps them, checksums."""
        fs, path = self._filesystem
        with self._convert_read_errors("listed"):
            found = cast("dict[str, dict[str, Any]]", fs.find(path, detail=True))
        named = {posixpath.relpath(name, path): detail for name, detail in found.items()}
        return {name: named[name] for name in sorted(named) if not name.endswith(TEMP_SUFFIX)}

    def match_files(self) -> list["StoragePath"]:
        """The files that a pattern matches or that lie in a directory, sorted; the place itself where it is a file."""
        fs, path = self._filesystem
        with self._convert_read_errors("listed"):
            if fs.isfile(path):  # first of all: a file's own name may hold what makes a pattern
                found = [path]
            elif GLOB_PATTERN.search(path):
                found = [name for name in fs.glob(path) if fs.isfile(name)]
            elif fs.isdir(path):
                found = [entry["name"] for entry in fs.ls(path, detail=True) if entry["type"] == "file"]
            else:
                found = []
        names = sorted(name for name in map(str, found) if not name.endswith(TEMP_SUFFIX))
        return [StoragePath(name if self.is_local else fs.unstrip_protocol(name)) for name in names]

    # --- reading -----------------------------------------------------------------------------------------------------

    def read_bytes(self) -> bytes:
        """The whole file. Raises InputError when it is not there or cannot be read."""
        fs, path = self._filesystem
        try:
            with self._convert_read_errors():
                data = fs.cat_file(path)
        except FileNotFoundError:
            raise self._missing_file() from None
        assert isinstance(data, bytes), f"{self.url} was read as text"
        return data

    def read_ranges(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Bytes [start, end) of the file for each span, all asked for at once where the store can.

        Raises InputError when the file is not there, ends before a span does, or cannot be read.
        """
        fs, path = self._filesystem
        for _ in range(READ_ATTEMPTS):
            try:
                with self._convert_read_errors():
                    if self.is_local:
                        parts = _read_local(path, spans)
                    else:
                        parts = _read_remote(fs, path, spans)
            except FileNotFoundError:
                raise self._missing_file() from None
            short = [span for span, part in zip(spans, parts, strict=True) if len(part) != span[1] - span[0]]
            if not short:
                return parts
        start, end = short[0]
        raise InputError(
            f"{self.url} ends within bytes {start} to {end}", "the whole file", "make it again: it was cut off"
        )

    def open(self) -> BinaryIO:
        """The file, to be read from any byte. Raises InputError when it is not there or cannot be read."""
        fs, path = self._filesystem
        try:
            with self._convert_read_errors():
                return cast("BinaryIO", fs.open(path, "rb"))
        except FileNotFoundError as error:
            raise InputError(f"{self.url} cannot be read: {error}", "a readable file", "check the path") from None

    # --- writing -----------------------------------------------------------------------------------------------------

    def write_bytes(self, data: bytes) -> None:
        """The whole file or nothing, in place of what was there. Raises StorageError."""
        if self.is_local:
            write_atomic(self.path, data)
            return
        fs, path = self._filesystem
        with self._convert_write_errors():
            # An object appears when its upload ends (GCS, S3), so one put needs no rename, which buckets do not have.
            fs.pipe_file(path, data)

    def upload_file(self, path: Path) -> None:
        """A file of this machine, in place of what was there, read in pieces. Raises StorageError."""
        if self.is_local:
            with path.open("rb") as file:
                write_atomic(self.path, iter(lambda: file.read(1 << 24), b""))
            return
        fs, where = self._filesystem
        with self._convert_write_errors():
            fs.put_file(str(path), where)

    def create_if_absent(self, data: bytes) -> bool:
        """The whole file or nothing, and only where none is; whether it is there now with these very bytes.

        False: somebody else's is there, untouched. True also where an earlier try of ours was written and its answer
        was lost on the way. Raises StorageError.
        """
        fs, path = self._filesystem
        try:
            if self.is_local:
                if create_atomic(self.path, data):
                    return True
            else:
                with self._convert_write_errors():
                    fs.pipe_file(path, data, mode="create")
                return True
        except FileExistsError:
            pass
        except StorageError:  # whatever the last thing was that went wrong, ours or another's may be there by now
            if self.is_local or self.size() is None:
                raise
        return self.size() == len(data) and self.read_bytes() == data

    def remove(self) -> None:
        """The file, if it is there. Raises StorageError."""
        fs, path = self._filesystem
        with self._convert_write_errors(), contextlib.suppress(FileNotFoundError):
            fs.rm_file(path)

    # --- the store ---------------------------------------------------------------------------------------------------

    def _missing_file(self) -> InputError:
        return InputError(f"no file {self.url}", "a file", "check the path")

    @contextlib.contextmanager
    def _convert_read_errors(self, done: str = "read") -> Iterator[None]:
        """What goes wrong becomes an error of ours, except that there is no such file.

        Elsewhere a StorageError: the file may be as good as ever, so nobody shall take it for a bad one.
        """
        try:
            yield
        except (FileNotFoundError, EyasError):
            raise
        except Exception as error:  # each store's package has errors of its own, often of no common class
            kind = InputError if self.is_local else StorageError
            do = "check the path, its permissions and the connection"
            raise kind(f"{self.url} cannot be {done}: {_error_text(error)}", "a readable place", do) from error

    @contextlib.contextmanager
    def _convert_write_errors(self) -> Iterator[None]:
        """What goes wrong becomes a StorageError, except that there is such a file already."""
        try:
            yield
        except (FileExistsError, EyasError):
            raise
        except Exception as error:  # as in _reading
            raise StorageError(
                f"{self.url} cannot be written: {_error_text(error)}",
                "a place that this user may write to",
                "check its permissions and the connection, and run the same command again",
            ) from error

    @cached_property
    def _filesystem(self) -> tuple[fsspec.AbstractFileSystem, str]:
        """The file system and the path on it."""
        if "://" not in self.url:  # whatever else is in it: fsspec would read a:: and ~ as its own
            return LocalFileSystem(), os.path.abspath(self.url)
        protocol = self.url.partition("://")[0]
        # gcsfs asks whether a bucket has directories, over gRPC, which waits a minute where nobody answers.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        try:
            kind = EXTRAS.get(protocol, "").replace("gcs", "gs")
            return url_to_fs(self.url, **FILESYSTEM_OPTIONS.get(kind, {}))
        except ImportError as error:
            extra = EXTRAS.get(protocol)
            do = f"pip install 'eyas[{extra}]'" if extra else f"install what fsspec names: {error}"
            raise UsageError(f"{self.url}, but no package for {protocol}://", "that package", do) from None
        except ValueError as error:
            known = "a local path, memory://, gs:// or s3://"
            raise UsageError(f"{self.url}: {error}", known, f"check {protocol}://") from None
        except OSError as error:  # an archive that is not there
            raise InputError(f"{self.url}: {error.strerror or error}", "a readable place", "check the path") from None


def _read_local(path: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
    with open(path, "rb", buffering=0) as file:
        return [os.pread(file.fileno(), end - start, start) for start, end in spans]


def _read_remote(fs: fsspec.AbstractFileSystem, path: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
    some = [(start, end) for start, end in spans if end > start]  # a store has no range of no bytes
    starts, ends = [start for start, _ in some], [end for _, end in some]
    parts = iter(fs.cat_ranges([path] * len(some), starts, ends, on_error="raise"))
    return [next(parts) if end > start else b"" for start, end in spans]


def _error_text(error: Exception) -> str:
    return str(error) or type(error).__name__
