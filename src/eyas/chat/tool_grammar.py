"""Writes grammars of answers in llguidance's Lark syntax: calls of tools, and thoughts before what a client asks for.

required    start: head calls                 head: "<tool_call>"
auto        start: text | head calls          head: text up to and including the first "<tool_call>"
            calls: first (between next)*      each call: its text with the JSON schema of its function
thoughts    start: thoughts @answer           thoughts: any text up to and including "</think>"
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.chat.json_schema import bound_schema
from eyas.chat.tool_format import ToolFamily

ANY_TEXT = r"(.|\n)*"
JSON_PIECES = re.compile(r'("\w[^"]*"|[{}]|: |, )')
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True)
class CallRules:
    """The rules that a grammar enforces.

    Attributes:
        tools: The definitions of the tools that may be called.
        must_call: True if the answer must be a call, False if it may also be text.
        is_single: True if the answer has at most one call.
        content: The JSON schema of an answer without a call; None for any text, or if the answer must be a call.
    """

    tools: Sequence[Mapping[str, Any]]
    must_call: bool
    is_single: bool
    content: Mapping[str, Any] | None = None


def write_tool_grammar(
    family: ToolFamily, rules: CallRules, special_ids: Mapping[str, int], eos_ids: frozenset[int]
) -> str:
    """Returns the grammar. Requirement: `family.call` is set.

    Args:
        family: how the target writes calls.
        rules: what to enforce.
        special_ids: the ids of the target's special tokens by their text; see `GrammarVocab`. A grammar names them by
            their ids.
        eos_ids: the ids that end an answer. A call may end with one of them, which the grammar leaves to the engine.
    """
    assert family.call is not None
    eos = [text for text, token in special_ids.items() if token in eos_ids]
    ending = next((text for text in eos if family.call.endswith(text)), "")
    call = family.call.removesuffix(ending)
    writer = _Writer(special_ids)
    # A JSON answer and a call may begin alike. So the call is then written without the trigger, in the same pieces.
    begin = family.trigger if rules.content is None else ""
    trigger = writer.literal(begin) or '""'
    head, start = f"head: {trigger}", "head calls"
    if rules.content is not None:
        opener, schema = writer.literal(family.content.partition("TEXT")[0]), bound_schema(rules.content)
        start = f"head calls | {opener} %json {json.dumps({'x-guidance': JSON_STYLE, **schema})}"
    elif not rules.must_call:
        # Without markers of its own, text may come before a call and is only known by the trigger.
        if family.content == "TEXT":
            head = f"head{'' if family.trigger in special_ids else '[lazy]'}: TEXT {trigger}"
        start = f"head calls | {writer.text(family.content)}"
    lines = [f"start: {start}", head, f"TEXT: /{ANY_TEXT}/"]
    has_many = not rules.is_single and not ending
    first, following = [], []
    for number, tool in enumerate(rules.tools):
        text = (family.first + call).removeprefix(begin)
        lines.append(f"first_{number}: {writer.call(text, family.parameter, tool)}")
        first.append(f"first_{number}")
        if has_many:
            lines.append(f"next_{number}: {writer.call(family.between + call, family.parameter, tool)}")
            following.append(f"next_{number}")
    repeated = f" ({' | '.join(following)})*" if following else ""
    lines.append(f"calls: ({' | '.join(first)}){repeated} {writer.literal(family.last)}")
    return "\n".join(["%llguidance {}", *lines, *writer.rules])


def write_answer_grammar(thoughts: str, opener: str, special_ids: Mapping[str, int]) -> str:
    """Returns the grammar of an answer behind its thoughts. Its rule `@answer` stands for the grammar of the answer.

    Args:
        thoughts: the thoughts with their text as TEXT; see `ToolFormat.answer_opener`.
        opener: the text between the thoughts and the answer.
        special_ids: as in `write_tool_grammar`.
    """
    writer = _Writer(special_ids)
    repeats = "" if thoughts.startswith("TEXT") else "?"
    lines = [f"start: ({writer.text(thoughts)}){repeats} {writer.literal(opener)} @answer", f"TEXT: /{ANY_TEXT}/"]
    return "\n".join(["%llguidance {}", *lines, *writer.rules])


class _Writer:
    """A writer of literals and rules. rules: the rules of texts that end where other text begins."""

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        self.special_ids = special_ids
        self.rules: list[str] = []
        names = sorted(special_ids, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, names))})") if names else re.compile("(?!)")

    def literal(self, text: str) -> str:
        """Returns the text as tokens and strings, and the strings in the pieces that JSON consists of."""
        pieces = [part for piece in self._split.split(text) for part in JSON_PIECES.split(piece) if part]
        ids = self.special_ids
        return " ".join(f"<[{ids[piece]}]>" if piece in ids else json.dumps(piece) for piece in pieces)

    def text(self, text: str) -> str:
        """Returns a text with any text in the place of TEXT."""
        before, _, after = text.partition("TEXT")
        end = self.literal(after)
        if not end or end.startswith("<["):
            return f"{self.literal(before)} TEXT {end}"
        # The thoughts end where their marker first appears; spaces may follow.
        return f"{self.literal(before)} {self._up_to(after)} (/\\s{{1,9}}/)?"

    def call(self, text: str, parameter: str | None, tool: Mapping[str, Any]) -> str:
        """Returns the text of a call with NAME, INDEX and ARGUMENTS filled in."""
        function = tool["function"]
        schema = bound_schema({"type": "object", **(function.get("parameters") or {})})
        if parameter is None:
            guidance = JSON_STYLE if function.get("strict") else JSON_STYLE | {"lenient": True}
            arguments = f"%json {json.dumps(schema | {'x-guidance': guidance})}"
        else:
            arguments = self._parameters(parameter, schema)
        before, _, after = text.replace("NAME", function["name"]).partition("ARGUMENTS")
        start, has_index, rest = before.partition("INDEX")
        index = f" /[0-9]+/ {self.literal(rest)}" if has_index else ""
        return f"{self.literal(start)}{index} {arguments} {self.literal(after)}"

    def _parameters(self, parameter: str, schema: Mapping[str, Any]) -> str:
        required = schema.get("required", ())
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        names = []
        for key, value in schema.get("properties", {}).items():
            before, _, after = parameter.replace("KEY", key).partition("VALUE")
            name = f"argument_{len(self.rules)}"
            self.rules.append(f"{name}: {self.literal(before)} {self._value(value, after, shared)}")
            names.append(name if key in required else f"{name}?")
        return " ".join(names)

    def _value(self, schema: Any, after: str, shared: Mapping[str, Any]) -> str:
        """Returns a value with the text after it. A string has no quotes, so it ends where that text begins."""
        is_text = isinstance(schema, dict) and schema.get("type") == "string"
        if is_text and "enum" in schema:
            choices = " | ".join(json.dumps(str(choice)) for choice in schema["enum"])
            return f"({choices}) {self.literal(after)}"
        if is_text:
            return self._up_to(after, f"{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}")
        value = {**schema, **shared} if isinstance(schema, dict) else schema
        return f"%json {json.dumps(value)} {self.literal(after)}"

    def _up_to(self, end: str, length: str = "*") -> str:
        """Returns any text up to and including where `end` first appears. length: the repetition of its characters."""
        name = f"text_{len(self.rules)}"
        before, *rest = self._split.split(end, maxsplit=1)  # no text has a special token, so the first one ends it
        body = rf"(.|\n){length}{re.escape(before)}".replace("/", r"\/").replace("\n", "n")
        self.rules.append(f"{name}{'' if rest else '[lazy]'}: /{body}/")
        return f"{name} {self.literal(''.join(rest))}"
