"""The log of acceptance that the prompt sampler writes and `eyas drift` reads: acceptance/log.jsonl.

    {"time": "2026-11-22T10:00:00+00:00", "head": "sha256:...", "task": "math", "temperature": 0.0,
     "rounds": {"<=256": {"6,4,16": [12, 41], "3,1,4": [12, 27]}}}

A line holds the acceptance of one finished output, and no text. In the example, the output had 12 rounds with contexts
up to 256 tokens. The tree "6,4,16" (DEPTH,TOP_K,NODES) accepted 41 tokens in them. The tree "3,1,4" would have accepted
27 tokens in the same rounds; `AcceptanceTrace.num_tokens_with` computes this. So a server that runs one tree can be
compared with a report that was measured with another tree.
"""

import contextlib
import datetime
import fcntl
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from eyas.base.errors import InputError
from eyas.base.storage import convert_write_errors
from eyas.data.select.quality import is_looping_answer
from eyas.engine.request import RequestOutput
from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.tree.acceptance_length import context_label
from eyas.tree.shape import TreeShape

LOG_FILE = "acceptance/log.jsonl"  # in a separate directory, so that prompts.source=DIR finds prompts only
OLD_LOG_FILE = "acceptance/log.old.jsonl"
TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")  # a name that a program sets, never text of a person
MAX_COUNT = 2**31  # rounds or tokens of one output
TEMPERATURES = (("0", 0.0), ("<=0.5", 0.5), ("<=1", 1.0))

Count = Annotated[int, Field(ge=0, lt=MAX_COUNT)]


class AcceptanceRecord(BaseModel):
    """One line of the log: the acceptance of one output.

    Attributes:
        time: The time at which the output was logged.
        head: The digest of the head.
        task: The client's name for the kind of task; None if it sent none.
        temperature: The sampling temperature.
        rounds: By range of context lengths and by tree: (number of rounds, accepted tokens).
    """

    model_config = ConfigDict(frozen=True)

    time: Annotated[AwareDatetime, Field(strict=True)]  # strict: no bare numbers
    head: str
    task: str | None
    temperature: float
    rounds: dict[str, dict[str, tuple[Count, Count]]]

    def to_line(self) -> bytes:
        """Returns the record as JSON with a line end."""
        return json.dumps({**self.model_dump(), "time": self.time.isoformat()}).encode() + b"\n"


class AppendLog:
    """A file to which one process appends whole lines. Only its owner can read it.

    Attributes:
        path: The file.
        num_bytes: The size of the file in bytes.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file, or creates it with its directory. Removes an incomplete last line of a killed process.

        Raises:
            StorageError: the file cannot be written.
            InputError: another process has the file open.
        """
        self.path = path
        with convert_write_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.close()
                problem = f"Another server writes to {path}"
                raise InputError(problem, "Give each server its own directory: --sample-low-acceptance DIR") from None
            path.chmod(0o600)
            self.num_bytes = path.read_bytes().rfind(b"\n") + 1
            self._file.truncate(self.num_bytes)

    def append(self, line: bytes) -> None:
        """Appends one line. If writing fails, removes the incomplete line and raises OSError."""
        assert line.endswith(b"\n"), "a whole line"
        done = 0
        try:
            while done < len(line):
                done += self._file.write(line[done:])
        except OSError:
            with contextlib.suppress(OSError):  # if this fails too, the next start cuts the incomplete line off
                self._file.truncate(self.num_bytes)
            raise
        self.num_bytes += len(line)

    def close(self) -> None:
        """Closes the file and releases its lock."""
        self._file.close()


def read_complete_lines(path: Path) -> list[bytes]:
    """Returns the complete lines of a file to which another process may append. Raises OSError."""
    with path.open("rb") as file:
        return [line for line in file if line.endswith(b"\n")]


def read_log(directory: Path) -> list[bytes]:
    """Returns the lines of log.old.jsonl, if there is one, and of log.jsonl. Raises OSError if log.jsonl is missing."""
    lines: list[bytes] = []
    with contextlib.suppress(FileNotFoundError):
        lines += read_complete_lines(directory / OLD_LOG_FILE)
    return lines + read_complete_lines(directory / LOG_FILE)


def parse_records(lines: Iterable[bytes]) -> tuple[list[AcceptanceRecord], int]:
    """Returns the records in the lines of a log, and the number of damaged lines, which are skipped."""
    records, num_damaged = [], 0
    for line in lines:
        try:
            records.append(AcceptanceRecord.model_validate_json(line))
        except ValidationError:
            num_damaged += 1
    return records, num_damaged


def build_record(
    output: RequestOutput, head: str, task: str | None, shapes: Sequence[TreeShape]
) -> AcceptanceRecord | None:
    """Counts the rounds and accepted tokens of a finished output for each tree.

    Args:
        output: the finished output.
        head: the digest of the head that drafted.
        task: the client's name for the kind of task; None if it sent none.
        shapes: the trees for which acceptance is logged.

    Returns:
        The record. None for outputs that cannot be compared with a report: those with a grammar, a penalty or a logit
        bias, and those that repeat themselves endlessly.
    """
    is_free = output.request.grammar is None and not output.request.sampling.adjusts_logits
    if not is_free or is_looping_answer(output.token_ids):
        return None
    rounds: dict[str, dict[str, tuple[int, int]]] = {}
    for trace, num_taken in drafted_rounds(output):
        trees = rounds.setdefault(context_label(trace.context), {})
        for shape in shapes:
            tokens = trace.num_tokens_with(shape)
            if tokens is not None:
                num_rounds, accepted = trees.get(shape.name, (0, 0))
                trees[shape.name] = num_rounds + 1, accepted + min(tokens, num_taken)
    time, temperature = datetime.datetime.now(datetime.UTC).replace(microsecond=0), output.request.sampling.temperature
    return AcceptanceRecord(time=time, head=head, task=task, temperature=temperature, rounds=rounds)


def drafted_rounds(output: RequestOutput) -> list[tuple[AcceptanceTrace, int]]:
    """Returns the trace of each round that drafted, with the number of tokens that the round added to the output.

    The last round may have added fewer tokens than it accepted, if the output ended there.
    """
    pairs = zip(output.traces, output.accepted, strict=True)
    return [(trace, num_taken) for trace, num_taken in pairs if trace is not None]


def temperature_slice(value: float) -> str:
    """Returns the name of a temperature's range: "0", "<=0.5", "<=1" or ">1"."""
    return next((name for name, high in TEMPERATURES if value <= high), ">1")
