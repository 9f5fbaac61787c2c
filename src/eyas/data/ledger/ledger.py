"""The ledger of a prompts directory: how many records were read, kept and dropped, and why.

It holds file names, line numbers and counts, never a record's content.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

MAX_LOCATIONS = 20  # named for each reason; more would make the ledger a second dataset
LENGTH_EDGES = (0, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12800)
"""Characters of the user turns."""


@dataclass
class Ledger:
    """Counts of one shard, of one source or of all sources.

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

    def merge(self, other: "Ledger") -> None:
        """Adds the counts of another ledger."""
        for name, value in vars(other).items():
            if isinstance(value, int):
                setattr(self, name, getattr(self, name) + value)
            elif isinstance(value, Counter):
                getattr(self, name).update(value)
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
        """Returns the ledger of `dump` after JSON, whose keys are strings."""
        made = cls()
        for name, value in vars(made).items():
            given = fields[name]
            if name == "lengths":
                given = {int(index): count for index, count in given.items()}
            setattr(made, name, Counter(given) if isinstance(value, Counter) else given)
        return made
