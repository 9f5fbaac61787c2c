"""Training curves in the report: how loss, accuracy of the first step and chain length went with the updates."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.bench import charts
from eyas.bench.charts import Caption, Table
from eyas.bench.number_format import read_number

MOST_POINTS = 40  # more would be a line of ink, and a long table
CURVES = (
    (
        "loss",
        "Loss while training",
        "Weighted over the unrolled steps; lower is better. Losses of different names do not compare.",
    ),
    (
        "accuracy",
        "First step's accuracy while training",
        "Share of taught tokens where the head's first choice is the target's.",
    ),
    (
        "chain_length",
        "Chain length while training",
        "Tokens that a chain of the trained depth would add to the text, the target's own included.",
    ),
)


def training_points(path: Path) -> list[dict[str, float]]:
    """Of a head's metrics.jsonl: at most MOST_POINTS lines evenly spread, the last among them."""
    if not path.is_file():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    step = -(-len(lines) // MOST_POINTS)
    kept = lines[::-1][::step][::-1] if lines else []
    names = ("update", "loss", "chain_length")
    return [{name: line[name] for name in names} | {"accuracy": line["accuracy"][0]} for line in kept]


def training_curves(points: Sequence[Mapping[str, Any]]) -> str:
    """One chart a figure; empty where fewer than two points are there."""
    drawn = []
    for key, title, sentence in CURVES:
        found = [
            (x, y)
            for point in points
            if (x := read_number(point, "update")) is not None and (y := read_number(point, key)) is not None
        ]
        if len(found) > 1:
            table = Table(("Update", title.lower()), tuple((f"{x:,.0f}", f"{y:.3f}") for x, y in found))
            drawn.append(charts.curve_chart(Caption(f"training-{key}", title, sentence, table), found))
    return "".join(drawn)
