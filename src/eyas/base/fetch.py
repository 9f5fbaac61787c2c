"""A directory behind a URL, brought to this machine: a target or a head that a server loads.

    gs://bucket/run/target/model.safetensors   ->   CACHE/fetched/<name of what is there>/model.safetensors

A container runs it as a program of its own (`python -m eyas.base.fetch URL`), for images of other engines hold this
room and fsspec, and nothing else of eyas.
"""

import base64
import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eyas.base.environment import cache_directory
from eyas.base.errors import EyasError, InputError
from eyas.base.progress import Progress
from eyas.base.storage import StoragePath, write_atomic

PART_BYTES = 16 * 1024 * 1024
PARTS_AT_ONCE = 8  # 128 MiB in memory; one stream alone does not fill a cloud machine's network


def is_url(name: str) -> bool:
    """Whether a name is a URL to be fetched from: a directory of this machine and a hub id are none."""
    return "://" in name


def fetch(url: str, root: Path | None = None, progress: bool = True) -> Path:
    """The local directory with all files below `url`, each whole; those that are there already are not read again.

    root: where such directories are kept; None: eyas's cache. What a store's checksum contradicts is refused.
    InputError where nothing is there, StorageError where it cannot be read or the disk is full.
    """
    source = StoragePath(url)
    files = source.list_details()
    if not files:
        raise InputError(f"no file below {url}", "a target or a head directory", "check the URL and who may read it")
    outside = next((name for name in files if ".." in name.split("/")), None)
    if outside is not None:
        raise InputError(f"{outside} below {url}", "names that stay below it", "remove that object")
    # Named after what is there now: after another upload to the same URL nothing old is taken for it.
    identity = {name: _object_version(detail) for name, detail in files.items()}
    text = json.dumps([url, identity], sort_keys=True)
    directory = (root or cache_directory() / "fetched") / hashlib.sha256(text.encode()).hexdigest()[:16]
    total_bytes = sum(int(detail["size"]) for detail in files.values())
    with Progress(f"fetch {url}", max(total_bytes >> 20, 1), "MiB", enabled=progress) as bar:
        for name, detail in files.items():
            path, size = directory / name, int(detail["size"])
            if not path.is_file():  # it has its name only once it is whole
                write_atomic(path, _verified_parts(source.join(*name.split("/")), size, detail))
            bar.advance(size >> 20)
    return directory


def _object_version(detail: dict[str, Any]) -> list[Any]:
    """What changes when a file does, in the words of GCS, S3 and a file system; None where a store has no such word."""
    return [str(detail.get(key)) for key in ("size", "generation", "ETag", "mtime")]


def _verified_parts(place: StoragePath, size: int, detail: dict[str, Any]) -> Iterator[bytes]:
    """The bytes of a file. InputError behind the last of them if they are not what the store has."""
    kind, running = _select_checksum(detail)
    step = PART_BYTES * PARTS_AT_ONCE
    for start in range(0, size, step):
        ends = range(start, min(start + step, size), PART_BYTES)
        for part in place.read_ranges([(at, min(at + PART_BYTES, size)) for at in ends]):
            running.update(part)
            yield part
    told = base64.b64encode(running.digest()).decode()
    if kind is not None and detail[kind] != told:
        raise InputError(f"{place} read with {kind} {told}", f"{detail[kind]}, which the store has", "run it again")


def _select_checksum(detail: dict[str, Any]) -> tuple[str | None, Any]:
    """Which of the store's checksums is compared, and a running one. Composed objects of GCS have no MD5."""
    if "crc32c" in detail:
        with contextlib.suppress(ImportError):
            import google_crc32c  # comes with the package for gs://

            return "crc32c", google_crc32c.Checksum()
    return "md5Hash" if "md5Hash" in detail else None, hashlib.md5(usedforsecurity=False)


def main(arguments: list[str]) -> int:
    """Prints the directory. 2 and a sentence where that fails."""
    try:
        (url,) = arguments
        print(fetch(url))
    except EyasError as error:
        print(f"eyas: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
