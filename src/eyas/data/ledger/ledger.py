"""What came and what went, and why. It holds places and numbers, never a record's content."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

MAX_LOCATIONS = 20  # places named for each reason; more would make the ledger a second data set
LENGTH_EDGES = (0, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12800)
"""Characters of what the users said."""


@dataclass
class Ledger:
    """Counts of one piece, then of one source, then of all.

    came == kept + everything dropped + over_limit, always (see `check`). replaced, refused: by kind of entity, how many
    were replaced and how many records were dropped for it; counted when a record is screened, also if it is left out
    later.
    """

    came: int = 0
    kept: int = 0
    over_limit: int = 0  # good records that limit and traffic left out
    answers_thrown_away: int = 0
    shapes: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)
    replaced: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    contamination: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)  # of what is kept, as are tasks and lengths
    tasks: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)  # by place in LENGTH_EDGES

    def count_dropped(self, reason: str, location: str) -> None:
        """Counts one record as dropped; `where` is "<file name>:<line>"."""
        self.dropped[reason] += 1
        places = self.places.setdefault(reason, [])
        if len(places) < MAX_LOCATIONS:
            places.append(location)

    def count_kept(self, length: int, tags: Mapping[str, str]) -> None:
        """Counts one record as kept. length: characters."""
        self.kept += 1
        self.tasks[tags.get("task", "none")] += 1
        self.languages[tags.get("language", "unknown")] += 1
        self.lengths[max(place for place, edge in enumerate(LENGTH_EDGES) if length >= edge)] += 1

    def merge(self, other: "Ledger") -> None:
        """Another one's counts on top of these."""
        for name, value in vars(other).items():
            if isinstance(value, int):
                setattr(self, name, getattr(self, name) + value)
            elif isinstance(value, Counter):
                getattr(self, name).update(value)
        for reason, places in other.places.items():
            mine = self.places.setdefault(reason, [])
            mine += places[: MAX_LOCATIONS - len(mine)]

    def check(self) -> None:
        """Every record went exactly one way."""
        assert self.came == self.kept + self.over_limit + self.dropped.total(), self

    def summary(self) -> str:
        """For a message: "email 3, not_json 1"."""
        return ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items())) or "nothing dropped"

    def to_json(self) -> dict[str, Any]:
        """As it stands in ledger.json, for one source or for all."""
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
                "counts": [self.lengths[place] for place in range(len(LENGTH_EDGES))],
            },
        }

    def dump(self) -> dict[str, Any]:
        """All fields, for the file of a piece."""
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}

    @classmethod
    def load(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `dump`, behind JSON, whose keys are strings."""
        made = cls()
        for name, value in vars(made).items():
            given = fields[name]
            if name == "lengths":
                given = {int(place): count for place, count in given.items()}
            setattr(made, name, Counter(given) if isinstance(value, Counter) else given)
        return made
