"""Where prompts come from: JSON-lines files, or eyas's own grammar."""

import glob
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.base.errors import InputError
from eyas.base.provenance import digest_file, digest_json
from eyas.evalsets import FAMILIES, example

BUILTIN = "builtin:"
BUILTIN_LICENSE = "Apache-2.0"
SPLITS = ("train", "quickstart", "eval")


@dataclass(frozen=True)
class Line:
    """One line of a source that is not blank."""

    id: str  # "<source name>:<index from 0>"
    where: str  # "<file name>:<line from 1>", for the ledger
    source: str
    task: str | None  # as the source names it
    value: Any  # the JSON value; None where `is_json` is false
    is_json: bool


@dataclass(frozen=True)
class Source:
    """What `prompts.source` names. `digests` maps file names to digests, and says the same on every machine."""

    name: str | None  # replaces the files' own names
    files: tuple[Path, ...]
    split: str | None  # of the grammar; then there are no files
    digests: dict[str, str]

    def lines(self, limit: int | None) -> Iterator[Line]:
        """Every line that is not blank; of the endless grammar `limit` conversations, family by family in turn."""
        if self.split is not None:
            assert limit is not None, "the grammar is endless"
            yield from _grammar(self.split, self.name, limit)
        counts: dict[str, int] = {}
        for path in self.files:
            source = self.name or path.stem
            offset = counts.get(source, 0)  # files that share a name are counted on, so that ids are unique
            with path.open("rb") as file:
                for number, raw in enumerate(file):
                    counts[source] = offset + number + 1
                    text = raw.removeprefix(b"\xef\xbb\xbf") if number == 0 else raw
                    if text.strip():
                        value, is_json = _parse(text)
                        line_id = f"{source}:{offset + number}"
                        yield Line(line_id, f"{path.name}:{number + 1}", source, None, value, is_json)


def open_source(source: str, name: str | None) -> Source:
    """A file, a directory of *.jsonl, a glob pattern, or `builtin:<split>`. Raises InputError where nothing is."""
    if source.startswith(BUILTIN):
        split = source.removeprefix(BUILTIN)
        if split not in SPLITS:
            raise InputError(f"prompts.source={source}", " or ".join(BUILTIN + known for known in SPLITS), "choose one")
        # The grammar is code: what it writes in this split is its digest.
        sample = [example(family, split, index).messages for family in FAMILIES for index in range(8)]
        return Source(name, (), split, {source: digest_json(sample)})
    path = Path(source).expanduser()
    if path.is_dir():
        files = sorted(path.glob("*.jsonl"))
    elif path.is_file():
        files = [path]
    else:
        files = sorted(Path(match) for match in glob.glob(str(path), recursive=True) if Path(match).is_file())
    if not files:
        raise InputError(f"no prompt file {source}", "a JSON-lines file, a directory or a pattern", "check the path")
    for file in files:
        if file.stat().st_size == 0:
            raise InputError(f"the empty prompt file {file}", "one JSON object a line", "check how it was made")
    digests: dict[str, str] = {}
    for file in files:
        # Two files of one name are told apart by their order, not by a directory of this machine.
        key = file.name if file.name not in digests else f"{file.name} ({len(digests) + 1})"
        digests[key] = digest_file(file)
    return Source(name, tuple(files), None, digests)


def _grammar(split: str, name: str | None, limit: int) -> Iterator[Line]:
    families = list(FAMILIES)
    for count in range(limit):
        index, place = divmod(count, len(families))
        written = example(families[place], split, index)
        source = name or f"eyas-{split}"
        yield Line(written.id, written.id, source, written.family, {"messages": written.messages}, True)


def _parse(text: bytes) -> tuple[Any, bool]:
    try:
        return json.loads(text), True
    except (ValueError, RecursionError):
        return None, False
