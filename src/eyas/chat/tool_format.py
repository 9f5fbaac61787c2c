r"""Finds out how a target writes tool calls, from what its chat template makes of an example.

    example     call look_up({"text": "a b", "count": 2})
    template    <tool_call>\n{"name": "look_up", "arguments": {"text": "a b", "count": 2}}\n</tool_call><|im_end|>
    family      the first one of `tool_families.toml` whose parser reads the example's call from it: hermes

A tokenizer that has a response template of its own for tool calls is parsed with that one.
"""

import json
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from transformers import PreTrainedTokenizerBase

from eyas.base.config import load_toml
from eyas.base.errors import InputError
from eyas.base.sequences import count_equal
from eyas.chat.conversation import Message, TemplateMessage, ToolCall
from eyas.chat.detokenizer import TextStream
from eyas.chat.render import render_text, turn_suffix
from eyas.chat.tool_parser import CONTENT, TOOL_CALLS, ParsedCall, Phase, ToolCallParser, Tools

FAMILIES = Path(__file__).parent / "tool_families.toml"
SHORT_ID_LETTERS = string.ascii_letters + string.digits
# The beginning and the end of the thoughts that models write before their answers. Harmony's are in the families.
THOUGHT_MARKERS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
REASONING = "reasoning"
MAX_OPENER_TOKENS = 32  # of a marker and the line breaks behind it, at the end of a prompt
CallIdForm = Literal["random", "short", "index"]
ANSWER_START = r"\Z"  # the answer begins at the end of the prompt
EMPTY_TEMPLATE: dict[str, Any] = {"start_anchor_pattern": ANSWER_START, "fields": {CONTENT: {}}}
TEXT_FIELDS = {TOOL_CALLS, CONTENT, "silent"}
EXAMPLE = ParsedCall("look_up", '{"text": "a b", "count": 2}')
EXAMPLE_TOOL = load_toml(Path(__file__).with_name("example_tool.toml"))


@dataclass(frozen=True)
class ToolFamily:
    """The form of the calls of a family of models; see `tool_families.toml`. call: None if it cannot be enforced."""

    name: str
    template: Mapping[str, Any]
    trigger: str
    call: str | None = None
    parameter: str | None = None
    first: str = ""
    between: str = ""
    last: str = ""
    thoughts: str = ""
    content: str = "TEXT"
    call_id: CallIdForm = "random"
    python: bool = False


