"""Where a stage directory comes from: digests, atomic writes, and the provenance.json that ends a stage.

    features/
      shard-00000.safetensors   \\
      manifest.json              } content: what `digest` covers
      log.jsonl                  } carries times: named in Origin.undigested
      .manifest.json.*.eyas-tmp  } left by a killed write, swept by `finish`
      provenance.json            written last: without it the directory is unfinished
"""

import contextlib
import dataclasses
import datetime
import errno
import fnmatch
import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.base.errors import InputError, PlaceError

PROVENANCE = "provenance.json"
TEMP_SUFFIX = ".eyas-tmp"
VERSIONED = ("eyas", "torch", "transformers", "tokenizers", "safetensors", "numpy")


# --- digests ---------------------------------------------------------------------------------------------------------


def digest_bytes(data: bytes) -> str:
    """`sha256:<hex>` of the bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def digest_file(path: Path) -> str:
    """`sha256:<hex>` of a file, read in pieces. Raises InputError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a readable file", "check the path") from None


def digest_json(value: Any) -> str:
    """`sha256:<hex>` of a JSON value; the order of keys and the spaces between them do not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return digest_bytes(text.encode())


def digest_files(directory: Path, exclude: Sequence[str] = ()) -> dict[str, str]:
    """Relative POSIX name -> digest of every content file below a directory, sorted by name.

    Leaves out every provenance.json, what a killed write left, and names that match a pattern of `exclude`
    (fnmatch over the relative name, where * also matches a slash).
    """
    digests = {}
    for name in sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()):
        base = name.rpartition("/")[2]
        skip = base == PROVENANCE or base.endswith(TEMP_SUFFIX)
        if not skip and not any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude):
            digests[name] = digest_file(directory / name)
    return digests


def digest_tree(directory: Path, exclude: Sequence[str] = ()) -> str:
    """One digest over the names and contents of `digest_files`. Raises InputError when there is no such directory."""
    if not directory.is_dir():
        raise InputError(f"no directory {directory}", "a directory", "check the path")
    return digest_json(digest_files(directory, exclude))


# --- atomic writes ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError of the body into a PlaceError that names `path`; for writes that are not `write_atomic`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PlaceError(
                f"no space left while writing {path}",
                "room for the file on that disk",
                "free space and run the same command again: it continues where it stopped",
            ) from error
        raise PlaceError(
            f"{path} cannot be written: {error.strerror or error}",
            "a place that this user may write to",
            "check its permissions, or pass another --out",
        ) from error


def write_atomic(path: Path, data: bytes | str | Iterable[bytes]) -> None:
    """Writes the whole file or nothing: a reader, a kill or a power cut sees the old bytes or the new ones.

    Creates missing parent directories. Raises PlaceError when the disk is full or the place cannot be written; the old
    file then still stands and no part of the new one does.
    """
    parts = (data.encode(),) if isinstance(data, str) else (data,) if isinstance(data, bytes) else data
    # A name of its own for each writer, in the same directory: os.replace is atomic only within one file system.
    temp = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TEMP_SUFFIX}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temp.open("xb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temp, path)
        except BaseException:
            temp.unlink(missing_ok=True)
            raise
        _fsync_directory(path.parent)


def write_json_atomic(path: Path, value: Any) -> None:
    """`write_atomic` of indented JSON, keys in the order given, one newline at the end."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def sweep(directory: Path) -> None:
    """Removes what killed writes left below a directory. Call it while nobody else writes there."""
    for path in directory.rglob(f".*{TEMP_SUFFIX}"):
        path.unlink(missing_ok=True)


def _fsync_directory(directory: Path) -> None:
    # The rename is durable only once the directory is; some file systems refuse to sync one, and lose nothing else.
    fd = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


# --- provenance ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Origin:
    """What decides the content of a stage directory, known before the work starts: equal origins give equal bytes."""

    stage: str  # the verb: "prompts", "respond", "capture", ...
    recipe: str  # digest of the part of the recipe that the stage reads
    parents: Mapping[str, str]  # name -> digest of every input: {"target": ..., "conversations": ...}
    tokenizer: str | None = None  # digest
    template: str | None = None  # digest of the chat template
    undigested: tuple[str, ...] = ()  # patterns of files that carry times, left out of the digest


@dataclasses.dataclass(frozen=True)
class Provenance:
    """The content of provenance.json. Equal runs differ only in `versions`, `command`, `started` and `seconds`."""

    stage: str
    digest: str
    files: Mapping[str, str]  # relative name -> digest; `digest` is over these
    parents: Mapping[str, str]
    tokenizer: str | None
    template: str | None
    recipe: str
    undigested: tuple[str, ...]
    versions: Mapping[str, str]
    command: str
    started: str  # ISO 8601, UTC
    seconds: float


