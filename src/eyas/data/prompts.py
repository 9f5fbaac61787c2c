"""`eyas prompts`: records in, lawful and private prompts out, with a ledger of what came and what went.

    sources -> licence gate -> screened piece by piece, by many workers -> chosen -> prompts.jsonl, ledger, card

The gate comes first: a source that it refuses is not read any further. A line that is not JSON is dropped and counted,
its place named in the ledger. Where more than one line in twenty is not JSON the file counts as damaged: it is refused.
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

from eyas.base.environment import read_rank
from eyas.base.errors import InputError
from eyas.base.progress import Progress
from eyas.base.provenance import (
    Provenance,
    StageInputs,
    digest_bytes,
    digest_file,
    digest_json,
    finish_stage,
    is_finished,
    mark_unfinished,
    read_provenance,
)
from eyas.base.storage import StoragePath, convert_write_errors, write_atomic, write_json_atomic
from eyas.data.ledger.croissant import PromptsFile, build_croissant
from eyas.data.ledger.ledger import Ledger
from eyas.data.ledger.prompt_card import render_card
from eyas.data.licenses.acknowledgements import read_acknowledgements
from eyas.data.licenses.license_gate import LicenseDecision, LicenseGate
from eyas.data.licenses.license_metadata import LICENSE_FILE, SourceClaim, read_card
from eyas.data.prompts_config import PromptsConfig
from eyas.data.select.screen import NOT_JSON, ScreeningJob, screen_shards, wait_for_other_ranks
from eyas.data.select.selection import (
    Selection,
    digest_log,
    read_screened,
    read_shard_ledger,
    select_prompts,
)
from eyas.data.sources.source import BUILTIN_LICENSE, HUB, Source, open_source
from eyas.data.surrogate_key import key_id, load_surrogate_key
from eyas.privacy.filter import PrivacyFilter

STAGE = "prompts"
PROMPTS_FILE = "prompts.jsonl"
DECISIONS_FILE = "decisions.jsonl"
LEDGER_FILE = "ledger.json"
ORIGIN_FILE = "origin.json"
DEFAULT_CREATOR = "whoever ran eyas"
OVER_LIMIT = "over_limit"
FORGOTTEN_FILE = "forgotten.jsonl"
"""Beside the stages: ids that were removed and must not come back."""
MAX_NOT_JSON = 0.05  # share of the lines


@dataclass(frozen=True)
class OpenedPrompts:
    """Sources that may be used, and what decides the prompts made from them."""

    sources: tuple[Source, ...]
    decisions: tuple[LicenseDecision, ...]
    gate: LicenseGate
    surrogate_key: bytes
    detectors_digest: str | None  # digest; None where nothing is screened
    origin: StageInputs


def open_prompts(config: PromptsConfig, acknowledgements: Path | None = None) -> OpenedPrompts:
    """Digests the sources and asks the gate; writes nothing. InputError for one that is missing, empty or refused.

    acknowledgements: the file in which people have put down what they acknowledge.
    """
    gate = load_gate(config)
    said = [] if acknowledgements is None else read_acknowledgements(acknowledgements)
    sources, decisions = [], []
    for number, one in enumerate(config.all_sources()):
        source = open_source(one, number)
        decisions.append(gate.decide(read_claim(source), said))
        sources.append(source)
    _require_unique_names(sources)
    own = all(source.config.is_builtin for source in sources)
    key = b"" if own else load_surrogate_key(config.privacy.key_file)
    deciding = {
        **asdict(config.without_runtime_keys()),
        # The path is no part of the origin: the same files elsewhere give the same bytes.
        "sources": [_source_identity(source) for source in sources],
        "licences": [decision.spdx for decision in decisions],
        "policy": gate.policy.digest,
        "production": None if config.production is None else digest_log(config.production),
        "decontaminate": [digest_bytes(StoragePath(path).read_bytes()) for path in config.decontaminate],
        "detectors": None if own else PrivacyFilter(config.privacy, key).digest,
        "key": key_id(key),
    }
    files = digest_json([source.digests for source in sources])
    origin = StageInputs(STAGE, digest_json(deciding), {"source": files}, undigested=("croissant.json",))
    return OpenedPrompts(tuple(sources), tuple(decisions), gate, key, deciding["detectors"], origin)


def _require_unique_names(sources: list[Source]) -> None:
    """Ids begin with the name: two sources of one name would have the same. InputError."""
    seen: set[str] = set()
    for source in sources:
        names = {source.config.path} if source.config.is_builtin else {file.source_name for file in source.files}
        if seen & names:
            raise InputError(
                f"Two sources have the name {min(seen & names)}, which their records' ids begin with",
                "Give each table of prompts.sources its own name, or name both files by one pattern",
            )
        seen |= names


def load_gate(config: PromptsConfig) -> LicenseGate:
    """Returns the license gate with the recipe's policy."""
    return LicenseGate.load(None if config.policy is None else Path(config.policy))


