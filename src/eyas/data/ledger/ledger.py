"""The ledgers of prompts and answers: how many records were read, kept and dropped, and why.

A ledger contains file names, line numbers, ids and counts, never the text of a record.
"""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

from eyas.base.errors import InputError
from eyas.base.storage import write_json_atomic
from eyas.chat.conversation import Conversation, find_user_turns

MAX_EXAMPLES = 20  # dropped records that the ledger names for each reason
Gate = Literal["format", "forgotten", "quality", "evaluation sets", "personal data", "duplicates", "selection"]
GATES: tuple[Gate, ...] = get_args(Gate)
"""The gates of a record, in their order. "forgotten" drops the records that `--forget` removed."""
LENGTH_EDGES = (0, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12800)
"""Lower ends of the histogram's bins, in characters of all user turns."""


@dataclass
class _Ledger:
    """The base class of both ledgers: the number and the first examples of dropped records, by reason."""

    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)  # reason -> "<file name>:<line>" or ids of prompts

    def count_dropped(self, reason: str, example: str) -> None:
        """Counts one record as dropped. example: its id, or "FILE:LINE"."""
        self.dropped[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < MAX_EXAMPLES:
            examples.append(example)

    def merge(self, other: Self) -> None:
        """Adds the numbers and counters of another ledger."""
        for name, value in vars(other).items():
            if isinstance(value, int):
                setattr(self, name, getattr(self, name) + value)
            elif isinstance(value, Counter):
                getattr(self, name).update(value)
        for reason, more in other.examples.items():
            examples = self.examples.setdefault(reason, [])
            examples += more[: MAX_EXAMPLES - len(examples)]

    def write(self, path: Path) -> None:
        """Writes all fields of the ledger to a JSON file."""
        write_json_atomic(path, vars(self))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a ledger that `write` wrote. Raises InputError if the file is missing or damaged."""
        ledger = cls()
        try:
            fields = json.loads(path.read_bytes())
            for name, value in vars(ledger).items():
                setattr(ledger, name, Counter(fields[name]) if isinstance(value, Counter) else fields[name])
        except (OSError, ValueError, TypeError, KeyError):
            problem = f"{path} is missing or damaged"
            raise InputError(problem, f"Remove {path.parent} and run the same command again") from None
        return ledger


@dataclass
class PromptLedger(_Ledger):
    """Counts of prompts in one shard, of one source or of all sources.

    `check` asserts that came == kept + over_limit + all dropped records.

    Attributes:
        came: Records that were read.
        kept: Records that were selected.
        over_limit: Records that no rule dropped, but that were not selected.
        answers_thrown_away: Assistant turns in the records; eyas does not use them.
        pictures: Pictures and other media in the user turns; eyas keeps only the text of these turns.
        gates: Dropped records by gate; those of the gate "selection" are in `over_limit`.
        changed: Records by the gate that passed and changed them.
        shapes: Records by format.
        replaced: Values of personal data that were replaced, by kind, in all screened records.
        refused: Records that were dropped because of personal data, by kind.
        contamination: Records that share text with an evaluation set, by set.
        languages: Kept records by main language.
        tasks: Kept records by the tag `task`.
        lengths: Kept records by length: the index in LENGTH_EDGES, as text, because JSON keys are texts.
    """

    came: int = 0
    kept: int = 0
    over_limit: int = 0
    answers_thrown_away: int = 0
    pictures: int = 0
    gates: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    replaced: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    contamination: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)
    lengths: Counter[str] = field(default_factory=Counter)

    def count_dropped_by(self, gate: Gate, reason: str, location: str) -> None:
        """Counts one record as dropped by a gate. location: its file and line."""
        self.count_dropped(reason, location)
        self.gates[gate] += 1

    def count_kept(self, prompt: Conversation) -> None:
        """Counts one record as kept, by the length of its user turns and its tags `task` and `language`."""
        length = sum(map(len, find_user_turns(prompt.messages)))
        self.kept += 1
        self.tasks[prompt.tags.get("task", "none")] += 1
        self.languages[prompt.tags.get("language", "unknown")] += 1
        self.lengths[str(bisect_right(LENGTH_EDGES, length) - 1)] += 1

    def check(self) -> None:
        """Asserts that every record is counted exactly once."""
        assert self.came == self.kept + self.over_limit + self.dropped.total(), self
        assert self.gates.total() == self.dropped.total(), self

    def summary(self) -> str:
        """Returns the dropped records by reason, for a message: "email 3, not_json 1"."""
        return ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items())) or "nothing dropped"

    def to_json(self) -> dict[str, Any]:
        """Returns the counts as they stand in ledger.json."""
        kinds = sorted({*self.replaced, *self.refused})
        dropped = self.gates | Counter(selection=self.over_limit)
        lengths = [self.lengths[str(index)] for index in range(len(LENGTH_EDGES))]
        return {
            **{name: count for name, count in vars(self).items() if isinstance(count, int)},
            "shapes": dict(sorted(self.shapes.items())),
            "dropped": {
                reason: {"count": count, "lines": self.examples[reason]}
                for reason, count in sorted(self.dropped.items())
            },
            "gates": {gate: {"dropped": dropped[gate], "changed": self.changed[gate]} for gate in GATES},
            "entities": {kind: {"replaced": self.replaced[kind], "dropped": self.refused[kind]} for kind in kinds},
            "contamination": dict(sorted(self.contamination.items())),
            "languages": dict(sorted(self.languages.items())),
            "tasks": dict(sorted(self.tasks.items())),
            "lengths": {"edges": list(LENGTH_EDGES), "counts": lengths},
        }


# --- answers ---------------------------------------------------------------------------------------------------------

# Reasons to drop a conversation; LOOPING is also the tag of one that stays.
TOO_LONG, EMPTY, TRUNCATED, LOOPING, PRIVATE = "too_long", "empty", "truncated", "looping", "private"
REFUSED = "refused"  # by the server
UNRENDERED = "unrendered"  # tool calls that the chat template does not accept, or drops where token ids are missing
REASONS = (TOO_LONG, EMPTY, TRUNCATED, LOOPING, PRIVATE, REFUSED, UNRENDERED)
TALLY_SUFFIX = ".tally"
"""The ledger of a shard of answers is written beside it, and removed when ledger.json is written."""


@dataclass
class AnswerLedger(_Ledger):
    """Counts of the conversations in one shard of answers, or in all shards.

    Attributes:
        conversations: Conversations that were written.
        tokens: Answer tokens in them.
        looping: Written conversations with the tag `looping`.
        rendered: Answers whose token ids eyas computed, because the server sent none.
        finish: Answers by their end: "stop" or "length".
        tasks: Written conversations by the tag `task`.
        private: Values of personal data that the scanner found, by kind, in written and dropped conversations.
    """

    conversations: int = 0
    tokens: int = 0
    looping: int = 0
    rendered: int = 0
    finish: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)
    private: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def path_beside(shard: Path) -> Path:
        """Returns the file that holds the ledger of a shard."""
        return shard.with_name(shard.name + TALLY_SUFFIX)

    def count_kept(self, conversation: Conversation) -> None:
        """Counts a conversation as written."""
        self.conversations += 1
        self.tokens += sum(len(turn.token_ids) for turn in conversation.turns)
        self.looping += LOOPING in conversation.tags
        self.rendered += sum(turn.ids_source == "rendered" for turn in conversation.turns)
        self.finish.update(turn.finish for turn in conversation.turns)
        self.tasks[conversation.tags.get("task", "none")] += 1

    def to_json(self) -> dict[str, Any]:
        """Returns the counts of written conversations, as they stand in ledger.json."""
        return {
            "conversations": self.conversations,
            "looping": self.looping,
            "answers": self.finish.total(),
            "finish": {"stop": self.finish["stop"], "length": self.finish["length"]},
            "tokens": self.tokens,
            "rendered": self.rendered,
            "tasks": dict(sorted(self.tasks.items())),
        }


def build_answer_ledger(num_prompts: int, shards: Iterable[Path], is_scanned: bool) -> dict[str, Any]:
    """Returns the content of ledger.json for a directory of answers.

    Args:
        num_prompts: The number of prompts.
        shards: The output files; their ledgers are beside them.
        is_scanned: A scanner searched the answers for personal data. Otherwise `private` is None.
    """
    total = AnswerLedger()
    for shard in shards:
        total.merge(AnswerLedger.read(AnswerLedger.path_beside(shard)))
    counted = total.conversations + total.dropped.total()
    assert counted == num_prompts, f"{counted} conversations are counted for {num_prompts} prompts"
    dropped = {reason: {"count": total.dropped[reason], "ids": total.examples.get(reason, [])} for reason in REASONS}
    return {
        "schema": 1,
        "prompts": num_prompts,
        **total.to_json(),
        "dropped": dropped,
        "private": dict(sorted(total.private.items())) if is_scanned else None,
    }
