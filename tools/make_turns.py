"""Writes the conversations of builtin:turns to src/eyas/evalsets/turns.jsonl.gz: twelve of each family.

    python tools/make_turns.py

    long_context    a register of 256, 512, ... or 128k tokens, and two questions; an answer quotes entries
    edit            file and change 1 -> whole file    change 2 -> whole file    ...
    agent           changes -> read_file -> replace_text -> read_file -> replace_text -> ... -> report

All texts come from the seeded grammar of eyas.evalsets. The embedded target is not trained on them.
"""

import gzip
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from eyas.base.config import load_toml
from eyas.evalsets import TURNS
from eyas.evalsets import template_grammar as lexicon
from eyas.evalsets.families.code import write_code
from eyas.evalsets.template_grammar import draw_words

Messages = list[dict[str, Any]]

TEMPLATES = load_toml(Path(__file__).with_suffix(".toml"))
TOOLS = [{"type": "function", "function": tool} for tool in TEMPLATES["tools"]]
PER_FAMILY = 12
ROLES = ("user", "assistant")
FIRST_ENTRIES, NUM_SIZES = 8, 10  # of a register; an entry has about 27 tokens of the embedded target
_NAMES = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath")  # in no other text of the grammar
_FUNCTION = re.compile(r"def (\w+)\((\w+)")


@dataclass(frozen=True)
class _Change:
    """One change of a file: the request, the text that is replaced by `new`, and the whole file after it."""

    ask: str
    old: str
    new: str
    after: str


def write_edit(rng: random.Random, index: int) -> Messages:
    """Returns two to four changes of one file of one to eight functions; each answer is the whole changed file."""
    path, text, changes = _draw_file(rng, index)
    messages: Messages = []
    for change in changes:
        request = _fill("later_edit" if messages else "first_edit", ask=change.ask, path=path, text=text)
        pair = (request, _fill("edited", text=change.after))
        messages += [{"role": role, "content": one} for role, one in zip(ROLES, pair, strict=True)]
    return messages


def write_agent(rng: random.Random, index: int) -> Messages:
    """Returns a loop of tools that reads a file of one to eight functions before each of two to four changes."""
    path, text, changes = _draw_file(rng, index)
    asks = "\n".join(change.ask for change in changes)
    messages: Messages = [{"role": "user", "content": _fill("task", path=path, text=asks)}]
    for change in changes:
        messages += _call_tool(len(messages), "read_file", {"path": path}, text)
        arguments = {"path": path, "old": change.old, "new": change.new}
        messages += _call_tool(len(messages), "replace_text", arguments, _fill("replaced"))
        text = change.after
    return [*messages, {"role": "assistant", "content": _fill("report", path=path, text=asks)}]


def write_long_context(rng: random.Random, index: int) -> Messages:
    """Returns two questions about one register. The next index has twice as many entries."""
    entries = [_write_entry(rng, number) for number in range(1, 1 + (FIRST_ENTRIES << index % NUM_SIZES))]
    wanted, several = rng.randrange(4, len(entries)), rng.randint(2, 4)
    pairs = (
        (_fill("repeat", text="\n".join(entries), wanted=str(wanted + 1)), entries[wanted]),
        (_fill("before", several=str(several)), "\n".join(entries[wanted - several : wanted])),
    )
    return [{"role": role, "content": text} for pair in pairs for role, text in zip(ROLES, pair, strict=True)]


FAMILIES: dict[str, Callable[[random.Random, int], Messages]] = {
    "long_context": write_long_context,
    "edit": write_edit,
    "agent": write_agent,
}


def write_records() -> Iterator[dict[str, Any]]:
    """Yields the records of the file."""
    for family, write in FAMILIES.items():
        for index in range(PER_FAMILY):
            tools = {"tools": TOOLS} if family == "agent" else {}
            yield {"task": family, "messages": write(random.Random(f"turns/{family}/{index}"), index)} | tools


def main() -> None:
    """Writes the file."""
    lines = "".join(json.dumps(record) + "\n" for record in write_records())
    TURNS.write_bytes(gzip.compress(lines.encode(), mtime=0))
    print(f"{TURNS}: {TURNS.stat().st_size:,} bytes")


def _write_entry(rng: random.Random, number: int) -> str:
    topic = rng.choice(lexicon.TOPICS)
    words = draw_words(rng, **{key: topic[key] for key in ("quality", "thing", "place")}, count=range(2, 91))
    words |= draw_words(rng, name=lexicon.NAMES, town=lexicon.TOWNS, weekday=lexicon.WEEKDAYS)
    return _fill("entry", number=str(number), **words)


def _call_tool(number: int, name: str, arguments: dict[str, str], result: str) -> Messages:
    call = {"id": f"{number:09d}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    return [answer, {"role": "tool", "tool_call_id": call["id"], "content": result}]


def _draw_file(rng: random.Random, index: int) -> tuple[str, str, list[_Change]]:
    """Returns the path and the text of a file, and changes that are made one after the other."""
    answers = [write_code(rng)[-1]["content"] for _ in range(1 + index % 8)]
    text = "\n\n\n".join(answer.split("```python\n")[1].split("\n```")[0] for answer in answers)
    path = f"{rng.choice(TEMPLATES['directories'])}/{rng.choice(lexicon.TOPICS)['topic']}.py"
    return path, text, list(_draw_changes(rng, text, rng.randint(2, 4)))


def _draw_changes(rng: random.Random, text: str, count: int) -> Iterator[_Change]:
    for new in rng.sample(_NAMES, count):
        func, arg = rng.choice(_FUNCTION.findall(text))
        words = {"func": func, "arg": arg, "new": new} | draw_words(rng, weekday=lexicon.WEEKDAYS, count=range(2, 91))
        words |= draw_words(rng, person=rng.choice(lexicon.TOPICS)["person"])
        change = {key: Template(one).substitute(words) for key, one in rng.choice(TEMPLATES["changes"]).items()}
        text = text.replace(change["old"], change["new"])
        yield _Change(**change, after=text)


def _fill(template: str, **words: str) -> str:
    return Template(TEMPLATES["texts"][template]).substitute(words)


if __name__ == "__main__":
    main()
