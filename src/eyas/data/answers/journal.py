"""Answers on disk as they come, so that a killed run loses only what was in flight.

part-00000.jsonl            finished: written whole, in the order of the prompts
part-00001.jsonl.journal    in flight: one line an answer, in the order they came, removed once the part stands
part-00002.jsonl.journal    a few parts are in flight at once, so that their ends hold nobody up

A line is handed to the operating system before the answer is used, so a killed process loses none that came. Of an
answer that is dropped for what a scan found, only the counts are written.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from eyas.base.errors import InputError
from eyas.base.storage import convert_write_errors
from eyas.chat.conversation import Finish, IdsSource, Message, Turn, parse_message

JOURNAL_SUFFIX = ".journal"


@dataclass(frozen=True)
class KeptAnswer:
    """An answer as ids and as the message that the next turn sees. An empty one may be without ids: it is dropped.

    found: how much personal data of each kind a scan saw in it.
    """

    turn: Turn
    message: Message
    private_counts: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What stands in the journal."""
        return {**self.turn.to_json(), "message": self.message.to_json(), "found": dict(self.private_counts)}


@dataclass(frozen=True)
class WithheldAnswer:
    """An answer that is not kept for what was found in it."""

    private_counts: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """What stands in the journal."""
        return {"found": dict(self.private_counts)}


class Journal:
    """The answers of one part. Opening it takes up what an earlier run left.

    A torn last line, and whatever stands behind the first line that cannot be read, is cut off.
    """

    def __init__(self, part: Path) -> None:
        self.path = part.with_name(part.name + JOURNAL_SUFFIX)
        self._answers: dict[tuple[str, int], KeptAnswer | WithheldAnswer] = {}
        self._fd: int | None = None

    def open(self) -> None:
        """From here on answers are taken. Raises StorageError where the place cannot be written."""
        with convert_write_errors(self.path):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.ftruncate(self._fd, self._load())
            except BaseException:
                os.close(self._fd)
                raise

    def close(self) -> None:
        """What was added stays."""
        assert self._fd is not None, "the journal is not open"
        os.close(self._fd)
        self._fd = None

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, conversation_id: str, turn: int) -> KeptAnswer | WithheldAnswer | None:
        """The answer of conversation `name` to its user turn `turn`, if it has come."""
        return self._answers.get((conversation_id, turn))

    def add(self, conversation_id: str, turn: int, answer: KeptAnswer | WithheldAnswer) -> None:
        """Writes one answer. Raises StageError where the disk is full."""
        assert self._fd is not None, "the journal is not open"
        assert (conversation_id, turn) not in self._answers, f"{conversation_id} turn {turn} is answered twice"
        record = {"id": conversation_id, "turn": turn, **answer.to_json()}
        data = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        with convert_write_errors(self.path):
            while data:
                data = data[os.write(self._fd, data) :]
        self._answers[conversation_id, turn] = answer

    def remove(self) -> None:
        """Drops the journal; for when its part stands."""
        self.path.unlink(missing_ok=True)

    def _load(self) -> int:
        """Reads the answers; returns how many bytes of the file are good."""
        good = 0
        for line in self.path.read_bytes().splitlines(keepends=True):
            answer = _parse_line(line)
            if answer is None:
                break
            self._answers[answer[0]] = answer[1]
            good += len(line)
        return good


def _parse_line(line: bytes) -> tuple[tuple[str, int], KeptAnswer | WithheldAnswer] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record: Any = json.loads(line)
        key = (record["id"], record["turn"])
        found = dict(record["found"])
        if "message" not in record:
            return key, WithheldAnswer(found)
        origin = record.get("ids", "generated")
        turn = Turn(tuple(record["token_ids"]), tuple(record["loss_mask"]), record["finish"], origin)
        message = parse_message(record["message"], "the journal")
    except (ValueError, TypeError, KeyError, AttributeError, InputError):
        return None
    fits = turn.finish in get_args(Finish) and turn.ids_source in get_args(IdsSource)
    return (key, KeptAnswer(turn, message, found)) if fits else None
