"""From the keys of results.json and acceptance.json to the report's columns and charts; None where a key is missing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from eyas.bench import charts
from eyas.bench.charts import Bar, BarRow, Caption, Fill, Key, Line, Panel, Segment, Table
from eyas.bench.number_format import MISSING, data, lookup, read_interval, read_number, streams

Tasks = Mapping[str, Mapping[str, Any]]
REFERENCES: tuple[tuple[str, str, Fill], ...] = (
    ("prompt_lookup", "prompt lookup", "hatch"),
    ("ngram4", "4-gram", "dots"),
)
BASELINE, HEAD = "baseline", "with head"


@dataclass(frozen=True)
class Column:
    """One column of the table by task. values by task name, None where not measured."""

    name: str
    values: Mapping[str, float | None]
    text: Callable[[float], str]
    intervals: Mapping[str, tuple[float, float] | None]
    is_speedup: bool = False

    def cell(self, task: str) -> str:
        value = self.values.get(task)
        if value is None:
            return f"<td>{MISSING}</td>"
        shown = data(value, self.text(value))
        if self.is_speedup:
            shown = (
                f'<span class="slower">{shown}, slower</span>' if value < 1 else f'<span class="strong">{shown}</span>'
            )
        span = self.intervals.get(task)
        if span is not None:
            shown += f' <span class="ci">{data(span[0], f"{span[0]:.2f}")} to {data(span[1], f"{span[1]:.2f}")}</span>'
        return f"<td>{shown}</td>"

    def foot(self) -> str:
        values = [value for value in self.values.values() if value is not None]
        return f"<td>{data(median(values), self.text(median(values))) if values else MISSING}</td>"


def task_columns(tasks: Tasks, evaluated: Tasks) -> list[Column]:
    """The columns that hold a figure for at least one task."""

    def column(name: str, *keys: str, text: Callable[[float], str], span: str | None = None) -> Column:
        values = {task: read_number(figures, *keys) for task, figures in tasks.items()}
        spans = {task: read_interval(figures, span) for task, figures in tasks.items()} if span else {}
        return Column(name, values, text, spans, is_speedup=name == "Speed-up")

    two: Callable[[float], str] = "{:.2f}".format
    arms = _arms_of(tasks, "tpot_ms")
    whole = _arms_of(tasks, "e2e_ms") if not arms else []  # answers that came whole have no time between tokens
    columns = [
        column("Speed-up", "speedup", text="{:.2f}×".format, span="speedup_ci95"),
        *(column(f"TPOT {name}, ms", "tpot_ms", key, text=two) for key, name in arms),
        *(column(f"End-to-end {name}, ms", "e2e_ms", key, text=two) for key, name in whole),
        column("Acceptance length", "acceptance_length", text=two, span="ci95"),
    ]
    for key, name, _ in REFERENCES:
        values = {task: _reference(key, tasks.get(task), evaluated.get(task)) for task in tasks}
        columns.append(Column(f"by {name}", values, two, {}))
    columns.append(column("Uncertain share", "uncertain_share", text="{:.0%}".format))
    return [one for one in columns if any(value is not None for value in one.values.values())]


def _arms_of(tasks: Tasks, time: str) -> list[tuple[str, str]]:
    """(key, name) of the arms with such a time in any task, the baseline first."""
    keys = {key: None for task in tasks.values() for key in lookup(task, time) or {}}
    return sorted(((key, HEAD if key == "speculative" else key) for key in keys), key=lambda arm: arm[1] != BASELINE)


def tpot_by_task(tasks: Tasks) -> str | None:
    """Bars of the arms, side by side; a task that lacks one is left out."""
    arms = _arms_of(tasks, "tpot_ms")
    rows, cells = [], []
    for name, task in tasks.items():
        values = [value for key, _ in arms if (value := read_number(task, "tpot_ms", key)) is not None]
        if not arms or len(values) < len(arms):
            continue
        speedup = read_number(task, "speedup")
        note = "" if speedup is None else f"{speedup:.2f}×" + (", slower" if speedup < 1 else "")
        texts = [f"{value:.2f} ms" for value in values]
        pairs = zip(arms, values, texts, strict=True)
        bars = tuple(Bar(_fill(arm), value, text) for (_, arm), value, text in pairs)
        rows.append(BarRow(name, note, bars))
        cells.append((name, *texts, note or MISSING))
    if not rows:
        return None
    table = Table(("Task", *(name for _, name in arms), "speed-up"), tuple(cells))
    sentence = "Milliseconds from one token to the next at one stream; shorter is better."
    sentence += " On the right, the speed-up." if len(arms) > 1 else ""
    caption = Caption("tpot", "Time per output token, by task", sentence, table)
    return charts.bar_chart(caption, [Key(_fill(name), name) for _, name in arms], rows, None)


def acceptance_by_task(tasks: Tasks, evaluated: Tasks) -> str | None:
    """The head's acceptance length with its interval, beside the drafters that need no training."""
    rows, cells, shown = [], [], set()
    for name, task in tasks.items():
        length = read_number(task, "acceptance_length")
        if length is None:
            continue
        low, high = read_interval(task, "ci95") or (None, None)
        bars = [Bar("solid", length, f"{length:.2f}", low, high)]
        span = MISSING if low is None else f"{low:.2f} to {high:.2f}"
        references = [_reference(key, task, evaluated.get(name)) for key, _, _ in REFERENCES]
        for (key, _, fill), value in zip(REFERENCES, references, strict=True):
            if value is not None:
                bars.append(Bar(fill, value, f"{value:.2f}"))
                shown.add(key)
        rows.append(BarRow(name, "", tuple(bars)))
        cells.append((name, f"{length:.2f}", span, *(MISSING if one is None else f"{one:.2f}" for one in references)))
    if not rows:
        return None
    header = ("Task", "head", "95% interval", *(name for _, name, _ in REFERENCES))
    sentence = "Accepted tokens per forward of the target, the bonus token included; longer is better."
    caption = Caption("acceptance", "Acceptance length, by task", sentence, Table(header, tuple(cells)))
    keys = [Key("solid", "head"), *(Key(fill, name) for key, name, fill in REFERENCES if key in shown)]
    return charts.bar_chart(caption, keys, rows, (1.0, "1 = no drafting"))


