"""Screens the shards of all sources: in this process, in worker processes, on Ray, or divided between machines.

    record -> format -> language -> quality -> contamination -> privacy -> candidate, with signature and digest

For prompts that eyas writes itself (builtin: sources), only the format is checked: they contain no personal data and
repeat themselves by design. Screening writes four files for each shard. They are the same on every machine:

    file                    content
    00012.jsonl             the candidates: records that no rule dropped
    00012.decisions.jsonl   one line for each record: kept, or the rule that dropped it, and the changes; no prompt text
    00012.npz               digests, lengths and signatures of the candidates
    00012.json              the ledger; it is written last and marks the shard as finished
"""

import io
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from eyas.base.environment import count_cpus, import_extra, poll, read_rank
from eyas.base.errors import StageError
from eyas.base.storage import write_atomic
from eyas.chat.conversation import Conversation, Message, digest_messages, find_user_turns
from eyas.data.ledger.ledger import Gate, PromptLedger
from eyas.data.prompts_config import PromptsConfig
from eyas.data.select.contamination import CONTAMINATED, ContaminationFilter
from eyas.data.select.deduplicate import NUM_ROWS, minhash_signature
from eyas.data.select.language import detect_languages
from eyas.data.select.quality import find_quality_issue
from eyas.data.sources.record_formats import NOT_JSON, RejectedRecord, parse_record
from eyas.data.sources.source import Record, Source, SourceShard, read_shard
from eyas.privacy.filter import CleanedRecord, DroppedRecord, PrivacyFilter

FORGOTTEN = "forgotten"
MIN_RECORDS_PER_WORKER = 2000
"""Records for each worker process. With fewer, another process takes longer to start than it saves."""
POLL_S = 2.0
PARENT_POLL_S = 1.0


@dataclass(frozen=True)
class ScreeningJob:
    """The inputs of a screening worker. It is pickled and sent to worker processes.

    Attributes:
        config: The recipe keys.
        sources: The opened sources.
        directory: The directory for the files of the shards.
        surrogate_key: The secret key of the privacy filter. It is never written to a file.
        forgotten_ids: The ids of records that `eyas prompts RECIPE --forget ID` removed. They are dropped again.
    """

    config: PromptsConfig
    sources: tuple[Source, ...]
    directory: Path
    surrogate_key: bytes
    forgotten_ids: frozenset[str] = frozenset()

    @cached_property
    def shards(self) -> tuple[SourceShard, ...]:
        """All shards, in the order of sources and files."""
        return tuple(shard for source in self.sources for shard in source.shards)

    def path(self, number: int, ending: str) -> Path:
        """Returns the path of a file of a shard: number 12 and ending ".jsonl" -> DIRECTORY/00012.jsonl."""
        return self.directory / f"{number:05d}{ending}"

    def is_done(self, number: int) -> bool:
        """Returns True if the shard with this number is screened."""
        return self.path(number, ".json").is_file()


