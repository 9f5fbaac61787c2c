"""The report under load: charts, the tables behind them, and what went wrong."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from eyas.bench import report_charts as figures
from eyas.bench.charts import scroll
from eyas.bench.number_format import MISSING, data, lookup, read_interval, read_number

KINDS = (("concurrency", figures.STREAMS), ("rates", figures.RATES), ("ramp", figures.RAMP))
TIMES = (("tpot_ms", "TPOT"), ("step_ms", "Step"), ("ttft_ms", "TTFT"), ("e2e_ms", "End-to-end"))
PERCENTS = ("p50", "p90", "p99")
FEW = 4  # rows of a table that is unfolded
Row = tuple[tuple[str, str], list[str]]  # ((arm, load), cells in HTML)


def load_section(results: Mapping[str, Any]) -> str:
    """Everything that was measured with more than a prompt alone; empty where nothing was."""
    charts, tables = "", ""
    for key, axis in KINDS:
        points = results.get(key) or []
        if points:
            charts += "".join(chart for chart in figures.against_load(points, axis) if chart)
            tables += _times(points, axis) + _work(points, axis)
    charts += figures.accepted_in_a_step([point for key, _ in KINDS for point in results.get(key) or []]) or ""
    if not charts and not tables:
        return ""
    drawn = f'<div class="charts">{charts}</div>' if charts else ""
    return f"<section><h2>Under load</h2>{_worst(results)}{_whole(results)}{drawn}{tables}</section>"


def failures(results: Mapping[str, Any]) -> str:
    """Requests that were not answered, all arms, tasks and points together, with what a server said."""
    failed, asked, said = 0, 0, ""
    for one in [*(results.get("tasks") or {}).values(), *arms_under_load(results)]:
        failed += int(read_number(one, "failed") or 0)
        asked += int(read_number(one, "requests") or 0)
        said = said or next(iter(lookup(one, "errors") or {}), "")
    if not failed:
        return ""
    return (
        f'<div class="alarm" role="note"><strong>{data(failed, f"{failed:,}")} of {data(asked, f"{asked:,}")} requests '
        f"failed</strong> and count for nothing. {f'Among them: {escape(said)}' if said else ''}</div>"
    )


def arms_under_load(results: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The figures of every arm at every point."""
    return [arm for key, _ in KINDS for _, arm in _arms(results.get(key) or [])]


def _worst(results: Mapping[str, Any]) -> str:
    """The never-slower line: throughput of streams, which wait for their answers; time between tokens at a rate."""
    said = ""
    for kind, _ in KINDS:
        closed = kind == "concurrency"
        key, what = ("speedup_tps", "throughput ratio") if closed else ("speedup_tpot", "TPOT ratio")
        ratios = [(ratio, point) for point in results.get(kind) or [] if (ratio := read_number(point, key)) is not None]
        if ratios:
            ratio, point = min(ratios, key=lambda one: one[0])
            slow = ' <span class="slower">Slower than the baseline there.</span>' if ratio < 1 else ""
            where = escape(figures.describe_load(point))
            said += f"<p>Lowest {what} to the baseline: {data(ratio, f'{ratio:.2f}×')} at {where}.{slow}</p>"
    return said


def _whole(results: Mapping[str, Any]) -> str:
    arms = arms_under_load(results)
    if any("ttft_ms" in arm for arm in arms) or not any("e2e_ms" in arm for arm in arms):
        return ""
    return "<p>Answers came whole, not as streams: there are end-to-end times and throughput, and no others.</p>"


def _times(points: Sequence[Mapping[str, Any]], axis: figures.LoadAxis) -> str:
    shown = [(key, name) for key, name in TIMES if any(lookup(arm, key) for _, arm in _arms(points))]
    if not shown:
        return ""
    rows = []
    for row, arm in _arms(points):
        cells = []
        for key, _ in shown:
            values = [read_number(arm, key, percent) for percent in PERCENTS]
            texts = [MISSING if value is None else data(value, f"{value:.2f}") for value in values]
            cells.append(_cell(" / ".join(texts) if any(v is not None for v in values) else MISSING,
                               read_interval(arm, key, "p50_ci95")))  # fmt: skip
        rows.append((row, cells))
    header = [f"{name}, ms" for _, name in shown]
    note = "p50 / p90 / p99 over requests. Small figures below are the median's 95% interval."
    return _table(f"Times by {axis.name}", note, header, rows)


def _work(points: Sequence[Mapping[str, Any]], axis: figures.LoadAxis) -> str:
    columns: list[tuple[str, str, str, str | None]] = [
        ("output_tps", "Tokens/s", "{:,.1f}", "output_tps_ci95"),
        ("goodput", "Goodput, requests/s", "{:.2f}", None),
        ("acceptance_length", "Acceptance length", "{:.2f}", "acceptance_length_ci95"),
        ("requests", "Requests", "{:,}", None),
        ("failed", "Failed", "{:,}", None),
    ]
    columns = [one for one in columns if any(read_number(arm, one[0]) is not None for _, arm in _arms(points))]
    rows = []
    for row, arm in _arms(points):
        cells = []
        for key, _, form, span in columns:
            value = read_number(arm, key)
            text = MISSING if value is None else data(value, form.format(value))
            cells.append(_cell(text, read_interval(arm, span) if span else None))
        rows.append((row, cells))
    note = "Small figures below a figure are its 95% interval."
    return _table(f"Throughput and acceptance by {axis.name}", note, [name for _, name, _, _ in columns], rows)


def _arms(points: Sequence[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    """((arm, load), figures) of all points."""
    for point in points:
        named = {figures.BASELINE: point.get("baseline"), figures.HEAD: point.get("speculative")}
        for name, arm in [*named.items(), *(point.get("arms") or {}).items()]:
            if arm:
                yield (name, figures.describe_load(point)), arm


def _cell(text: str, span: tuple[float, float] | None) -> str:
    if span is not None:
        text += f' <span class="ci">{data(span[0], f"{span[0]:.2f}")} to {data(span[1], f"{span[1]:.2f}")}</span>'
    return f"<td>{text}</td>"


def _table(title: str, note: str, header: Sequence[str], rows: Sequence[Row]) -> str:
    """Unfolded where it is short enough to be read on the way down."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join(
        f'<tr><th scope="row">{escape(name)} <small>{escape(load)}</small></th>{"".join(cells)}</tr>'
        for (name, load), cells in rows
    )
    table = f'<table><thead><tr><th scope="col">Arm</th>{head}</tr></thead><tbody>{body}</tbody></table>'
    return (
        f"<details{' open' if len(rows) <= FEW else ''}><summary>{escape(title)}</summary>"
        f'<p class="quiet">{note}</p>{scroll(table, title)}</details>'
    )
