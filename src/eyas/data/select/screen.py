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

import hashlib
import io
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eyas.base.environment import count_cpus, import_extra, poll, read_rank
from eyas.base.errors import StageError
from eyas.base.storage import write_atomic
from eyas.chat.conversation import Conversation, Message
from eyas.data.ledger.ledger import PromptLedger
from eyas.data.prompts_config import PromptsConfig
from eyas.data.select.contamination import CONTAMINATED, ContaminationFilter
from eyas.data.select.deduplicate import NUM_ROWS, minhash_signature
from eyas.data.select.language import detect_languages
from eyas.data.select.quality import find_quality_issue
from eyas.data.sources.record_formats import RejectedRecord, parse_record
from eyas.data.sources.source import Record, Source, SourceShard, read_shard
from eyas.privacy.filter import DroppedRecord, PrivacyFilter

NOT_JSON = "not_json"
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
class _ScreenedRecord:
    """A record during screening.

    Attributes:
        record: The record as read.
        messages: The messages that eyas uses; after the privacy filter, with surrogates.
        languages: All languages of the record, the main one first (ISO 639-1).
        reason: The name of the rule that drops the record; None if none does.
        changed: The number of replaced values of each kind of personal data.
    """

    record: Record
    messages: tuple[Message, ...] = ()
    languages: tuple[str, ...] = ()
    reason: str | None = None
    changed: dict[str, int] | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(message.content for message in self.messages)

    @property
    def user_turns(self) -> tuple[str, ...]:
        return tuple(message.content for message in self.messages if message.role == "user")


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
            ledger = PromptLedger()
            records = [self._parse(record, source, ledger) for record in read_shard(source, shard)]
            if not source.config.is_builtin:
                self._apply_rules([each for each in records if each.reason is None], ledger)
            for each in records:
                if each.reason is not None:
                    ledger.count_dropped(each.reason, each.record.location)
            self._write_shard(number, source, records, ledger)
        return shard.num_records

    def _parse(self, record: Record, source: Source, ledger: PromptLedger) -> _ScreenedRecord:
        ledger.came += 1
        if record.id in self.job.forgotten_ids:
            return _ScreenedRecord(record, reason=FORGOTTEN)
        if not record.is_json:
            return _ScreenedRecord(record, reason=NOT_JSON)
        parsed = parse_record(record.value, source.config.keep_system or source.config.is_builtin)
        ledger.shapes[parsed.shape or "unknown"] += 1
        if isinstance(parsed, RejectedRecord):
            return _ScreenedRecord(record, reason=parsed.reason)
        ledger.answers_thrown_away += parsed.num_answers
        return _ScreenedRecord(record, parsed.messages)

    def _apply_rules(self, records: Sequence[_ScreenedRecord], ledger: PromptLedger) -> None:
        """Sets the reason of each record that a rule drops, and replaces personal data in the others."""
        for each in records:
            each.languages = detect_languages(each.user_turns)
            each.reason = find_quality_issue(self.job.config.quality, each.user_turns, each.languages[0])
            if each.reason is None and (name := self._contamination.find_evalset(each.texts)) is not None:
                each.reason = CONTAMINATED
                ledger.contamination[name] += 1
        rest = [each for each in records if each.reason is None]
        supported = self._privacy.name_languages
        cleaned = self._privacy.clean(
            [(each.texts, pick_screening_language(each.languages, supported)) for each in rest]
        )
        for each, result in zip(rest, cleaned, strict=True):
            if isinstance(result, DroppedRecord):
                each.reason = result.reason
                ledger.refused.update(dict.fromkeys(result.kinds, 1))
                continue
            pairs = zip(each.messages, result.texts, strict=True)
            each.messages = tuple(Message(message.role, text) for message, text in pairs)
            each.changed = dict(result.changed)
            ledger.replaced.update(result.changed)

    def _write_shard(
        self, number: int, source: Source, records: Sequence[_ScreenedRecord], ledger: PromptLedger
    ) -> None:
        candidates = [each for each in records if each.reason is None]
        lines = [_to_conversation(each, source).to_line() for each in candidates]
        signatures = [] if source.config.is_builtin else [minhash_signature(each.user_turns) for each in candidates]
        arrays = io.BytesIO()
        np.savez(
            arrays,
            digests=_digest_messages(candidates),
            lengths=np.array([sum(map(len, each.user_turns)) for each in candidates], dtype=np.int64),
            signatures=np.array(signatures, dtype=np.uint32).reshape(-1, NUM_ROWS),
        )
        path = self.job.path
        write_atomic(path(number, ".jsonl"), b"".join(lines))
        write_atomic(path(number, ".decisions.jsonl"), "".join(map(_decision_line, records)))
        write_atomic(path(number, ".npz"), arrays.getvalue())
        ledger.write(path(number, ".json"))

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


def _to_conversation(screened: _ScreenedRecord, source: Source) -> Conversation:
    record = screened.record
    tags = {"task": source.config.task or record.task or record.source}
    if screened.languages:
        tags["language"] = screened.languages[0]
    return Conversation(record.id, record.source, screened.messages, tags, screened.changed or {})


def _digest_messages(candidates: Sequence[_ScreenedRecord]) -> NDArray[np.uint64]:
    """Returns a 64-bit digest of each candidate's messages, uint64 [n]. Equal digests mean duplicates."""
    texts = [json.dumps([message.to_json() for message in each.messages]).encode() for each in candidates]
    packed = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    return np.frombuffer(packed, dtype="<u8").astype(np.uint64)


def _decision_line(screened: _ScreenedRecord) -> str:
    decision: dict[str, Any] = {"id": screened.record.id, "where": screened.record.location, "dropped": screened.reason}
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
        size = min(job.config.workers or len(numbers), len(numbers))
        done = items.map(Worker, concurrency=size)
        yield from (int(row["count"]) for row in done.iter_rows())
    finally:
        if started_here:
            ray.shutdown()
