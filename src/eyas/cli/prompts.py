"""`eyas prompts`: runs the stage; --explain, --sample and --forget print or remove single records."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from textwrap import indent
from typing import Any

from eyas.base.config import require_range
from eyas.base.errors import UsageError
from eyas.base.terminal import BOLD, DIM, GREEN, RED, has_colors, make_printable, mark
from eyas.cli import recipes
from eyas.recipe import open_run
from eyas.record_lineage import explain_records, forget_record, sample_records

MAX_RECORD_CHARS = 2000  # of a record of unknown format


def run_verb(parsed: argparse.Namespace) -> int:
    """Runs `eyas prompts`."""
    asked = [f"--{name}" for name in ("explain", "sample", "forget") if getattr(parsed, name) is not None]
    if not asked:
        return recipes.run_verb(parsed)
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]} cannot be used together", "Remove one of them")
    # `--explain A B`: the parser puts B beside the overrides.
    more = [word for word in parsed.overrides if asked == ["--explain"] and "=" not in word]
    run = open_run(parsed.recipe, [word for word in parsed.overrides if word not in more], parsed.out)
    if parsed.forget is not None:
        for line in forget_record(run, parsed.forget):
            print(line)
        return 0
    if parsed.explain is not None:
        records = list(explain_records(run, [*parsed.explain, *more]))
    else:
        require_range("--sample", parsed.sample, 1)
        records = sample_records(run, parsed.sample)
        results = Counter("dropped" if each["dropped"] else "kept" for each in records)
        print(f"{_join_counts(results)}; a run also drops duplicates and applies prompts.limit", file=sys.stderr)
    if parsed.json:
        print(json.dumps({"records": records}, ensure_ascii=False, indent=2, default=str))
        return 0
    for explained in records:
        print(_format_record(explained, has_colors(sys.stdout), parsed.sample is None), end="\n\n")
    return 0


def _format_record(explained: Mapping[str, Any], color: bool, with_gates: bool) -> str:
    """Returns the text of a record.

    Args:
        explained: The record as `explain_records` yields it.
        color: Prints in color; otherwise values stand in brackets.
        with_gates: Adds the gates and the stages that the record passed.
    """
    return recipes.render_table(
        "record.txt.jinja",
        explained=explained,
        colors={"bold": BOLD, "dim": DIM, "green": GREEN, "red": RED},
        make_printable=make_printable,
        with_gates=with_gates,
        paint=lambda text, code: mark(make_printable(text), code) if color and code else make_printable(text),
        highlight=lambda message, code, key: _highlight(message, code if color else None, key),
        dump_record=lambda value: json.dumps(value, ensure_ascii=False, default=str)[:MAX_RECORD_CHARS],
        join_counts=_join_counts,
    )


def _highlight(message: Mapping[str, Any], code: str | None, key: str) -> str:
    """Returns the text of a message with its values or surrogates marked, indented and without control characters.

    Args:
        message: The message.
        code: The color; None marks with brackets.
        key: "value" for the text as it was read, "surrogate" for the text after screening.
    """
    text, pieces, done = message["before"], list[str](), 0
    for value in message["found"]:
        is_marked = value["surrogate"] is not None or message["after"] is None
        if is_marked and value["start"] >= done:
            pieces += [make_printable(text[done : value["start"]]), mark(make_printable(value[key]), code)]
            done = value["end"]
    return indent("".join((*pieces, make_printable(text[done:]))), "    ")


def _join_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
