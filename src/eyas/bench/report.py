"""Renders report.html from results.json (schema 1) and acceptance.json: one self-contained, accessible page.

`report.html.jinja` is the page, and `report_macros.jinja` holds its elements. This module computes their values. A
rounded number has its exact value in <data value="...">. If results.json lacks a key, its column or section is left
out.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from eyas.base.errors import InputError
from eyas.base.storage import write_atomic, write_json_atomic
from eyas.base.templates import template_environment
from eyas.bench import report_charts
from eyas.bench.report_tables import MISSING, REFERENCES, Entry, arm_paths, describe_load, load_tables, task_table
from eyas.bench.request_metrics import find_median
from eyas.bench.results import RESULTS_FILE, SCHEMA, lookup, read_number

REPORT_FILE = "report.html"


def write_results(results: dict[str, Any], acceptance: dict[str, Any] | None, out_dir: Path) -> None:
    """Writes results.json and report.html, each atomically. Raises StageError if they cannot be written."""
    out_dir.mkdir(parents=True, exist_ok=True)
    write_json_atomic(out_dir / RESULTS_FILE, results)
    write_atomic(out_dir / REPORT_FILE, render_report(results, acceptance))


def render_report(results: dict[str, Any], acceptance: dict[str, Any] | None) -> str:
    """Returns the page as text. The same arguments give the same text. Raises InputError for another schema."""
    for name, content in (("results.json", results), ("acceptance.json", acceptance)):
        if content is not None and content.get("schema") != SCHEMA:
            problem = f"{name} has schema {content.get('schema')!r}, but this version of eyas reads schema {SCHEMA}"
            raise InputError(problem, "Measure again, or use the version that wrote it")
    acceptance = acceptance or {}
    evaluated = acceptance.get("tasks") or {}
    tasks = {name: _with_references(task, evaluated.get(name)) for name, task in (results.get("tasks") or {}).items()}
    summary = _summarize(tasks)
    points = {axis: results.get(axis.results_key) or [] for axis in report_charts.LOAD_AXES}
    all_points = [point for some in points.values() for point in some]
    arms = [arm for point in all_points for path in arm_paths([point]).values() if (arm := lookup(point, *path))]
    charts = (
        report_charts.tpot_by_task(tasks),
        report_charts.acceptance_by_task(tasks),
        report_charts.acceptance_by_slice(results.get("slices") or {}),
        report_charts.acceptance_by_mode_and_phase(acceptance),
        report_charts.acceptance_by_depth(evaluated),
        report_charts.round_time(results.get("rounds") or {}),
    )
    load_charts = [chart for axis, some in points.items() for chart in report_charts.load_charts(some, axis)]
    story = results.get("story") or {}
    template = _environment().get_template("report.html.jinja")
    return template.render(
        css=Markup(files("eyas.bench").joinpath("report.css").read_text(encoding="utf-8")),
        results=dict.fromkeys(("dtype", "gone", "command", "concurrency", "rates", "ramp")) | results,
        target_name=lookup(results, "target", "name") or "target",
        headline=_headline(results, summary["speedup"]),
        lossless=_lossless(results),
        failures=_count_failures([*tasks.values(), *arms]),
        summary=summary,
        task_table=task_table(tasks),
        looping={name: count for name, task in tasks.items() if (count := read_number(task, "looping"))},
        charts=[chart for chart in charts if chart is not None],
        worst_ratios=_worst_ratios(points),
        load_charts=[*load_charts, *filter(None, [report_charts.accepted_per_step(all_points)])],
        load_tables=[table for axis, some in points.items() for table in load_tables(some, axis.name)],
        story=story,
        training_charts=list(report_charts.training_charts(story.get("training") or [])),
        task_keys={key for task in tasks.values() for key in task},
        arm_keys={key for arm in arms for key in arm},
        has_counters="counters" in [entry.get("acceptance_source") for entry in [*tasks.values(), *arms]],
        environment=_environment_rows(results, acceptance),
    )


def render_chart(chart: report_charts.Chart) -> str:
    """Returns one chart as an HTML figure, for pages other than the report; report.css styles it."""
    macros: Any = _environment().get_template("report_macros.jinja").module
    return str(macros.figure(chart))


@cache
def _environment() -> Environment:
    environment = template_environment("eyas.bench", ".", autoescape=True)
    environment.filters["exact"] = repr
    environment.globals |= {"MISSING": MISSING, "read_number": read_number}
    return environment


def _with_references(task: Entry, evaluated: Entry | None) -> Entry:
    """Returns a task of results.json. Reference drafters that it lacks are taken from `evaluated` (acceptance.json)."""
    found = {key: lookup(task, "references", key) or lookup(evaluated, "references", key) for key, _, _ in REFERENCES}
    return {**task, "references": found}


# --- headline and summary --------------------------------------------------------------------------------------------


def _headline(results: Entry, speedup: float | None) -> str:
    """Returns the headline, such as "2.3× faster at one stream, identical answers". speedup: the median over tasks."""
    speed = _speed(results) if speedup is None else _describe_ratio(speedup, "speed", "at one stream")
    lossless = _lossless(results)
    if lossless is None:
        return f"{speed}; answers not compared"
    if lossless["identical"] == lossless["prompts"]:
        return f"{speed}, identical answers"
    return f"{speed}, {'and' if speed.startswith(('Slower', 'No')) else 'but'} the answers DIFFER"


def _speed(results: Entry) -> str:
    """Returns the speed-up at the lowest load in words: the fewest streams, else the lowest request rate.

    It is the ratio of TPOTs, or of throughputs if there is no TPOT (answers were not streamed).
    """
    entries = list((results.get("tasks") or {}).values())
    for axis in report_charts.LOAD_AXES:
        points = sorted(results.get(axis.results_key) or [], key=lambda point: point[axis.point_key])
        entries += points
        for key, name in (("speedup_tpot", "speed"), ("speedup_tps", "throughput")):
            for point in points:
                if (ratio := read_number(point, key)) is not None:
                    return _describe_ratio(ratio, name, f"at {describe_load(point)}")
    has_baseline = any("baseline" in (lookup(entry, "tpot_ms") or entry) for entry in entries)
    return "Speed was not measured" if has_baseline or not entries else "Measured without a baseline"


def _describe_ratio(ratio: float, name: str, where: str) -> str:
    """Returns a speed-up in words, with one decimal, or with two if one decimal would give "1.0".

    Args:
        ratio: The speed-up.
        name: The compared metric, "speed" or "throughput".
        where: The load, such as "at one stream".
    """
    text = f"{ratio:.1f}×" if f"{ratio:.1f}" != "1.0" else f"{ratio:.2f}×"
    if text == "1.00×":
        return f"No faster than the baseline {where}"
    if ratio < 1:
        return f"Slower: {ratio:.2f}× the {name} of the baseline {where}"
    return f"{text} {'faster' if name == 'speed' else f'the {name}'} {where}"


def _lossless(results: Entry) -> dict[str, Any] | None:
    """Returns `lossless` of results.json; None if no answers were compared."""
    identical, prompts = (read_number(results, "lossless", key) for key in ("identical", "prompts"))
    return results["lossless"] if prompts and identical is not None else None


def _count_failures(entries: list[Entry]) -> dict[str, Any]:
    """Returns the number of failed requests, the number of all requests, and the first error; "" without one."""
    counts = {key: sum(int(read_number(entry, key) or 0) for entry in entries) for key in ("failed", "requests")}
    return counts | {"error": next((error for entry in entries for error in lookup(entry, "errors") or {}), "")}


def _summarize(tasks: Mapping[str, Entry]) -> dict[str, Any]:
    """Returns the speed-ups by task, and the medians over tasks of speed-up, TPOT and acceptance length."""

    def task_median(*keys: str) -> float | None:
        return find_median(read_number(task, *keys) or None for task in tasks.values())

    speedups = {name: speedup for name, task in tasks.items() if (speedup := read_number(task, "speedup")) is not None}
    return {
        "speedups": speedups,
        "speedup": task_median("speedup"),
        "slower": [name for name, speedup in speedups.items() if speedup < 1],
        "tpot_ms": [task_median("tpot_ms", name) for name in ("baseline", "speculative")],
        "acceptance_length": task_median("acceptance_length"),
    }


# --- further sections ------------------------------------------------------------------------------------------------


def _worst_ratios(points: Mapping[report_charts.LoadAxis, report_charts.Points]) -> list[tuple[str, float, str]]:
    """Returns (metric, speed-up, load) of the load with the lowest speed-up, for each axis in report_charts.LOAD_AXES.

    For numbers of streams, the metric is the throughput. For request rates it is the TPOT, because the rate determines
    the throughput.
    """
    worst = []
    for axis, some in points.items():
        key, name = ("speedup_tps", "throughput") if axis.point_key == "n" else ("speedup_tpot", "TPOT")
        ratios = [(ratio, describe_load(point)) for point in some if (ratio := read_number(point, key)) is not None]
        worst += [(name, *min(ratios))] if ratios else []
    return worst


def _environment_rows(results: Entry, acceptance: Entry) -> list[tuple[str, str]]:
    """Returns the rows (name, text) of the section "Environment"."""
    values = {key: results.get(key) for key in ("target", "head", "dtype", "machine", "versions")}
    values |= {"tree": acceptance.get("tree"), "bench": results.get("bench"), "client": results.get("client")}
    return [(name, text) for name, value in values.items() if (text := _describe(value))]


def _describe(value: Any) -> str:
    """Returns JSON as text, without empty values: {"cpu": "x", "cores": 2, "gpu": null} becomes "cpu x, cores 2"."""
    if value in (None, [], ()):
        return ""
    if isinstance(value, Mapping):
        texts = {str(key).replace("_", " "): _describe(item) for key, item in value.items()}
        return ", ".join(f"{key} {text}" for key, text in texts.items() if text)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)
