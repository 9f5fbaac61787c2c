"""What came and what went, and why: the ledger of a prompt collection, and the card made from it."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

MAX_LINES = 20  # places named for each reason; more would make the ledger a second data set


@dataclass
class Ledger:
    """Counts while prompts are read. It holds places and numbers, never a record's content.

    came == kept + everything dropped + over_limit, always (see `check`).
    """

    came: int = 0
    kept: int = 0
    over_limit: int = 0  # good records that the limit left out
    answers_thrown_away: int = 0
    shapes: Counter[str] = field(default_factory=Counter)
    dropped: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def drop(self, reason: str, where: str) -> None:
        """Counts one record as dropped; `where` is "<file name>:<line>"."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        places = self.places.setdefault(reason, [])
        if len(places) < MAX_LINES:
            places.append(where)

    def check(self) -> None:
        """Every record went exactly one way."""
        assert self.came == self.kept + self.over_limit + sum(self.dropped.values()), self

    def summary(self) -> str:
        """For a message: "email 3, not_json 1"."""
        return ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items())) or "nothing dropped"

    def to_json(self) -> dict[str, Any]:
        """The counts as they stand in ledger.json."""
        return {
            "came": self.came,
            "kept": self.kept,
            "over_limit": self.over_limit,
            "answers_thrown_away": self.answers_thrown_away,
            "shapes": dict(sorted(self.shapes.items())),
            "dropped": {
                reason: {"count": count, "lines": self.places[reason]} for reason, count in sorted(self.dropped.items())
            },
        }


def card(record: dict[str, Any]) -> str:
    """card.md of a ledger.json record: what a reader must know before using these prompts."""
    files = "\n".join(f"| {name} | `{digest}` |" for name, digest in record["files"].items())
    dropped = "\n".join(f"| {reason} | {entry['count']} |" for reason, entry in record["dropped"].items())
    shapes = ", ".join(f"{shape} ({count})" for shape, count in record["shapes"].items())
    left_out = f" {record['over_limit']} more were good, over the limit of {record['limit']}." * bool(
        record["over_limit"]
    )
    return f"""# Prompts

Licence: {record["license"]}, as named by whoever collected them.
{record["kept"]} prompts, kept of {record["came"]} records.{left_out}
Record shapes: {shapes}.

| source | digest |
|---|---|
{files}

## What was done

* User turns and a leading system message are kept; answers of the source ({record["answers_thrown_away"]}) are not.
* Records with secrets, e-mail addresses or card numbers are dropped by pattern. Patterns find what has a fixed form;
  names, addresses and free-form passwords are not looked for.
* Of equal prompts the first is kept.

| dropped because | records |
|---|---|
{dropped or "| (nothing) | 0 |"}
"""
