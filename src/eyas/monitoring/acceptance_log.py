"""What the rounds of one finished answer say, without a word of it: the lines of acceptance/log.jsonl.

    {"time": "2026-11-22T10:00:00+00:00", "head": "sha256:...", "task": "math", "temperature": 0.0,
     "rounds": {"<=256": {"6,4,16": [12, 41], "3,1,4": [12, 27]}}}

By context and by tree "DEPTH,TOP_K,NODES" how many rounds there were and how many tokens they accepted. A round counts
for every tree of which it says what it would have accepted (`Evidence.tokens_with`), so that a server that runs
one tree can be compared with a report of another.
"""

import datetime
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eyas.data.select.quality import is_looping_answer
from eyas.engine.request import RequestOutput
from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.tree.shape import TreeShape
from eyas.tree.stats import context_label

TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")  # a name that a program gives, not what a person said
MAX_COUNT = 2**31  # of one answer's rounds or tokens
TEMPERATURES = (("0", 0.0), ("<=0.5", 0.5), ("<=1", 1.0))


@dataclass(frozen=True)
class AcceptanceRecord:
    """One line. rounds: context -> tree -> (rounds, accepted tokens)."""

    time: str
    head: str
    task: str | None
    temperature: float
    rounds: Mapping[str, Mapping[str, tuple[int, int]]]

    def to_line(self) -> bytes:
        """As JSON, line end included."""
        return json.dumps(asdict(self)).encode() + b"\n"


def drafted_rounds(output: RequestOutput) -> list[tuple[AcceptanceTrace, int]]:
    """The rounds that drafted, with the tokens that the answer took of each: less than accepted where it ended."""
    pairs = zip(output.traces, output.accepted, strict=True)
    return [(evidence, taken) for evidence, taken in pairs if evidence is not None]


def is_comparable(output: RequestOutput) -> bool:
    """Whether it was drawn as a report's answers are: no grammar, penalty or bias, and it did not get stuck."""
    sampling = output.request.sampling
    steered = (
        output.request.grammar is not None
        or sampling.repetition_penalty != 1
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.logit_bias
    )
    return not steered and not is_looping_answer(output.token_ids)


def build_record(output: RequestOutput, head: str, task: str | None, shapes: Sequence[TreeShape]) -> AcceptanceRecord:
    """The line of an answer. shapes: trees to count for."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for evidence, taken in drafted_rounds(output):
        trees = found.setdefault(context_label(evidence.context), {})
        for shape in shapes:
            tokens = evidence.num_tokens_with(shape)
            if tokens is not None:
                rounds, accepted = trees.get(shape.name, (0, 0))
                trees[shape.name] = rounds + 1, accepted + min(tokens, taken)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return AcceptanceRecord(now, head, task, output.request.sampling.temperature, found)


def parse_records(lines: Iterable[bytes]) -> tuple[list[AcceptanceRecord], int]:
    """What stands in a log, and how many lines are none: the last one may be half written."""
    found, num_bad = [], 0
    for line in lines:
        try:
            found.append(_parse_record(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            num_bad += 1
    return found, num_bad


def temperature_slice(value: float) -> str:
    """The slice of a temperature."""
    return next((name for name, high in TEMPERATURES if value <= high), ">1")


def _parse_record(value: dict[str, Any]) -> AcceptanceRecord:
    if datetime.datetime.fromisoformat(value["time"]).utcoffset() is None:
        raise ValueError("a time without its zone")
    rounds = {
        context: {tree: (_check_count(counts[0]), _check_count(counts[1])) for tree, counts in trees.items()}
        for context, trees in value["rounds"].items()
    }
    task = value["task"]
    return AcceptanceRecord(
        value["time"], str(value["head"]), None if task is None else str(task), float(value["temperature"]), rounds
    )


def _check_count(value: Any) -> int:
    if int(value) not in range(MAX_COUNT):
        raise ValueError("no count")
    return int(value)