@dataclass
class ScreenedRecord:
    """A record during screening.

    Attributes:
        record: The record as read.
        originals: The messages that eyas uses, as they were read.
        messages: The same messages; after the privacy filter, with surrogates.
        shape: The name of the record's format; None if the record cannot be read.
        num_answers: The number of answers that were removed from the record.
        num_pictures: The number of pictures and other media that were removed from the record.
        languages: All languages of the record, the main one first (ISO 639-1).
        dropped: The gates that drop the record, each with the name of its rule. The first one decides.
        evalset: The evaluation set that shares text with the record.
        privacy: The result of the privacy filter; None if it did not run.
    """

    record: Record
    originals: tuple[Message, ...] = ()
    messages: tuple[Message, ...] = ()
    shape: str | None = None
    num_answers: int = 0
    num_pictures: int = 0
    languages: tuple[str, ...] = ()
    dropped: dict[Gate, str] = field(default_factory=dict)
    evalset: str | None = None
    privacy: CleanedRecord | DroppedRecord | None = None

    @property
    def changed(self) -> dict[str, int]:
        """The number of replaced values of each kind of personal data."""
        return self.privacy.changed if isinstance(self.privacy, CleanedRecord) else {}

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the messages."""
        return tuple(message.content for message in self.messages)

    @property
    def user_turns(self) -> tuple[str, ...]:
        """The texts of the user."""
        return find_user_turns(self.messages)


class Screener:
    """A worker that screens shards. It loads its filters when the first shard needs them."""

    def __init__(self, job: ScreeningJob) -> None:
        """Stores the job."""
        self.job = job

    def __call__(self, number: int) -> int:
        """Screens the shard with this number, unless it is done already. Returns its number of records."""
        shard = self.job.shards[number]
        if not self.job.is_done(number):
            source = self.job.sources[shard.source_index]
            self._write_shard(number, source, self.screen(source, read_shard(source, shard)))
        return shard.num_records

    def screen(self, source: Source, records: Iterable[Record], every_gate: bool = False) -> list[ScreenedRecord]:
        """Runs the gates on records of a source.

        Args:
            source: The source.
            records: Its records.
            every_gate: Runs the other gates on a record that a gate drops, too. `eyas prompts --explain` shows them.
        """
        screened = [self._parse(record, source) for record in records]
        if not source.config.is_builtin:
            readable = [each for each in screened if each.messages and (every_gate or not each.dropped)]
            self._apply_rules(readable, every_gate)
        return screened

    def _parse(self, record: Record, source: Source) -> ScreenedRecord:
        screened = ScreenedRecord(record)
        parsed = parse_record(record.value, source.config.keep_system or source.config.is_builtin)
        if isinstance(parsed, RejectedRecord):
            screened.dropped["format"] = parsed.reason
            screened.shape = None if parsed.reason == NOT_JSON else parsed.shape or "unknown"
        else:
            screened.shape, screened.originals, screened.messages = parsed.shape, parsed.messages, parsed.messages
            screened.num_answers, screened.num_pictures = parsed.num_answers, parsed.num_pictures
        if record.id in self.job.forgotten_ids:
            screened.dropped["forgotten"] = FORGOTTEN
        return screened

    def _apply_rules(self, records: Sequence[ScreenedRecord], every_gate: bool) -> None:
        """Finds the gates that drop each record, and replaces personal data in the records that no gate drops."""
        for each in records:
            each.languages = detect_languages(each.user_turns)
            if each.record.language is not None:  # the detected ones stay, so that names in them are still looked for
                each.languages = tuple(dict.fromkeys((each.record.language, *each.languages)))
            issue = find_quality_issue(self.job.config.quality, each.user_turns, each.languages[0])
            if issue is not None:
                each.dropped["quality"] = issue
            if issue is None or every_gate:
                each.evalset = self._contamination.find_evalset(each.texts)
            if each.evalset is not None:
                each.dropped["evaluation sets"] = CONTAMINATED
        rest = [each for each in records if not each.dropped or every_gate]
        texts = [(each.texts, pick_screening_language(each.languages, self._privacy.name_languages)) for each in rest]
        for each, result in zip(rest, self._privacy.clean(texts), strict=True):
            each.privacy = result
            if isinstance(result, DroppedRecord):
                each.dropped["personal data"] = result.reason
            else:
                pairs = zip(each.messages, result.texts, strict=True)
                each.messages = tuple(Message(message.role, text) for message, text in pairs)

    def _write_shard(self, number: int, source: Source, records: Sequence[ScreenedRecord]) -> None:
        candidates = [each for each in records if not each.dropped]
        lines = [_to_conversation(each, source).to_line() for each in candidates]
        signatures = [] if source.config.is_builtin else [minhash_signature(each.user_turns) for each in candidates]
        digests = b"".join(digest_messages(each.messages) for each in candidates)
        arrays = io.BytesIO()
        np.savez(
            arrays,
            digests=np.frombuffer(digests, dtype="<u8").astype(np.uint64),  # equal ones mean duplicates
            lengths=np.array([sum(map(len, each.user_turns)) for each in candidates], dtype=np.int64),
            signatures=np.array(signatures, dtype=np.uint32).reshape(-1, NUM_ROWS),
        )
        path = self.job.path
        write_atomic(path(number, ".jsonl"), b"".join(lines))
        write_atomic(path(number, ".decisions.jsonl"), "".join(map(_decision_line, records)))
        write_atomic(path(number, ".npz"), arrays.getvalue())
        _count_records(records).write(path(number, ".json"))

    @cached_property
    def _privacy(self) -> PrivacyFilter:
        return PrivacyFilter(self.job.config.privacy, self.job.surrogate_key)

    @cached_property
    def _contamination(self) -> ContaminationFilter:
        config = self.job.config
        return ContaminationFilter.load(config.evalsets, config.decontaminate)


def pick_screening_language(languages: Sequence[str], supported: Collection[str]) -> str:
    """Returns the language that the privacy filter uses for a record.

    It is the first language in which no detector finds names: for it the recipe says if the record is dropped. If all
    languages are supported, it is the main one.

    Args:
        languages: The languages of the record, the main one first.
        supported: The languages in which a detector finds names.
    """
    unsupported = [language for language in languages if language not in supported]
    return (unsupported or languages)[0]


def _count_records(records: Sequence[ScreenedRecord]) -> PromptLedger:
    """Returns the ledger of a shard."""
    ledger = PromptLedger(came=len(records))
    for each in records:
        ledger.shapes.update([each.shape] if each.shape else [])
        ledger.answers_thrown_away += each.num_answers
        ledger.pictures += each.num_pictures
        ledger.replaced.update(each.changed)
        ledger.changed["format"] += each.num_answers + each.num_pictures > 0
        ledger.changed["personal data"] += bool(each.changed)
        if isinstance(each.privacy, DroppedRecord):
            ledger.refused.update(dict.fromkeys(each.privacy.kinds, 1))
        if each.evalset is not None:
            ledger.contamination[each.evalset] += 1
        for gate, reason in islice(each.dropped.items(), 1):
            ledger.count_dropped_by(gate, reason, each.record.location)
    return ledger


def _to_conversation(screened: ScreenedRecord, source: Source) -> Conversation:
    record = screened.record
    tags = {"task": source.config.task or record.task or record.source}
    if screened.languages:
        tags["language"] = screened.languages[0]
    return Conversation(record.id, record.source, screened.messages, tags, dict(screened.changed))


def _decision_line(screened: ScreenedRecord) -> str:
    record, reason = screened.record, next(iter(screened.dropped.values()), None)
    decision: dict[str, Any] = {"id": record.id, "where": record.location, "dropped": reason}
    if screened.languages:
        decision["language"] = screened.languages[0]
    if screened.changed:
        decision["changed"] = screened.changed
    return json.dumps(decision, ensure_ascii=False) + "\n"


# --- workers ---------------------------------------------------------------------------------------------------------

_worker_screener: list[Screener] = []
"""The screener of a worker process, created once."""


def screen_shards(job: ScreeningJob) -> Iterator[int]:
    """Screens the shards of this machine (rank). Yields the number of records of each shard when it is done.

    Shards that are done already are yielded first.
    """
    config = job.config
    rank = read_rank("prompts.world", config.world)
    numbers = [number for number in range(len(job.shards)) if number % config.world == rank]
    yield from (job.shards[number].num_records for number in numbers if job.is_done(number))
    numbers = [number for number in numbers if not job.is_done(number)]
    if config.executor == "ray":
        yield from _screen_with_ray(job, numbers)
        return
    num_records = sum(job.shards[number].num_records for number in numbers)
    num_workers = min(config.workers or count_cpus(), len(numbers), 1 + num_records // MIN_RECORDS_PER_WORKER)
    if num_workers <= 1:
        yield from map(Screener(job), numbers)
    else:
        yield from _screen_with_processes(job, numbers, num_workers)


def wait_for_other_ranks(job: ScreeningJob) -> Iterator[int]:
    """Waits until all shards are done. Yields the number of records of each shard when another rank finishes it."""
    for number in [number for number in range(len(job.shards)) if not job.is_done(number)]:
        poll(lambda number=number: job.is_done(number), POLL_S)
        yield job.shards[number].num_records


def _screen_with_processes(job: ScreeningJob, numbers: Sequence[int], num_workers: int) -> Iterator[int]:
    context = multiprocessing.get_context("spawn")  # threads of this process must not be copied
    pool = ProcessPoolExecutor(num_workers, context, initializer=_start_worker, initargs=(job, os.getpid()))
    try:
        yield from pool.map(_screen_one, numbers)
    except BrokenProcessPool as error:
        problem = "A worker process ended before its work was done; the machine may be short of memory"
        raise StageError(problem, "Run the same command again with a smaller prompts.workers") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(job: ScreeningJob, parent: int) -> None:
    """Prepares a worker process, which exits when its parent process has ended. parent: its process id."""
    os.environ["OMP_NUM_THREADS"] = "1"

    def exit_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()
    _worker_screener.append(Screener(job))


def _screen_one(number: int) -> int:
    return _worker_screener[0](number)


def _screen_with_ray(job: ScreeningJob, numbers: Sequence[int]) -> Iterator[int]:
    """Runs a Ray Data job over the shards. All machines of the cluster must see the directory of the job."""
    ray = import_extra("ray", "ray")
    ray_data = import_extra("ray.data", "ray")

    class Worker:
        def __init__(self) -> None:
            self.screen = Screener(job)

        def __call__(self, row: dict[str, int]) -> dict[str, int]:
            return {"count": self.screen(row["number"])}

    if not numbers:
        return
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(log_to_driver=False)
    try:
        items = ray_data.from_items([{"number": number} for number in numbers], override_num_blocks=len(numbers))
        done = items.map(Worker, concurrency=min(job.config.workers or len(numbers), len(numbers)))
        yield from (int(row["count"]) for row in done.iter_rows())
    finally:
        if started_here:
            ray.shutdown()
