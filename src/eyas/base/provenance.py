"""Computes digests of directories, and writes the provenance.json that marks a stage directory as finished.

    features/
      shard-00000.safetensors    content; the digest covers it
      manifest.json              content; the digest covers it
      log.jsonl                  contains times; StageInputs.undigested excludes it from the digest
      .manifest.json.*.eyas-tmp  left by a killed process; `finish_stage` removes it
      provenance.json            written last; a directory without it is unfinished

The functions accept a directory as a Path or a StoragePath.
"""

import contextlib
import dataclasses
import datetime
import fnmatch
import hashlib
import importlib.metadata
import json
import platform
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from eyas.base.errors import InputError
from eyas.base.json_parser import describe_error, parse_json
from eyas.base.storage import AnyPath, StoragePath, convert_read_errors, remove_temp_files, to_json

PROVENANCE = "provenance.json"
# The directories before the last part of an absolute path, at the start of an argument or behind = , [ or a quote.
_DIRECTORY = re.compile(r"""(?:^|(?<=[=,\["']))/(?:[^/,\]"']+/)*(?=[^/,\]"'])""")
VERSIONED_PACKAGES = ("eyas", "torch", "transformers", "tokenizers", "safetensors", "numpy")


# --- digests ---------------------------------------------------------------------------------------------------------


def digest_bytes(data: bytes) -> str:
    """Returns `sha256:<hex>` of the bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def digest_file(path: AnyPath) -> str:
    """Returns `sha256:<hex>` of a file, read in parts. Raises InputError if the file cannot be read."""
    with convert_read_errors(path, "Check the path"), StoragePath.of(path).open() as file:
        return f"sha256:{hashlib.file_digest(cast(Any, file), 'sha256').hexdigest()}"


def digest_json(value: Any) -> str:
    """Returns `sha256:<hex>` of a JSON value. The order of the keys does not change it."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return digest_bytes(text.encode())


