"""Families `edit` and `agent`: changes of a Python file, written out by the assistant or made with tools.

edit     file and change 1 -> whole file    change 2 -> whole file    ...
agent    changes -> read_file -> replace_text -> read_file -> replace_text -> ... -> report
"""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template

from eyas.base.config import load_toml
from eyas.evalsets import template_grammar as lexicon
from eyas.evalsets.families.code import write_code
from eyas.evalsets.template_grammar import Messages, draw_words

TEMPLATES = load_toml(Path(__file__).with_suffix(".toml"))
TOOLS = tuple({"type": "function", "function": tool} for tool in TEMPLATES["tools"])
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
        answer = _fill("edited", text=change.after)
        messages += [{"role": "user", "content": request}, {"role": "assistant", "content": answer}]
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
