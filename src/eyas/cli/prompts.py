"""`eyas prompts`: runs the stage; --explain, --sample and --forget print or remove single records."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
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
        print("\n".join(_format_record(explained, has_colors(sys.stdout), parsed.sample is None)), end="\n\n")
    return 0


def _format_record(explained: Mapping[str, Any], color: bool, with_gates: bool) -> Iterator[str]:
    """Yields the lines of a record.

    Args:
        explained: The record as `explain_records` yields it.
        color: Prints in color; otherwise values stand in brackets.
        with_gates: Adds the gates and the stages that the record passed.
    """
    reason, counts = explained.get("dropped"), _join_counts(explained.get("changed", {}))
    result = f"dropped: {reason}" if reason else f"replaced: {counts}" if counts else "unchanged"
    title = f"{explained['id']} ({explained['where']})"
    known = f"  {_paint(result, RED if reason else GREEN, color)}" if "gates" in explained else ""
    yield _paint(title, BOLD, color) + known
    if with_gates:
        for name, text in _list_rows(explained):
            code = DIM if text.startswith("passed") else RED if text.startswith("dropped") else ""
            yield f"  {name:<17}{_paint(text, code, color)}"
    for note in explained.get("notes", ()):
        yield f"  {_paint(f'note: {note}', BOLD, color)}"
    if explained.get("value") is not None:
        record = json.dumps(explained["value"], ensure_ascii=False, default=str)
        yield f"  record: {make_printable(record[:MAX_RECORD_CHARS])}"
    for message in explained["messages"]:
        after = message["after"]
        for state, code in (("unchanged" if after == message["before"] else "before", RED), ("after", GREEN)):
            if state != "after" or after not in (None, message["before"]):
                yield f"  {message['role']}, {state}:"
                yield _highlight(message, code if color else None, "surrogate" if state == "after" else "value")
        for value in message["found"]:
            result = "" if after is None else " stays" if value["surrogate"] is None else f" -> {value['surrogate']}"
            rule = _paint(f"{value['rule']} {value['score']:.2f}", DIM, color)
            yield f"  {value['kind']:<15}{' '.join(make_printable(value['value'] + result).split())}  {rule}"


def _list_rows(explained: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (gate or stage, what it did with the record)."""
    if "gates" in explained:
        yield "source", f"{explained['source']}, license {explained['license']}"
        details = {
            "format": f"{explained['format']}, removed: {_join_counts(explained['removed']) or 'nothing'}",
            "quality": f"language {explained['language']}",
            "personal data": f"replaced: {_join_counts(explained['changed']) or 'nothing'}",
        }
        for gate, reason in explained["gates"].items():
            detail = f" ({details[gate]})" if gate in details else ""
            yield gate, f"passed{detail}" if reason is None else f"dropped: {reason}"
    decision = explained["run"]
    if decision is not None:
        of = f" of {decision['of']}" if "of" in decision else ""
        kept = f"kept, replaced: {_join_counts(decision.get('changed', {})) or 'nothing'}"
        yield "prompts", kept if decision["dropped"] is None else f"dropped: {decision['dropped']}{of}"
    yield from explained["stages"].items()


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


def _paint(text: str, code: str, color: bool) -> str:
    return mark(make_printable(text), code) if color and code else make_printable(text)


def _join_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
