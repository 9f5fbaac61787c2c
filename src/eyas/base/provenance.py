r"""Digests of directories, and the provenance.json that ends a stage.

    features/
      shard-00000.safetensors   \
      manifest.json              } content: what `digest` covers
      log.jsonl                  } carries times: named in StageInputs.undigested
      .manifest.json.*.eyas-tmp  } left by a killed write, removed by `finish_stage`
      provenance.json            written last: without it the directory is unfinished

A directory is a Path or a StoragePath.
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
    """Returns `sha256:<hex>` of the bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def digest_file(path: Path | StoragePath) -> str:
    """Returns `sha256:<hex>` of a file, read in parts. Raises InputError when it cannot be read."""
    try:
        with StoragePath.of(path).open() as file:
            digest = hashlib.sha256()
            while part := file.read(1 << 20):
                digest.update(part)
            return f"sha256:{digest.hexdigest()}"
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror or type(error).__name__})", "Check the path"
        ) from None


def digest_json(value: Any) -> str:
    """Returns `sha256:<hex>` of a JSON value; the order of keys and the white space do not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return digest_bytes(text.encode())


def digest_files(
    directory: Path | StoragePath, exclude: Sequence[str] = (), known_digests: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns relative POSIX name -> digest of every content file below a directory, sorted by name.

    Leaves out provenance.json files and what killed writes left.

    Args:
        directory: The directory.
        exclude: fnmatch patterns over relative names to leave out, where * also matches a slash.
        known_digests: Digests by name of files that need not be read.
    """
    root, known, digests = StoragePath.of(directory), known_digests or {}, {}
    for name in root.list_files():
        skip = name.rpartition("/")[2] == PROVENANCE
        if not skip and not any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude):
            digests[name] = known[name] if name in known else digest_file(root.join(*name.split("/")))
    return digests


def digest_directory(directory: Path, exclude: Sequence[str] = ()) -> str:
    """Returns one digest over the names and contents of `digest_files`. Raises InputError for a missing directory."""
    if not directory.is_dir():
        raise InputError(f"No directory {directory}", "Check the path")
    return digest_json(digest_files(directory, exclude))


# --- provenance ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class StageInputs:
    """Everything that decides the content of a stage directory, known before the work starts.

    Equal inputs give equal bytes, so a stage whose recorded inputs equal these is skipped.
    """

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

    @property
    def inputs(self) -> StageInputs:
        """The inputs that the stage was run with."""
        return StageInputs(**_input_fields(self))


def finish_stage(
    directory: Path | StoragePath,
    inputs: StageInputs,
    started_s: float,
    command: Sequence[str] | None = None,
    known_digests: Mapping[str, str] | None = None,
) -> Provenance:
    """Ends a stage: removes temporary files, digests the content and writes provenance.json last.

    Args:
        directory: The stage directory.
        inputs: The inputs that decided its content.
        started_s: `time.time()` of the start.
        command: The command line; None for sys.argv.
        known_digests: Digests by name of files that the stage has just written, so that they are not read again.
    """
    root = StoragePath.of(directory)
    if root.is_local:
        remove_temp_files(root.path)
    files = digest_files(root, inputs.undigested, known_digests)
    provenance = Provenance(
        **_input_fields(inputs),
        digest=digest_json(files),
        files=files,
        versions=package_versions(),
        command=shlex.join(sys.argv if command is None else command),
        started=datetime.datetime.fromtimestamp(started_s, datetime.UTC).isoformat(timespec="seconds"),
        seconds=round(time.time() - started_s, 3),
    )
    root.join(PROVENANCE).write_bytes(to_json(dataclasses.asdict(provenance)))
    return provenance


def mark_unfinished(directory: Path | StoragePath) -> None:
    """Removes provenance.json before the content of a directory changes, so that stopped work never looks finished.

    It removes nothing else: another machine that shares the stage may be writing.
    """
    StoragePath.of(directory).join(PROVENANCE).remove()


def read_provenance(directory: Path | StoragePath) -> Provenance:
    """Reads provenance.json of a finished stage directory. Raises InputError when it is missing or damaged."""
    file = StoragePath.of(directory).join(PROVENANCE)
    if not file.exists():
        raise _unfinished(directory, "Run the stage that writes it")
    try:
        fields = json.loads(file.read_bytes())
        # A later version may add keys, which are ignored here.
        values = {field.name: fields[field.name] for field in dataclasses.fields(Provenance)}
        return Provenance(**{**values, "undigested": tuple(fields["undigested"])})
    except (TypeError, ValueError, KeyError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else "it is not the JSON that eyas writes"
        raise InputError(f"{file} is damaged: {why}", "Remove it and run the stage again") from None


def is_finished(directory: Path | StoragePath, inputs: StageInputs) -> bool:
    """Returns True if the directory holds the finished work of exactly these inputs, so that the stage may be skipped.

    A missing or damaged provenance.json counts as unfinished. The content is not read again: see `verify_contents`.
    """
    try:
        return read_provenance(directory).inputs == inputs
    except InputError:
        return False


def has_provenance(directory: Path | StoragePath) -> bool:
    """Returns True if the directory is finished, of whatever stage."""
    return StoragePath.of(directory).join(PROVENANCE).exists()


def require_finished(directory: Path | StoragePath, stage: str) -> Provenance:
    """Returns the provenance of a finished directory of that stage. Raises InputError where there is none."""
    if not has_provenance(directory):
        raise _unfinished(directory, f"Run `eyas {stage}` first")
    provenance = read_provenance(directory)
    if provenance.stage != stage:
        raise InputError(f"{directory} was written by stage {provenance.stage}, not {stage}", "Check the path")
    return provenance


def verify_contents(directory: Path | StoragePath, digest: str | None = None) -> Provenance:
    """Reads all files of a finished directory and compares their digests with provenance.json.

    Args:
        directory: The stage directory.
        digest: The digest that the caller expects of the directory; None accepts any.

    Raises:
        InputError: A file is damaged, missing or foreign; the error names the first one and both digests.
    """
    provenance = read_provenance(directory)
    if digest is not None and provenance.digest != digest:
        raise InputError(
            f"{directory} has digest {provenance.digest}, but was used with digest {digest}",
            "Run the stages after it again, or restore the directory that they were made from",
        )
    found, again = digest_files(directory, provenance.undigested), f"Remove {directory} and run its stage again"
    missing = "none (no such file)"
    for name in sorted({*found, *provenance.files}):
        if found.get(name) != provenance.files.get(name):
            file, recorded = StoragePath.of(directory).join(name), provenance.files.get(name, missing)
            raise InputError(f"{file} has digest {found.get(name, missing)}, but {recorded} is recorded", again)
    if digest_json(found) != provenance.digest:
        file = StoragePath.of(directory).join(PROVENANCE)
        raise InputError(f"{file} records digest {provenance.digest}, but its files have {digest_json(found)}", again)
    return provenance


def package_versions() -> dict[str, str]:
    """Returns the versions of Python, of eyas and of the packages that decide its results."""
    versions = {"python": platform.python_version()}
    for name in VERSIONED_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _input_fields(record: StageInputs | Provenance) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(StageInputs)}


def _unfinished(directory: Path | StoragePath, fix: str) -> InputError:
    exists = StoragePath.of(directory).exists()
    return InputError(
        f"{directory} is unfinished: it has no {PROVENANCE}" if exists else f"No directory {directory}", fix
    )
