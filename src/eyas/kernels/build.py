"""Builds shared libraries with the machine's compiler. The cache holds one for each source, compiler and processor."""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eyas.base.environment import cache_directory
from eyas.base.storage import write_atomic

COMPILER_TIMEOUT_S = 300
TORCH_LIB = Path(torch.__file__).parent / "lib"


@dataclass(frozen=True)
class LibrarySource:
    """The source of a library.

    Attributes:
        path: The C or C++ file, after which the library is named.
        headers: The header files of eyas that it includes.
        flags: Options of the compiler, before the file.
        links: Options of the linker, after the files.
        more: Further C or C++ files of the library.
    """

    path: Path
    headers: tuple[Path, ...]
    flags: tuple[str, ...]
    links: tuple[str, ...] = ()
    more: tuple[Path, ...] = ()


def build_library(compiler: str, source: LibrarySource) -> Path:
    """Returns the path of the library in the cache directory. Builds the library first if it is missing there.

    Args:
        compiler: the command of the compiler, for example "gcc".
        source: the source of the library.

    Raises:
        CalledProcessError: the compiler fails.
        TimeoutExpired: the compiler runs for longer than COMPILER_TIMEOUT_S.
        OSError: the compiler cannot be started, or a file cannot be read.
        StorageError: the library cannot be written.
    """
    path = library_path(compiler, source)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)  # a directory that cannot be written fails before the work
        with tempfile.TemporaryDirectory() as directory:  # written in one step: several processes may build at once
            library = Path(directory) / path.name
            _run([compiler, *source.flags, *map(str, (source.path, *source.more)), "-o", str(library), *source.links])
            write_atomic(path, library.read_bytes())
    return path


def openmp() -> tuple[str, ...]:
    """Returns the paths of the OpenMP library that torch contains; empty if torch contains none.

    Libraries that link to torch's runtime share its threads. A second runtime would start more threads.
    """
    return tuple(map(str, sorted(TORCH_LIB.glob("libgomp*"))))


def _run(command: Sequence[str]) -> str:
    """Runs the compiler and returns its stderr."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=COMPILER_TIMEOUT_S).stderr


def library_path(compiler: str, source: LibrarySource) -> Path:
    """Returns the path of the library in the cache. Its name has a digest of source, flags, compiler and processor.

    With the option -### a compiler prints its version and the CPU that it detected.
    """
    language = "c" if source.path.suffix == ".c" else "c++"
    compiler_info = _run([compiler, "-###", "-E", *source.flags, "-x", language, os.devnull])
    texts = [path.read_text() for path in (source.path, *source.more, *source.headers)]
    parts = (*texts, compiler_info, *source.flags, *source.links, torch.__version__)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return cache_directory() / f"{source.path.stem}-{digest[:16]}.so"