def read_claims(config: PromptsConfig) -> list[SourceClaim]:
    """What the gate is asked about the sources of a recipe."""
    return [read_claim(open_source(one, number)) for number, one in enumerate(config.all_sources())]


def read_claim(source: Source) -> SourceClaim:
    """What is said of a source, by the recipe and by its card."""
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
        is_hub=directory is not None,
        card={} if directory is None else read_card(directory),
    )


def run(
    config: PromptsConfig,
    out_dir: Path,
    progress: bool = True,
    acknowledgements: Path | None = None,
    target: Mapping[str, Any] | None = None,
) -> Provenance | None:
    """Writes prompts.jsonl, decisions.jsonl, ledger.json, card.md, croissant.json and provenance.json, last.

    Nothing where they are finished already; None on a machine that has done its share of shared work, where another one
    finishes. target: what the licence gate decided about the target, for the ledger.

    Raises InputError, with nothing written, for a source that is missing, empty, refused or mostly not JSON, and where
    no prompt is left.
    """
    started_s = time.time()
    opened = open_prompts(config, acknowledgements)
    if is_finished(out_dir, opened.origin):
        return read_provenance(out_dir)
    work = _prepare_job(config, opened, out_dir)
    total = sum(piece.num_records for piece in work.shards)
    with Progress(STAGE, total, "records", enabled=progress) as bar:
        for count in screen_shards(work):
            bar.advance(count)
        if config.world > 1:
            if read_rank("prompts.world", config.world):
                return None
            for count in wait_for_other_ranks(work):
                bar.advance(count)
    ledgers = _collect_ledgers(config, work)
    choice = select_prompts(work)
    if progress:
        _print_traffic(choice.traffic)
    mark_unfinished(out_dir)
    write_atomic(out_dir / PROMPTS_FILE, _prompt_lines(work, choice, ledgers))
    write_atomic(out_dir / DECISIONS_FILE, _decision_lines(work, choice, ledgers))
    record = _build_ledger_json(config, opened, ledgers, choice, target)
    write_json_atomic(out_dir / LEDGER_FILE, record)
    write_atomic(out_dir / "card.md", render_card(record))
    write_croissant(out_dir, record)
    done = finish_stage(out_dir, opened.origin, started_s)
    shutil.rmtree(work.directory, ignore_errors=True)
    return done


def write_croissant(out_dir: Path, record: Mapping[str, Any]) -> None:
    """croissant.json beside a finished prompts.jsonl. It holds today's date, so no digest covers it."""
    path = out_dir / PROMPTS_FILE
    file = PromptsFile(path.name, digest_file(path), path.stat().st_size)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    write_atomic(
        out_dir / "croissant.json",
        build_croissant(record, file, f"prompts of {out_dir.parent.name}", DEFAULT_CREATOR, today),
    )


def job_directory(out_dir: Path) -> Path:
    """Where an unfinished run keeps what it screened."""
    return out_dir.with_name(out_dir.name + ".work")


def _prepare_job(config: PromptsConfig, opened: OpenedPrompts, out_dir: Path) -> ScreeningJob:
    """The work beside the directory. What an unfinished run of this origin screened is kept, anything else cleared."""
    directory = job_directory(out_dir)
    forgotten = _read_forgotten_ids(out_dir.with_name(FORGOTTEN_FILE))
    wanted = {"origin": digest_json([asdict(opened.origin), sorted(forgotten)])}
    path = directory / ORIGIN_FILE
    try:
        same = json.loads(path.read_bytes()) == wanted
    except (OSError, ValueError):
        same = False
    if not same:
        if read_rank("prompts.world", config.world) == 0:
            with convert_write_errors(directory):
                shutil.rmtree(directory, ignore_errors=True)
            write_json_atomic(path, wanted)
        else:
            _wait_for_origin(path, wanted)
    return ScreeningJob(config, opened.sources, directory, opened.surrogate_key, forgotten)


