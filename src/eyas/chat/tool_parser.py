r"""Separates tool calls from the text of an answer while it is generated. The server's response builder calls it.

    text        Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>
    regions     content    |open       |body of a tool call                   |close
    pieces      Let me see.             add({"a": 1})

Where regions begin and end is data (`tool_families.toml`), in the form of transformers' response templates. Text that
may still become the beginning or the end of a region is held back, so the result does not depend on the cuts.
"""

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

import regex
from transformers.utils.chat_parsing import parse_response

from eyas.chat.conversation import is_unicode

TOOL_CALLS, CONTENT = "tool_calls", "content"
Tools = Sequence[dict[str, Any]]
"""The tools of a request, as JSON objects of the OpenAI API."""
Phase = Literal["thoughts", "content", "tool_call"]
_FIRST_SIGN = regex.compile(r"(<)|\\(\[)")  # with which most patterns of borders begin
PARSE_ERRORS = (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError)


@dataclass(frozen=True)
class ParsedCall:
    """A call that an answer contains. arguments: a JSON object as text."""

    name: str
    arguments: str


@dataclass(slots=True)  # a frozen one takes longer, and each token makes one
class ParsedText:
    """The parts that new text adds to an answer: content, reasoning, and whole calls."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ParsedCall, ...] = ()

    def __add__(self, other: "ParsedText") -> "ParsedText":
        """Returns both in order."""
        return ParsedText(self.content + other.content, self.reasoning + other.reasoning, self.calls + other.calls)


class ToolCallParser:
    """The parser of one answer. `feed` takes its text in pieces of any length, `finish` ends it.

    Text that looks like a call but cannot be read, or that ends inside a call, is content, as the model wrote it.
    """

    def __init__(self, template: Mapping[str, Any], tools: Tools, *, prompt: str = "", python: bool = False) -> None:
        """Prepares the parser.

        Args:
            template: the response template.
            tools: the definitions of the tools. Their schemas give the types of arguments that are not JSON.
            prompt: the text of the prompt, if the template has an anchor behind which the answer begins.
            python: True if calls are a list of Python calls.
        """
        self._template = dict(template)
        self._fields: dict[str, Any] = template["fields"]
        self._tools = list(tools)
        self._python = python
        self._open = {name: _pattern(field, "open") for name, field in self._fields.items()}
        self._close = {name: _pattern(field, "close") for name, field in self._fields.items()}
        # By region: the signs with which the next border may begin; None if they are unknown.
        closing = {name: None if name == TOOL_CALLS else _first_signs([border]) for name, border in self._close.items()}
        self._signs = {None: _first_signs(self._open.values()), **closing}
        self._text = ""
        self._pieces: list[str] = []  # text behind `_text` that `feed_content` has read
        self._content_signs: frozenset[str] | None = None  # of the next border; None if the next text is not content
        self._position = 0  # the text before it is done
        self._region: str | None = None
        self._region_start = self._body_start = 0  # of the region: where it opens, and where its text begins
        self._num_dropped = 0  # characters of finished thoughts, which are no longer in the text
        self._num_begun = 0  # characters of the answer that the prompt has
        self._spans: list[tuple[Phase, int, int]] = []  # of the answer: where thoughts and calls begin and end
        self._space = ""  # white space of the content that is dropped if a call follows
        self._follows_call = False
        anchor = _pattern(template, "start_anchor")
        matches = [] if anchor is None or not prompt else list(anchor.finditer(prompt))
        if matches:
            self.begin(prompt[matches[-1].end() :])

    def begin(self, text: str) -> None:
        """Takes the beginning of the answer that the prompt already has, for example the marker of the thoughts."""
        self._num_begun = len(text)
        self.feed(text)

    def feed(self, text: str) -> ParsedText:
        """Appends text to the answer. Returns what is certain now."""
        content = self.feed_content(text)
        if content is not None:
            return ParsedText(content)
        self._join()
        signs, was_read = self._signs[self._region], self._position == len(self._text)
        self._text += text
        if was_read and signs is not None and signs.isdisjoint(text):  # a token of thoughts, for example
            self._position = len(self._text)
            parsed = self._read_text(text)
        else:
            parsed = self._advance(at_end=False)
        is_read = self._position == len(self._text) and self._region in (None, CONTENT) and not self._follows_call
        is_content = self._region == CONTENT or self._open.get(CONTENT) is None
        self._content_signs = self._signs[self._region] if is_read and is_content else None
        return parsed

    def feed_content(self, text: str) -> str | None:
        """Appends text that is content without a border, as most tokens are, and returns the content that it adds.

        Returns None for any other text, which is then not appended.
        """
        if self._content_signs is None or not self._content_signs.isdisjoint(text):
            return None
        self._pieces.append(text)
        if self._space:
            text = self._space + text
        content = text.rstrip()
        self._space = text[len(content) :]
        return content

    def _join(self) -> None:
        if self._pieces:
            self._text += "".join(self._pieces)
            self._pieces, self._position = [], len(self._text)

    def finish(self) -> ParsedText:
        """Ends the answer. Returns the rest of it."""
        self._join()
        parsed = self._advance(at_end=True)
        if self._region == TOOL_CALLS:
            # JSON and Python show by themselves whether they are complete. Other calls need their end.
            is_complete = self._python or self._fields[TOOL_CALLS].get("content") == "json"
            parsed += self._read_call(len(self._text), is_complete)
        elif self._region not in (None, CONTENT):
            self._add_span("thoughts", self._body_start, len(self._text))
        return parsed if self._follows_call else parsed + ParsedText(content=self._space)

    def phases(self, text_ends: Sequence[int]) -> list[Phase]:
        """Returns the phase of each token of a finished answer. The markers of thoughts are content.

        Args:
            text_ends: for each token, the length of the answer's text after it.
        """
        phases: list[Phase] = ["content"] * len(text_ends)
        for phase, begin, last in self._spans:
            for index, end in enumerate(text_ends):
                if begin < end <= last:
                    phases[index] = phase
        return phases

    def _add_span(self, phase: Phase, start: int, end: int) -> None:
        offset = self._num_dropped - self._num_begun
        self._spans.append((phase, start + offset, end + offset))

    def _advance(self, at_end: bool) -> ParsedText:
        parsed = ParsedText()
        while True:
            region, match, hold = self._next_border(at_end)
            end = hold if match is None else match.start()
            if self._region != TOOL_CALLS:
                parsed += self._read_text(self._text[self._position : end])
            self._position = max(self._position, end)
            if match is None:
                return parsed
            self._position = match.end()
            if region is not None:
                self._region, self._region_start, self._body_start = region, match.start(), match.end()
            elif self._region == TOOL_CALLS:
                parsed += self._read_call(match.end(), is_complete=True)
            else:
                self._end_region(match)

    def _end_region(self, match: Any) -> None:
        """Ends a region of thoughts or content. The answer begins behind thoughts that nothing but spaces precedes."""
        region, self._region = self._region, None
        if region == CONTENT:
            return
        self._add_span("thoughts", self._body_start, match.start())
        if not self._text[: self._region_start].strip():
            self._text = self._text[match.end() :]
            self._num_dropped += match.end()
            self._position = 0

    def _next_border(self, at_end: bool) -> tuple[str | None, Any, int]:
        """Finds the next border: the region that it opens or None, its match, and where to hold text back."""
        # The borders that may come next, by the region that they open; None closes the region.
        borders = self._open if self._region is None else {None: self._close[self._region]}
        found: list[tuple[int, int, str | None, Any]] = []
        hold = len(self._text)
        for region, border in borders.items():
            match = None if border is None else border.search(self._text, self._position, partial=not at_end)
            if border is None or match is None:
                continue
            if not at_end and (match.partial or (match.end() == len(self._text) and not border.is_final)):
                hold = min(hold, match.start())
            else:
                found.append((match.start(), -match.end(), region, match))
        # The first border counts, and of those the longest. It must wait for one that may begin before it.
        first = min(found, key=lambda candidate: candidate[:2], default=None)
        if first is None or (first[0] >= hold and not at_end):
            return None, None, hold
        return first[2], first[3], hold

    def _read_text(self, text: str) -> ParsedText:
        if self._region is None and self._open.get(CONTENT) is not None:
            return ParsedText()  # the template says which text is content, and this is none
        return self._add_content(text) if self._region in (None, CONTENT) else ParsedText("", text)

    def _add_content(self, text: str) -> ParsedText:
        text = self._space + text
        if self._follows_call:
            text = text.lstrip()
            self._follows_call = not text
        content = text.rstrip()
        self._space = text[len(content) :]
        return ParsedText(content)

    def _read_call(self, end: int, is_complete: bool) -> ParsedText:
        """Ends the region of a tool call. Returns its calls, or its text as content if it cannot be read."""
        text = self._text[self._region_start : end]
        self._region, self._position = None, end
        try:
            calls = self._calls(text) if is_complete else ()
        except PARSE_ERRORS:
            calls = ()
        if not calls:
            return self._add_content(text)
        self._space, self._follows_call = "", True
        self._add_span("tool_call", self._region_start, end)
        return ParsedText(calls=calls)

    def _calls(self, text: str) -> tuple[ParsedCall, ...]:
        # JSON has types of its own; in other calls, the schemas of the tools tell a number from a text.
        tools = self._tools if self._fields[TOOL_CALLS].get("content") == "xml-inline" else None
        values: Any = parse_response(text, self._template, prefix="", tools=cast(Any, tools))[TOOL_CALLS]
        if self._python:
            (source,) = (value["function"] for value in values)
            return _python_calls(source)
        calls = []
        for value in values:
            inner = value["function"]
            for function in inner if isinstance(inner, list) else [inner]:
                arguments = function["arguments"] if "arguments" in function else function["parameters"]
                calls.append(_call(function["name"], arguments))
        return tuple(calls)


class _Border:
    """A compiled border of a region.

    Attributes:
        is_final: True if more text cannot make its match longer.
        first: The characters with which it may begin; None if they are unknown.
    """

    def __init__(self, pattern: str, is_final: bool, first: frozenset[str] | None) -> None:
        self.is_final, self.first = is_final, first
        compiled = regex.compile(pattern, regex.DOTALL)
        self.search, self.finditer = compiled.search, compiled.finditer


def _pattern(field: Mapping[str, Any], name: str) -> _Border | None:
    literal = field.get(name)
    if literal is None:
        pattern = field.get(f"{name}_pattern")
        first = None if pattern is None or "|" in pattern else _FIRST_SIGN.match(pattern)
        return None if pattern is None else _border(pattern, not pattern, frozenset(first[0][-1]) if first else None)
    literals = [literal] if isinstance(literal, str) else list(literal)
    ordered = sorted(literals, key=len, reverse=True)
    is_final = not any(a != b and a.startswith(b) for a in literals for b in literals)
    return _border("|".join(map(regex.escape, ordered)), is_final, frozenset(literal[:1] for literal in literals))


_border = cache(_Border)  # one for each border of a family, shared by all answers


def _first_signs(borders: Iterable[_Border | None]) -> frozenset[str] | None:
    signs: frozenset[str] | None = frozenset()
    for border in borders:
        if border is not None:
            signs = None if signs is None or border.first is None else signs | border.first
    return signs


def _call(name: Any, arguments: Any) -> ParsedCall:
    """Returns a call. Raises ValueError if its name is no text, or its arguments are no object that JSON can write."""
    if not isinstance(name, str) or not name or not isinstance(arguments, dict) or not is_unicode(name):
        raise ValueError("a call without a name or without arguments")
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return ParsedCall(name, text if is_unicode(text) else json.dumps(arguments))


def _python_calls(source: str) -> tuple[ParsedCall, ...]:
    """Reads `[name(key=value), ...]`. The values are Python literals. Raises ValueError or SyntaxError."""
    listed = ast.parse(source.strip(), mode="eval").body
    calls = []
    for node in listed.elts if isinstance(listed, ast.List) else ():
        if not isinstance(node, ast.Call) or node.args:
            raise ValueError("not a call with named arguments")
        arguments = {str(pair.arg): ast.literal_eval(pair.value) for pair in node.keywords}
        calls.append(_call(ast.unparse(node.func), arguments))
    return tuple(calls)
