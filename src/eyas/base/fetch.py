"""Downloads a target or head directory from a URL, for a server that loads it from this machine's disk.

    gs://bucket/run/target/model.safetensors   ->   CACHE/fetched/<hash of the stored versions>/model.safetensors

Containers of SGLang and vLLM run this module as a program: `python -m eyas.base.fetch URL`. Their images contain only
the package eyas.base and fsspec.
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
    """Returns True if the name is a URL, False for a local directory or a hub id."""
    return "://" in name


def fetch(url: str, root: Path | None = None, progress: bool = True) -> Path:
    """Downloads all files below `url` and returns the local directory. Complete files are not downloaded again.

    Args:
        url: The URL of a directory.
        root: The local directory below which the download is stored; None for `cache_directory() / "fetched"`.
        progress: Prints a progress line.

    Raises:
        InputError: The URL has no files, or the bytes of a file differ from the store's checksum.
        StorageError: The store cannot be read or the disk is full.
    """
    source = StoragePath(url)
    files = source.list_details()
    if not files:
        raise InputError(f"No file below {url}", "Check the URL and the permission to read it")
    outside = next((name for name in files if ".." in name.split("/")), None)
    if outside is not None:
        raise InputError(f"{url} contains {outside}, whose name has a part '..'", "Remove or rename that object")
    # The name follows the stored versions: after another upload to the same URL no old file is used.
    text = json.dumps([url, {name: _object_version(detail) for name, detail in files.items()}], sort_keys=True)
    directory = (root or cache_directory() / "fetched") / hashlib.sha256(text.encode()).hexdigest()[:16]
    total_bytes = sum(int(detail["size"]) for detail in files.values())
    with Progress(f"fetch {url}", max(total_bytes >> 20, 1), "MiB", enabled=progress) as bar:
        for name, detail in files.items():
            path, size = directory / name, int(detail["size"])
            if not path.is_file():  # a file has its name only once it is complete
                write_atomic(path, _verified_parts(source.join(*name.split("/")), size, detail))
            bar.advance(size >> 20)
    return directory


def _object_version(detail: dict[str, Any]) -> list[Any]:
    """Returns the fields of a store's record that change when the file changes: those of GCS, S3 and file systems."""
    return [str(detail.get(key)) for key in ("size", "generation", "ETag", "mtime")]


def _verified_parts(path: StoragePath, size: int, detail: dict[str, Any]) -> Iterator[bytes]:
    """Yields the bytes of a file. Raises InputError at the end if their checksum differs from the store's."""
    kind, running = _select_checksum(detail)
    step = PART_BYTES * PARTS_AT_ONCE
    for start in range(0, size, step):
        starts = range(start, min(start + step, size), PART_BYTES)
        for part in path.read_ranges([(at, min(at + PART_BYTES, size)) for at in starts]):
            running.update(part)
            yield part
    digest = base64.b64encode(running.digest()).decode()
    if kind is not None and detail[kind] != digest:
        problem = f"The download of {path} has {kind} {digest}, but the store has {detail[kind]}"
        raise InputError(problem, "Run the command again")


def _select_checksum(detail: dict[str, Any]) -> tuple[str | None, Any]:
    """Selects the checksum by which a file is verified. It prefers crc32c: some objects of GCS have no MD5.

    Returns:
        The key of the checksum in the store's record, or None if the record has no checksum, and a hash object.
    """
    if "crc32c" in detail:
        with contextlib.suppress(ImportError):
            import google_crc32c  # installed with the package for gs://

            return "crc32c", google_crc32c.Checksum()
    return "md5Hash" if "md5Hash" in detail else None, hashlib.md5(usedforsecurity=False)


def main(arguments: list[str]) -> int:
    """Downloads the URL in `arguments`, prints the local directory and returns 0; after an error it returns 2."""
    try:
        (url,) = arguments
        print(fetch(url))
    except EyasError as error:
        print(f"eyas: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
