"""Files on this machine, written atomically, and files at any fsspec URL: memory://, gs://, s3://.

eyas needs three guarantees of a store. GCS, S3, file systems and memory:// give them: a reader never sees a part of a
file, a read returns the bytes of the last write, and a write can fail if the file exists (`create_if_absent`).
"""

import contextlib
import errno
import fcntl
import json
import os
import posixpath
import re
import time
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
GLOB_PATTERN = re.compile(r"[*?\[]")
# The extra of eyas that installs the package behind a protocol (pyproject.toml).
EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}
# Listings are not cached, because other processes write too. gcsfs compares what GCS stored with what was sent only
# when asked.
FILESYSTEM_OPTIONS: dict[str, dict[str, Any]] = {
    "gcs": {"use_listings_cache": False, "consistency": "md5"},
    "s3": {"use_listings_cache": False},
}
LOCK_WAIT_S = 10.0
READ_ATTEMPTS = 3  # for reads that come back short; the store's package retries refused requests itself


# --- local files -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def convert_write_errors(path: Path) -> Iterator[None]:
    """Converts an OSError in the `with` body to a StorageError that names `path`. For code that writes files itself."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            fix = "Free space and run the same command again: it continues where it stopped"
            raise StorageError(f"No space left on the disk while writing {path}", fix) from error
        problem = f"{path} cannot be written ({error.strerror or type(error).__name__})"
        raise StorageError(problem, "Check its permissions, or pass another --out") from error


@contextlib.contextmanager
def convert_read_errors(path: object, fix: str) -> Iterator[None]:
    """Converts an OSError in the `with` body to an InputError that names `path` and has this fix."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or type(error).__name__})", fix) from None


def write_atomic(path: Path, data: bytes | str | Iterable[bytes]) -> None:
    """Writes a file atomically: after a kill or a power cut the file has its old bytes or all of the new bytes.

    Creates missing parent directories.

    Args:
        path: The file, which is replaced if it exists.
        data: The content: bytes, text to encode as UTF-8, or parts of bytes.

    Raises:
        StorageError: The disk is full or the file cannot be written. The old file is unchanged.
    """
    with convert_write_errors(path), _temp_file(path, data) as temp:
        os.replace(temp, path)


def write_json_atomic(path: Path, value: Any) -> None:
    """Serializes a JSON value with `to_json` and writes it with `write_atomic`."""
    write_atomic(path, to_json(value))


