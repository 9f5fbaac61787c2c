"""`eyas prompts`: reads records, and writes prompts that may be used, with a ledger of all records.

    sources -> license gate -> screening of shards by workers -> selection -> prompts.jsonl, ledger, card

The license gate runs before any record is screened. A line that is not JSON is dropped, and the ledger names it. A
source is rejected if more than 5% of its lines are not JSON.
"""

import datetime
import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eyas.base import provenance
from eyas.base.environment import poll, read_rank
from eyas.base.errors import InputError
from eyas.base.progress import Progress
from eyas.base.provenance import Provenance, StageInputs, digest_bytes, digest_json
from eyas.base.storage import StoragePath, convert_write_errors, write_atomic, write_json_atomic
from eyas.data.ledger.cards import render_card, render_croissant
from eyas.data.ledger.ledger import PromptLedger
from eyas.data.licenses.acknowledgements import read_acknowledgements
from eyas.data.licenses.license_gate import LicenseDecision, LicenseGate
from eyas.data.licenses.license_metadata import LICENSE_FILE, SourceClaim, read_card
from eyas.data.prompts_config import PromptsConfig
from eyas.data.select.screen import NOT_JSON, ScreeningJob, screen_shards, wait_for_other_ranks
from eyas.data.select.selection import Selection, digest_log, read_screened, select_prompts
from eyas.data.sources.file_formats import SplitFile, split_file
from eyas.data.sources.record_formats import SHAPE_REASONS
from eyas.data.sources.source import BUILTIN_LICENSE, HUB, Source, describe_rejected, open_source
from eyas.privacy.filter import PrivacyFilter
from eyas.privacy.surrogates import key_id, load_surrogate_key

STAGE = "prompts"
PROMPTS_FILE = "prompts.jsonl"
DECISIONS_FILE = "decisions.jsonl"
LEDGER_FILE = "ledger.json"
ORIGIN_FILE = "origin.json"
DEFAULT_CREATOR = "the user of eyas"
OVER_LIMIT = "over_limit"
FORGOTTEN_FILE = "forgotten.jsonl"
"""Beside the directories of the stages: ids that were removed and must not come back."""
MAX_NOT_JSON = 0.05  # share of the lines
POLL_S = 1.0


@dataclass(frozen=True)
class OpenedPrompts:
    """The sources that passed the license gate, and the inputs that determine the output."""

    sources: tuple[Source, ...]
    decisions: tuple[LicenseDecision, ...]
    gate: LicenseGate
    surrogate_key: bytes
    detectors: dict[str, Any]  # the entry of ledger.json; its digest is None if all sources are builtin: sources
    origin: StageInputs


def open_prompts(
    config: PromptsConfig, acknowledgements: Path | None = None, split: SplitFile = split_file
) -> OpenedPrompts:
    """Opens all sources of a recipe, computes their digests and runs the license gate. Writes nothing.

    Args:
        config: The recipe keys.
        acknowledgements: The file acknowledgements.jsonl of the run; None: there is none.
        split: Computes the digest and the spans of a file.

    Raises:
        InputError: A source is missing, empty or damaged, or the license gate rejects it.
    """
    gate = LicenseGate.load(config.policy)
    acknowledged = [] if acknowledgements is None else read_acknowledgements(acknowledgements)
    sources, decisions = [], []
    for index, source_config in enumerate(config.all_sources()):
        source = open_source(source_config, index, split)
        decisions.append(gate.decide(read_claim(source), acknowledged))
        sources.append(source)
    _require_unique_names(sources)
    is_builtin = all(source.config.is_builtin for source in sources)
    key = b"" if is_builtin else load_surrogate_key(config.privacy.key_file)
    detectors: dict[str, Any] = {"digest": None, "names": list(config.privacy.detectors)}
    if not is_builtin:
        privacy = PrivacyFilter(config.privacy, key)
        detectors |= {"digest": privacy.digest, "name_languages": sorted(privacy.name_languages)}
    identity = {
        **asdict(config.without_runtime_keys()),
        # Without paths: the same files elsewhere give the same output.
        "sources": [_source_identity(source) for source in sources],
        "licences": [decision.spdx for decision in decisions],
        "policy": gate.policy.digest,
        "production": None if config.production is None else digest_log(config.production),
        "decontaminate": [digest_bytes(StoragePath(path).read_bytes()) for path in config.decontaminate],
        "detectors": detectors["digest"],
        "key": key_id(key),
    }
    files = digest_json([source.digests for source in sources])
    origin = StageInputs(STAGE, digest_json(identity), {"source": files}, undigested=("croissant.json",))
    return OpenedPrompts(tuple(sources), tuple(decisions), gate, key, detectors, origin)


