"""A place for files behind any fsspec URL: a local path, memory://, gs://, s3://."""

import posixpath
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from eyas.base.errors import InputError, PlaceError, UsageError
from eyas.base.provenance import TEMP_SUFFIX, write_atomic

PATTERN = re.compile(r"[*?\[]")
# Which extra of eyas brings the package behind a protocol (pyproject.toml).
EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}


@dataclass(frozen=True)
class Place:
    """A file or directory, named by a URL or a local path. Making one touches nothing."""

    url: str

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

    def exists(self) -> bool:
        """Whether a file or directory is there. An object store has no empty directories."""
        fs, path = self._at
        return fs.exists(path)

    def read_bytes(self) -> bytes:
        """The whole file. Raises InputError when it is not there or cannot be read."""
        fs, path = self._at
        try:
            data = fs.cat_file(path)
            assert isinstance(data, bytes), f"{self.url} was read as text"
            return data
        except FileNotFoundError:
            raise InputError(f"no file {self.url}", "a file", "check the path") from None
        except OSError as error:
            raise InputError(
                f"{self.url} cannot be read: {error}", "a readable file", "check its permissions"
            ) from error

    def write_bytes(self, data: bytes) -> None:
        """The whole file or nothing: locally through a rename, elsewhere as one object. Raises PlaceError."""
        if self.is_local:
            write_atomic(self.path, data)
            return
        fs, path = self._at
        try:
            # An object appears when its upload ends (GCS, S3), so one put needs no rename, which buckets do not have.
            fs.pipe_file(path, data)
        except OSError as error:
            raise PlaceError(
                f"{self.url} cannot be written: {error}", "a place that this user may write to", "check its permissions"
            ) from error

    def list_files(self) -> list[str]:
        """Relative names of every file below, sorted; empty where nothing is. Leftovers of killed writes are not."""
        fs, path = self._at
        names = (posixpath.relpath(name, path) for name in fs.find(path))
        return sorted(name for name in names if not name.endswith(TEMP_SUFFIX))

    def matches(self) -> list["Place"]:
        """The files that a pattern matches or that lie in a directory, sorted; the place itself where it is a file."""
        fs, path = self._at
        try:
            if fs.isfile(path):  # first of all: a file's own name may hold what makes a pattern
                found = [path]
            elif PATTERN.search(path):
                found = [name for name in fs.glob(path) if fs.isfile(name)]
            elif fs.isdir(path):
                found = [entry["name"] for entry in fs.ls(path, detail=True) if entry["type"] == "file"]
            else:
                found = []
        except OSError as error:
            raise InputError(f"{self.url} cannot be listed: {error}", "a readable place", "check the path") from error
        names = sorted(name for name in map(str, found) if not name.endswith(TEMP_SUFFIX))
        return [Place(name if self.is_local else fs.unstrip_protocol(name)) for name in names]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self._at[1].rstrip("/"))

    def open(self) -> BinaryIO:
        """The file, to be read from any byte. Raises InputError when it is not there or cannot be read."""
        fs, path = self._at
        try:
            return cast("BinaryIO", fs.open(path, "rb"))
        except OSError as error:
            raise InputError(f"{self.url} cannot be read: {error}", "a readable file", "check the path") from error

    def ensure_dir(self) -> None:
        """Makes the directory and its parents, where the place knows directories."""
        fs, path = self._at
        try:
            fs.makedirs(path, exist_ok=True)
        except OSError as error:
            raise PlaceError(
                f"{self.url} cannot be made: {error}", "a place for a directory", "pass another path"
            ) from error

    @cached_property
    def _at(self) -> tuple[fsspec.AbstractFileSystem, str]:
        """The file system and the path on it."""
        protocol = self.url.partition("://")[0]
        try:
            return url_to_fs(self.url)
        except ImportError as error:
            extra = EXTRAS.get(protocol)
            do = f"pip install 'eyas[{extra}]'" if extra else f"install what fsspec names: {error}"
            raise UsageError(f"{self.url}, but no package for {protocol}://", "that package", do) from None
        except ValueError as error:
            known = "a local path, memory://, gs:// or s3://"
            raise UsageError(f"{self.url}: {error}", known, f"check {protocol}://") from None
        except OSError as error:  # an archive that is not there
            raise InputError(f"{self.url}: {error.strerror or error}", "a readable place", "check the path") from None
