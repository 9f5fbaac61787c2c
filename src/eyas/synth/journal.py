"""Answers on disk as they come, so that a killed run loses only what was in flight.

part-00000.jsonl            finished: written whole, in the order of the prompts
part-00001.jsonl.journal    in flight: one line an answer, in the order they came, removed once the part stands
"""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

from eyas.base.provenance import writing
from eyas.chat.conversation import Finish, Turn

SUFFIX = ".journal"


class Journal:
    """A context manager around the answers of one part. Opening it takes up what an earlier run left.

    A torn last line, and whatever stands behind the first line that cannot be read, is cut off.
    """

    def __init__(self, part: Path) -> None:
        self.path = part.with_name(part.name + SUFFIX)
        self._answers: dict[tuple[str, int], Turn] = {}
        self._fd: int | None = None

    def __enter__(self) -> Self:
        with writing(self.path):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.ftruncate(self._fd, self._take_up())
            except BaseException:
                os.close(self._fd)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._fd is not None
        os.close(self._fd)
        self._fd = None

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, name: str, turn: int) -> Turn | None:
        """The answer of conversation `name` to its user turn `turn`, if it has come."""
        return self._answers.get((name, turn))

    def add(self, name: str, turn: int, answer: Turn) -> None:
        """Writes one answer. Raises StageError where the disk is full."""
        assert self._fd is not None, "the journal is not open"
        assert (name, turn) not in self._answers, f"{name} turn {turn} is answered twice"
        record = {"id": name, "turn": turn, **answer.to_json()}
        data = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        with writing(self.path):
            while data:
                data = data[os.write(self._fd, data) :]
        self._answers[name, turn] = answer

    def remove(self) -> None:
        """Drops the journal; for when its part stands."""
        self.path.unlink(missing_ok=True)

    def _take_up(self) -> int:
        """Reads the answers; returns how many bytes of the file are good."""
        good = 0
        for line in self.path.read_bytes().splitlines(keepends=True):
            answer = _parse(line)
            if answer is None:
                break
            self._answers[answer[0]] = answer[1]
            good += len(line)
        return good


def _parse(line: bytes) -> tuple[tuple[str, int], Turn] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record: Any = json.loads(line)
        turn = Turn(tuple(record["token_ids"]), tuple(record["loss_mask"]), record["finish"])
        key = (record["id"], record["turn"])
    except (ValueError, TypeError, KeyError):
        return None
    return (key, turn) if turn.finish in get_args(Finish) and turn.token_ids else None