def _require_unique_names(sources: list[Source]) -> None:
    """Raises InputError if two sources have the same name, because the ids of their records would collide."""
    seen: set[str] = set()
    for source in sources:
        names = {source.config.path} if source.config.is_builtin else {file.source_name for file in source.files}
        if seen & names:
            fix = "Give each table of prompts.sources its own name, or name both files by one pattern"
            raise InputError(f"Two sources have the name {min(seen & names)}, which their records' ids begin with", fix)
        seen |= names


def read_claims(config: PromptsConfig) -> list[SourceClaim]:
    """Returns the license claims of all sources of a recipe, which `LicenseGate` assesses."""
    return [read_claim(open_source(source, index)) for index, source in enumerate(config.all_sources())]


def read_claim(source: Source) -> SourceClaim:
    """Returns what the recipe, the card and the license file say about the license of a source.

    Raises InputError if one of the files cannot be read.
    """
    config, directory = source.config, source.hub_directory
    license_file = config.license_file
    if license_file is None and directory is not None:
        found = sorted(path for path in directory.iterdir() if LICENSE_FILE.fullmatch(path.name))
        license_file = str(found[0]) if found else None
    return SourceClaim(
        name=source.name,
        dataset=config.dataset if directory is None else config.path.removeprefix(HUB),
        license=config.license or (BUILTIN_LICENSE if config.is_builtin else None),
        license_text=None if license_file is None else StoragePath(license_file).read_bytes(),
        revision=config.revision,
        card={} if directory is None else read_card(directory),
    )


def run(
    config: PromptsConfig,
    out_dir: Path,
    progress: bool = True,
    acknowledgements: Path | None = None,
    target: Mapping[str, Any] | None = None,
) -> Provenance | None:
    """Writes prompts.jsonl, decisions.jsonl, ledger.json, card.md and croissant.json.

    Writes provenance.json last, which marks the directory as finished. Does nothing if the directory is finished.

    Args:
        config: The recipe keys.
        out_dir: The directory of the stage.
        progress: Shows a progress bar.
        acknowledgements: acknowledgements.jsonl of the run.
        target: The license decision on the target as JSON, for the ledger.

    Returns:
        The provenance. None if several machines share the work and another machine writes the output.

    Raises:
        InputError: A source is missing, empty, rejected or mostly not JSON, or no prompt is left. Nothing is written.
    """
    started_s = time.time()
    opened = open_prompts(config, acknowledgements)
    if provenance.is_finished(out_dir, opened.origin):
        return provenance.read_provenance(out_dir)
    job = _prepare_job(config, opened, out_dir)
    with Progress(STAGE, sum(shard.num_records for shard in job.shards), "records", enabled=progress) as bar:
        for count in screen_shards(job):
            bar.advance(count)
        if config.world > 1:
            if read_rank("prompts.world", config.world):
                return None
            for count in wait_for_other_ranks(job):
                bar.advance(count)
    ledgers = _collect_ledgers(job)
    selection = select_prompts(job)
    if progress and selection.traffic is not None:
        _print_traffic(selection.traffic)
    provenance.mark_unfinished(out_dir)
    write_atomic(out_dir / PROMPTS_FILE, _prompt_lines(job, selection, ledgers))
    write_atomic(out_dir / DECISIONS_FILE, _decision_lines(job, selection, ledgers))
    ledger = _build_ledger_json(config, opened, ledgers, selection, target)
    write_json_atomic(out_dir / LEDGER_FILE, ledger)
    write_atomic(out_dir / "card.md", render_card(ledger))
    write_croissant(out_dir, ledger)
    finished = provenance.finish_stage(out_dir, opened.origin, started_s)
    shutil.rmtree(job.directory, ignore_errors=True)
    return finished


