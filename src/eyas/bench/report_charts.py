"""Builds the report's charts from results.json and acceptance.json.

A function returns None if the keys of its chart are missing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap, zip_longest
from typing import Any

from eyas.bench import report_tables
from eyas.bench.charts import Bar, BarGroup, Drawing, Fill, Line, Mark, draw_bars, draw_lines, draw_panels
from eyas.bench.report_tables import BASELINE, HEAD, Column, Entry, Points, Row, Table, arm_paths, describe_load
from eyas.bench.results import lookup, read_number

TABLES = report_tables.TABLES
HEAD_ACCEPTANCE = Column("head", [("acceptance_length",)], interval=("ci95",), fill="solid")
SPEEDUP = Column("speed-up", [("speedup",)], "{:.2f}×", ("speedup_ci95",))
NO_DRAFTING = (1.0, "1 = no drafting")


@dataclass(frozen=True)
class Chart:
    """A drawing and the table with its values. ident: the HTML id of the chart."""

    ident: str
    table: Table
    drawing: Drawing


@dataclass(frozen=True)
class LoadAxis:
    """A list of measured loads in results.json, which is the x axis of charts.

    Attributes:
        results_key: The key of the list in results.json.
        point_key: The key of the load in each entry.
        ident: The start of the HTML ids of the charts.
        column: The header of the loads in a table.
        name: The title of the x axis.
    """

    results_key: str
    point_key: str
    ident: str
    column: str
    name: str


LOAD_AXES = tuple(LoadAxis(**axis) for axis in TABLES["axes"])


def tpot_by_task(tasks: Mapping[str, Entry]) -> Chart | None:
    """Draws the TPOT of all arms by task. A task that lacks an arm is left out."""
    arms = report_tables.task_arms(tasks, "tpot_ms")
    columns = [Column(name, [("tpot_ms", key)], "{:.2f} ms", fill=_fill(name)) for key, name in arms.items()]
    rows = starmap(Row, tasks.items())
    timed = [row for row in rows if columns and all(column.value(row) is not None for column in columns)]
    sentence = " The speed-up is on the right." if len(arms) > 1 else ""
    return _bar_chart("tpot", [*columns, SPEEDUP], timed, _describe_speedup, detail=sentence)


def acceptance_by_task(tasks: Mapping[str, Entry]) -> Chart | None:
    """Draws the acceptance length of the head and of the reference drafters by task."""
    references = report_tables.REFERENCES
    others = [Column(name, [("references", key, "acceptance_length")], fill=fill) for key, name, fill in references]
    rows = [row for row in starmap(Row, tasks.items()) if HEAD_ACCEPTANCE.value(row) is not None]
    return _bar_chart("acceptance", [HEAD_ACCEPTANCE, *others], rows, mark=NO_DRAFTING)


def acceptance_by_slice(slices: Mapping[str, Mapping[str, Entry]]) -> Chart | None:
    """Draws `slices` of results.json: the acceptance length and the speed by turn, context and phase."""
    entries = {f"{axis} {name}".replace("_", " "): one for axis, some in slices.items() for name, one in some.items()}
    times = [
        Column(f"{title}, {name}", [(key, arm)], "{:,.0f}")
        for title, key in (("tokens/s", "output_tps"), ("bytes of keys and values", "kv_bytes"))
        for arm, name in report_tables.task_arms(entries, key).items()
    ]
    counts = [Column(key, [(key,)], "{:,}") for key in ("conversations", "tokens")]
    columns = [HEAD_ACCEPTANCE, SPEEDUP, *times, *counts]
    return _bar_chart("slices", columns, list(starmap(Row, entries.items())), _describe_speedup, NO_DRAFTING)


def acceptance_by_mode_and_phase(acceptance: Mapping[str, Any]) -> Chart | None:
    """Draws the acceptance length by mode and by phase. acceptance: the content of acceptance.json."""
    modes, phases = acceptance.get("modes") or {}, lookup(acceptance.get("all") or {}, "by_phase") or {}
    rows = [Row(f"mode {name or '(none)'}", entry) for name, entry in modes.items()]
    rows += [Row(name.replace("_", " "), entry) for name, entry in phases.items()]
    return _bar_chart("phases", [HEAD_ACCEPTANCE], rows, mark=NO_DRAFTING)


def acceptance_by_depth(evaluated: Mapping[str, Entry]) -> Chart | None:
    """Draws `by_depth` of acceptance.json, one panel per task. evaluated: its key `tasks`."""
    shares = {name: lookup(task, "by_depth") or [] for name, task in evaluated.items()}
    return _panel_chart("depth", shares, 1, "depth {}", "depth in the tree")


def accepted_per_step(points: Points) -> Chart | None:
    """Draws the share of draft steps that accepted 0, 1, 2, ... tokens, summed over all loads, one panel per arm."""
    shares: dict[str, list[float]] = {}
    for name, path in arm_paths(points).items():
        histograms = [lookup(point, *path, "acceptance_histogram") or [] for point in points]
        counts = [sum(read_number(count) or 0 for count in column) for column in zip_longest(*histograms, fillvalue=0)]
        if total := sum(counts):
            shares[name] = [count / total for count in counts]
    longest = max(map(len, shares.values()), default=0)
    shares = {name: row + [0.0] * (longest - len(row)) for name, row in shares.items()}
    return _panel_chart("accepted", shares, 0, "{} accepted", "accepted draft tokens")


def round_time(rounds: Entry) -> Chart | None:
    """Draws the time of draft, verify and extend in a round. rounds: the key `rounds` of results.json."""
    times = {name: read_number(rounds, key) for key, name in TABLES["round_parts"].items()}
    times = {name: value for name, value in times.items() if value is not None}
    total = sum(times.values())
    rows = [Row(name, {"ms": value, "share": value / total}) for name, value in times.items() if total > 0]
    time, share = Column("time", [("ms",)], "{:.2f} ms", fill="solid"), Column("share", [("share",)], "{:.0%}")
    return _bar_chart("round", [time, share], rows, lambda row: share.text(share.value(row)), detail=f"{total:.2f}")


def load_charts(points: Points, axis: LoadAxis) -> Iterator[Chart]:
    """Draws TPOT, throughput and TTFT by load. points: the entries of results.json under `axis.results_key`."""
    load = f" At {describe_load(points[0])}." if len(points) == 1 else ""
    names = [f"{round(point[axis.point_key], 2):g}" if point[axis.point_key] else "?" for point in points]
    rows = [Row(name, point) for name, point in zip(names, points, strict=True)]
    for key, texts in TABLES["load"].items():
        columns, path = [], texts["path"]
        for name, arm in arm_paths(points).items():
            interval = (*arm, *path[:-1], f"{path[-1]}_ci95")
            columns.append(Column(name, [(*arm, *path)], interval=interval, fill=_fill(name)))
            if path[-1] == "p50":  # the table also has the 99th percentile
                columns.append(Column(f"{name} p99", [(*arm, path[0], "p99")]))
        if (table := Table.build(texts["title"], texts["note"] + load, axis.column, columns, rows)) is not None:
            ident = f"{axis.ident}-{key}"
            yield Chart(ident, table, _draw_load(ident, table, axis.name))


def training_charts(curve: Points) -> Iterator[Chart]:
    """Draws loss, accuracy and chain length by update. curve: the result of `read_training_curve`."""
    update = Column("update", [("update",)], "{:,.0f}")
    rows = [Row(update.text(read_number(point, "update")), point) for point in curve]
    for key, texts in TABLES["training"].items():
        column = Column(texts["title"].lower(), [(key,)], "{:.3f}")
        known = [row for row in rows if update.value(row) is not None and column.value(row) is not None]
        if len(known) > 1:
            points = [(update.value(row) or 0.0, column.value(row) or 0.0) for row in known]
            last_x, last_y = points[-1]
            ticks = [(share * last_x, f"{share * last_x:,.0f}") for share in (0, 0.5, 1)]
            drawing = draw_lines([Line("solid", f"{last_y:.2f}", points)], ticks, "updates", 60)
            yield Chart(f"training-{key}", Table(**texts, corner="Update", columns=[column], rows=known), drawing)


def _describe_speedup(row: Row) -> str:
    value = SPEEDUP.value(row)
    return "" if value is None else SPEEDUP.text(value) + (", slower" if value < 1 else "")


def _draw_load(ident: str, table: Table, x_name: str) -> Drawing:
    """Draws a metric by load.

    With several loads, it draws a line for the baseline and a line for the head; if both are missing, a line for the
    first arm. With one load, it draws a bar for each arm.
    """
    arms = [column for column in table.columns if column.fill is not None]
    if len(table.rows) == 1:
        return draw_bars(ident, [BarGroup(arm.name, "", _bars([arm], table.rows[0])) for arm in arms])
    drawn = [arm for arm in arms if arm.name in (BASELINE, HEAD)] or arms[:1]
    lines = []
    for arm in reversed(drawn):  # baseline last: its hollow squares and dashes leave the other line visible
        points = [(float(x), value) for x, row in enumerate(table.rows) if (value := arm.value(row)) is not None]
        lines.append(Line("open" if arm.name == BASELINE else "solid", arm.name, points))
    return draw_lines(lines, [(x, row.name) for x, row in enumerate(table.rows)], x_name)


def _bar_chart(
    ident: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    describe: Callable[[Row], str] = lambda row: "",
    mark: Mark | None = None,
    detail: str = "",
) -> Chart | None:
    """Draws a group of bars for each row of a table, and a bar for each column that has a fill pattern.

    Args:
        ident: The HTML id of the chart.
        columns: The columns of the table.
        rows: The rows of the table.
        describe: Returns the text to the right of the label of a row.
        mark: See `draw_bars`.
        detail: See `report_tables.build_table`.

    Returns:
        The chart; None if the table has no value.
    """
    table = report_tables.build_table(ident, columns, rows, detail)
    if table is None:
        return None
    groups = [BarGroup(row.name, describe(row), _bars(table.columns, row)) for row in table.rows]
    legend: list[tuple[Fill, str]] = [(column.fill, column.name) for column in table.columns if column.fill is not None]
    return Chart(ident, table, draw_bars(ident, groups, legend if len(legend) > 1 else (), mark))


def _bars(columns: Sequence[Column], row: Row) -> list[Bar]:
    return [
        Bar(column.fill, value, column.text(value), column.span(row))
        for column in columns
        if column.fill is not None and (value := column.value(row)) is not None
    ]


def _panel_chart(
    ident: str, shares: Mapping[str, Sequence[Any]], first: int, column_name: str, x_name: str
) -> Chart | None:
    """Draws a panel with the shares of each row.

    Args:
        ident: The HTML id of the chart.
        shares: Row name -> shares between 0 and 1.
        first: The number of the first share on the x axis.
        column_name: The header of a share, with {} for its number.
        x_name: The title of the x axis.

    Returns:
        The chart; None if there is no share.
    """
    numbers = [str(first + index) for index in range(max(map(len, shares.values()), default=0))]
    columns = [Column(column_name.format(number), [(number,)], "{:.1%}") for number in numbers]
    rows = [Row(name, dict(zip(numbers, row, strict=False))) for name, row in shares.items()]
    rows = [row for row in rows if any(column.value(row) is not None for column in columns)]
    table = report_tables.build_table(ident, columns, rows)
    if table is None:
        return None
    panels = [(row.name, [column.value(row) for column in columns]) for row in rows]
    return Chart(ident, table, draw_panels(panels, numbers, x_name))


def _fill(arm: str) -> Fill:
    return "hatch" if arm == BASELINE else "solid"
