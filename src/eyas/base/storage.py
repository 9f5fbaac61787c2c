"""A place for files behind any fsspec URL: a local path, memory://, gs://, s3://.

What a store must do for eyas, and does (GCS, S3, a file system, memory): an object appears whole or not at all, is read
back as it was written, and can be written on the condition that there is none yet (`create_bytes`).
"""

import contextlib
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Union, cast

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from eyas.base.atomic import TEMP_SUFFIX, create_atomic, write_atomic
from eyas.base.errors import EyasError, InputError, PlaceError, UsageError

PATTERN = re.compile(r"[*?\[]")
# Which extra of eyas brings the package behind a protocol (pyproject.toml).
EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}
# Listings are not kept (others write, too), and what GCS stores is compared with what was sent: gcsfs does neither by
# itself.
OPTIONS: dict[str, dict[str, Any]] = {
    "gs": {"use_listings_cache": False, "consistency": "md5"},
    "s3": {"use_listings_cache": False},
}
ATTEMPTS = 3  # at a read that comes back short; what a store refuses for the moment, its package asks for again itself


@dataclass(frozen=True)
class Place:
    """A file or directory, named by a URL or a local path. Making one touches nothing."""

    url: str

    @staticmethod
    def of(where: Union["Place", Path, str]) -> "Place":
        """The place itself, or that of a path or URL."""
        return where if isinstance(where, Place) else Place(str(where))

    def __str__(self) -> str:
        return self.url

    def join(self, *names: str) -> "Place":
        """The place below this one: `Place("gs://b/run").join("head", "config.json")`."""
        if "://" not in self.url:
            return Place(str(Path(self.url, *names)))
        return Place(
            "/".join([self.url.rstrip("/"), *names]) if not self.url.endswith("://") else self.url + "/".join(names)
        )

    @property
    def is_local(self) -> bool:
        """Whether the place is on this machine's file system, so that `path` may be used."""
        return isinstance(self._at[0], LocalFileSystem)

    @property
    def path(self) -> Path:
        """The local path; only where `is_local`."""
        assert self.is_local, f"{self.url} is not on this machine"
        return Path(self._at[1])

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self._at[1].rstrip("/"))

    # --- looking -----------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether a file or directory is there. An object store has no empty directories."""
        fs, path = self._at
        with self._reading():
            return fs.exists(path)

    def size(self) -> int | None:
        """Bytes of the file; None where there is none."""
        fs, path = self._at
        try:
            with self._reading():
                return int(fs.info(path)["size"])
        except FileNotFoundError:
            return None

    def list_files(self) -> list[str]:
        """Relative names of every file below, sorted; empty where nothing is. Leftovers of killed writes are not."""
        fs, path = self._at
        with self._reading():
            names = (posixpath.relpath(name, path) for name in fs.find(path))
        return sorted(name for name in names if not name.endswith(TEMP_SUFFIX))

    def details(self) -> dict[str, dict[str, Any]]:
        """What the store says of each file below, by relative name: `size` and, where it keeps them, checksums."""
        fs, path = self._at
        with self._reading("listed"):
            found = cast("dict[str, dict[str, Any]]", fs.find(path, detail=True))
        named = {posixpath.relpath(name, path): detail for name, detail in found.items()}
        return {name: named[name] for name in sorted(named) if not name.endswith(TEMP_SUFFIX)}

    def matches(self) -> list["Place"]:
        """The files that a pattern matches or that lie in a directory, sorted; the place itself where it is a file."""
        fs, path = self._at
        with self._reading("listed"):
            if fs.isfile(path):  # first of all: a file's own name may hold what makes a pattern
                found = [path]
            elif PATTERN.search(path):
                found = [name for name in fs.glob(path) if fs.isfile(name)]
            elif fs.isdir(path):
                found = [entry["name"] for entry in fs.ls(path, detail=True) if entry["type"] == "file"]
            else:
                found = []
        names = sorted(name for name in map(str, found) if not name.endswith(TEMP_SUFFIX))
        return [Place(name if self.is_local else fs.unstrip_protocol(name)) for name in names]

    # --- reading -----------------------------------------------------------------------------------------------------

    def read_bytes(self) -> bytes:
        """The whole file. Raises InputError when it is not there or cannot be read."""
        fs, path = self._at
        try:
            with self._reading():
                data = fs.cat_file(path)
        except FileNotFoundError:
            raise self._missing() from None
        assert isinstance(data, bytes), f"{self.url} was read as text"
        return data

    def read_ranges(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Bytes [start, end) of the file for each span, all asked for at once where the store can.

        Raises InputError when the file is not there, ends before a span does, or cannot be read.
        """
        fs, path = self._at
        for _ in range(ATTEMPTS):
            try:
                with self._reading():
                    if self.is_local:
                        parts = _read_local(path, spans)
                    else:
                        parts = _read_remote(fs, path, spans)
            except FileNotFoundError:
                raise self._missing() from None
            short = [span for span, part in zip(spans, parts, strict=True) if len(part) != span[1] - span[0]]
            if not short:
                return parts
        start, end = short[0]
        raise InputError(
            f"{self.url} ends within bytes {start} to {end}", "the whole file", "make it again: it was cut off"
        )

    def open(self) -> BinaryIO:
        """The file, to be read from any byte. Raises InputError when it is not there or cannot be read."""
        fs, path = self._at
        try:
            with self._reading():
                return cast("BinaryIO", fs.open(path, "rb"))
        except FileNotFoundError as error:
            raise InputError(f"{self.url} cannot be read: {error}", "a readable file", "check the path") from None

    # --- writing -----------------------------------------------------------------------------------------------------

    def write_bytes(self, data: bytes) -> None:
        """The whole file or nothing, in place of what was there. Raises PlaceError."""
        if self.is_local:
            write_atomic(self.path, data)
            return
        fs, path = self._at
        with self._writing():
            # An object appears when its upload ends (GCS, S3), so one put needs no rename, which buckets do not have.
            fs.pipe_file(path, data)

    def upload(self, path: Path) -> None:
        """A file of this machine, in place of what was there, read in pieces. Raises PlaceError."""
        if self.is_local:
            with path.open("rb") as file:
                write_atomic(self.path, iter(lambda: file.read(1 << 24), b""))
            return
        fs, where = self._at
        with self._writing():
            fs.put_file(str(path), where)

    def create_bytes(self, data: bytes) -> bool:
        """The whole file or nothing, and only where none is; whether it is there now with these very bytes.

        False: somebody else's is there, untouched. True also where an earlier try of ours was written and its answer
        was lost on the way. Raises PlaceError.
        """
        fs, path = self._at
        try:
            if self.is_local:
                if create_atomic(self.path, data):
                    return True
            else:
                with self._writing():
                    fs.pipe_file(path, data, mode="create")
                return True
        except FileExistsError:
            pass
        except PlaceError:  # whatever the last thing was that went wrong, ours or another's may be there by now
            if self.is_local or self.size() is None:
                raise
        return self.size() == len(data) and self.read_bytes() == data

    def remove(self) -> None:
        """The file, if it is there. Raises PlaceError."""
        fs, path = self._at
        with self._writing(), contextlib.suppress(FileNotFoundError):
            fs.rm_file(path)

    # --- the store ---------------------------------------------------------------------------------------------------

    def _missing(self) -> InputError:
        return InputError(f"no file {self.url}", "a file", "check the path")

    @contextlib.contextmanager
    def _reading(self, done: str = "read") -> Iterator[None]:
        """What goes wrong becomes an error of ours, except that there is no such file.

        Elsewhere a PlaceError: the file may be as good as ever, so nobody shall take it for a bad one.
        """
        try:
            yield
        except (FileNotFoundError, EyasError):
            raise
        except Exception as error:  # each store's package has errors of its own, often of no common class
            kind = InputError if self.is_local else PlaceError
            do = "check the path, its permissions and the connection"
            raise kind(f"{self.url} cannot be {done}: {_said(error)}", "a readable place", do) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """What goes wrong becomes a PlaceError, except that there is such a file already."""
        try:
            yield
        except (FileExistsError, EyasError):
            raise
        except Exception as error:  # as in _reading
            raise PlaceError(
                f"{self.url} cannot be written: {_said(error)}",
                "a place that this user may write to",
                "check its permissions and the connection, and run the same command again",
            ) from error

    @cached_property
    def _at(self) -> tuple[fsspec.AbstractFileSystem, str]:
        """The file system and the path on it."""
        if "://" not in self.url:  # whatever else is in it: fsspec would read a:: and ~ as its own
            return LocalFileSystem(), os.path.abspath(self.url)
        protocol = self.url.partition("://")[0]
        # gcsfs asks whether a bucket has directories, over gRPC, which waits a minute where nobody answers.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        try:
            kind = EXTRAS.get(protocol, "").replace("gcs", "gs")
            return url_to_fs(self.url, **OPTIONS.get(kind, {}))
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


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
