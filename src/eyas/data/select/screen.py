"""What one piece of a source goes through, in the process of a worker.

    record -> shape -> language -> quality -> contamination -> privacy -> kept so far, with signature and digest

Of eyas's own grammar only the shape is read: nobody's words are in it, and it repeats itself by design.

    00012.jsonl             what is kept so far
    00012.decisions.jsonl   a line for each record that came: kept or why not, what was changed. No content.
    00012.npz               digests, lengths and signatures of what is kept so far
    00012.json              the ledger, written last: the piece is finished
"""

import hashlib
import io
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eyas.base.storage import write_atomic, write_json_atomic
from eyas.chat.conversation import Conversation, Message
from eyas.data.ledger.ledger import Ledger
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


@dataclass(frozen=True)
class ScreeningJob:
    """Everything that a worker needs; it travels to other processes. key: for surrogates; never written anywhere."""

    config: PromptsConfig
    sources: tuple[Source, ...]
    directory: Path
    surrogate_key: bytes
    forgotten_ids: frozenset[str] = frozenset()

    @cached_property
    def shards(self) -> tuple[SourceShard, ...]:
        """All pieces, in the order of sources and files."""
        return tuple(piece for source in self.sources for piece in source.shards)

    def path(self, number: int, ending: str) -> Path:
        """A file of a piece."""
        return self.directory / f"{number:05d}{ending}"

    def is_done(self, number: int) -> bool:
        """Whether a piece is screened."""
        return self.path(number, ".json").is_file()


@dataclass
class _ScreenedRecord:
    """A record on its way. reason: why it is dropped."""

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
    """Screens pieces. What it needs is loaded with the first piece that needs it."""

    def __init__(self, work: ScreeningJob) -> None:
        self.job = work

    def __call__(self, number: int) -> int:
        """One piece; how many records came. Does nothing where it is done."""
        work = self.job
        piece = work.shards[number]
        if not work.is_done(number):
            source = work.sources[piece.source_index]
            ledger = Ledger()
            some = [self._parse(record, source, ledger) for record in read_shard(source, piece)]
            if not source.config.is_builtin:
                self._apply_rules([one for one in some if one.reason is None], ledger)
            for one in some:
                if one.reason is not None:
                    ledger.count_dropped(one.reason, one.record.location)
            self._write_shard(number, source, some, ledger)
        return piece.num_records

    def _parse(self, record: Record, source: Source, ledger: Ledger) -> _ScreenedRecord:
        ledger.came += 1
        if record.id in self.job.forgotten_ids:
            return _ScreenedRecord(record, reason=FORGOTTEN)
        if not record.is_json:
            return _ScreenedRecord(record, reason=NOT_JSON)
        shaped = parse_record(record.value, source.config.keep_system or source.config.is_builtin)
        ledger.shapes[shaped.shape or "unknown"] += 1
        if isinstance(shaped, RejectedRecord):
            return _ScreenedRecord(record, reason=shaped.reason)
        ledger.answers_thrown_away += shaped.num_answers
        return _ScreenedRecord(record, shaped.messages, reason=None)

    def _apply_rules(self, some: Sequence[_ScreenedRecord], ledger: Ledger) -> None:
        """Says why each of these is dropped, or leaves it changed as privacy wants it."""
        for one in some:
            one.languages = detect_languages(one.user_turns)
            one.reason = find_quality_issue(self.job.config.quality, one.user_turns, one.languages[0])
            if one.reason is None and (name := self._contamination.find_evalset(one.texts)) is not None:
                one.reason = CONTAMINATED
                ledger.contamination[name] += 1
        rest = [one for one in some if one.reason is None]
        known = self._privacy.name_languages
        found = self._privacy.clean([(one.texts, pick_screening_language(one.languages, known)) for one in rest])
        for one, done in zip(rest, found, strict=True):
            if isinstance(done, DroppedRecord):
                one.reason = done.reason
                ledger.refused.update(dict.fromkeys(done.kinds, 1))
                continue
            one.messages = tuple(
                Message(message.role, text) for message, text in zip(one.messages, done.texts, strict=True)
            )
            one.changed = dict(done.changed)
            ledger.replaced.update(done.changed)

    def _write_shard(self, number: int, source: Source, some: Sequence[_ScreenedRecord], ledger: Ledger) -> None:
        kept = [one for one in some if one.reason is None]
        lines = [self._conversation(one, source).to_line() for one in kept]
        arrays = {
            "digests": _digest_messages(kept),
            "lengths": np.array([sum(map(len, one.user_turns)) for one in kept], dtype=np.int64),
            "signatures": np.array(
                [] if source.config.is_builtin else [minhash_signature(one.user_turns) for one in kept], dtype=np.uint32
            ).reshape(-1, NUM_ROWS),
        }
        packed = io.BytesIO()
        np.savez(packed, **arrays)
        path = self.job.path
        write_atomic(path(number, ".jsonl"), b"".join(lines))
        write_atomic(path(number, ".decisions.jsonl"), "".join(_decision_line(one) for one in some))
        write_atomic(path(number, ".npz"), packed.getvalue())
        write_json_atomic(path(number, ".json"), ledger.dump())

    def _conversation(self, one: _ScreenedRecord, source: Source) -> Conversation:
        record = one.record
        tags = {"task": source.config.task or record.task or record.source}
        if one.languages:
            tags["language"] = one.languages[0]
        return Conversation(record.id, record.source, one.messages, tags, one.changed or {})

    @cached_property
    def _privacy(self) -> PrivacyFilter:
        return PrivacyFilter(self.job.config.privacy, self.job.surrogate_key)

    @cached_property
    def _contamination(self) -> ContaminationFilter:
        return ContaminationFilter.load(
            self.job.config.evalsets, [Path(path) for path in self.job.config.decontaminate]
        )


def pick_screening_language(languages: Sequence[str], supported: Collection[str]) -> str:
    """The language that decides whether names can be found: one that no detector knows, if the record has one."""
    unknown = [language for language in languages if language not in supported]
    return (unknown or languages)[0]


def _digest_messages(kept: Sequence[_ScreenedRecord]) -> NDArray[np.uint64]:
    """64 bits of each conversation's messages: equal ones are one prompt."""
    texts = [json.dumps([message.to_json() for message in one.messages]).encode() for one in kept]
    packed = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    return np.frombuffer(packed, dtype="<u8").astype(np.uint64)


def _decision_line(one: _ScreenedRecord) -> str:
    said: dict[str, Any] = {"id": one.record.id, "where": one.record.location, "dropped": one.reason}
    if one.languages:
        said["language"] = one.languages[0]
    if one.changed:
        said["changed"] = one.changed
    return json.dumps(said, ensure_ascii=False) + "\n"
