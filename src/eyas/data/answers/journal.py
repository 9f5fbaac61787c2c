"""Stores each answer on disk when it arrives, so that a killed run loses only the requests in flight.

file                        state
part-00000.jsonl            finished: conversations in the order of the prompts
part-00001.jsonl.journal    in progress: one line for each answer, in the order of arrival; removed with the last answer
part-00002.jsonl.journal    in progress, too: a few parts are open at once, so that a slow answer blocks nothing

A line is passed to the operating system before its answer is used, so a killed process loses no answer. For an answer
that is dropped because of personal data, only the number of values is written.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from eyas.base.json_parser import parse_json
from eyas.base.storage import convert_write_errors
from eyas.chat.conversation import NO_OTHER_KEYS, Message, Turn

JOURNAL_SUFFIX = ".journal"


@dataclass(frozen=True)
class KeptAnswer:
    """An answer that may be used.

    Attributes:
        turn: The token ids of the answer, for training.
        message: The answer as a message, for the prompt of the next turn.
        private_counts: The number of values of each kind of personal data that the scanner found in the answer.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    turn: Turn
    message: Message
    private_counts: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the answer as a journal line holds it."""
        answer = {"turn": self.turn.to_json(), "message": self.message.to_json()}
        return answer | {"private_counts": dict(self.private_counts)}


@dataclass(frozen=True)
class WithheldAnswer:
    """An answer that is dropped because of personal data. Only the number of values of each kind is stored."""

    __pydantic_config__ = NO_OTHER_KEYS

    private_counts: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Returns the answer as a journal line holds it."""
        return {"private_counts": dict(self.private_counts)}


class Journal:
    """The stored answers of one part that is not finished."""

    def __init__(self, part: Path) -> None:
        """Computes the path of the journal. part: the path of the finished part. `open` opens the journal."""
        self.path = part.with_name(part.name + JOURNAL_SUFFIX)
        self._answers: dict[tuple[str, int], KeptAnswer | WithheldAnswer] = {}
        self._file: FileIO | None = None

    def open(self) -> None:
        """Opens the file and loads the answers of an earlier run. Raises StorageError if the file cannot be written.

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
        """Returns the answer to a user turn, counted from 0; None if it has not arrived."""
        return self._answers.get((conversation_id, turn))

    def add(self, conversation_id: str, turn: int, answer: KeptAnswer | WithheldAnswer) -> None:
        """Writes one answer. Raises StorageError if the disk is full."""
        assert self._file is not None, "the journal is not open"
        assert (conversation_id, turn) not in self._answers, f"{conversation_id} turn {turn} is answered twice"
        record = {"id": conversation_id, "turn": turn, "answer": answer.to_json()}
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
            try:
                read = parse_json(_Line, line)
            except ValueError:
                break
            if not line.endswith(b"\n"):
                break
            self._answers[read.id, read.turn] = read.answer
            num_bytes += len(line)
        return num_bytes


@dataclass(frozen=True)
class _Line:
    """A line of the file. turn: the number of the user turn, from 0."""

    __pydantic_config__ = NO_OTHER_KEYS

    id: str
    turn: int
    answer: KeptAnswer | WithheldAnswer
