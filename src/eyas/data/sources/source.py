"""Where prompts come from: files on any fsspec URL, datasets of the Hugging Face hub, or eyas's own grammar.

A source is cut into *pieces*, which workers read independently of each other. Where the cuts lie depends on the data
alone, so the same prompts come out whatever the number of workers.

    file of lines      | 1000 lines | 1000 lines | 1000 lines | rest |       a piece is a range of bytes
    Parquet            | row group  | row group  |                          a piece is a row group
    CSV, compressed    | file                                        |      a piece is a file
"""

import csv
import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from eyas.base.errors import InputError, UsageError
from eyas.base.provenance import digest_json
from eyas.base.storage import StoragePath
from eyas.chat.conversation import is_unicode
from eyas.data.optional_imports import import_extra
from eyas.evalsets import FAMILIES, example

BUILTIN = "builtin:"
BUILTIN_LICENSE = "Apache-2.0"
HUB = "hf:"
SPLITS = ("train", "quickstart", "eval")
SHARD_RECORDS = 1000
SHARD_BYTES = 8 * 2**20
READ_BYTES = 2**20
FULL_REVISION = re.compile(r"[0-9a-f]{40}")

FileFormat = Literal["lines", "log", "parquet", "csv", "compressed", "grammar"]
FILE_FORMATS: dict[str, FileFormat] = {
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".json": "lines",
    ".txt": "lines",
    ".log": "log",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".gz": "compressed",
    ".bz2": "compressed",
    ".xz": "compressed",
}