def acceptance_by_depth(evaluated: Tasks) -> str | None:
    """One small panel a task: how the head's acceptance falls with the depth of the tree."""
    shares = {name: _shares(task) for name, task in evaluated.items()}
    shares = {name: row for name, row in shares.items() if any(share is not None for share in row)}
    if not shares:
        return None
    depths = max(len(row) for row in shares.values())
    full = {name: row + (None,) * (depths - len(row)) for name, row in shares.items()}
    columns = tuple(str(depth) for depth in range(1, depths + 1))
    cells = tuple(
        (name, *(MISSING if share is None else f"{share:.1%}" for share in row)) for name, row in full.items()
    )
    table = Table(("Task", *(f"depth {depth}" for depth in columns)), cells)
    sentence = (
        "Of the rounds that accepted everything above a depth and offered a token there, the share that accepted it."
    )
    caption = Caption("depth", "Conditional acceptance, by depth", sentence, table)
    return charts.panel_chart(caption, [Panel(name, row) for name, row in full.items()], columns, "depth in the tree")


def round_time(rounds: Mapping[str, Any]) -> str | None:
    """One stacked bar."""
    parts: tuple[tuple[str, str, Fill], ...] = (
        ("draft", "draft (head proposes)", "hatch"),
        ("verify", "verify (target checks)", "solid"),
        ("extend", "extend (head catches up)", "dots"),
        ("other", "other", "open"),
    )
    found: list[tuple[str, Fill, float]] = [
        (name, fill, value) for key, name, fill in parts if (value := read_number(rounds, f"{key}_ms")) is not None
    ]
    total = sum(value for _, _, value in found)
    if total <= 0:
        return None
    segments = [Segment(fill, name, value, f"{value:.2f} ms") for name, fill, value in found]
    cells = tuple((name, f"{value:.2f} ms", f"{value / total:.1%}") for name, _, value in found)
    caption = Caption(
        "round",
        "Where a round's time goes",
        f"{total:.2f} ms from draft to the next draft at one stream.",
        Table(("Part", "time", "share"), cells),
    )
    return charts.stacked_bar(caption, segments)


@dataclass(frozen=True)
class LoadAxis:
    """What grows from point to point: the key of a point that says it, a prefix of the charts' ids, and words."""

    key: str
    ident: str
    column: str
    name: str


STREAMS = LoadAxis("n", "load", "Streams", "concurrent streams")
RATES = LoadAxis("rate", "rate", "Requests/s", "requests sent a second")
RAMP = LoadAxis("rate", "ramp", "Requests/s", "requests sent a second, growing")


def describe_load(point: Mapping[str, Any]) -> str:
    """Where a point stands."""
    return streams(point["n"]) if "n" in point else f"{round(point['rate'], 2):g} requests/s"


def against_load(points: Sequence[Mapping[str, Any]], axis: LoadAxis) -> list[str | None]:
    """TPOT, throughput and TTFT against the load, both arms; further arms stand in the tables."""
    ms = "Median, in milliseconds; lower is better."
    return [
        _load_chart(points, axis, ("tpot", "Time per output token under load", ms), ("tpot_ms", "p50")),
        _load_chart(
            points,
            axis,
            ("tps", "Throughput under load", "Output tokens per second; higher is better."),
            ("output_tps",),
        ),
        _load_chart(points, axis, ("ttft", "Time to first token under load", ms), ("ttft_ms", "p50")),
    ]


