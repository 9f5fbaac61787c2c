"""What came of the prompts of one part, beside the part until all parts stand; the ledger is their sum.

part-00000.jsonl          the conversations that were kept
part-00000.jsonl.tally    written before it: what was dropped and why, which the part cannot tell
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

SUFFIX = ".tally"
LOOPING = "looping"  # the tag of a conversation with an answer that got stuck, and a reason to drop it
TRUNCATED, EMPTY, PRIVATE, TOO_LONG = "truncated", "empty", "private", "too_long"
REFUSED = "refused"  # the server would not answer this prompt
UNRENDERED = "unrendered"  # tool calls that the chat template does not take, or leaves out where ids are missing
REASONS = (TOO_LONG, EMPTY, TRUNCATED, LOOPING, PRIVATE, REFUSED, UNRENDERED)
COUNTS = ("finish", "tasks", "private", "dropped")
MAX_IDS = 20  # ids named for each reason


@dataclass
class ShardStats:
    """Counts. private: by kind, what the scan found in answers, also in those it dropped; never a value."""

    conversations: int = 0
    tokens: int = 0
    looping: int = 0
    rendered: int = 0
    finish: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)
    private: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    named: dict[str, list[str]] = field(default_factory=lambda: {reason: [] for reason in REASONS})

    def count_kept(self, conversation: Conversation) -> None:
        """Counts a conversation that is written."""
        self.conversations += 1
        self.tokens += sum(len(turn.token_ids) for turn in conversation.turns)
        self.looping += LOOPING in conversation.tags
        self.rendered += sum(turn.ids_source == "rendered" for turn in conversation.turns)
        self.finish.update(turn.finish for turn in conversation.turns)
        self.tasks[conversation.tags.get("task", "none")] += 1

    def count_dropped(self, name: str, reason: str) -> None:
        """Counts a conversation that is not."""
        self.dropped[reason] += 1
        if len(self.named[reason]) < MAX_IDS:
            self.named[reason].append(name)

    def count_findings(self, found: Mapping[str, int]) -> None:
        """Counts what a scan found."""
        self.private.update(found)

    def merge(self, other: "ShardStats") -> None:
        """Counts the next part."""
        for name in ("conversations", "tokens", "looping", "rendered"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in COUNTS:
            getattr(self, name).update(getattr(other, name))
        for reason, ids in other.named.items():
            self.named[reason] = (self.named[reason] + ids)[:MAX_IDS]

    def to_json(self) -> dict[str, Any]:
        """What a ledger counts of the conversations that are written."""
        return {
            "conversations": self.conversations,
            "looping": self.looping,
            "answers": self.finish.total(),
            "finish": {"stop": self.finish["stop"], "length": self.finish["length"]},
            "tokens": self.tokens,
            "rendered": self.rendered,
            "tasks": dict(sorted(self.tasks.items())),
        }

    def write(self, part: Path) -> None:
        """Beside the part."""
        write_json_atomic(stats_path(part), vars(self))

    @classmethod
    def read(cls, part: Path) -> Self:
        """That of a part. InputError where it is missing or damaged."""
        path = stats_path(part)
        try:
            fields: dict[str, Any] = json.loads(path.read_bytes())
            counts: dict[str, Any] = {name: Counter(fields[name]) for name in COUNTS}
            return cls(**(fields | counts))
        except (OSError, ValueError, TypeError, KeyError):
            raise InputError(
                f"{path} missing or damaged", "what eyas wrote", f"remove {part.parent} and answer again"
            ) from None


def stats_path(part: Path) -> Path:
    """Where the tally of a part stands."""
    return part.with_name(part.name + SUFFIX)


def build_ledger(num_prompts: int, parts: Iterable[Path], scanned: bool) -> dict[str, Any]:
    """What came and what went, for all parts. private: None where nobody scanned the answers."""
    total = ShardStats()
    for part in parts:
        total.merge(ShardStats.read(part))
    came = total.conversations + total.dropped.total()
    assert came == num_prompts, f"{came} prompts in the tallies of {num_prompts}"
    return {
        "schema": 1,
        "prompts": num_prompts,
        **total.to_json(),
        "dropped": {reason: {"count": total.dropped[reason], "ids": total.named[reason]} for reason in REASONS},
        "private": dict(sorted(total.private.items())) if scanned else None,
    }
