"""Part `files` of `make prove-data`: files as the usual tools write them must be read to the same prompts.

python benchmarks/data_files.py DIR [TOOL ...]     writes the files of these tools (all tools) to DIR
"""

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from data_options import Options
from file_shapes import TURNS, WRITERS, Keys, single
from file_shapes_of_packages import PACKAGES
from result_rows import Row

from eyas.base.config import build
from eyas.data.prompts_config import PromptsConfig
from eyas.data.sources.record_formats import ParsedRecord, parse_record
from eyas.data.sources.source import read_records

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "data" / "sources" / "fixtures"
STORED = {
    "polars.csv": single(),
    "polars.json": TURNS,
    "polars.arrow": single(),
    "polars.parquet": TURNS,
    "duckdb.csv": single(),
    "duckdb.json": single(),
    "duckdb-array.json": single(),
    "duckdb.jsonl.zst": single(),
    "duckdb.parquet": single(),
    "datasets-saved": TURNS,
    "datasets.json": TURNS,
    "datasets.csv": single(),
}
"""Files of tools that may not be installed here, and the user turns of their records."""


def read_turns(keys: Keys) -> list[tuple[str, ...]]:
    """Returns the user turns of the records of a source, as `eyas prompts` reads them."""
    found = []
    for record in read_records(build(PromptsConfig, keys).all_sources()[0]):
        parsed = parse_record(record.value)
        assert isinstance(parsed, ParsedRecord), f"{record.location}: {parsed.reason}"
        found.append(tuple(message.content for message in parsed.messages))
    return found


def is_installed(tool: str) -> bool:
    """Returns True if a Python package or a program of this name is here. Excel's files need none."""
    if tool in PACKAGES:
        return importlib.util.find_spec(tool) is not None
    return tool in ("json", "csv", "text", "Excel", "LibreOffice") or shutil.which(tool) is not None


def files(options: Options) -> Iterator[Row]:
    """Yields a row for each shape: the share of the records that are read as they were written."""
    del options
    for name, expected in STORED.items():
        yield _compare(f"{name}, stored", {"source": str(FIXTURES / name)}, expected)
    for (tool, name), writer in WRITERS.items():
        if not is_installed(tool):
            print(f"files, {tool} {name}: only the stored file, {tool} is not installed", file=sys.stderr, flush=True)
            continue
        with tempfile.TemporaryDirectory() as directory:
            yield _compare(f"{tool} {name}", *writer(Path(directory)))


def _compare(name: str, keys: Keys, expected: list[tuple[str, ...]]) -> Row:
    found = read_turns(keys)
    share = sum(one == other for one, other in zip(found, expected, strict=False)) / max(len(found), len(expected))
    return Row(f"files, {name}: records read as written", share, "1.0", share == 1)


def main() -> None:
    """Writes files of the tools that the command line names."""
    directory, tools = Path(sys.argv[1]), sys.argv[2:]
    for (tool, name), writer in WRITERS.items():
        if tool in tools or not tools:
            place = directory / f"{tool}-{name}"
            place.mkdir(parents=True)
            writer(place)


if __name__ == "__main__":
    main()
