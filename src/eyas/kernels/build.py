"""Builds shared libraries with the machine's compiler, once for each source, compiler and processor."""

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
    """The source of a library: its file, our headers that it includes, compiler flags and linked libraries."""

    path: Path
    headers: tuple[Path, ...]
    flags: tuple[str, ...]
    links: tuple[str, ...] = ()


def build_library(compiler: str, source: LibrarySource) -> Path:
    """Returns the library in the cache directory; builds it first if it is missing.

    Raises:
        CalledProcessError, TimeoutExpired, OSError, StorageError: the build or the write fails.
    """
    path = library_path(compiler, source)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)  # a directory that cannot be written fails before the work
        with tempfile.TemporaryDirectory() as directory:  # written in one step: several processes may build at once
            library = Path(directory) / path.name
            _run([compiler, *source.flags, str(source.path), "-o", str(library), *source.links])
            write_atomic(path, library.read_bytes())
    return path


def openmp() -> tuple[str, ...]:
    """Returns torch's own OpenMP runtime, if it has one: a second runtime would keep a second team of threads."""
    return tuple(map(str, sorted(TORCH_LIB.glob("libgomp*"))))


def _run(command: Sequence[str]) -> str:
    """Runs the compiler and returns its stderr."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=COMPILER_TIMEOUT_S)
    return done.stderr


def library_path(compiler: str, source: LibrarySource) -> Path:
    """Returns a path named after everything that decides the library's content.

    With -### a compiler prints its version and the CPU that it found.
    """
    language = "c" if source.path.suffix == ".c" else "c++"
    compiler_info = _run([compiler, "-###", "-E", *source.flags, "-x", language, os.devnull])
    texts = [path.read_text() for path in (source.path, *source.headers)]
    parts = (*texts, compiler_info, *source.flags, *source.links, torch.__version__)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return cache_directory() / f"{source.path.stem}-{digest[:16]}.so"
