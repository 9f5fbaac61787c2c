"""The ledgers of prompts and answers: how many records were read, kept and dropped, and why.

A ledger holds file names, line numbers, ids and counts, never a record's content.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from eyas.base.errors import InputError
from eyas.base.storage import write_json_atomic
from eyas.chat.conversation import Conversation

MAX_LOCATIONS = 20  # named for each reason; more would make the ledger a second dataset
MAX_IDS = 20  # named for each reason to drop an answer
LENGTH_EDGES = (0, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12800)
"""Characters of the user turns."""


@dataclass
class PromptLedger:
    """Counts of prompts in one shard, of one source or of all sources.

    Always came == kept + everything dropped + over_limit (see `check`).
    """

    came: int = 0  # records read
    kept: int = 0
    over_limit: int = 0  # good records that were not selected
    answers_thrown_away: int = 0
    shapes: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)  # reason -> "<file name>:<line>"
    # By kind of entity, for all screened records, also those that are not selected:
    replaced: Counter[str] = field(default_factory=Counter)  # values
    refused: Counter[str] = field(default_factory=Counter)  # records that were dropped for it
    contamination: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)  # of the kept records, like tasks and lengths
    tasks: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)  # by index in LENGTH_EDGES

    def count_dropped(self, reason: str, location: str) -> None:
        """Counts one record as dropped; `location` is "<file name>:<line>"."""
        self.dropped[reason] += 1
        places = self.places.setdefault(reason, [])
        if len(places) < MAX_LOCATIONS:
            places.append(location)

    def count_kept(self, length: int, tags: Mapping[str, str]) -> None:
        """Counts one record as kept. length: characters."""
        self.kept += 1
        self.tasks[tags.get("task", "none")] += 1
        self.languages[tags.get("language", "unknown")] += 1
        self.lengths[max(index for index, edge in enumerate(LENGTH_EDGES) if length >= edge)] += 1

    def merge(self, other: "PromptLedger") -> None:
        """Adds the counts of another ledger."""
        _add_counts(self, other)
        for reason, places in other.places.items():
            mine = self.places.setdefault(reason, [])
            mine += places[: MAX_LOCATIONS - len(mine)]

    def check(self) -> None:
        """Asserts that every record is counted exactly once."""
        assert self.came == self.kept + self.over_limit + self.dropped.total(), self

    def summary(self) -> str:
        """Returns the dropped records by reason, for a message: "email 3, not_json 1"."""
        return ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items())) or "nothing dropped"

    def to_json(self) -> dict[str, Any]:
        """Returns the entry of ledger.json, for one source or for all."""
        kinds = sorted({*self.replaced, *self.refused})
        return {
            "came": self.came,
            "kept": self.kept,
            "over_limit": self.over_limit,
            "answers_thrown_away": self.answers_thrown_away,
            "shapes": dict(sorted(self.shapes.items())),
            "dropped": {
                reason: {"count": count, "lines": self.places.get(reason, [])}
                for reason, count in sorted(self.dropped.items())
            },
            "entities": {kind: {"replaced": self.replaced[kind], "dropped": self.refused[kind]} for kind in kinds},
            "contamination": dict(sorted(self.contamination.items())),
            "languages": dict(sorted(self.languages.items())),
            "tasks": dict(sorted(self.tasks.items())),
            "lengths": {
                "edges": list(LENGTH_EDGES),
                "counts": [self.lengths[index] for index in range(len(LENGTH_EDGES))],
            },
        }

    def dump(self) -> dict[str, Any]:
        """Returns all fields, for the file of a shard."""
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}

    @classmethod
    def load(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the ledger of a `dump` that was stored as JSON, where all keys are strings."""
        made = cls()
        for name, value in vars(made).items():
            given = fields[name]
            if name == "lengths":
                given = {int(index): count for index, count in given.items()}
            setattr(made, name, Counter(given) if isinstance(value, Counter) else given)
        return made


def _add_counts(ledger: object, other: object) -> None:
    """Adds the numbers and counters of `other` to `ledger`; both have the same class."""
    for name, value in vars(other).items():
        if isinstance(value, int):
            setattr(ledger, name, getattr(ledger, name) + value)
        elif isinstance(value, Counter):
            getattr(ledger, name).update(value)