def write_croissant(out_dir: Path, ledger: Mapping[str, Any]) -> None:
    """Writes croissant.json beside prompts.jsonl. No digest covers it, because it contains today's date."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    text = render_croissant(ledger, out_dir / PROMPTS_FILE, f"prompts of {out_dir.parent.name}", DEFAULT_CREATOR, today)
    write_atomic(out_dir / "croissant.json", text)


def job_directory(out_dir: Path) -> Path:
    """Returns the directory in which an unfinished run stores its screened shards."""
    return out_dir.with_name(out_dir.name + ".work")


def create_job(config: PromptsConfig, opened: OpenedPrompts, out_dir: Path) -> ScreeningJob:
    """Returns the screening job of a stage directory. Writes nothing."""
    path = out_dir.with_name(FORGOTTEN_FILE)
    lines = path.read_text().splitlines() if path.is_file() else []
    forgotten_ids = frozenset(json.loads(line)["id"] for line in lines)
    return ScreeningJob(config, opened.sources, job_directory(out_dir), opened.surrogate_key, forgotten_ids)


def _prepare_job(config: PromptsConfig, opened: OpenedPrompts, out_dir: Path) -> ScreeningJob:
    """Returns the screening job. Keeps the shards of an unfinished run with the same inputs; removes other shards."""
    job = create_job(config, opened, out_dir)
    path = job.directory / ORIGIN_FILE
    origin = digest_json([asdict(opened.origin), sorted(job.forgotten_ids)])
    if not has_origin(path, origin):
        if read_rank("prompts.world", config.world) == 0:
            with convert_write_errors(job.directory):
                shutil.rmtree(job.directory, ignore_errors=True)
            write_json_atomic(path, {"origin": origin})
        else:
            poll(lambda: has_origin(path, origin), POLL_S)
    return job


def has_origin(path: Path, origin: str) -> bool:
    """Returns True if the file origin.json at `path` contains this digest, so that its run had the same inputs."""
    try:
        return json.loads(path.read_bytes()) == {"origin": origin}
    except (OSError, ValueError):
        return False


# --- ledgers ---------------------------------------------------------------------------------------------------------


def _collect_ledgers(job: ScreeningJob) -> list[PromptLedger]:
    """Returns one ledger for each source. If a source has no usable record, removes the job and raises InputError."""
    ledgers = [PromptLedger() for _ in job.sources]
    for number, shard in enumerate(job.shards):
        ledgers[shard.source_index].merge(PromptLedger.read(job.path(number, ".json")))
    try:
        for source, ledger in zip(job.sources, ledgers, strict=True):
            _require_prompts(source, ledger)
    except InputError:
        shutil.rmtree(job.directory, ignore_errors=True)
        raise
    return ledgers


def _require_prompts(source: Source, ledger: PromptLedger) -> None:
    """Raises InputError if a source has no record, no usable record, or too many lines that are not JSON."""
    path = source.config.path
    num_bad = ledger.dropped[NOT_JSON]
    if ledger.came == 0:
        raise InputError(f"{path} holds no record", "Write one JSON object a line, or rows with a header")
    if num_bad > MAX_NOT_JSON * ledger.came:
        first = ledger.examples[NOT_JSON][0]
        problem = f"{num_bad} of {ledger.came} lines of {path} are not JSON or UTF-8, the first one at {first}"
        fix = "Write one JSON object a line, or set prompts.encoding"
        raise InputError(problem, f"{fix}; up to {MAX_NOT_JSON:.0%} broken lines are dropped")
    if sum(ledger.dropped[reason] for reason in SHAPE_REASONS) == ledger.came:
        problem = f"None of the {ledger.came} records has a known form: {describe_rejected(source)}"
        raise InputError(problem, "Set prompts.columns.text to the column of the text, or prompts.columns.conversation")
    if ledger.dropped.total() == ledger.came:
        fix = 'Write records with a user turn, for example {"prompt": "..."} or {"messages": [...]}'
        raise InputError(f"None of the {ledger.came} records of {path} is a usable prompt ({ledger.summary()})", fix)


# --- output ----------------------------------------------------------------------------------------------------------


def _prompt_lines(job: ScreeningJob, selection: Selection, ledgers: list[PromptLedger]) -> Iterator[bytes]:
    """Yields the lines of prompts.jsonl, and counts their records as kept in the ledgers."""
    for number, (source_index, conversation) in enumerate(read_screened(job)):
        if selection.keep_N[number]:
            ledgers[source_index].count_kept(conversation)
            yield conversation.to_line()


def _decision_lines(job: ScreeningJob, selection: Selection, ledgers: list[PromptLedger]) -> Iterator[bytes]:
    """Yields the lines of decisions.jsonl, one for each record, and counts the records that were not selected."""
    number = 0  # of the candidate
    ids: dict[int, str] = {}
    originals = {original for _, original in selection.duplicates.values()}
    for shard_number, shard in enumerate(job.shards):
        for line in job.path(shard_number, ".decisions.jsonl").read_bytes().splitlines():
            decision = json.loads(line)
            if decision["dropped"] is None:
                if number in originals:
                    ids[number] = decision["id"]
                if number in selection.duplicates:
                    reason, original = selection.duplicates[number]
                    decision |= {"dropped": reason, "of": ids[original]}
                    ledgers[shard.source_index].count_dropped_by("duplicates", reason, decision["where"])
                elif not selection.keep_N[number]:
                    decision["dropped"] = OVER_LIMIT
                    ledgers[shard.source_index].over_limit += 1
                number += 1
            yield json.dumps(decision, ensure_ascii=False).encode() + b"\n"


def _build_ledger_json(
    config: PromptsConfig,
    opened: OpenedPrompts,
    ledgers: list[PromptLedger],
    selection: Selection,
    target: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Returns the content of ledger.json."""
    total = PromptLedger()
    for ledger in ledgers:
        ledger.check()
        total.merge(ledger)
    sources = [
        {
            "name": source.name,
            "url": source.config.path if source.config.is_builtin or source.config.path.startswith(HUB) else None,
            "format": ", ".join(sorted({file.data.format for file in source.files})),
            "files": source.digests,
            "licence": decision.to_json(),
            **ledger.to_json(),
        }
        for source, decision, ledger in zip(opened.sources, opened.decisions, ledgers, strict=True)
    ]
    return {
        "schema": 2,
        **total.to_json(),
        "dropped": dict(sorted(total.dropped.items())),
        "sources": sources,
        "traffic": selection.traffic,
        "limit": config.limit,
        "seed": config.seed,
        "settings": config.settings(),
        "policy": {"name": opened.gate.policy.name, "digest": opened.gate.policy.digest},
        "detectors": opened.detectors,
        "digests": {"privacy key": key_id(opened.surrogate_key)} if opened.surrogate_key else {},
        "target": None if target is None else dict(target),
    }


def _source_identity(source: Source) -> dict[str, Any]:
    """Returns the keys of a source that determine its records, and the digests of its files."""
    fields = asdict(source.config) | {"digests": sorted(source.digests.items())}
    return {name: value for name, value in fields.items() if name not in ("path", "license_file", "license")}


def _print_traffic(traffic: Mapping[str, Any]) -> None:
    """Prints the distance from production traffic of each source, of all candidates and of the selection."""
    distances = {**traffic["sources"], "all, before": traffic["before"], "selected": traffic["after"]}
    for name, distance in distances.items():
        print(f"traffic  {name}: topics {distance['tv']:.3f} (TV), lengths {distance['ks']:.3f} (KS)", file=sys.stderr)