def _read_forgotten_ids(path: Path) -> frozenset[str]:
    """Ids that somebody had removed."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return frozenset(json.loads(line)["id"] for line in lines)


def _wait_for_origin(path: Path, wanted: object) -> None:
    """Until the first of several machines has cleared what an older run left."""
    while True:
        try:
            if json.loads(path.read_bytes()) == wanted:
                return
        except (OSError, ValueError):
            pass
        time.sleep(1.0)


# --- what came -------------------------------------------------------------------------------------------------------


def _collect_ledgers(config: PromptsConfig, work: ScreeningJob) -> list[Ledger]:
    """One ledger a source. InputError, with the work removed, where the sources are no good."""
    ledgers = [Ledger() for _ in work.sources]
    for number, piece in enumerate(work.shards):
        ledgers[piece.source_index].merge(read_shard_ledger(work, number))
    for source, ledger in zip(work.sources, ledgers, strict=True):
        error = _find_source_error(source, ledger)
        if error is not None:
            shutil.rmtree(work.directory, ignore_errors=True)
            raise error
    return ledgers


def _find_source_error(source: Source, ledger: Ledger) -> InputError | None:
    """Why nothing can be made of a source."""
    path = source.config.path
    num_bad = ledger.dropped[NOT_JSON]
    if ledger.came == 0:
        expected = "one JSON object a line, rows below a header, or requests in a log"
        return InputError(f"no record in {path}", expected, "check how it was made")
    if num_bad > MAX_NOT_JSON * ledger.came:
        return InputError(
            f"{num_bad} of {ledger.came} lines that are not JSON, the first at {ledger.places[NOT_JSON][0]}",
            f"one JSON object a line; up to {MAX_NOT_JSON:.0%} of the lines may be broken and are dropped",
            "mend the file, or check that it is JSON lines in UTF-8 (a .txt file: lines in UTF-8)",
        )
    if ledger.dropped.total() == ledger.came:
        return InputError(
            f"no prompt left of the {ledger.came} records of {path} ({ledger.summary()})",
            "records with messages, turns, prompt or question, and a user turn in them",
            "check the file",
        )
    return None


# --- what goes -------------------------------------------------------------------------------------------------------


def _prompt_lines(work: ScreeningJob, choice: Selection, ledgers: list[Ledger]) -> Iterator[bytes]:
    """The lines of prompts.jsonl; the ledgers learn what was kept."""
    for number, (source, conversation) in enumerate(read_screened(work)):
        if choice.keep_N[number]:
            length = sum(len(message.content) for message in conversation.messages if message.role == "user")
            ledgers[source].count_kept(length, conversation.tags)
            yield conversation.to_line()


def _decision_lines(work: ScreeningJob, choice: Selection, ledgers: list[Ledger]) -> Iterator[bytes]:
    """The lines of decisions.jsonl, one for each record that came; the ledgers learn what was left out."""
    at = 0
    ids: dict[int, str] = {}
    wanted = {repeat.original for repeat in choice.duplicates.values()}
    for number, piece in enumerate(work.shards):
        for line in work.path(number, ".decisions.jsonl").read_bytes().splitlines():
            said = json.loads(line)
            if said["dropped"] is None:
                if at in wanted:
                    ids[at] = said["id"]
                if at in choice.duplicates:
                    repeat = choice.duplicates[at]
                    said |= {"dropped": repeat.reason, "of": ids[repeat.original]}
                    ledgers[piece.source_index].count_dropped(repeat.reason, said["where"])
                elif not choice.keep_N[at]:
                    said["dropped"] = OVER_LIMIT
                    ledgers[piece.source_index].over_limit += 1
                at += 1
            yield json.dumps(said, ensure_ascii=False).encode() + b"\n"


def _build_ledger_json(
    config: PromptsConfig,
    opened: OpenedPrompts,
    ledgers: list[Ledger],
    choice: Selection,
    target: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """ledger.json."""
    total = Ledger()
    for ledger in ledgers:
        ledger.check()
        total.merge(ledger)
    sources = [
        {
            "name": source.name,
            "url": source.config.path if source.config.is_builtin or source.config.path.startswith(HUB) else None,
            "format": ", ".join(sorted({file.format for file in source.files})),
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
        "traffic": choice.traffic,
        "limit": config.limit,
        "seed": config.seed,
        "settings": config.settings(),
        "policy": {"name": opened.gate.policy.name, "digest": opened.gate.policy.digest},
        "detectors": {"digest": opened.detectors_digest, "names": list(config.privacy.detectors)},
        "digests": {"privacy key": key_id(opened.surrogate_key)} if opened.surrogate_key else {},
        "target": None if target is None else dict(target),
    }


def _source_identity(source: Source) -> dict[str, Any]:
    fields = asdict(source.config) | {"digests": sorted(source.digests.items())}
    return {name: value for name, value in fields.items() if name not in ("path", "license_file", "license")}


def _print_traffic(traffic: Mapping[str, Any] | None) -> None:
    """How far each source, and the choice, is from production."""
    if traffic is None:
        return
    told = {**traffic["sources"], "all, before": traffic["before"], "chosen": traffic["after"]}
    for name, distance in told.items():
        print(f"traffic  {name}: topics {distance['tv']:.3f} (TV), lengths {distance['ks']:.3f} (KS)", file=sys.stderr)