def to_json(value: Any) -> bytes:
    """Returns the value as indented JSON in UTF-8, with its keys in their order and a newline at the end."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_json_file(path: Path, read_fix: str, fix: str) -> Any:
    """Reads a JSON file. Raises InputError with `read_fix` if it cannot be read, and with `fix` if it is not JSON."""
    try:
        with convert_read_errors(path, read_fix):
            return json.loads(path.read_bytes())
    except ValueError:
        raise InputError(f"{path} is not valid JSON", fix) from None


def remove_temp_files(directory: Path) -> None:
    """Removes the temporary files that killed processes left below a directory.

    Requirement: no other process writes below the directory at the same time.
    """
    for path in directory.rglob(f".*{TEMP_SUFFIX}"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Locks a directory on this machine against other processes that call this function.

    It waits LOCK_WAIT_S for the workers of a killed process, which keep its lock until they end.

    Raises:
        InputError: Another process has locked the directory.
    """
    handle, end_s = os.open(directory, os.O_RDONLY), time.monotonic() + LOCK_WAIT_S
    try:
        while not _try_lock(handle):
            if time.monotonic() > end_s:
                raise InputError(f"Another process writes to {directory}", "Wait until it ends, or set another --out")
            time.sleep(0.2)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    """Returns False if another process has the lock. On a file system without locks it always returns True."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def _create_atomic(path: Path, data: bytes) -> bool:
    """Writes a file atomically if it does not exist. Returns True if it wrote the file, False if the file exists."""
    with convert_write_errors(path), _temp_file(path, data) as temp:
        try:
            os.link(temp, path)  # unlike a rename it replaces nothing
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):  # no hard links: a mounted bucket
                raise
            if path.exists():
                return False
            os.replace(temp, path)
    return True


@contextlib.contextmanager
def _temp_file(path: Path, data: bytes | str | Iterable[bytes]) -> Iterator[Path]:
    """Writes the data to a temporary file beside `path`, which it removes after the `with` body."""
    parts = (data.encode(),) if isinstance(data, str) else (data,) if isinstance(data, bytes) else data
    # Each writer has its own name, in the same directory: os.replace is atomic only within one file system.
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
    # The rename is durable only once the directory is; some file systems cannot sync one, and lose nothing else.
    fd = os.open(path.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


# --- files behind a URL ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoragePath:
    """A file or directory at a URL or a local path. Creating a StoragePath does not access the storage."""

    url: str

    @staticmethod
    def of(path: Union["StoragePath", Path, str]) -> "StoragePath":
        """Returns the StoragePath of a path or URL. A StoragePath is returned unchanged."""
        return path if isinstance(path, StoragePath) else StoragePath(str(path))

    def __str__(self) -> str:
        return self.url

    def join(self, *names: str) -> "StoragePath":
        """Returns the path below this one: `StoragePath("gs://b/run").join("head", "config.json")`."""
        if "://" not in self.url:
            return StoragePath(str(Path(self.url, *names)))
        base = self.url if self.url.endswith("://") else self.url.rstrip("/") + "/"
        return StoragePath(base + "/".join(names))

    @property
    def is_local(self) -> bool:
        """True if the path is on this machine's file system."""
        return isinstance(self._filesystem[0], LocalFileSystem)

    @property
    def path(self) -> Path:
        """The local path. Requirement: `is_local` is True."""
        assert self.is_local, f"{self.url} is not on this machine"
        return Path(self._filesystem[1])

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self._filesystem[1].rstrip("/"))

    def exists(self) -> bool:
        """Returns True if the file or directory exists. An object store has no empty directories."""
        with self._access("read") as (fs, path):
            return fs.exists(path)

    def size(self) -> int | None:
        """Returns the size of the file in bytes; None if it does not exist."""
        with self._access("read") as (fs, path), contextlib.suppress(FileNotFoundError):
            return int(fs.info(path)["size"])
        return None

    def list_files(self) -> list[str]:
        """Returns the sorted relative names of all files below this directory, without temporary files."""
        return list(self.list_details())

    def list_details(self) -> dict[str, dict[str, Any]]:
        """Returns the store's record of each file of `list_files`, by name: its `size` and, if known, its checksums."""
        with self._access("listed") as (fs, path):
            found = cast("dict[str, dict[str, Any]]", fs.find(path, detail=True))
        details = {posixpath.relpath(name, path): detail for name, detail in found.items()}
        return {name: details[name] for name in sorted(details) if not name.endswith(TEMP_SUFFIX)}

    def match_files(self) -> list["StoragePath"]:
        """Returns the files that this path names, sorted.

        These are the file itself, the files that match if it is a glob pattern, or the files directly in a directory.
        """
        with self._access("listed") as (fs, path):
            if fs.isfile(path):  # checked first: a file's own name may look like a pattern
                found = [path]
            elif GLOB_PATTERN.search(path):
                found = [name for name in fs.glob(path) if fs.isfile(name)]
            elif fs.isdir(path):
                found = [entry["name"] for entry in fs.ls(path, detail=True) if entry["type"] == "file"]
            else:
                found = []
        names = sorted(name for name in map(str, found) if not name.endswith(TEMP_SUFFIX))
        return [StoragePath(name if self.is_local else fs.unstrip_protocol(name)) for name in names]

    def read_bytes(self) -> bytes:
        """Returns the bytes of the file. Raises InputError if it does not exist or cannot be read."""
        with self._access("read") as (fs, path):
            return cast("bytes", fs.cat_file(path))

    def read_ranges(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Returns the bytes of each span [start, end) of the file. A remote store reads the spans concurrently.

        Raises InputError if the file does not exist, ends before the end of a span, or cannot be read.
        """
        for _ in range(READ_ATTEMPTS):
            with self._access("read") as (fs, path):
                parts = _read_local(path, spans) if self.is_local else _read_remote(fs, path, spans)
            short = [span for span, part in zip(spans, parts, strict=True) if len(part) != span[1] - span[0]]
            if not short:
                return parts
        start, end = short[0]
        problem = f"{self.url} is truncated: it ends within bytes {start} to {end}"
        raise InputError(problem, "Run the stage that writes it again")

    def open(self) -> BinaryIO:
        """Opens the file for reading and seeking. Raises InputError if it does not exist or cannot be read."""
        with self._access("read") as (fs, path):
            return cast("BinaryIO", fs.open(path, "rb"))

    def write_bytes(self, data: bytes) -> None:
        """Writes the file atomically and replaces an existing one. Raises StorageError."""
        if self.is_local:
            write_atomic(self.path, data)
            return
        with self._access("written") as (fs, path):
            # An object appears when its upload ends (GCS, S3), so one put needs no rename, which buckets do not have.
            fs.pipe_file(path, data)

    def upload_file(self, path: Path) -> None:
        """Uploads a local file in parts, and replaces an existing one. Raises StorageError."""
        if self.is_local:
            with path.open("rb") as file:
                write_atomic(self.path, iter(lambda: file.read(1 << 24), b""))
            return
        with self._access("written") as (fs, destination):
            fs.put_file(str(path), destination)

    def create_if_absent(self, data: bytes) -> bool:
        """Writes the file atomically if it does not exist. Never replaces a file. Raises StorageError.

        Returns:
            True if the file now has exactly these bytes, False if another process has written other bytes. So the
            result is also True if the bucket wrote the file but the response was lost.
        """
        try:
            if not self.is_local:
                with self._access("written") as (fs, path):
                    fs.pipe_file(path, data, mode="create")
                return True
            if _create_atomic(self.path, data):
                return True
        except FileExistsError:
            pass
        except StorageError:  # whatever failed last, the file of this or of another process may exist by now
            if self.is_local or self.size() is None:
                raise
        return self.size() == len(data) and self.read_bytes() == data

    def remove(self) -> None:
        """Removes the file if it exists. Raises StorageError."""
        with self._access("written") as (fs, path), contextlib.suppress(FileNotFoundError):
            fs.rm_file(path)

    @contextlib.contextmanager
    def _access(self, action: str) -> Iterator[tuple[fsspec.AbstractFileSystem, str]]:
        """Yields the file system and path, and converts an exception of the `with` body to an error that names the URL.

        It does not convert FileExistsError of a write. A failed remote read becomes a StorageError, because the file
        may be intact.

        Args:
            action: "read", "listed" or "written"; used in the error message.
        """
        try:
            yield self._filesystem
        except EyasError:
            raise
        except Exception as error:  # each store's package has its own exceptions, often without a common class
            if isinstance(error, FileExistsError) and action == "written":
                raise
            if isinstance(error, FileNotFoundError) and action == "read":
                raise InputError(f"No file {self.url}", "Check the path") from None
            kind = InputError if self.is_local and action != "written" else StorageError
            problem = f"{self.url} cannot be {action} ({_describe_exception(error)})"
            fix = "Check the path, its permissions and the connection, then run the same command again"
            raise kind(problem, fix) from error

    @cached_property
    def _filesystem(self) -> tuple[fsspec.AbstractFileSystem, str]:
        """The fsspec file system and the path on it. Raises UsageError for an unknown protocol or a missing package."""
        if "://" not in self.url:  # also with other special characters: fsspec would interpret a:: and ~
            return LocalFileSystem(), os.path.abspath(self.url)
        protocol = self.url.partition("://")[0]
        extra = EXTRAS.get(protocol)
        # gcsfs asks over gRPC whether a bucket has directories, and waits a minute where nothing answers.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        try:
            return url_to_fs(self.url, **FILESYSTEM_OPTIONS.get(extra or "", {}))
        except ImportError:
            package = f"the `{extra}` extra" if extra else f"the fsspec package for {protocol}://"
            fix = f"Run: pip install 'eyas[{extra}]'" if extra else "Install it, or use a local path, gs:// or s3://"
            raise UsageError(f"{self.url} needs {package}, which is not installed", fix) from None
        except ValueError:
            problem = f"{self.url} has the unknown protocol {protocol}://"
            raise UsageError(problem, "Use a local path, memory://, gs:// or s3://") from None
        except OSError as error:  # an archive that does not exist
            problem = f"{self.url} cannot be read ({_describe_exception(error)})"
            raise InputError(problem, "Check the path") from None


AnyPath = Path | StoragePath
"""A local path, or the path of a local or remote store."""


def _read_local(path: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
    with open(path, "rb", buffering=0) as file:
        return [os.pread(file.fileno(), end - start, start) for start, end in spans]


def _read_remote(fs: fsspec.AbstractFileSystem, path: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
    nonempty = [(start, end) for start, end in spans if end > start]  # a store cannot read a range of no bytes
    starts, ends = [start for start, _ in nonempty], [end for _, end in nonempty]
    parts = iter(fs.cat_ranges([path] * len(nonempty), starts, ends, on_error="raise"))
    return [next(parts) if end > start else b"" for start, end in spans]


def _describe_exception(error: Exception) -> str:
    """Returns the first 120 characters of the reason that the system or the store gives."""
    reason = error.strerror if isinstance(error, OSError) else None
    return (reason or (str(error).splitlines() or [""])[0] or type(error).__name__)[:120]