def _load_chart(
    points: Sequence[Mapping[str, Any]], axis: LoadAxis, words: tuple[str, str, str], keys: tuple[str, ...]
) -> str | None:
    """Drawn are the baseline and the head; where neither was measured, the first arm that was."""
    loads = tuple(f"{round(point[axis.key], 2):g}" if point[axis.key] else "?" for point in points)
    arms = [(BASELINE, ("baseline",)), (HEAD, ("speculative",))]
    others = {name: None for point in points for name in point.get("arms") or {}}
    arms += [(name, ("arms", name)) for name in others]
    values = {name: tuple(read_number(point, *path, *keys) for point in points) for name, path in arms}
    arms = [(name, path) for name, path in arms if any(value is not None for value in values[name])]
    if not arms:
        return None
    # The tail belongs to the median: in the table it stands right beside it.
    columns: list[tuple[str, tuple[float | None, ...]]] = []
    for name, path in arms:
        columns.append((name, values[name]))
        if keys[-1] == "p50":
            columns.append((f"{name} p99", tuple(read_number(point, *path, *keys[:-1], "p99") for point in points)))
    rows = tuple(
        (load, *(MISSING if column[index] is None else f"{column[index]:.2f}" for _, column in columns))
        for index, load in enumerate(loads)
    )
    ident, title, sentence = words
    table = Table((axis.column, *(name for name, _ in columns)), rows)
    if len(points) == 1:
        sentence = f"{sentence} At {describe_load(points[0])}."
        rows_ = [_load_bar(name, points[0], path, keys) for name, path in arms]
        return charts.bar_chart(Caption(f"{axis.ident}-{ident}", title, sentence, table), (), rows_, None)
    caption = Caption(f"{axis.ident}-{ident}", title, sentence, table)
    drawn = [name for name, _ in arms if name in (BASELINE, HEAD)] or [arms[0][0]]
    # The baseline last: where both agree, its hollow squares and dashes leave the other line visible.
    lines = [Line("open" if name == BASELINE else "solid", name, values[name]) for name in reversed(drawn)]
    return charts.line_chart(caption, loads, axis.name, lines)


def _fill(arm: str) -> Fill:
    return "hatch" if arm == BASELINE else "solid"


def _load_bar(name: str, point: Mapping[str, Any], path: tuple[str, ...], keys: tuple[str, ...]) -> BarRow:
    """One arm at the only point there is, with its interval."""
    value = read_number(point, *path, *keys)
    assert value is not None, "an arm that was measured"
    low, high = read_interval(point, *path, *keys[:-1], f"{keys[-1]}_ci95") or (None, None)
    return BarRow(name, "", (Bar(_fill(name), value, f"{value:.2f}", low, high),))


def accepted_in_a_step(points: Sequence[Mapping[str, Any]]) -> str | None:
    """One small panel an arm: the share of drafting steps that accepted 0, 1, 2, ... tokens, all loads together."""
    counts: dict[str, list[float]] = {}
    for point in points:
        for name, arm in {HEAD: point.get("speculative"), **(point.get("arms") or {})}.items():
            for accepted, count in enumerate(lookup(arm, "acceptance_histogram") or []):
                row = counts.setdefault(name, [])
                row += [0.0] * (accepted + 1 - len(row))
                row[accepted] += read_number({"count": count}, "count") or 0
    counts = {name: row for name, row in counts.items() if sum(row) > 0}
    if not counts:
        return None
    columns = tuple(str(accepted) for accepted in range(max(map(len, counts.values()))))
    shares = {
        name: tuple(count / sum(row) for count in row) + (0.0,) * (len(columns) - len(row))
        for name, row in counts.items()
    }
    cells = tuple((name, *(f"{share:.1%}" for share in row)) for name, row in shares.items())
    table = Table(("Arm", *(f"{accepted} accepted" for accepted in columns)), cells)
    sentence = "Of the steps that drafted, the share that accepted so many draft tokens; the target's own comes on top."
    caption = Caption("accepted", "Accepted draft tokens in a step", sentence, table)
    panels = [Panel(name, row) for name, row in shares.items()]
    return charts.panel_chart(caption, panels, columns, "draft tokens accepted")


def _reference(key: str, *sources: Mapping[str, Any] | None) -> float | None:
    """A reference's acceptance length from the first source that has it: results.json, then acceptance.json."""
    found = (read_number(source, "references", key, "acceptance_length") for source in sources)
    return next((value for value in found if value is not None), None)


def _shares(task: Mapping[str, Any]) -> tuple[float | None, ...]:
    listed = lookup(task, "by_depth") or []
    return tuple(read_number({"share": share}, "share") for share in listed)
