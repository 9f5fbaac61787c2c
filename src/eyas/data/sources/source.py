"""Prompt sources: files at any fsspec URL, datasets of the Hugging Face hub, or prompts that eyas writes itself.

A source is split into shards, which workers read independently. Only the data determines where a shard ends
(`file_formats.py`), so the result does not depend on the number of workers.
"""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from eyas.base.errors import InputError, UsageError
from eyas.base.provenance import digest_json
from eyas.base.storage import StoragePath
from eyas.data.sources import file_formats
from eyas.data.sources.columns import ColumnsConfig
from eyas.data.sources.record_formats import RejectedRecord, describe_form, parse_record
from eyas.data.sources.request_logs import NO_RECORD
from eyas.data.sources.text_stream import COMPRESSIONS, UTF8
from eyas.evalsets import FAMILIES, example

BUILTIN = "builtin:"
BUILTIN_LICENSE = "Apache-2.0"
HUB = "hf:"
MAX_DESCRIBED = 3
SPLITS = ("train", "quickstart", "eval")
TextUnit = Literal["line", "file"]
FULL_REVISION = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class SourceConfig:
    """One source of prompts: a table of the recipe's list `prompts.sources`.

    Attributes:
        path: A file, a directory or a file pattern, on this machine or at an fsspec URL; or hf:DATASET for a dataset of
            the Hugging Face hub; or builtin:SPLIT for prompts that eyas generates.
        license: The SPDX id of the prompts' license; optional for the hub and for known datasets.
        license_file: A file with the license text; eyas records the digest of the text.
        dataset: The hub id of the public dataset, if the files are a copy of one.
        revision: The full commit of the dataset; required for hf: sources.
        files: A pattern that selects data files inside the dataset; for hf: sources only.
        name: The name of the source in record ids and in ledger.json; by default the file names without their endings.
        task: The value of the tag `task` of all prompts of the source; by default the name of the source.
        count: The number of conversations that a builtin: source generates; for builtin: sources only.
        keep_system: Keeps a leading system message; otherwise only user turns are kept.
        columns: A table like `prompts.columns`, which is the default.
        encoding: The encoding of files without a byte-order mark; by default `prompts.encoding`.
        text_unit: What one prompt is in a .txt file; by default `prompts.text_unit`.
    """

    path: str
    license: str | None = None
    license_file: str | None = None
    dataset: str | None = None
    revision: str | None = None
    files: str | None = None
    name: str | None = None
    task: str | None = None
    count: int | None = None
    keep_system: bool = False
    columns: ColumnsConfig | None = None
    encoding: str | None = None
    text_unit: TextUnit | None = None

    def __post_init__(self) -> None:
        if not self.path.strip():  # an unset variable of a script; as a path it would be the working directory
            problem = "A prompt source has an empty path"
            raise UsageError(problem, "Set prompts.source to a file, a directory or a pattern")
        if self.is_builtin and (self.license or BUILTIN_LICENSE) != BUILTIN_LICENSE:
            problem = f"prompts.license={self.license} does not fit {self.path}, whose license is {BUILTIN_LICENSE}"
            raise InputError(problem, "Leave prompts.license out")
        if self.is_builtin and (self.count is None or self.count < 1):
            raise InputError(f"The recipe does not say how many prompts {self.path} generates", "Set prompts.limit")
        if self.path.startswith(HUB) and FULL_REVISION.fullmatch(self.revision or "") is None:
            fix = "Set revision to the 40 hexadecimal digits that the dataset's page shows under Files and versions"
            raise UsageError(f"{self.path} has the revision {self.revision}, which is not a full commit", fix)

    @property
    def is_builtin(self) -> bool:
        """True for prompts that eyas writes itself."""
        return self.path.startswith(BUILTIN)


@dataclass(frozen=True)
class SourceFile:
    """A file of a source.

    Attributes:
        key: The name of the file in the ledger, the same on every machine.
        source_name: The name with which the ids of its records begin.
        digest: The SHA-256 of the file, as "sha256:HEX".
        data: The file and its format.
        size: Its size in bytes; None for a builtin: source.
    """

    key: str
    source_name: str
    digest: str
    data: file_formats.DataFile
    size: int | None = None


