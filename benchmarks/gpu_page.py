"""Writes the page of `benchmarks.gpu`: a table for each part, and first what was missed. It needs no other file."""

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

COMPLETE = "seconds of the whole part"
STYLE = Path(__file__).resolve().parents[1] / "src" / "eyas" / "bench" / "report.css"
EXTRA_STYLE = """td.text, th.text { text-align: left; white-space: normal; }
td.name { text-align: left; white-space: normal; min-width: 16rem; }
.missed { color: var(--alarm); font-weight: 700; }
"""
TITLES = {
    "bandwidth": "Bandwidth and matrix products",
    "tests": "Tests of tests/gpu",
    "equality": "Answers equal to those of transformers",
    "engine": "Engine",
    "attention": "Attention",
    "training": "Training and capture",
    "memory": "Memory",
}
WORDS = {True: "yes", False: "missed", None: "not measured"}

Rows = Sequence[Mapping[str, Any]]


def latest_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the last row of each name of each part, in the order of the first ones. The whole part is its last row.

    The rows of an earlier attempt stay as long as no later attempt has measured them.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        found[row["part"], row["name"]] = row
    return sorted(found.values(), key=lambda row: (list(TITLES).index(row["part"]) if row["part"] in TITLES else
                                                   len(TITLES), row["part"], row["name"] == COMPLETE))  # fmt: skip


def write_page(path: Path, machine: Mapping[str, Any], rows: Rows) -> None:
    """Writes index.html: first the rows that miss their target or were not measured, then a table for each part."""
    missed, unmeasured = ([row for row in rows if row["ok"] is state] for state in (False, None))
    device = html.escape(str(machine["device"]))
    sections = [_section(part, [row for row in rows if row["part"] == part])
                for part in dict.fromkeys(row["part"] for row in rows)]  # fmt: skip
    path.write_text(f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>eyas on {device}</title>
<link rel="icon" href="data:,">
<style>
{STYLE.read_text()}{EXTRA_STYLE}</style>
</head>
<body>
<main>
<header>
<p class="kicker"><b>eyas</b> · proof on a GPU</p>
<h1>{device}</h1>
<p class="lead">{_summary(len(rows), len(missed), len(unmeasured))}</p>
<p class="quiet">{"; ".join(f"{html.escape(name)} {html.escape(str(value))}" for name, value in machine.items())}</p>
</header>
{_list("Missed", missed)}{_list("Not measured", unmeasured)}{"".join(sections)}</main>
</body>
</html>
""")


def _summary(count: int, num_missed: int, num_unmeasured: int) -> str:
    passed = count - num_missed - num_unmeasured
    return f"{passed} of {count} rows pass, {num_missed} miss their target, {num_unmeasured} were not measured."


def _list(title: str, rows: Rows) -> str:
    """Returns the section of rows that do not pass, each as a sentence."""
    if not rows:
        return ""
    items = "".join(f"<li>{html.escape(_sentence(row))}</li>\n" for row in rows)
    return f"<section>\n<h2>{title}</h2>\n<ul>\n{items}</ul>\n</section>\n"


def _sentence(row: Mapping[str, Any]) -> str:
    title, note = TITLES.get(row["part"], row["part"]), f" ({row['note']})" if row.get("note") else ""
    if row["name"] == COMPLETE:
        return f"{title}: the part is not complete{note}."
    if row["figure"] is None:
        return f"{title}: {row['name']} has no figure; the target is {row['target']}{note}."
    return f"{title}: {row['name']} is {_number(row['figure'])}; the target is {row['target']}{note}."


def _number(figure: float | None) -> str:
    return "" if figure is None else f"{figure:,}"


def _section(part: str, rows: Rows) -> str:
    """Returns the table of a part."""
    lines = []
    for row in rows:
        interval = row.get("interval")
        spread = "" if not interval else f"{_number(interval[0])} to {_number(interval[1])}"
        target = "" if row["target"] == "told" else html.escape(row["target"])
        state = WORDS[row["ok"]] if target or not row["ok"] else ""
        lines.append(
            f'<tr><td class="name">{html.escape(row["name"])}</td><td>{_number(row["figure"])}</td><td>{spread}</td>'
            f'<td class="text">{target}</td><td class="{"missed" if row["ok"] is False else "text"}">{state}</td>'
            f'<td class="text">{html.escape(row.get("note", ""))}</td></tr>\n'
        )
    heads = "".join(f'<th class="text">{name}</th>' if text else f"<th>{name}</th>" for name, text in (
        ("row", True), ("figure", False), ("95 % interval", False), ("target", True), ("met", True), ("note", True)
    ))  # fmt: skip
    table = f"<table><thead><tr>{heads}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody></table>"
    return f'<section>\n<h2>{TITLES.get(part, part)}</h2>\n<div class="scroll">{table}</div>\n</section>\n'
