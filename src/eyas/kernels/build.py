"""Builds the shared libraries of this room with the machine's compiler: once for a source, compiler and processor."""

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
    """A library's text: the file that is compiled, what it includes of ours, and how."""

    path: Path
    headers: tuple[Path, ...]
    flags: tuple[str, ...]
    links: tuple[str, ...] = ()


def build_library(compiler: str, source: LibrarySource) -> Path:
    """The library in the cache directory, built on the spot if it is not there yet.

    CalledProcessError, TimeoutExpired, OSError or StorageError where that fails.
    """
    path = library_path(compiler, source)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)  # a place that does not take it is found before the work
        with tempfile.TemporaryDirectory() as place:  # published in one step: several processes may do this at once
            made = Path(place) / path.name
            _run([compiler, *source.flags, str(source.path), "-o", str(made), *source.links])
            write_atomic(path, made.read_bytes())
    return path


def openmp() -> tuple[str, ...]:
    """The OpenMP runtime that torch brings, if it brings one: two runtimes would keep two teams of threads."""
    return tuple(map(str, sorted(TORCH_LIB.glob("libgomp*"))))


def _run(command: Sequence[str]) -> str:
    """What the compiler said on stderr."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=COMPILER_TIMEOUT_S)
    return done.stderr


def library_path(compiler: str, source: LibrarySource) -> Path:
    """Named after everything that decides its content; -### makes a compiler tell its version and the CPU it found."""
    language = "c" if source.path.suffix == ".c" else "c++"
    told = _run([compiler, "-###", "-E", *source.flags, "-x", language, os.devnull])
    texts = [path.read_text() for path in (source.path, *source.headers)]
    parts = (*texts, told, *source.flags, *source.links, torch.__version__)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return cache_directory() / f"{source.path.stem}-{digest[:16]}.so"