@dataclass(frozen=True)
class SourceConfig:
    """One source: a table of the recipe's list `prompts.sources`.

    path          a file, a directory or a pattern, on this machine or any fsspec URL; hf:<dataset> of the hub;
                  builtin:<split> for eyas's grammar
    license       SPDX id of the prompts' licence; of the hub and of known sets it may be left out
    license_file  its text, whose digest is recorded
    dataset       the public dataset that the files are a copy of, as the hub calls it
    revision      its commit; required for hf:
    files         hf: only, a pattern of data files inside the dataset
    name          of the source in ids and ledger; default: the files' names without their endings
    task          tag `task`; default: the source's name
    count         builtin: only, how many conversations the grammar writes
    keep_system   keep a leading system message; else only what users said
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

    def __post_init__(self) -> None:
        if not self.path.strip():  # an unset variable of a script; taken as a path it is the working directory
            raise UsageError("a source with an empty path", "a file, a directory or a pattern", "name it")
        if self.is_builtin and (self.license or BUILTIN_LICENSE) != BUILTIN_LICENSE:
            raise InputError(f"prompts.license={self.license} for {self.path}", BUILTIN_LICENSE, "leave it out")
        if self.is_builtin and (self.count is None or self.count < 1):
            raise InputError(f"{self.path} without a count", "how many it shall write", "set prompts.limit=300")
        if self.path.startswith(HUB) and FULL_REVISION.fullmatch(self.revision or "") is None:
            raise UsageError(
                f"{self.path} at revision {self.revision}",
                "the full commit of the dataset, 40 hexadecimal digits: its content and licence change with time",
                "copy it from the dataset's page, Files and versions",
            )

    @property
    def is_builtin(self) -> bool:
        """Whether eyas writes the prompts itself."""
        return self.path.startswith(BUILTIN)


@dataclass(frozen=True)
class SourceFile:
    """One file of a source. key: its name in the ledger, the same on every machine."""

    url: str
    key: str
    source_name: str
    format: FileFormat
    digest: str


@dataclass(frozen=True)
class SourceShard:
    """What one worker reads at a time: bytes, a row group, a file, or conversations of the grammar.

    first: the index, within the source, of its first record; line: that record's line in the file, from 1. count:
    records, blank lines included.
    """

    source_index: int
    file_index: int
    begin: int
    end: int
    first_record: int
    first_line: int
    num_records: int


@dataclass(frozen=True)
class Source:
    """A source that was looked at: its files with their digests, and how it is cut."""

    config: SourceConfig
    files: tuple[SourceFile, ...]
    shards: tuple[SourceShard, ...]
    hub_directory: Path | None = None  # of a dataset of the hub, with its card and its licence

    @property
    def digests(self) -> dict[str, str]:
        """File keys to digests."""
        return {file.key: file.digest for file in self.files}

    @property
    def num_records(self) -> int:
        """Records, blank lines included."""
        return sum(piece.num_records for piece in self.shards)


def open_source(config: SourceConfig, source_index: int) -> Source:
    """Reads every byte once: digests, cuts, counts. number: the source's place in the recipe.

    InputError where nothing is, or a file is empty or of an unknown kind.
    """
    if config.is_builtin:
        return _open_grammar(config, source_index)
    places, root = _find_files(config)
    files: list[SourceFile] = []
    pieces: list[SourceShard] = []
    counts: dict[str, int] = {}
    keys: dict[str, int] = {}
    for place in places:
        name = config.name or place.name.partition(".")[0]
        keys[place.name] = keys.get(place.name, 0) + 1
        # Two files of one name are told apart by their order, not by a directory of this machine.
        key = place.name if keys[place.name] == 1 else f"{place.name} ({keys[place.name]})"
        kind = _file_format(place)
        digest, cuts = _digest_and_split(place, kind)
        first = counts.get(name, 0)  # files that share a name are counted on, so that ids are unique
        for cut in cuts:
            pieces.append(
                SourceShard(
                    source_index,
                    len(files),
                    cut.begin,
                    cut.end,
                    first + cut.first_record,
                    cut.first_record + 1,
                    cut.num_records,
                )
            )
        counts[name] = first + sum(cut.num_records for cut in cuts)
        files.append(SourceFile(place.url, key, name, kind, digest))
    return Source(config, tuple(files), tuple(pieces), root)


# --- finding the files -----------------------------------------------------------------------------------------------


def _find_files(config: SourceConfig) -> tuple[list[StoragePath], Path | None]:
    """The data files, and of a dataset of the hub where it lies."""
    if config.path.startswith(HUB):
        root = _download_dataset(config)
        found = sorted(
            path for path in root.glob(config.files or "**/*") if path.is_file() and _is_data_file(path.name)
        )
        return _require_files([StoragePath(str(path)) for path in found], config), root
    place = StoragePath(str(Path(config.path).expanduser()) if config.path.startswith("~") else config.path)
    places = place.match_files()
    if [match.url for match in places] != [place.url]:
        places = [match for match in places if _is_data_file(match.name)]
    return _require_files(places, config), None


def _require_files(places: Sequence[StoragePath], config: SourceConfig) -> list[StoragePath]:
    if not places:
        kinds = " ".join(sorted(FILE_FORMATS))
        raise InputError(
            f"no prompt file {config.path}", f"a file, a directory or a pattern ({kinds})", "check the path"
        )
    return list(places)


def _download_dataset(config: SourceConfig) -> Path:
    from huggingface_hub import snapshot_download

    patterns = [config.files] if config.files else [f"*{ending}" for ending in FILE_FORMATS]
    try:
        return Path(
            snapshot_download(
                config.path.removeprefix(HUB),
                repo_type="dataset",
                revision=config.revision,
                allow_patterns=[*patterns, "README.md", "LICEN*"],
            )
        )
    except Exception as error:  # the hub client raises many unrelated classes, all meaning "not available"
        raise InputError(
            f"{config.path} at {config.revision}, which the hub does not give ({type(error).__name__})",
            "a dataset that this machine may download, at a revision that exists",
            "check id, revision and access, or download it first and name the files",
        ) from error


def _is_data_file(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in FILE_FORMATS


def _file_format(place: StoragePath) -> FileFormat:
    if not is_unicode(place.name):  # the ledger and every id would hold it
        raise InputError(f"a file name that is not UTF-8, {place.name!r}", "one that is", "rename the file")
    found = FILE_FORMATS.get(Path(place.name).suffix.lower())
    if found is None:
        raise InputError(
            f"{place.name}, a file of unknown kind", " ".join(sorted(FILE_FORMATS)), "convert or rename it"
        )
    if found == "compressed" and FILE_FORMATS.get(Path(Path(place.name).stem).suffix.lower()) not in ("lines", "log"):
        raise InputError(f"{place.name}, compressed", "a compressed file of lines, such as .jsonl.gz", "unpack it")
    return found


# --- digests and cuts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Span:
    begin: int
    end: int
    first_record: int
    num_records: int


def _digest_and_split(place: StoragePath, kind: FileFormat) -> tuple[str, list[_Span]]:
    """The digest of a file and where it is cut."""
    digest = hashlib.sha256()
    with place.open() as file:
        if kind in ("lines", "log"):
            cuts = _split_lines(_read_blocks(file, digest))
        else:
            size = sum(map(len, _read_blocks(file, digest)))
            cuts = [] if size == 0 else _split_whole(place, file, kind, size)
    if not cuts:
        raise InputError(f"the empty prompt file {place.name}", "a record at least", "check how it was made")
    return f"sha256:{digest.hexdigest()}", cuts


def _read_blocks(file: BinaryIO, digest: "hashlib._Hash") -> Iterator[bytes]:
    while block := file.read(READ_BYTES):
        digest.update(block)
        yield block


def _split_lines(blocks: Iterator[bytes]) -> list[_Span]:
    """After SHARD_RECORDS lines, or the first line end behind SHARD_BYTES."""
    cuts: list[_Span] = []
    at = begin = count = first = 0
    is_open = False  # behind a line that has no end yet
    for block in blocks:
        place = 0
        while (end := block.find(b"\n", place)) >= 0:
            place, count, is_open = end + 1, count + 1, False
            if count == SHARD_RECORDS or at + place - begin >= SHARD_BYTES:
                cuts.append(_Span(begin, at + place, first, count))
                begin, first, count = at + place, first + count, 0
        is_open = is_open or place < len(block)
        at += len(block)
    if at > begin:
        cuts.append(_Span(begin, at, first, count + is_open))
    return cuts


def _split_whole(place: StoragePath, file: BinaryIO, kind: FileFormat, size: int) -> list[_Span]:
    file.seek(0)
    if kind == "parquet":
        parquet = import_extra("pyarrow.parquet")
        try:
            metadata = parquet.ParquetFile(file).metadata
        except Exception as error:  # pyarrow raises classes of its own for each way to be damaged
            raise InputError(f"{place.name}, which is not Parquet", "a Parquet file", "fetch it again") from error
        counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        return [_Span(group, group + 1, sum(counts[:group]), count) for group, count in enumerate(counts) if count]
    if kind == "csv":
        return [_Span(0, size, 0, sum(1 for _ in read_csv_rows(file, place.name)))]
    return [_Span(0, size, 0, sum(1 for _ in read_compressed_lines(file, place.name)))]


def read_csv_rows(file: BinaryIO, name: str) -> Iterator[dict[str, str]]:
    """The rows of a CSV or TSV file by their header. InputError for what is none."""
    csv.field_size_limit(2**31 - 1)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    # strict: else a quote that nobody closes takes all rows behind it for one field, and nothing would tell.
    rows = csv.DictReader(text, delimiter="\t" if name.lower().endswith(".tsv") else ",", strict=True)
    try:
        yield from rows
    except UnicodeDecodeError:
        raise InputError(f"{name}, which is not CSV in UTF-8", "a header and rows", "convert it") from None
    except csv.Error:
        raise InputError(
            f"{name} with a quote out of place in the row that begins at line {rows.line_num + 1}",
            'CSV: a field with a quote stands in quotes, with "" for each of its own',
            "mend the file, or write it again with a CSV library",
        ) from None
    finally:
        text.detach()  # whoever opened the file closes it


def read_compressed_lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The lines of a compressed file. InputError for what is damaged."""
    import bz2
    import gzip
    import lzma
    import zlib

    opened = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}[Path(name).suffix.lower()]
    try:
        with opened(file, "rb") as lines:
            yield from lines  # type: ignore[misc]  # bytes in mode "rb"
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        raise InputError(f"{name}, which is damaged or cut off", "a whole compressed file", "fetch it again") from None


def _open_grammar(config: SourceConfig, number: int) -> Source:
    split = config.path.removeprefix(BUILTIN)
    if split not in SPLITS:
        known = " or ".join(BUILTIN + name for name in SPLITS)
        raise InputError(f"prompts.source={config.path}", known, "choose one")
    # The grammar is code: what it writes in this split is its digest.
    sample = [example(family, split, index).messages for family in FAMILIES for index in range(8)]
    file = SourceFile(config.path, config.path, config.name or f"eyas-{split}", "grammar", digest_json(sample))
    assert config.count is not None, "the grammar is endless"
    starts = range(0, config.count, SHARD_RECORDS)
    pieces = [SourceShard(number, 0, at, min(at + SHARD_RECORDS, config.count), at, at + 1, 0) for at in starts]
    return Source(config, (file,), tuple(_counted(piece) for piece in pieces))


def _counted(piece: SourceShard) -> SourceShard:
    return SourceShard(
        piece.source_index,
        piece.file_index,
        piece.begin,
        piece.end,
        piece.first_record,
        piece.first_line,
        piece.end - piece.begin,
    )
