"""Word lists that take seconds to compute, kept in the user's cache directory; and a digest of the room's code.

The file's name holds a digest of the packages and of this room's source, its first line one of its content: a file of
other code is never read, a damaged one is made again.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from eyas.base.environment import cache_directory, remove_all_but_newest
from eyas.base.errors import EyasError
from eyas.base.storage import write_atomic

_SOURCES = ("faker", "spacy")  # the packages that the lists come from
_MAX_FILES = 3


@cache
def code_digest() -> str:
    """SHA-256 over the source files of this room, names and bytes: other code or other lists find other things."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        data = path.read_bytes()
        digest.update(f"{path.name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def load_cached(name: str, make: Callable[[], Mapping[str, frozenset[str]]]) -> dict[str, frozenset[str]]:
    """What `make` returns, from the file of an earlier process where there is one."""
    versions = ",".join(f"{package} {version(package)}" for package in _SOURCES)
    code = hashlib.sha256(f"{code_digest()}\0{versions}".encode()).hexdigest()[:24]
    path = cache_directory() / f"privacy-{name}-{code}.txt"
    try:
        found, _, body = path.read_bytes().partition(b"\n")
        if found.decode() == hashlib.sha256(body).hexdigest():
            return {key: frozenset(words) for key, words in json.loads(body).items()}
    except (OSError, ValueError):
        pass  # it is made again
    made = {key: frozenset(words) for key, words in make().items()}
    body = json.dumps({key: sorted(words) for key, words in made.items()}, ensure_ascii=False).encode()
    with contextlib.suppress(EyasError, OSError):  # a place that cannot be written: the next process computes as well
        write_atomic(path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        remove_all_but_newest(path.parent, f"privacy-{name}-*.txt", _MAX_FILES)
    return made
