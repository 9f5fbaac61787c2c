"""Keeps computed content in a file of the cache directory, and maps it into memory."""

import contextlib
import hashlib
import mmap
from collections.abc import Callable

from eyas.base.environment import cache_directory, remove_all_but_newest
from eyas.base.errors import EyasError
from eyas.base.storage import write_atomic

_DIGEST_BYTES = 32  # at the beginning of a file


def load_cached(prefix: str, version_key: str, build: Callable[[], bytes], max_files: int) -> memoryview:
    """Returns the content of a file in the cache directory, mapped into memory. Builds the file if it is missing.

    The file begins with a digest of its content. A damaged file is built again.

    Args:
        prefix: The beginning of the file's name, the same for all versions of this content.
        version_key: The end of the file's name. Requirement: it changes whenever the content changes.
        build: Computes the content.
        max_files: The number of files with this prefix that stay in the cache directory; older ones are deleted.
    """
    path = cache_directory() / f"{prefix}-{version_key}.bin"
    with contextlib.suppress(OSError, ValueError):  # missing or damaged: it is built again
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if hashlib.sha256(data[_DIGEST_BYTES:]).digest() == data[:_DIGEST_BYTES]:
            return data[_DIGEST_BYTES:]
    content = build()
    with contextlib.suppress(EyasError, OSError):  # the directory is not writable: the next process builds it, too
        write_atomic(path, hashlib.sha256(content).digest() + content)
        remove_all_but_newest(path.parent, f"{prefix}-*", max_files)
    return memoryview(content)
