"""Stores answers on disk when they arrive, so that a killed run loses only the requests in flight.

part-00000.jsonl            finished: written whole, in the order of the prompts
part-00001.jsonl.journal    in flight: one line an answer, in the order of arrival; removed when the part is written
part-00002.jsonl.journal    a few parts are in flight at once, so that the last answers of one part delay nothing

A line is passed to the operating system before its answer is used, so a killed process loses no answer. For an answer
that is dropped for personal data, only the counts are written.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, get_args

from eyas.base.errors import InputError
from eyas.base.storage import convert_write_errors
from eyas.chat.conversation import Finish, IdsSource, Message, Turn, parse_message

JOURNAL_SUFFIX = ".journal"


@dataclass(frozen=True)
class KeptAnswer:
    """An answer as token ids and as the message that the next turn sees. Empty answers are dropped.

    private_counts: values of personal data that the scanner found in it, by kind.
    """

    turn: Turn
    message: Message
    private_counts: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields of a journal line."""
        return {**self.turn.to_json(), "message": self.message.to_json(), "found": dict(self.private_counts)}


@dataclass(frozen=True)
class WithheldAnswer:
    """An answer that is dropped for personal data; only the counts are kept."""

    private_counts: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Returns the fields of a journal line."""
        return {"found": dict(self.private_counts)}


class Journal:
    """The answers of one part that is not written yet."""

    def __init__(self, part: Path) -> None:
        """Names the journal of `part`, the file that the answers go to in the end. `open` opens it."""
        self.path = part.with_name(part.name + JOURNAL_SUFFIX)
        self._answers: dict[tuple[str, int], KeptAnswer | WithheldAnswer] = {}
        self._file: FileIO | None = None

    def open(self) -> None:
        """Opens the file and loads the answers of an earlier run. Raises StorageError if it cannot be written.

        Truncates the file before the first line that is incomplete or cannot be read.
        """
        with convert_write_errors(self.path):
            self.path.touch()
            os.truncate(self.path, self._load())
            self._file = self.path.open("ab", buffering=0)

    def close(self) -> None:
        """Closes the file and leaves it on disk."""
        assert self._file is not None, "the journal is not open"
        self._file.close()

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, conversation_id: str, turn: int) -> KeptAnswer | WithheldAnswer | None:
        """Returns the answer to a user turn, None if it has not arrived."""
        return self._answers.get((conversation_id, turn))

    def add(self, conversation_id: str, turn: int, answer: KeptAnswer | WithheldAnswer) -> None:
        """Writes one answer. Raises StorageError if the disk is full."""
        assert self._file is not None, "the journal is not open"
        assert (conversation_id, turn) not in self._answers, f"{conversation_id} turn {turn} is answered twice"
        record = {"id": conversation_id, "turn": turn, **answer.to_json()}
        data = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        with convert_write_errors(self.path):
            while data:
                data = data[self._file.write(data) :]
        self._answers[conversation_id, turn] = answer

    def remove(self) -> None:
        """Removes the file, after the part is written."""
        self.path.unlink(missing_ok=True)

    def _load(self) -> int:
        """Reads the answers. Returns how many bytes of the file are valid."""
        num_bytes = 0
        for line in self.path.read_bytes().splitlines(keepends=True):
            answer = _parse_line(line)
            if answer is None:
                break
            self._answers[answer[0]] = answer[1]
            num_bytes += len(line)
        return num_bytes


def _parse_line(line: bytes) -> tuple[tuple[str, int], KeptAnswer | WithheldAnswer] | None:
    """Returns id and turn with their answer, None for an invalid line."""
    if not line.endswith(b"\n"):
        return None
    try:
        record: Any = json.loads(line)
        key = (record["id"], record["turn"])
        counts = dict(record["found"])
        if "message" not in record:
            return key, WithheldAnswer(counts)
        source = record.get("ids", "generated")
        turn = Turn(tuple(record["token_ids"]), tuple(record["loss_mask"]), record["finish"], source)
        message = parse_message(record["message"], "the journal")
    except (ValueError, TypeError, KeyError, AttributeError, InputError):
        return None
    is_valid = turn.finish in get_args(Finish) and turn.ids_source in get_args(IdsSource)
    return (key, KeptAnswer(turn, message, counts)) if is_valid else None