class ToolFormat:
    """The form of the tool calls of one target. It is found when it is first needed.

    Attributes:
        tokenizer: The target's tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def knows_tools(self) -> bool:
        """True if the chat template writes the definitions of tools into the prompt."""
        try:
            return EXAMPLE.name in render_text([Message("user", "Hi")], self.tokenizer, True, [EXAMPLE_TOOL])
        except InputError:
            return False

    @property
    def family(self) -> ToolFamily | None:
        """The family; None if calls of this target cannot be read."""
        return self._found[0]

    @property
    def takes_text_arguments(self) -> bool:
        """True if the chat template wants the arguments of earlier calls as JSON text, False for an object."""
        return self._found[1]

    def template_call(self, call_id: str, name: str, arguments: str) -> dict[str, Any]:
        """Returns an earlier call for the template. Raises ValueError if the arguments are not JSON."""
        value = arguments if self.takes_text_arguments else json.loads(arguments)
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": value}}

    @cached_property
    def marker_ids(self) -> frozenset[int]:
        """The special tokens that the parser needs in the text."""
        fields = self._template(has_calls=True)["fields"].items()
        # The end of an answer closes content that has no beginning, so its closing tokens are not needed.
        borders = [
            text
            for name, spec in fields
            for key, text in spec.items()
            if key.startswith("open") or (key.startswith("close") and (name != CONTENT or "open" in " ".join(spec)))
        ]
        written = json.dumps(borders, ensure_ascii=False).replace("\\", "")
        added = self.tokenizer.added_tokens_decoder
        return frozenset(token for token, entry in added.items() if entry.special and entry.content in written)

    @cached_property
    def thought_markers(self) -> tuple[str, str] | None:
        """The beginning and the end of the thoughts, which the chat template names; None if it names none."""
        template = self.tokenizer.chat_template
        text = template if isinstance(template, str) else ""
        return next((markers for markers in THOUGHT_MARKERS if markers[1] in text), None)

    @property
    def reasons(self) -> bool:
        """True if answers may have thoughts that the parser separates."""
        return bool(set(self._template(has_calls=False)["fields"]) - TEXT_FIELDS)

    def parser(self, tools: Tools, prompt_ids: Sequence[int], *, has_calls: bool = True) -> ToolCallParser:
        """Returns a parser for one answer.

        Args:
            tools: the definitions of the tools that may be called.
            prompt_ids: the ids of the prompt. It may open the thoughts itself.
            has_calls: False if the answer may have no calls.
        """
        template = self._template(has_calls)
        is_anchored = template.get("start_anchor_pattern") != ANSWER_START
        prompt = self.tokenizer.decode(list(prompt_ids)) if is_anchored else ""
        python = self.family is not None and self.family.python
        parser = ToolCallParser(template, tools, prompt=str(prompt), python=python)
        if self.thought_markers is not None and not prompt and self._ends_with(self.thought_markers[0], prompt_ids):
            parser.begin(self.thought_markers[0])
        return parser

    def phases(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> list[Phase]:
        """Returns for each token of an answer whether it belongs to the thoughts, the content or a tool call."""
        if self.family is None and not self.reasons:
            return ["content"] * len(answer_ids)
        return self.read_answer(prompt_ids, answer_ids)[1]

    def read_answer(
        self, prompt_ids: Sequence[int], answer_ids: Sequence[int], tools: Tools = ()
    ) -> tuple[Message, list[Phase]]:
        """Returns a whole answer as a message, and the phase of each of its tokens. tools: as in `parser`."""
        stream, ends = TextStream(self.tokenizer, (), self.marker_ids), []
        for token in answer_ids:
            stream.push(token)
            ends.append(len(stream.text))
        stream.finish()
        parser = self.parser(tools, prompt_ids)
        parsed = parser.feed(stream.text) + parser.finish()
        # Numbers as ids, so that equal answers give equal prompts.
        calls = tuple(ToolCall(f"{i:09d}", call.name, call.arguments) for i, call in enumerate(parsed.calls))
        message = Message("assistant", parsed.content, reasoning=parsed.reasoning or None, tool_calls=calls)
        return message, parser.phases(ends)

    def answer_opener(self, prompt_ids: Sequence[int]) -> tuple[str, str]:
        """Returns what comes before the content of an answer, for a grammar.

        Args:
            prompt_ids: the ids of the prompt. It may open the thoughts, or end them where it turns them off.

        Returns:
            The thoughts with their text as TEXT, "" if there are none, and the text between them and the content. If
            the thoughts begin with TEXT, the prompt has opened them; else an answer may leave them out.
        """
        family, markers = self.family, self.thought_markers
        if family is not None and family.thoughts:
            return family.thoughts, family.content.partition("TEXT")[0]
        if markers is None or self._ends_with(markers[1], prompt_ids):
            return "", ""
        before, after = markers
        return ("" if self._ends_with(before, prompt_ids) else before) + "TEXT" + after, ""

    def _ends_with(self, text: str, prompt_ids: Sequence[int]) -> bool:
        return str(self.tokenizer.decode(list(prompt_ids[-MAX_OPENER_TOKENS:]))).rstrip().endswith(text)

    def _template(self, has_calls: bool) -> dict[str, Any]:
        """Returns the response template of answers with or without calls, with the thoughts."""
        template = EMPTY_TEMPLATE if self.family is None else self.family.template
        fields = {name: spec for name, spec in template["fields"].items() if has_calls or name != TOOL_CALLS}
        if self.thought_markers is not None and not set(fields) - TEXT_FIELDS:
            before, after = map(re.escape, self.thought_markers)
            fields[REASONING] = {
                "open_pattern": rf"{before}\s{{0,9}}+",
                "close_pattern": rf"\s{{0,9}}{after}\s{{0,9}}+",
            }
        return {**template, "fields": fields}

    @cached_property
    def _found(self) -> tuple[ToolFamily | None, bool]:
        for arguments in (json.loads(EXAMPLE.arguments), EXAMPLE.arguments):
            texts = {form: self._example(form, arguments) for form in get_args(CallIdForm)}
            for family in load_families():
                if _reads_example(family, texts[family.call_id]):
                    return self._with_own_template(family), isinstance(arguments, str)
        return self._with_own_template(None), False

    def _example(self, call_id: CallIdForm, arguments: Any) -> str:
        """Returns what the template makes of an answer with one call; "" if it rejects the call."""
        function = {"name": EXAMPLE.name, "arguments": arguments}
        call = {"id": new_call_id(call_id, EXAMPLE.name, 0), "type": "function", "function": function}
        messages = [Message("user", "Hi"), TemplateMessage("assistant", "", extra_fields={"tool_calls": [call]})]
        try:
            prompt = render_text(messages[:1], self.tokenizer, True, [EXAMPLE_TOOL])
            text = render_text(messages, self.tokenizer, False, [EXAMPLE_TOOL])
            end = turn_suffix(messages, self.tokenizer)
        except InputError:
            return ""
        # The prompt may open the reasoning, which the answer then writes in another way.
        return text[count_equal(prompt, text) :].removesuffix(end)

    def _with_own_template(self, family: ToolFamily | None) -> ToolFamily | None:
        """Returns the family with the response template that the tokenizer brings, if that one reads tool calls."""
        template = getattr(self.tokenizer, "response_template", None)
        if not isinstance(template, dict) or TOOL_CALLS not in template.get("fields", {}):
            return family
        if family is None:
            return ToolFamily("own", template, "")
        return ToolFamily(**{**vars(family), "template": template, "python": False})


def new_call_id(form: CallIdForm, name: str, index: int) -> str:
    """Returns the id of a new call. index: the number of the call in the conversation."""
    if form == "index":
        return f"functions.{name}:{index}"
    if form == "short":
        return "".join(secrets.choice(SHORT_ID_LETTERS) for _ in range(9))
    return f"chatcmpl-tool-{secrets.token_hex(16)}"


@cache
def load_families() -> tuple[ToolFamily, ...]:
    """Reads `tool_families.toml`."""
    families = []
    for name, table in load_toml(FAMILIES).items():
        response = table.pop("response")
        calls = {**response, "repeats": True, "transform": {"function": response["transform"]}}
        fields: dict[str, Any] = {TOOL_CALLS: calls, CONTENT: {}}
        if "silent" in table:
            fields["silent"] = {"open": table.pop("silent"), "close_pattern": ""}
        if "reasoning" in table:
            fields["reasoning"] = dict(zip(("open", "close"), table.pop("reasoning"), strict=True))
        families.append(ToolFamily(name, {"start_anchor_pattern": ANSWER_START, "fields": fields}, **table))
    return tuple(families)


def _reads_example(family: ToolFamily, text: str) -> bool:
    parser = ToolCallParser(family.template, [EXAMPLE_TOOL], python=family.python)
    calls = (parser.feed(text) + parser.finish()).calls
    expected = [(EXAMPLE.name, json.loads(EXAMPLE.arguments))]
    return [(call.name, json.loads(call.arguments)) for call in calls] == expected
