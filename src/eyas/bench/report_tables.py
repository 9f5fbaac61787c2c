"""Builds the tables of the report from results.json. Each chart draws one table and shows it below the drawing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from eyas.base.config import load_toml
from eyas.bench.charts import Fill
from eyas.bench.request_metrics import find_median
from eyas.bench.results import lookup, read_interval, read_number

MISSING = "–"
BASELINE, HEAD = "baseline", "with head"
TABLES = load_toml(FilePath(__file__).with_name("charts.toml"))
REFERENCES: list[tuple[str, str, Fill]] = TABLES["references"]
TIMES = {"tpot_ms": "TPOT", "step_ms": "Step", "ttft_ms": "TTFT", "e2e_ms": "End-to-end"}
PERCENTILES = ("p50", "p90", "p99")

Path = tuple[str, ...]
Entry = Mapping[str, Any]
Points = Sequence[Entry]


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: The name of the row.
        entry: The object of results.json that holds the values of the row.
        detail: A small text below the name. "prompts" shows the number of prompts of the entry.
    """

    name: str
    entry: Entry
    detail: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: The header.
        paths: The keys that lead to each value of a cell, from the entry of the row. A cell may have several values.
        form: The format string of a value.
        interval: The keys that lead to the 95% interval of the first value; () if there is none.
        fill: The fill pattern of the bars in a chart; None for a column that only the table shows.
    """

    name: str
    paths: Sequence[Path]
    form: str = "{:.2f}"
    interval: Path = ()
    fill: Fill | None = None

    def values(self, row: Row) -> list[float | None]:
        """Returns the values of this column in a row; None for a missing value."""
        return [read_number(row.entry, *path) for path in self.paths]

    def value(self, row: Row) -> float | None:
        """Returns the first value of this column in a row; None if it is missing."""
        return self.values(row)[0]

    def text(self, value: float | None) -> str:
        """Formats a value with the format string of the column; "–" for None."""
        return MISSING if value is None else self.form.format(value)

    def span(self, row: Row) -> tuple[float, float] | None:
        """Returns the 95% interval (low, high) of the first value in a row; None if there is none."""
        return read_interval(row.entry, *self.interval) if self.interval else None

    def median(self, rows: Sequence[Row]) -> float | None:
        """Returns the median of `value` over the rows that have one; None if no row has a value."""
        return find_median(map(self.value, rows))


@dataclass(frozen=True)
class Table:
    """A table of the report. note: the explanation below the title. corner: the header of the row names."""

    title: str
    note: str
    corner: str
    columns: Sequence[Column]
    rows: Sequence[Row]

    @staticmethod
    def build(title: str, note: str, corner: str, columns: Sequence[Column], rows: Sequence[Row]) -> "Table | None":
        """Returns a table without the columns that have no value; None if no column has a value."""
        known = [one for one in columns if any(value is not None for row in rows for value in one.values(row))]
        return Table(title, note, corner, known, rows) if known else None


def build_table(ident: str, columns: Sequence[Column], rows: Sequence[Row], detail: str = "") -> Table | None:
    """Returns a table with the texts of [tables.IDENT] in charts.toml; None if it is empty. detail: stands for {}."""
    texts = {name: text.format(detail) for name, text in TABLES["tables"][ident].items()}
    return Table.build(**texts, columns=columns, rows=rows)


def describe_load(point: Entry) -> str:
    """Returns the load of an entry, for example "4 streams"; "an unknown load" for n = 0 (imported results)."""
    if "n" not in point:
        return f"{round(point['rate'], 2):g} requests/s"
    return {0: "an unknown load", 1: "one stream"}.get(int(point["n"]), f"{point['n']:g} streams")


def arm_paths(points: Points) -> dict[str, Path]:
    """Returns arm name in the report -> keys that lead to the arm in an entry, the baseline and the head first."""
    others = {name: ("arms", name) for point in points for name in point.get("arms") or {}}
    paths: dict[str, Path] = {BASELINE: ("baseline",), HEAD: ("speculative",), **others}
    return {name: path for name, path in paths.items() if any(lookup(point, *path) for point in points)}


def task_arms(tasks: Mapping[str, Entry], time: str) -> dict[str, str]:
    """Returns arm key -> arm name in the report, the baseline first.

    Args:
        tasks: The key `tasks` of results.json.
        time: The key of a time, such as "tpot_ms". Arms without this time in all tasks are left out.
    """
    keys = {key: HEAD if key == "speculative" else key for task in tasks.values() for key in lookup(task, time) or {}}
    return dict(sorted(keys.items(), key=lambda arm: arm[1] != BASELINE))


def task_table(tasks: Mapping[str, Entry]) -> Table | None:
    """Returns the table of all tasks at one stream; None if there is no value."""
    arms = task_arms(tasks, "tpot_ms")
    e2e_arms = task_arms(tasks, "e2e_ms") if not arms else {}  # without streaming there is no TPOT
    columns = [
        Column("Speed-up", [("speedup",)], "{:.2f}×", ("speedup_ci95",)),
        *(Column(f"TPOT {name}, ms", [("tpot_ms", key)]) for key, name in arms.items()),
        *(Column(f"End-to-end {name}, ms", [("e2e_ms", key)]) for key, name in e2e_arms.items()),
        Column("Acceptance length", [("acceptance_length",)], interval=("ci95",)),
        *(Column(f"by {name}", [("references", key, "acceptance_length")]) for key, name, _ in REFERENCES),
        Column("Uncertain share", [("uncertain_share",)], "{:.0%}"),
    ]
    return build_table("tasks", columns, [Row(name, task, "prompts") for name, task in tasks.items()])


def load_tables(points: Points, load: str) -> list[Table]:
    """Returns two tables with a row for each arm at each load: times, then throughput and acceptance.

    Args:
        points: The entries of results.json.
        load: The name of the load in the titles, such as "concurrent streams".
    """
    rows = [
        Row(name, entry, describe_load(point))
        for point in points
        for name, path in arm_paths([point]).items()
        if (entry := lookup(point, *path))
    ]
    times = [
        Column(f"{name}, ms", [(key, percentile) for percentile in PERCENTILES], interval=(key, "p50_ci95"))
        for key, name in TIMES.items()
    ]
    work = [Column(**column) for column in TABLES["throughput"]]
    tables = (build_table("times", times, rows, load), build_table("throughput", work, rows, load))
    return [table for table in tables if table is not None]
