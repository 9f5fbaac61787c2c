"""Explains what the gates do with single records: `eyas prompts --explain` and `--sample`. Writes nothing.

    name of a record -> source -> every gate -> {"gates", "messages": before, after, the detected values, ...}

No file of a run holds the text of a dropped record or a replaced value. The record is read again from its source.
"""

import difflib
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from eyas.base.errors import InputError
from eyas.base.provenance import is_finished
from eyas.data.ledger.ledger import GATES, Gate
from eyas.data.prompts import LEDGER_FILE, OVER_LIMIT, create_job, job_directory, open_prompts
from eyas.data.prompts_config import PromptsConfig
from eyas.data.select.screen import ScreenedRecord, Screener
from eyas.data.sources.file_formats import split_file, split_sample
from eyas.data.sources.source import Record, Source, SourceFile, SourceShard, read_shard
from eyas.privacy.filter import CleanedRecord, FoundValue

_NUMBERED = re.compile(r"(.+):(\d{1,18})")


class RecordExplainer:
    """The opened sources of a recipe, from which it finds records by name and runs every gate on them."""

    def __init__(
        self, config: PromptsConfig, out_dir: Path, acknowledgements: Path | None = None, num_sampled: int | None = None
    ) -> None:
        """Opens the sources. Raises InputError like `open_prompts`.

        Args:
            config: The recipe keys.
            out_dir: The directory of the stage. It may be missing, unfinished or finished.
            acknowledgements: The file acknowledgements.jsonl of the run.
            num_sampled: Opens only parts of large files, enough for `sample` to draw this number of records.
        """
        split = split_file if num_sampled is None else partial(split_sample, count=num_sampled, seed=config.seed)
        self._opened = open_prompts(config, acknowledgements, split)
        self._out_dir = out_dir
        self._screener = Screener(create_job(config, self._opened, out_dir))

    def find(self, name: str) -> tuple[Source, Record]:
        """Returns a record and its source. name: an id, or FILE:LINE. Raises InputError if there is no such record."""
        shards = _list_shards(self._opened.sources)
        named = [(source, shard) for source, shard in shards if _covers(source, shard, name)]
        others = [(source, shard) for source, shard in shards if source.config.is_builtin or _has_id_column(source)]
        for source, shard in (*named, *others):
            for record in read_shard(source, shard):
                if name == record.id or PurePath(name).name == record.location:
                    return source, record
        if named and not others:
            raise InputError(f"{name} is blank or has no prompt", "Name another record")
        raise InputError(f"The sources have no record {name}", _suggest(self._opened.sources, name))

    def explain(self, source: Source, record: Record, decision: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Runs every gate on a record, and returns the results as JSON.

        Args:
            source: The source of the record.
            record: The record.
            decision: Its line of decisions.jsonl; None if there is none.
        """
        (screened,) = self._screener.screen(source, [record], every_gate=True)
        dropped = {**screened.dropped}
        if decision is not None and "of" in decision:
            dropped["duplicates"] = f"{decision['dropped']} of {decision['of']}"
        elif decision is not None and decision["dropped"] == OVER_LIMIT:
            dropped["selection"] = OVER_LIMIT
        known = [gate for gate in GATES if gate in dropped or _has_run(gate, screened, decision)]
        license_decision = self._opened.decisions[self._opened.sources.index(source)]
        privacy = screened.privacy
        found = privacy.found if privacy is not None and privacy.found else [()] * len(screened.originals)
        removed = {"answers": screened.num_answers, "pictures": screened.num_pictures}
        is_cleaned = isinstance(privacy, CleanedRecord) or source.config.is_builtin
        return {
            "id": record.id,
            "where": record.location,
            "source": source.name,
            "license": f"{license_decision.spdx} ({license_decision.verdict})",
            "dropped": next((dropped[gate] for gate in GATES if gate in dropped), None),
            "changed": screened.changed,
            "gates": {gate: dropped.get(gate) for gate in known},
            "format": screened.shape,
            "removed": {name: count for name, count in removed.items() if count},
            "language": next(iter(screened.languages), None),
            "evaluation_set": screened.evalset,
            "messages": [
                {
                    "role": before.role,
                    "before": before.content,
                    "after": after.content if is_cleaned else None,
                    "found": [_describe_value(value, before.content) for value in values],
                }
                for before, after, values in zip(screened.originals, screened.messages, found, strict=True)
            ],
            "value": None if screened.originals or screened.shape is None else record.value,
        }

    def sample(self, count: int, seed: int) -> Iterator[tuple[Source, Record]]:
        """Yields random records, the same number of each file where the files have enough. Equal seeds draw equal ones.

        Args:
            count: The number of records.
            seed: The seed of the draw.
        """
        rng, files = random.Random(seed), dict[SourceFile, list[tuple[Source, SourceShard]]]()
        for source, shard in _list_shards(self._opened.sources):
            files.setdefault(source.files[shard.file_index], []).append((source, shard))
        left = {file: sum(shard.num_records for _, shard in shards) for file, shards in files.items()}
        order, drawn = rng.sample(list(files), len(files)), Counter[SourceFile]()
        while drawn.total() < min(count, sum(left.values())):
            drawn.update([file for file in order if drawn[file] < left[file]][: count - drawn.total()])
        for file, shards in files.items():
            numbers = rng.sample(range(left[file]), drawn[file])
            for source, shard in shards:
                inside = sum(0 <= number < shard.num_records for number in numbers)
                numbers = [number - shard.num_records for number in numbers]
                records = list(read_shard(source, shard)) if inside else []
                for index in sorted(rng.sample(range(len(records)), min(inside, len(records)))):
                    begin, record = shard.span.begin, records[index]
                    if file.data.has_byte_spans and not file.digest:  # the lines before it were not counted
                        record = replace(record, id=f"{file.source_name}@{begin}", location=f"{file.key}, byte {begin}")
                    yield source, record

    def compare_with_run(self, source: Source) -> list[str]:
        """Returns sentences on what differs between the run in the stage directory and this call."""
        try:
            ledger = json.loads((self._out_dir / LEDGER_FILE).read_bytes())
        except OSError:
            state = "not finished" if job_directory(self._out_dir).is_dir() else "not run"
            return [f"`eyas prompts` has {state} yet: duplicates and the selection are not known"]
        files = next((each["files"] for each in ledger["sources"] if each["name"] == source.name), {})
        changed = [name for name, digest in source.digests.items() if files.get(name) != digest]
        if changed:
            return [f"{', '.join(changed)} changed since the run: this may be another record"]
        is_same = is_finished(self._out_dir, self._opened.origin)
        return [] if is_same else ["Other files, the settings or eyas changed since the run"]


def _has_run(gate: Gate, screened: ScreenedRecord, decision: Mapping[str, Any] | None) -> bool:
    """Returns True if a gate read a record. The last two gates compare records, so only a run runs them."""
    if gate in ("duplicates", "selection"):
        return decision is not None and not screened.dropped and not (gate == "selection" and "of" in decision)
    return gate == "format" or (gate != "forgotten" and bool(screened.languages))


def _has_id_column(source: Source) -> bool:
    return any(file.data.columns.id is not None for file in source.files)


def _list_shards(sources: Sequence[Source]) -> list[tuple[Source, SourceShard]]:
    return [(source, shard) for source in sources for shard in source.shards]


def _covers(source: Source, shard: SourceShard, name: str) -> bool:
    """Returns True if a name with a number is that of a record of the shard: SOURCE:INDEX or FILE:LINE."""
    named = _NUMBERED.fullmatch(name)
    if named is None:
        return False
    file, number = source.files[shard.file_index], int(named[2])
    id_offset, line_offset = number - shard.first_record, number - 1 - shard.span.first_record
    is_id = named[1] == file.source_name and 0 <= id_offset < shard.num_records
    return is_id or (PurePath(named[1]).name == file.key and 0 <= line_offset < shard.num_records)


def _suggest(sources: Sequence[Source], name: str) -> str:
    """Returns the advice for an unknown name: the nearest file or source, and its range."""
    ranges: dict[str, list[int]] = {}
    for source, shard in _list_shards(sources):
        file, ends = source.files[shard.file_index], (0, shard.num_records - 1)
        if source.config.is_builtin:
            ids = (record.id.rpartition(":") for record in read_shard(source, shard))
            numbers = [(prefix, int(number)) for prefix, _, number in ids]
        else:
            numbers = [(file.source_name, shard.first_record + end) for end in ends]
            numbers += [(file.key, shard.span.first_record + 1 + end) for end in ends]
        for prefix, number in numbers:
            ranges.setdefault(prefix, []).append(number)
    (near,) = difflib.get_close_matches(PurePath(name).name.rpartition(":")[0], ranges, n=1, cutoff=0)
    return f"The nearest file or source has {near}:{min(ranges[near])} to {near}:{max(ranges[near])}"


def _describe_value(value: FoundValue, text: str) -> dict[str, Any]:
    span = value.span
    return {"value": text[span.start : span.end], "surrogate": value.surrogate, **asdict(span)}