@dataclass(frozen=True)
class SourceShard:
    """A part of a source, which one worker reads at a time.

    Attributes:
        source_index: The index of the source in the recipe.
        file_index: The index of the file in the source.
        span: The part of the file.
        first_record: The number of the first record in ids.
    """

    source_index: int
    file_index: int
    span: file_formats.Span
    first_record: int

    @property
    def num_records(self) -> int:
        """Number of records, blank lines included."""
        return self.span.num_records


@dataclass(frozen=True)
class Source:
    """An opened source: its files with their digests, and its shards."""

    config: SourceConfig
    files: tuple[SourceFile, ...]
    shards: tuple[SourceShard, ...]
    hub_directory: Path | None = None  # the downloaded dataset of the hub, with its card and its license

    @property
    def name(self) -> str:
        """The name of the source in the ledger."""
        return ", ".join(sorted({file.source_name for file in self.files}))

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each file by its key."""
        return {file.key: file.digest for file in self.files}

    @property
    def num_records(self) -> int:
        """Number of records, blank lines included."""
        return sum(shard.num_records for shard in self.shards)


@dataclass(frozen=True)
class Record:
    """A record of a source, before its format is parsed.

    Attributes:
        id: SOURCE:INDEX, counted from 0.
        location: FILE:LINE, counted from 1, for the ledger.
        source: The name of the source.
        task: The task of a builtin: record; None for other sources.
        value: A JSON value, a line of text, or a RejectedRecord.
        language: The main language that the record names (ISO 639-1); None if it names none.
    """

    id: str
    location: str
    source: str
    task: str | None
    value: Any
    language: str | None = None


def open_source(
    config: SourceConfig, source_index: int, split: file_formats.SplitFile = file_formats.split_file
) -> Source:
    """Opens a source: reads all its files once, computes their digests, splits them into shards and counts records.

    Args:
        config: The source.
        source_index: Its index among the sources of the recipe.
        split: Computes the digest and the spans of a file.

    Raises:
        InputError: There is no such file, or a file is empty, damaged or of an unknown kind.
    """
    if config.is_builtin:
        return _open_grammar(config, source_index)
    paths, hub_directory = _find_files(config)
    if not paths:
        fix = f"Name a file, or a directory or a pattern of files: {' '.join(file_formats.FILE_FORMATS)}"
        raise InputError(f"No prompt file matches {config.path}", fix)
    columns = config.columns or ColumnsConfig()
    # A directory of texts has a prompt a file; a text that is named has a prompt a line.
    is_named = config.path.startswith(HUB) or paths[0].name == posixpath.basename(config.path)
    is_text_whole = config.text_unit == "file" or (config.text_unit is None and not is_named)
    files: list[SourceFile] = []
    shards: list[SourceShard] = []
    num_records: dict[str, int] = {}
    num_files: dict[str, int] = {}
    for path in paths:
        num_files[path.name] = num_files.get(path.name, 0) + 1
        # Two files of one name are told apart by their order, not by a directory of this machine.
        key = path.name if num_files[path.name] == 1 else f"{path.name} ({num_files[path.name]})"
        size, data = path.size(), file_formats.inspect_file(path, config.encoding, columns, is_text_whole)
        directory = posixpath.basename(posixpath.dirname(path.url))
        name = config.name or (directory if data.format == "text" else path.name.partition(".")[0])
        digest, spans = split(data)
        first = num_records.get(name, 0)  # files that share a name continue the count, so that ids are unique
        shards += [SourceShard(source_index, len(files), span, first + span.first_record) for span in spans]
        num_records[name] = first + sum(span.num_records for span in spans)
        files.append(SourceFile(key, name, digest, data, size))
    source = Source(config, tuple(files), tuple(shards), hub_directory)
    if columns.id is not None and split is file_formats.split_file:
        _require_unique_ids(source)
    return source


def _require_unique_ids(source: Source) -> None:
    seen: set[int] = set()
    for record in _read_all(source):
        if hash(record.id) in seen:
            problem = f"{record.location} has the same id as a record before it"
            raise InputError(problem, "Set prompts.columns.id to a column of unique values, or leave it out")
        seen.add(hash(record.id))


def describe_rejected(source: Source) -> str:
    """Returns the places, the reason and the form of the first rejected records of a source, for a message."""
    parsed = ((record, parse_record(record.value)) for record in _read_all(source))
    rejected = ((record, result) for record, result in parsed if isinstance(result, RejectedRecord))
    places: dict[str, list[str]] = {}
    for record, result in islice(rejected, MAX_DESCRIBED):
        places.setdefault(f"{result.reason}: {result.form or describe_form(record.value)}", []).append(record.location)
    return ", ".join(f"{', '.join(where)} ({reason})" for reason, where in places.items())


def read_shard(source: Source, shard: SourceShard) -> Iterator[Record]:
    """Yields the records of a shard, without blank lines. Raises InputError for a damaged or changed file."""
    file = source.files[shard.file_index]
    if file.data.format == "grammar":
        yield from _write_grammar_records(source, shard)
        return
    count = 0
    for offset, value in enumerate(file_formats.read_values(file.data, file.digest, shard.span)):
        count = offset + 1
        if value is not NO_RECORD:
            name, columns, number = file.source_name, file.data.columns, shard.first_record + offset
            own_id = str(number) if columns.id is None else columns.find_id(value) or f"row {number}"
            location = f"{file.key}:{shard.span.first_record + offset + 1}"
            content, language = columns.find_content(value), columns.find_language(value)
            yield Record(f"{name}:{own_id}", location, name, None, content, language)
    if count != shard.num_records or file.data.path.size() != file.size:  # the ledger would hold another file's digest
        raise InputError(f"{file.key} changed while it was read", "Run the same command again when it is complete")


def read_records(config: SourceConfig) -> Iterator[Record]:
    """Opens a source and yields all its records. Raises InputError like `open_source` and `read_shard`."""
    return _read_all(open_source(config, 0))


def _read_all(source: Source) -> Iterator[Record]:
    for shard in source.shards:
        yield from read_shard(source, shard)


# --- files -----------------------------------------------------------------------------------------------------------


def _find_files(config: SourceConfig) -> tuple[list[StoragePath], Path | None]:
    """Returns the data files of a source, and for a hf: source the directory of the downloaded dataset, else None."""
    if config.path.startswith(HUB):
        directory = _download_dataset(config)
        found = sorted(path for path in directory.glob(config.files or "**/*") if path.is_file())
        return [StoragePath(str(path)) for path in found if file_formats.is_data_file(path.name)], directory
    path = StoragePath(str(Path(config.path).expanduser()) if config.path.startswith("~") else config.path)
    matches = path.match_files()
    if [match.url for match in matches] != [path.url]:  # a directory or a pattern
        matches = [match for match in matches if file_formats.is_data_file(match.name)]
    return matches, None


def _download_dataset(config: SourceConfig) -> Path:
    from huggingface_hub import snapshot_download

    endings = [ending + packed for ending in file_formats.FILE_FORMATS for packed in ("", *COMPRESSIONS)]
    data = [config.files] if config.files else [f"*{ending}" for ending in endings]
    name, patterns = config.path.removeprefix(HUB), [*data, "README.md", "LICEN*"]
    try:
        return Path(snapshot_download(name, repo_type="dataset", revision=config.revision, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many unrelated classes, all meaning "not available"
        problem = f"The hub does not provide {config.path} at revision {config.revision} ({type(error).__name__})"
        fix = "Check the id, the revision and your access, or download the dataset and name its files"
        raise InputError(problem, fix) from error


# --- grammar ---------------------------------------------------------------------------------------------------------


def _open_grammar(config: SourceConfig, source_index: int) -> Source:
    split = config.path.removeprefix(BUILTIN)
    if split not in SPLITS:
        known = " or ".join(BUILTIN + name for name in SPLITS)
        raise InputError(f"prompts.source={config.path} is not a built-in source", f"Use {known}")
    # The grammar is code, so a sample of what it writes in this split is its digest.
    sample = [example(family, split, index).messages for family in FAMILIES for index in range(8)]
    data = file_formats.DataFile(StoragePath(config.path), "grammar", UTF8, ColumnsConfig())
    file = SourceFile(config.path, config.name or f"eyas-{split}", digest_json(sample), data)
    assert config.count is not None, "the grammar is endless"
    shards = [SourceShard(source_index, 0, span, span.first_record) for span in file_formats.split_range(config.count)]
    return Source(config, (file,), tuple(shards))


def _write_grammar_records(source: Source, shard: SourceShard) -> Iterator[Record]:
    """Yields the records of a builtin: source. Its families of prompts take turns."""
    families, split = list(FAMILIES), source.config.path.removeprefix(BUILTIN)
    for number in range(shard.span.begin, shard.span.end):
        index, family = divmod(number, len(families))
        written = example(families[family], split, index)
        yield Record(written.id, written.id, source.name, written.family, {"messages": written.messages})