def finish(directory: Path, origin: Origin, started_s: float, command: Sequence[str] | None = None) -> Provenance:
    """Ends a stage: sweeps, digests the content and writes provenance.json, last.

    started_s is `time.time()` of the start; command is the command line, sys.argv when None.
    """
    sweep(directory)
    files = digest_files(directory, origin.undigested)
    provenance = Provenance(
        stage=origin.stage,
        digest=digest_json(files),
        files=files,
        parents=dict(origin.parents),
        tokenizer=origin.tokenizer,
        template=origin.template,
        recipe=origin.recipe,
        undigested=origin.undigested,
        versions=versions(),
        command=shlex.join(sys.argv if command is None else command),
        started=datetime.datetime.fromtimestamp(started_s, datetime.UTC).isoformat(timespec="seconds"),
        seconds=round(time.time() - started_s, 3),
    )
    write_json_atomic(directory / PROVENANCE, dataclasses.asdict(provenance))
    return provenance


def reopen(directory: Path) -> None:
    """Before the content of a directory changes: from here on it is unfinished, whatever it held.

    Without this, work stopped half-way would stand beside the provenance.json of what was there before.
    """
    if directory.is_dir():
        with writing(directory / PROVENANCE):
            (directory / PROVENANCE).unlink(missing_ok=True)
        sweep(directory)


def read_provenance(directory: Path) -> Provenance:
    """provenance.json of a finished stage directory. Raises InputError when it is missing or damaged."""
    path = directory / PROVENANCE
    try:
        fields = json.loads(path.read_bytes())
        expected = [field.name for field in dataclasses.fields(Provenance)]
        missing = [name for name in expected if name not in fields]
        if missing:
            raise ValueError(f"it has no {', '.join(missing)}")
        # A later version may add keys; they mean nothing here.
        known = {name: fields[name] for name in expected}
        return Provenance(**{**known, "undigested": tuple(fields["undigested"])})
    except FileNotFoundError:
        found = f"no {PROVENANCE} in {directory}" if directory.is_dir() else f"no directory {directory}"
        raise InputError(found, "a finished stage directory", "run the stage that writes it to its end") from None
    except (OSError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is damaged: {error}", "what eyas wrote", "remove it and run the stage again"
        ) from None


def is_finished(directory: Path, origin: Origin) -> bool:
    """Whether the directory holds the finished work of exactly this origin, so that the stage may be skipped.

    A missing or damaged provenance.json counts as unfinished. The content is not read again: see require_digest.
    """
    try:
        found = read_provenance(directory)
    except InputError:
        return False
    return _origin(found) == dataclasses.replace(origin, parents=dict(origin.parents))


def require(directory: Path, stage: str) -> Provenance:
    """The provenance of a finished directory of that stage. Raises InputError where there is none."""
    if not (directory / PROVENANCE).is_file():
        found = f"{directory}, which is unfinished" if directory.is_dir() else f"no directory {directory}"
        raise InputError(found, f"the finished work of stage {stage}", f"run `eyas {stage}` first")
    provenance = read_provenance(directory)
    if provenance.stage != stage:
        raise InputError(
            f"{directory} made by stage {provenance.stage}", f"the work of stage {stage}", "check the path"
        )
    return provenance


def require_digest(directory: Path, digest: str | None = None) -> Provenance:
    """Reads the content again and compares; with `digest`, also with what the caller expects of this directory.

    Raises InputError that names both digests, and the first damaged, missing or foreign file.
    """
    provenance = read_provenance(directory)
    if digest is not None and provenance.digest != digest:
        raise InputError(
            f"{directory} with digest {provenance.digest}",
            f"digest {digest}",
            "run the stages after it again, or bring back the directory they were made from",
        )
    found = digest_files(directory, provenance.undigested)
    for name in sorted({*found, *provenance.files}):
        if found.get(name) != provenance.files.get(name):
            raise InputError(
                f"{directory / name} with digest {found.get(name, 'none (no such file)')}",
                f"digest {provenance.files.get(name, 'none (no such file)')}",
                f"remove {directory} and run stage {provenance.stage} again",
            )
    if digest_json(found) != provenance.digest:
        raise InputError(
            f"{directory / PROVENANCE} with digest {provenance.digest}",
            f"digest {digest_json(found)} of the files beside it",
            f"remove {directory} and run stage {provenance.stage} again",
        )
    return provenance


def _origin(found: Provenance) -> Origin:
    return Origin(found.stage, found.recipe, dict(found.parents), found.tokenizer, found.template, found.undigested)


def versions() -> dict[str, str]:
    """Of Python, of eyas and of what it computes with."""
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
