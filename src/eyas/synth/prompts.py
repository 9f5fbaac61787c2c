"""`eyas prompts`: records in, lawful prompts out, with a ledger of what came and what went.

A line that is not JSON is dropped and counted, its place named in the ledger. Where more than one line in twenty is not
JSON the file is taken for damaged, and refused.
"""

import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from eyas.base.errors import InputError, UsageError
from eyas.base.progress import Progress
from eyas.base.provenance import (
    Origin,
    Provenance,
    digest_json,
    finish,
    is_finished,
    read_provenance,
    reopen,
    write_atomic,
    write_json_atomic,
)
from eyas.chat.conversation import Conversation
from eyas.synth.ledger import Ledger, card
from eyas.synth.screen import find
from eyas.synth.shapes import Dropped, read_shape
from eyas.synth.sources import BUILTIN_LICENSE, Source, open_source

STAGE = "prompts"
PROMPTS_FILE = "prompts.jsonl"
NOT_JSON = "not_json"
DUPLICATE = "duplicate"
MAX_NOT_JSON = 0.05  # share of the lines


@dataclass(frozen=True)
class PromptsConfig:
    """The recipe keys `prompts.*`."""

    source: str | None = None  # a JSON-lines file, a directory of them, a pattern, or builtin:<split>
    license: str | None = None  # of the source; the grammar's own is known
    limit: int | None = None  # keep at most so many, drawn with the seed; the grammar writes so many
    seed: int = 0
    source_name: str | None = None  # default: the file's name without its ending
    task: str | None = None  # tag `task`; default: what the source says, else the source's name

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"prompts.limit={self.limit}", "a number from 1 on", "raise it, or leave it out")


@dataclass(frozen=True)
class Opened:
    """A source that may be used, and what decides the prompts made from it."""

    source: Source
    license: str
    origin: Origin


def open_prompts(config: PromptsConfig) -> Opened:
    """Digests the source; writes nothing. InputError for one that is missing, empty or without licence."""
    if not config.source:
        raise InputError("no prompts.source", "a JSON-lines file, or builtin:quickstart", "name it")
    source = open_source(config.source, config.source_name)
    license_name = _license(config, source)
    if source.split is not None and config.limit is None:
        raise InputError(f"{config.source} without prompts.limit", "how many it shall write", "set prompts.limit=300")
    # The path is no part of the origin: the same files elsewhere give the same bytes.
    recipe = {**asdict(config), "source": sorted(source.digests), "license": license_name}
    return Opened(source, license_name, Origin(STAGE, digest_json(recipe), {"source": digest_json(source.digests)}))


def run(config: PromptsConfig, out_dir: Path, progress: bool = True) -> Provenance:
    """Writes prompts.jsonl, ledger.json, card.md and provenance.json; nothing where they are finished already.

    Raises InputError, with nothing written, for a source that is missing, empty, without licence or mostly not JSON,
    and where no prompt is left.
    """
    started_s = time.time()
    opened = open_prompts(config)
    source, origin = opened.source, opened.origin
    if is_finished(out_dir, origin):
        return read_provenance(out_dir)
    ledger = Ledger()
    kept = _collect(config, source, ledger, progress)
    record = {
        "schema": 1,
        "source": config.source if source.split is not None else sorted({prompt.source for prompt in kept}),
        "files": source.digests,
        "license": opened.license,
        "limit": config.limit,
        "seed": config.seed,
        **ledger.to_json(),
    }
    reopen(out_dir)
    write_atomic(out_dir / PROMPTS_FILE, b"".join(prompt.to_line() for prompt in kept))
    write_json_atomic(out_dir / "ledger.json", record)
    write_atomic(out_dir / "card.md", card(record))
    return finish(out_dir, origin, started_s)


def _license(config: PromptsConfig, source: Source) -> str:
    name = (config.license or "").strip()
    if source.split is not None:
        if name not in ("", BUILTIN_LICENSE):
            raise InputError(f"prompts.license={name} for {config.source}", BUILTIN_LICENSE, "leave it out")
        return BUILTIN_LICENSE
    if not name:
        raise InputError(
            f"no licence for the prompts of {config.source}",
            "the licence under which you may use them",
            "name it, for example prompts.license=MIT",
        )
    return name


def _collect(config: PromptsConfig, source: Source, ledger: Ledger, progress: bool) -> list[Conversation]:
    """The prompts to keep, in the order of the source."""
    kept: list[Conversation] = []
    seen: set[str] = set()
    first_not_json: str | None = None
    with Progress(STAGE, None, "records", enabled=progress) as bar:
        for line in source.lines(config.limit):
            ledger.came += 1
            bar.advance()
            if not line.is_json:
                first_not_json = first_not_json or line.where
                ledger.drop(NOT_JSON, line.where)
                continue
            shaped = read_shape(line.value)
            ledger.shapes[shaped.shape or "unknown"] += 1
            if isinstance(shaped, Dropped):
                ledger.drop(shaped.reason, line.where)
                continue
            ledger.answers_thrown_away += shaped.num_answers
            reason = find(message.content for message in shaped.messages)
            digest = digest_json([message.to_json() for message in shaped.messages])
            if reason is None and digest in seen:
                reason = DUPLICATE
            if reason is not None:
                ledger.drop(reason, line.where)
                continue
            seen.add(digest)
            task = config.task or line.task or line.source
            kept.append(Conversation(line.id, line.source, shaped.messages, {"task": task}))
    _check_source(config, ledger, first_not_json, len(kept))
    if config.limit is not None and len(kept) > config.limit:
        chosen = sorted(random.Random(config.seed).sample(range(len(kept)), config.limit))
        ledger.over_limit = len(kept) - len(chosen)
        kept = [kept[place] for place in chosen]
    ledger.kept = len(kept)
    ledger.check()
    return kept


def _check_source(config: PromptsConfig, ledger: Ledger, first_not_json: str | None, num_kept: int) -> None:
    if ledger.came == 0:
        raise InputError(f"no record in {config.source}", "one JSON object a line", "check how it was made")
    num_bad = ledger.dropped.get(NOT_JSON, 0)
    if num_bad > MAX_NOT_JSON * ledger.came:
        raise InputError(
            f"{num_bad} of {ledger.came} lines that are not JSON, the first at {first_not_json}",
            f"one JSON object a line; up to {MAX_NOT_JSON:.0%} of the lines may be broken and are dropped",
            "mend the file, or check that it is JSON lines",
        )
    if num_kept == 0:
        raise InputError(
            f"no prompt left of the {ledger.came} records of {config.source} ({ledger.summary()})",
            "records with messages, turns, prompt or question, and a user turn in them",
            "check the file",
        )
