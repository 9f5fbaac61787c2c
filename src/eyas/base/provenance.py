"""Where a stage directory comes from: digests, and the provenance.json that ends a stage.

    features/
      shard-00000.safetensors   \\
      manifest.json              } content: what `digest` covers
      log.jsonl                  } carries times: named in Origin.undigested
      .manifest.json.*.eyas-tmp  } left by a killed write, swept by `finish`
      provenance.json            written last: without it the directory is unfinished

A directory is a path or any other `Place`.
"""

import contextlib
import dataclasses
import datetime
import fnmatch
import hashlib
import importlib.metadata
import json
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.base.errors import InputError
from eyas.base.storage import StoragePath, remove_temp_files, to_json

PROVENANCE = "provenance.json"
VERSIONED_PACKAGES = ("eyas", "torch", "transformers", "tokenizers", "safetensors", "numpy")


# --- digests ---------------------------------------------------------------------------------------------------------


def digest_bytes(data: bytes) -> str:
    """`sha256:<hex>` of the bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def digest_file(path: Path | StoragePath) -> str:
    """`sha256:<hex>` of a file, read in pieces. Raises InputError when it cannot be read."""
    try:
        with StoragePath.of(path).open() as file:
            digest = hashlib.sha256()
            while part := file.read(1 << 20):
                digest.update(part)
            return f"sha256:{digest.hexdigest()}"
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", "a readable file", "check the path") from None


def digest_json(value: Any) -> str:
    """`sha256:<hex>` of a JSON value; the order of keys and the spaces between them do not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return digest_bytes(text.encode())


def digest_files(
    directory: Path | StoragePath, exclude: Sequence[str] = (), known_digests: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Relative POSIX name -> digest of every content file below a directory, sorted by name.

    Leaves out every provenance.json, what a killed write left, and names that match a pattern of `exclude`
    (fnmatch over the relative name, where * also matches a slash). known: digests of files that need not be read.
    """
    place, known_digests, digests = StoragePath.of(directory), known_digests or {}, {}
    for name in place.list_files():
        skip = name.rpartition("/")[2] == PROVENANCE
        if not skip and not any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude):
            digests[name] = known_digests[name] if name in known_digests else digest_file(place.join(*name.split("/")))
    return digests


def digest_directory(directory: Path, exclude: Sequence[str] = ()) -> str:
    """One digest over the names and contents of `digest_files`. Raises InputError when there is no such directory."""
    if not directory.is_dir():
        raise InputError(f"no directory {directory}", "a directory", "check the path")
    return digest_json(digest_files(directory, exclude))


# --- provenance ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class StageInputs:
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


def finish_stage(
    directory: Path | StoragePath,
    inputs: StageInputs,
    started_s: float,
    command: Sequence[str] | None = None,
    known_digests: Mapping[str, str] | None = None,
) -> Provenance:
    """Ends a stage: sweeps, digests the content and writes provenance.json, last.

    started_s is `time.time()` of the start; command is the command line, sys.argv when None. known: digests of files
    that the stage has just written, so that they are not read again.
    """
    place = StoragePath.of(directory)
    if place.is_local:
        remove_temp_files(place.path)
    files = digest_files(place, inputs.undigested, known_digests)
    provenance = Provenance(
        stage=inputs.stage,
        digest=digest_json(files),
        files=files,
        parents=dict(inputs.parents),
        tokenizer=inputs.tokenizer,
        template=inputs.template,
        recipe=inputs.recipe,
        undigested=inputs.undigested,
        versions=package_versions(),
        command=shlex.join(sys.argv if command is None else command),
        started=datetime.datetime.fromtimestamp(started_s, datetime.UTC).isoformat(timespec="seconds"),
        seconds=round(time.time() - started_s, 3),
    )
    place.join(PROVENANCE).write_bytes(to_json(dataclasses.asdict(provenance)))
    return provenance


def mark_unfinished(directory: Path | StoragePath) -> None:
    """Before the content of a directory changes: from here on it is unfinished, whatever it held.

    Without this, work stopped half-way would stand beside the provenance.json of what was there before. It sweeps
    nothing: another machine that shares the stage may be in the middle of a write.
    """
    StoragePath.of(directory).join(PROVENANCE).remove()


def read_provenance(directory: Path | StoragePath) -> Provenance:
    """provenance.json of a finished stage directory. Raises InputError when it is missing or damaged."""
    file = StoragePath.of(directory).join(PROVENANCE)
    if not file.exists():
        there = StoragePath.of(directory).exists()
        found = f"no {PROVENANCE} in {directory}" if there else f"no directory {directory}"
        raise InputError(found, "a finished stage directory", "run the stage that writes it to its end")
    try:
        fields = json.loads(file.read_bytes())
        expected = [field.name for field in dataclasses.fields(Provenance)]
        missing = [name for name in expected if name not in fields]
        if missing:
            raise ValueError(f"it has no {', '.join(missing)}")
        # A later version may add keys; they mean nothing here.
        known = {name: fields[name] for name in expected}
        return Provenance(**{**known, "undigested": tuple(fields["undigested"])})
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{file} is damaged: {error}", "what eyas wrote", "remove it and run the stage again"
        ) from None


def is_finished(directory: Path | StoragePath, inputs: StageInputs) -> bool:
    """Whether the directory holds the finished work of exactly this origin, so that the stage may be skipped.

    A missing or damaged provenance.json counts as unfinished. The content is not read again: see verify_contents.
    """
    try:
        found = read_provenance(directory)
    except InputError:
        return False
    return _inputs_of(found) == dataclasses.replace(inputs, parents=dict(inputs.parents))


def has_provenance(directory: Path | StoragePath) -> bool:
    """Whether the directory is finished, of whatever stage."""
    return StoragePath.of(directory).join(PROVENANCE).exists()


def require_finished(directory: Path | StoragePath, stage: str) -> Provenance:
    """The provenance of a finished directory of that stage. Raises InputError where there is none."""
    if not has_provenance(directory):
        there = StoragePath.of(directory).exists()
        found = f"{directory}, which is unfinished" if there else f"no directory {directory}"
        raise InputError(found, f"the finished work of stage {stage}", f"run `eyas {stage}` first")
    provenance = read_provenance(directory)
    if provenance.stage != stage:
        raise InputError(
            f"{directory} made by stage {provenance.stage}", f"the work of stage {stage}", "check the path"
        )
    return provenance


def verify_contents(directory: Path | StoragePath, digest: str | None = None) -> Provenance:
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
                f"{StoragePath.of(directory).join(name)} with digest {found.get(name, 'none (no such file)')}",
                f"digest {provenance.files.get(name, 'none (no such file)')}",
                f"remove {directory} and run stage {provenance.stage} again",
            )
    if digest_json(found) != provenance.digest:
        raise InputError(
            f"{StoragePath.of(directory).join(PROVENANCE)} with digest {provenance.digest}",
            f"digest {digest_json(found)} of the files beside it",
            f"remove {directory} and run stage {provenance.stage} again",
        )
    return provenance


def _inputs_of(found: Provenance) -> StageInputs:
    return StageInputs(
        found.stage, found.recipe, dict(found.parents), found.tokenizer, found.template, found.undigested
    )


def package_versions() -> dict[str, str]:
    """Of Python, of eyas and of what it computes with."""
    found = {"python": platform.python_version()}
    for name in VERSIONED_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