def digest_files(
    directory: AnyPath, exclude: Sequence[str] = (), known_digests: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the digest of every file below a directory, by relative POSIX name, sorted by name.

    Files named provenance.json and temporary files of killed processes are left out.

    Args:
        directory: The directory.
        exclude: fnmatch patterns of relative names to leave out. A * also matches a slash.
        known_digests: Digests by relative name of files that the function need not read.
    """
    root, known = StoragePath.of(directory), known_digests or {}
    left_out = (PROVENANCE, f"*/{PROVENANCE}", *exclude)
    names = [name for name in root.list_files() if not any(fnmatch.fnmatchcase(name, pattern) for pattern in left_out)]
    return {name: known[name] if name in known else digest_file(root.join(*name.split("/"))) for name in names}


def digest_directory(directory: Path, exclude: Sequence[str] = ()) -> str:
    """Returns one digest over the result of `digest_files`. Raises InputError if the directory does not exist."""
    if not directory.is_dir():
        raise InputError(f"No directory {directory}", "Check the path")
    return digest_json(digest_files(directory, exclude))


# --- provenance ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class StageInputs:
    """The inputs that decide the content of a stage directory. They are known before the stage runs.

    Equal inputs give equal files. So a stage is skipped if its directory was made from equal inputs.

    Attributes:
        stage: The verb: "prompts", "respond", "capture", ...
        recipe: The digest of the part of the recipe that the stage reads.
        parents: The digest of every input by name: {"target": ..., "conversations": ...}.
        tokenizer: The digest of the tokenizer; None if the stage uses none.
        template: The digest of the chat template; None if the stage uses none.
        undigested: fnmatch patterns of files that contain times. They are left out of the digest.
    """

    stage: str
    recipe: str
    parents: Mapping[str, str]
    tokenizer: str | None = None
    template: str | None = None
    undigested: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Provenance(StageInputs):
    """The content of provenance.json: the fields of StageInputs and a record of the run.

    Two runs with equal inputs differ only in `versions`, `command`, `started` and `seconds`.

    Attributes:
        digest: The digest over `files`; it identifies the content of the directory.
        files: The digest of each file by relative name.
        versions: The versions of Python and of the packages that decide results.
        command: The command line, see `describe_command`.
        started: The time of the start, in ISO 8601 and UTC.
        seconds: The duration of the stage.
    """

    digest: str
    files: Mapping[str, str]
    versions: Mapping[str, str]
    command: str
    started: str
    seconds: float

    @property
    def inputs(self) -> StageInputs:
        """The inputs from which the stage wrote the directory."""
        return StageInputs(**{field.name: getattr(self, field.name) for field in dataclasses.fields(StageInputs)})


def finish_stage(
    directory: AnyPath, inputs: StageInputs, started_s: float, known_digests: Mapping[str, str] | None = None
) -> Provenance:
    """Removes temporary files, digests the files and writes provenance.json, which marks the directory as finished.

    Args:
        directory: The stage directory.
        inputs: The inputs from which the stage wrote the directory.
        started_s: `time.time()` at the start of the stage.
        known_digests: Digests by relative name of files that the stage has just written. These files are not read.
    """
    root = StoragePath.of(directory)
    if root.is_local:
        remove_temp_files(root.path)
    files = digest_files(root, inputs.undigested, known_digests)
    provenance = Provenance(
        **vars(inputs),
        digest=digest_json(files),
        files=files,
        versions=package_versions(),
        command=describe_command(sys.argv),
        started=datetime.datetime.fromtimestamp(started_s, datetime.UTC).isoformat(timespec="seconds"),
        seconds=round(time.time() - started_s, 3),
    )
    root.join(PROVENANCE).write_bytes(to_json(dataclasses.asdict(provenance)))
    return provenance


def describe_command(words: Sequence[str]) -> str:
    """Returns a command line without the directories of this machine: absolute paths lose all but their last part."""
    program, *arguments = words
    name = "eyas" if Path(program).name == "__main__.py" else Path(program).name
    return shlex.join([name, *(_DIRECTORY.sub("", argument) for argument in arguments)])


def mark_unfinished(directory: AnyPath) -> None:
    """Removes provenance.json. A stage calls it before it changes files, so an interrupted stage is unfinished.

    It removes no other file, because another machine may be writing files of the same stage.
    """
    StoragePath.of(directory).join(PROVENANCE).remove()


def read_provenance(directory: AnyPath) -> Provenance:
    """Reads provenance.json of a stage directory. Raises InputError if it is missing or damaged."""
    file = StoragePath.of(directory).join(PROVENANCE)
    if not file.exists():
        raise _unfinished(directory, "Run the stage that writes it")
    try:
        return parse_json(Provenance, file.read_bytes())  # ignores keys that a later version may add
    except ValidationError as error:
        raise InputError(f"{file} is damaged: {describe_error(error)}", "Remove it and run the stage again") from None


def is_finished(directory: AnyPath, inputs: StageInputs) -> bool:
    """Returns True if provenance.json records exactly these inputs, so that the stage can be skipped.

    Returns False if provenance.json is missing or damaged. It does not read the other files; `verify_contents` does.
    """
    try:
        return read_provenance(directory).inputs == inputs
    except InputError:
        return False


def has_provenance(directory: AnyPath) -> bool:
    """Returns True if the directory has a provenance.json, so that its stage is finished."""
    return StoragePath.of(directory).join(PROVENANCE).exists()


def require_finished(directory: AnyPath, stage: str) -> Provenance:
    """Returns the provenance of a directory. Raises InputError unless this stage has written and finished it."""
    if not has_provenance(directory):
        raise _unfinished(directory, f"Run `eyas {stage}` first")
    provenance = read_provenance(directory)
    if provenance.stage != stage:
        raise InputError(f"{directory} was written by stage {provenance.stage}, not {stage}", "Check the path")
    return provenance


def verify_contents(directory: AnyPath) -> Provenance:
    """Reads all files of a finished directory and compares their digests with provenance.json.

    Raises:
        InputError: A file is changed, missing or not recorded in provenance.json. The error names the first such file
            and both digests.
    """
    provenance = read_provenance(directory)
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


def check_recorded(directory: Path, digests: Mapping[str, str]) -> Provenance | None:
    """Compares digests of files, by name, with the provenance.json of their directory or of the directory above it.

    The directory above holds it for an exported head: export/provenance.json records export/sglang/config.json.

    Returns:
        The provenance that records these files; None if no provenance.json does.

    Raises:
        InputError: A file has another digest than the recorded one, or is not recorded although others are.
    """
    for root, prefix in ((directory, ""), (directory.absolute().parent, f"{directory.absolute().name}/")):
        provenance = read_provenance(root) if has_provenance(root) else None
        if provenance is None or not any(f"{prefix}{name}" in provenance.files for name in digests):
            continue
        for name, digest in digests.items():
            recorded = provenance.files.get(f"{prefix}{name}", "no such file")
            if recorded != digest:
                problem = f"{directory / name} has digest {digest[:19]}, but {PROVENANCE} records {recorded[:19]}"
                raise InputError(problem, "The file has changed: copy or download the directory again")
        return provenance
    return None


def package_versions() -> dict[str, str]:
    """Returns the versions of Python, of eyas and of the packages that decide its results."""
    versions = {"python": platform.python_version()}
    for name in VERSIONED_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _unfinished(directory: AnyPath, fix: str) -> InputError:
    exists = StoragePath.of(directory).exists()
    problem = f"{directory} is unfinished: it has no {PROVENANCE}" if exists else f"No directory {directory}"
    return InputError(problem, fix)