# --- answers ---------------------------------------------------------------------------------------------------------

# Reasons to drop a conversation; LOOPING is also the tag of one that stays.
TOO_LONG, EMPTY, TRUNCATED, LOOPING, PRIVATE = "too_long", "empty", "truncated", "looping", "private"
REFUSED = "refused"  # by the server
UNRENDERED = "unrendered"  # tool calls that the chat template does not accept, or drops where token ids are missing
REASONS = (TOO_LONG, EMPTY, TRUNCATED, LOOPING, PRIVATE, REFUSED, UNRENDERED)
TALLY_SUFFIX = ".tally"
"""The ledger of a shard of answers is written beside it, and removed when ledger.json is written."""


@dataclass
class AnswerLedger:
    """Counts of the conversations in one shard of answers, or in all shards."""

    conversations: int = 0
    tokens: int = 0
    looping: int = 0
    rendered: int = 0
    finish: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)
    private: Counter[str] = field(default_factory=Counter)  # values that the scanner found, by kind, in all answers
    dropped: Counter[str] = field(default_factory=Counter)
    named: dict[str, list[str]] = field(default_factory=lambda: {reason: [] for reason in REASONS})  # dropped ids

    def count_kept(self, conversation: Conversation) -> None:
        """Counts a conversation that is written."""
        self.conversations += 1
        self.tokens += sum(len(turn.token_ids) for turn in conversation.turns)
        self.looping += LOOPING in conversation.tags
        self.rendered += sum(turn.ids_source == "rendered" for turn in conversation.turns)
        self.finish.update(turn.finish for turn in conversation.turns)
        self.tasks[conversation.tags.get("task", "none")] += 1

    def count_dropped(self, conversation_id: str, reason: str) -> None:
        """Counts a conversation that is not written."""
        self.dropped[reason] += 1
        if len(self.named[reason]) < MAX_IDS:
            self.named[reason].append(conversation_id)

    def merge(self, other: "AnswerLedger") -> None:
        """Adds the counts of the next shard."""
        _add_counts(self, other)
        for reason, ids in other.named.items():
            self.named[reason] = (self.named[reason] + ids)[:MAX_IDS]

    def to_json(self) -> dict[str, Any]:
        """Returns the entries of ledger.json on written conversations."""
        return {
            "conversations": self.conversations,
            "looping": self.looping,
            "answers": self.finish.total(),
            "finish": {"stop": self.finish["stop"], "length": self.finish["length"]},
            "tokens": self.tokens,
            "rendered": self.rendered,
            "tasks": dict(sorted(self.tasks.items())),
        }

    def write(self, shard: Path) -> None:
        """Writes the ledger beside its shard."""
        write_json_atomic(answer_ledger_path(shard), vars(self))

    @classmethod
    def read(cls, shard: Path) -> Self:
        """Reads the ledger of a shard. Raises InputError if it is missing or damaged."""
        path = answer_ledger_path(shard)
        try:
            fields: dict[str, Any] = json.loads(path.read_bytes())
            counts: dict[str, Any] = {name: Counter(fields[name]) for name in ("finish", "tasks", "private", "dropped")}
            return cls(**(fields | counts))
        except (OSError, ValueError, TypeError, KeyError):
            raise InputError(f"{path} is missing or damaged", f"Remove {shard.parent} and run `eyas respond`") from None


def answer_ledger_path(shard: Path) -> Path:
    """Returns the file beside a shard that holds its ledger."""
    return shard.with_name(shard.name + TALLY_SUFFIX)


def build_answer_ledger(num_prompts: int, shards: Iterable[Path], is_scanned: bool) -> dict[str, Any]:
    """Returns ledger.json of all shards of answers; its `private` is None if no scanner read the answers."""
    total = AnswerLedger()
    for shard in shards:
        total.merge(AnswerLedger.read(shard))
    counted = total.conversations + total.dropped.total()
    assert counted == num_prompts, f"{counted} conversations are counted for {num_prompts} prompts"
    return {
        "schema": 1,
        "prompts": num_prompts,
        **total.to_json(),
        "dropped": {reason: {"count": total.dropped[reason], "ids": total.named[reason]} for reason in REASONS},
        "private": dict(sorted(total.private.items())) if is_scanned else None,
    }
