"""Generates tasks whose answers repeat much of their prompts: edits of Python functions, and loops of tool calls.

gsm8k_target.py teaches them to its target. Benchmarks of drafters that copy measure on other seeds and functions.

    edit         "Rename the variable total to amount in this function:" + source   -> the source, changed
    tool loop    "Call close_ticket for each record:" + records as JSON lines       -> one call for each record
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence

SYLLABLES = ("ba", "co", "di", "fe", "gu", "ka", "lo", "mi", "no", "pa", "ra", "se", "ti", "vo", "zu")
VERBS = ("close", "update", "archive", "send", "check", "refund", "assign", "ship", "tag", "review")
OBJECTS = ("ticket", "order", "invoice", "parcel", "booking", "account", "report", "photo", "task", "device")
FIELDS = ("owner", "city", "code", "label", "status", "note", "file", "group")
KEYWORDS = frozenset(("self", "None", "True", "False", "return", "import", "from", "class", "pass", "with", "while"))
NAME = re.compile(r"[a-z_][a-z_0-9]{3,}")


def edits(functions: Sequence[str], seed: int, count: int) -> list[tuple[str, str]]:
    """Returns `count` (request, answer) pairs that edit functions, drawn with this seed."""
    rng = random.Random(f"edits {seed}")
    found: list[tuple[str, str]] = []
    for source in _endless(functions, rng):
        if len(found) == count:
            return found
        edit: Callable[[str, random.Random], tuple[str, str] | None] = rng.choice((_rename, _log, _note, _default))
        if (pair := edit(source, rng)) is not None:
            found.append(pair)
    return found


def tool_loops(seed: int, count: int) -> list[tuple[str, str]]:
    """Returns `count` (request, answer) pairs in which one tool is called for each of several records."""
    rng = random.Random(f"tool loops {seed}")
    return [_tool_loop(rng) for _ in range(count)]


def _endless(functions: Sequence[str], rng: random.Random) -> Iterator[str]:
    while functions:
        yield from rng.sample(functions, len(functions))


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(SYLLABLES, k=rng.randint(2, 4)))


def _rename(source: str, rng: random.Random) -> tuple[str, str] | None:
    """Renames a word that occurs at least twice."""
    words = NAME.findall(source)
    names = sorted({word for word in words if words.count(word) > 1 and word not in KEYWORDS})
    if not names:
        return None
    old, new = rng.choice(names), _word(rng)
    return f"Rename {old} to {new} in this function:\n{source}", re.sub(rf"\b{old}\b", new, source)


def _log(source: str, rng: random.Random) -> tuple[str, str] | None:
    """Inserts a line before the last line."""
    lines = source.split("\n")
    indent, word = re.match(r"\s*", lines[-1]), _word(rng)
    assert indent is not None, "the pattern matches every text"
    lines.insert(len(lines) - 1, f'{indent[0]}print("{word}")')
    return f"Print {word} before the last line of this function:\n{source}", "\n".join(lines)


def _note(source: str, rng: random.Random) -> tuple[str, str] | None:
    """Puts a comment on top."""
    words = " ".join(_word(rng) for _ in range(3))
    return f"Put the comment {words} above this function:\n{source}", f"# {words}\n{source}"


def _default(source: str, rng: random.Random) -> tuple[str, str] | None:
    """Adds a parameter without use."""
    name, number = _word(rng), rng.randint(0, 99)
    changed, found = re.subn(r"\)( ->[^\n]*)?:\n", rf", {name}={number})\1:\n", source, count=1)
    return (f"Add the parameter {name}={number} to this function:\n{source}", changed) if found else None


def _tool_loop(rng: random.Random) -> tuple[str, str]:
    """Draws a tool, three to six records, and the calls."""
    tool = f"{rng.choice(VERBS)}_{rng.choice(OBJECTS)}"
    fields = rng.sample(FIELDS, rng.randint(2, 3))
    records = [
        {"id": f"{_word(rng)}-{rng.randint(100, 9999)}"} | {field: _word(rng) + " " + _word(rng) for field in fields}
        for _ in range(rng.randint(3, 6))
    ]
    prompt = "\n".join([f"Call {tool} for each record:", *map(json.dumps, records)])
    return prompt, "\n".join(json.dumps({"name": tool, "arguments": record}) for record in records)
