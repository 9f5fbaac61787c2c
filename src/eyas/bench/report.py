"""report.html: what results.json (schema 1) says, on one self-contained page that is readable in a minute.

Figures carry their exact value in <data value="..."> beside the rounded one. Everything that comes from the input is
escaped. No script, nothing fetched, nothing invented: a key that is missing leaves its column or section out.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

from eyas.base.errors import InputError
from eyas.base.storage import write_atomic
from eyas.bench import report_charts as figures
from eyas.bench.charts import scroll
from eyas.bench.number_format import bytes_text, data, duration, lookup, read_number, times
from eyas.bench.report_tables import KINDS, arms_under_load, failures, load_section
from eyas.bench.training_curves import training_curves

SCHEMA = 1

WORDS = (
    ("TTFT", "Time to first token: from sending the request to its first token."),
    ("TPOT", "Time per output token = (end-to-end time − TTFT) / (output tokens − 1), per request, with the token "
             "counts that the server reports."),
    ("Speed-up", "TPOT of the baseline / TPOT with the head on the same prompt, runner and dtype: the median over "
                 "prompts; above 1 is faster. The baseline runs without a head loaded. The headline is the median "
                 "over the tasks."),
    ("95% interval", "Bootstrap over prompts: where the figure would lie with other prompts of the same kind. Under "
                     "load over requests, and for throughput over blocks of them."),
    ("Round", "Draft (the head proposes a tree of tokens), verify (one forward of the target over the tree), extend "
              "(the head reads what was accepted)."),
    ("Acceptance length", "Accepted tokens per target forward, the bonus token included: sum over all rounds / number "
                          "of rounds. Without a head it is 1."),
    ("Conditional acceptance", "Among the rounds that accepted depth d − 1 and offered a token below it, the share "
                               "that accepted depth d."),
    ("Prompt lookup", "A drafter without training: it continues as the last place in the text with the same last "
                      "tokens did."),
    ("4-gram", "A drafter without a network: a table of which token followed which three in the training answers."),
    ("Uncertain share", "Share of greedy positions where the target's most probable token has a probability below 0.9. "
                        "Where it is near zero, any drafter looks good."),
    ("Identical", "An answer counts as identical when greedy decoding with the head gives the same tokens, one by one, "
                  "as the reference does without it."),
)  # fmt: skip
TIME_WORDS = (
    ("End-to-end", "From sending a request to the last token of its answer."),
    ("Step", "From one piece of text to the next. With speculation a piece is all the tokens of a round, so a step is "
             "longer than TPOT; vLLM calls it inter-token latency."),
)  # fmt: skip
COUNTERS = ("From counters", "The answers of this server do not say how they were drafted: acceptance lengths are what "
                             "its counters (/metrics) say of each block of requests, those of other clients in the "
                             "meantime included.")  # fmt: skip
LOAD_WORDS = (
    ("Concurrency", "Requests in flight at a time; each stream sends its next request when the last one ends."),
    ("Throughput", "Output tokens per second, over all streams together."),
)
RATE_WORDS = (("Rate", "Requests are sent at random moments (Poisson), so many a second, whatever is in flight."),)
GOODPUT = ("Goodput", "Requests a second that keep every limit that was set.")
LOOPING = ("Looping", "An answer that repeats itself until it is cut at the length limit. It is easy to draft, so it "
                      "is counted apart.")  # fmt: skip


def write_report(results: dict[str, Any], acceptance: dict[str, Any] | None, path: Path) -> None:
    """Writes report.html, whole or not at all.

    results is results.json, acceptance is eval/acceptance.json (or None), both schema 1; unknown keys are ignored.
    Raises InputError for another schema, StageError when the file cannot be written.
    """
    write_atomic(path, render_report(results, acceptance))


def render_report(results: dict[str, Any], acceptance: dict[str, Any] | None) -> str:
    """The page as text; the same input gives the same bytes."""
    for name, content in (("results.json", results), ("acceptance.json", acceptance)):
        if content is not None and content.get("schema") != SCHEMA:
            raise InputError(
                f"{name} of schema {content.get('schema')!r}",
                f"schema {SCHEMA}",
                "measure again with this version of eyas, or read it with the version that wrote it",
            )
    evaluated = acceptance or {}
    sections = (
        _header(results),
        _tasks(results, evaluated),
        _charts(results, evaluated),
        load_section(results),
        _story(results.get("story")),
        _definitions(results),
        _environment(results, evaluated),
    )
    title = escape(_plain_headline(results))
    css = files("eyas.bench").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>eyas report: {title}</title>\n'
        f'<link rel="icon" href="data:,">\n<style>\n{css}</style>\n</head>\n<body>\n<main>\n'
        + "\n".join(section for section in sections if section)
        + "\n</main>\n</body>\n</html>\n"
    )


# --- the first screen ------------------------------------------------------------------------------------------------


def _speedups(results: Mapping[str, Any]) -> dict[str, float]:
    found = {name: read_number(task, "speedup") for name, task in (results.get("tasks") or {}).items()}
    return {name: value for name, value in found.items() if value is not None}


def _pace(results: Mapping[str, Any]) -> str:
    """Over the tasks at one stream; where that was not measured, at the lowest load that was: streams, else a rate; of
    answers that came whole the throughput there."""
    if speedups := _speedups(results):
        return _pace_of(median(speedups.values()), "speed", "at one stream")
    for kind, axis in KINDS:
        points = sorted(results.get(kind) or [], key=lambda point: point[axis.key])
        for key, what in (("speedup_tpot", "speed"), ("speedup_tps", "throughput")):
            for point in points:
                if (ratio := read_number(point, key)) is not None:
                    return _pace_of(ratio, what, f"at {figures.describe_load(point)}")
    tasks = (results.get("tasks") or {}).values()
    points = [point for kind, _ in KINDS for point in results.get(kind) or []]
    has_baseline = any("baseline" in (lookup(one, "tpot_ms") or one) for one in [*tasks, *points])
    return "Speed was not measured" if has_baseline or not (tasks or points) else "Measured without a baseline"


def _pace_of(ratio: float, what: str, where: str) -> str:
    if times(ratio) == "1.00×":
        return f"No faster than the baseline {where}"
    if ratio < 1:
        return f"Slower: {ratio:.2f}× the {what} of the baseline {where}"
    return f"{times(ratio)} {'faster' if what == 'speed' else f'the {what}'} {where}"


def _plain_headline(results: Mapping[str, Any]) -> str:
    pace = _pace(results)
    identical, prompts = read_number(results, "lossless", "identical"), read_number(results, "lossless", "prompts")
    if not prompts or identical is None:
        return f"{pace}; not checked for the same words"
    if identical == prompts:
        return f"{pace}, the very same words"
    return f"{pace}, {'and' if pace.startswith(('Slower', 'No')) else 'but'} NOT the same words"


def _header(results: Mapping[str, Any]) -> str:
    speedups = _speedups(results)
    slow = [name for name, value in speedups.items() if value < 1]
    parts = [
        "<header>",
        f'<p class="kicker"><b>eyas</b> · {_pair(results)}</p>',
        f"<h1>{escape(_plain_headline(results))}</h1>",
        _sameness(results),
        _gone(results),
        failures(results),
    ]
    if slow and len(speedups) > 1:
        names = escape(", ".join(slow))
        parts.append(f'<p><span class="slower">Slower than the baseline</span> in {len(slow)} of {len(speedups)} '
                     f"tasks: {names}.</p>")  # fmt: skip
    return "".join(parts) + _tiles(results) + "</header>"


def _gone(results: Mapping[str, Any]) -> str:
    if not results.get("gone"):
        return ""
    return (
        f'<div class="alarm" role="note"><strong>A server went away before the end.</strong> {escape(results["gone"])}.'
        " What follows was measured before that.</div>"
    )


def _pair(results: Mapping[str, Any]) -> str:
    words = [escape(str(lookup(results, "target", "name") or "target"))]
    if (size := read_number(results, "target", "parameters")) is not None:
        words.append(f"{data(size, _count(size))} parameters")
    if results.get("dtype"):
        words.append(escape(str(results["dtype"])))
    return " · ".join(words)


def _sameness(results: Mapping[str, Any]) -> str:
    identical, prompts = read_number(results, "lossless", "identical"), read_number(results, "lossless", "prompts")
    if not prompts or identical is None:
        return '<p class="lead">Whether the answers are the same was not checked in this run.</p>'
    how = f"{lookup(results, 'lossless', 'dtype')}, against {lookup(results, 'lossless', 'reference')}"
    count = f"{data(identical, f'{identical:.0f}')} of {data(prompts, f'{prompts:.0f}')} answers identical"
    if identical == prompts:
        return f'<p class="lead">{count} ({escape(how)}).</p>'
    return (
        f'<div class="alarm" role="note"><strong>{prompts - identical:.0f} of {prompts:.0f} answers differ.</strong> '
        f"Only {count} ({escape(how)}). Decoding with a head promises the same words; until this is explained, the "
        "times below compare different answers.</div>"
    )


def _tiles(results: Mapping[str, Any]) -> str:
    tasks = list((results.get("tasks") or {}).values())
    tiles = []
    if speedups := list(_speedups(results).values()):
        middle = median(speedups)
        span = f"; from {min(speedups):.2f} to {max(speedups):.2f}" if len(speedups) > 1 else ""
        tiles.append((data(middle, f"{middle:.2f}×"), f"speed-up, median of {_tasks_word(len(speedups))}{span}"))
    before = _column(tasks, "tpot_ms", "baseline")
    after = _column(tasks, "tpot_ms", "speculative")
    if before and after:
        old, new = median(before), median(after)
        tiles.append((
            f"{data(old, f'{old:.1f}')} → {data(new, f'{new:.1f}')}",
            "ms per output token, without and with the head; medians",
        ))  # fmt: skip
    if lengths := _column(tasks, "acceptance_length"):
        middle = median(lengths)
        tiles.append((data(middle, f"{middle:.2f}"), "tokens per forward of the target, median acceptance length"))
    if (share := read_number(results, "head", "share_of_target")) is not None:
        tiles.append((data(share, f"{share:.1%}"), "size of the head beside the target"))
    return _tile_list(tiles, "tiles")


def _tile_list(tiles: Iterable[tuple[str, str]], style: str) -> str:
    """tiles: a figure in HTML, and what it is in plain text."""
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{figure}</dd></div>" for figure, name in tiles)
    return f'<dl class="{style}">{cells}</dl>' if cells else ""


def _story(story: Mapping[str, Any] | None) -> str:
    if not story:
        return ""
    tiles = [
        (data(value, text(value)), name)
        for key, name, text in (
            ("prompts", "prompts collected", _count),
            ("answers", "answers by the target itself", _count),
            ("tokens", "tokens to learn from", _count),
            ("feature_bytes", "of captured features", bytes_text),
            ("train_seconds", "training of the head", duration),
        )
        if (value := read_number(story, key)) is not None
    ]
    start = f"<p>The head started from {escape(str(story['head_start']))} weights.</p>" if "head_start" in story else ""
    curves = training_curves(story.get("training") or [])
    drawn = f'<div class="charts">{curves}</div>' if curves else ""
    return f"<section><h2>How this head came to be</h2>{start}{_tile_list(tiles, 'tiles steps')}{drawn}</section>"


# --- tables ----------------------------------------------------------------------------------------------------------


def _tasks(results: Mapping[str, Any], evaluated: Mapping[str, Any]) -> str:
    tasks = results.get("tasks") or {}
    if not tasks and arms_under_load(results):
        return ""
    if not tasks:
        return "<section><h2>By task</h2><p>No task was measured.</p></section>"
    columns = figures.task_columns(tasks, evaluated.get("tasks") or {})
    head = "".join(f'<th scope="col">{escape(column.name)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}{_prompts(task)}</th>'
        + "".join(column.cell(name) for column in columns)
        + "</tr>"
        for name, task in tasks.items()
    )
    foot = "".join(column.foot() for column in columns)
    table = (
        f'<table class="tasks"><thead><tr><th scope="col">Task</th>{head}</tr></thead><tbody>{body}</tbody>'
        + (f'<tfoot><tr><th scope="row">Median</th>{foot}</tr></tfoot>' if len(tasks) > 1 else "")
        + "</table>"
    )
    loops = [(name, count) for name, task in tasks.items() if (count := read_number(task, "looping"))]
    note = ", ".join(f"{escape(name)} {data(count, f'{count:.0f}')}" for name, count in loops)
    looping = f"<p>Looping answers, counted apart: {note}.</p>" if note else ""
    label = '<p class="quiet">One stream at a time. Small figures below a figure are its 95% interval.</p>'
    return f"<section><h2>By task</h2>{label}{scroll(table, 'Figures by task')}{looping}</section>"


def _prompts(task: Mapping[str, Any]) -> str:
    count = read_number(task, "prompts")
    return "" if count is None else f" <small>{data(count, f'{count:.0f}')} prompts</small>"


def _charts(results: Mapping[str, Any], evaluated: Mapping[str, Any]) -> str:
    tasks = results.get("tasks") or {}
    charts = (
        figures.tpot_by_task(tasks),
        figures.acceptance_by_task(tasks, evaluated.get("tasks") or {}),
        figures.acceptance_by_depth(evaluated.get("tasks") or {}),
        figures.round_time(results.get("rounds") or {}),
    )
    drawn = "".join(chart for chart in charts if chart)
    return f'<section><h2>In pictures</h2><div class="charts">{drawn}</div></section>' if drawn else ""


# --- how it was measured ---------------------------------------------------------------------------------------------


def _definitions(results: Mapping[str, Any]) -> str:
    words = [*WORDS]
    if any("e2e_ms" in arm or "step_ms" in arm for arm in arms_under_load(results)):
        words += TIME_WORDS
    tasks = (results.get("tasks") or {}).values()
    if any(lookup(one, "acceptance_source") == "counters" for one in [*tasks, *arms_under_load(results)]):
        words.append(COUNTERS)
    if results.get("concurrency"):
        words += LOAD_WORDS
    if any(lookup(arm, "goodput") is not None for arm in arms_under_load(results)):
        words.append(GOODPUT)
    if results.get("rates") or results.get("ramp"):
        words += RATE_WORDS
    if any("looping" in task for task in tasks):
        words.append(LOOPING)
    return f"<section><h2>What the words mean</h2>{_word_list(words)}</section>"


def _environment(results: Mapping[str, Any], evaluated: Mapping[str, Any]) -> str:
    rows = [("target", results.get("target")), ("head", results.get("head")), ("tree", evaluated.get("tree")),
            ("dtype", results.get("dtype")), ("machine", results.get("machine")),
            ("versions", results.get("versions")),
            *((key, _asked(results.get(key) or {})) for key in ("bench", "client"))]  # fmt: skip
    listed = _word_list([(name, _value(value)) for name, value in rows if value])
    command = results.get("command")
    line = command if isinstance(command, str) else " ".join(str(word) for word in command or ())
    made = f"<pre><code>{escape(line)}</code></pre>" if line else ""
    return f"<section><h2>Where and how it was measured</h2>{listed}{made}</section>"


def _asked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a configuration that ask for anything."""
    return {key: inner for key, value in config.items() if (inner := _asked(value) if isinstance(value, Mapping) else
            value) not in (None, {}, [], ())}  # fmt: skip


def _word_list(pairs: Iterable[tuple[str, str]]) -> str:
    return '<dl class="words">' + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in pairs) + "</dl>"


def _value(value: Any) -> str:
    """JSON in words: {"cpu": "x", "cores": 2} -> "cpu x, cores 2"."""
    if isinstance(value, Mapping):
        return ", ".join(f"{str(key).replace('_', ' ')} {_value(item)}" for key, item in value.items())
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)


def _column(tasks: Sequence[Mapping[str, Any]], *keys: str) -> list[float]:
    return [value for task in tasks if (value := read_number(task, *keys)) is not None]


def _tasks_word(count: int) -> str:
    return "one task" if count == 1 else f"{count} tasks"


def _count(value: float) -> str:
    for size, unit in ((1e9, " B"), (1e6, " M")):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:,.0f}"
