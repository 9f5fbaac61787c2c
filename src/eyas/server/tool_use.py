"""Tools of a chat request: which may be called, what the grammar enforces, and the calls in the answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.chat.tool_format import ToolFamily, ToolFormat, new_call_id
from eyas.chat.tool_grammar import CallRules
from eyas.chat.tool_parser import ParsedCall, ParsedText
from eyas.engine.request import Request, RequestOutput
from eyas.server.http_errors import ApiError, bad_request
from eyas.server.openai_messages import AllowedTools, Tool, ToolReference
from eyas.server.openai_requests import ChatRequest, chosen_names

NO_CALLS = ToolFamily("none", {}, "")


@dataclass(frozen=True)
class ToolUse:
    """The tools that the answers of one request may call, or none if answers have only thoughts and text.

    Attributes:
        format: How the target writes calls.
        family: Its family.
        tools: The tools that may be called; the template gets them.
        choice: "auto", "required", or "named" for one function.
        is_parallel: True if an answer may have several calls.
        num_earlier_calls: The calls in the messages of the request.
    """

    format: ToolFormat
    family: ToolFamily
    tools: Sequence[Tool]
    choice: str
    is_parallel: bool
    num_earlier_calls: int

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The tools as JSON objects."""
        return [tool.model_dump(exclude_none=True) for tool in self.tools]

    def rules(self, content: Mapping[str, Any] | None) -> CallRules | None:
        """Returns what the grammar must enforce; None if nothing.

        Args:
            content: the JSON schema of an answer without a call; None for any text.

        Raises:
            ApiError: the calls of this target cannot be enforced.
        """
        must_call = self.choice != "auto"
        if not must_call and content is None and not any(tool.function.strict for tool in self.tools):
            return None
        if self.family.call is None:
            text = f"This server cannot enforce calls in the form of this model ({self.family.name}). "
            fix = "Use tool_choice auto, and tools without strict."
            raise bad_request(text + fix, param="tool_choice" if must_call else "tools", code="tools_not_supported")
        return CallRules(self.definitions, must_call, self.choice == "named" or not self.is_parallel, content)


def find_tool_use(body: ChatRequest, tool_format: ToolFormat) -> ToolUse | None:
    """Returns how to read the answers; None if they are only text. Raises ApiError if the target cannot call tools."""
    if not body.tools or body.tool_choice == "none":
        return ToolUse(tool_format, NO_CALLS, (), "auto", True, 0) if tool_format.reasons else None
    if not tool_format.knows_tools:
        raise no_tools("tools")
    if tool_format.family is None:
        text = "This server cannot read the tool calls of this model. Set tool_choice to none or remove tools."
        raise bad_request(text, param="tools", code="tools_not_supported")
    names, choice = chosen_names(body.tool_choice), body.tool_choice or "auto"
    if isinstance(choice, ToolReference):
        choice = "named"
    elif isinstance(choice, AllowedTools):
        choice = choice.allowed_tools.mode
    tools = [tool for tool in body.tools if names is None or tool.function.name in names]
    earlier = sum(len(getattr(message, "tool_calls", None) or ()) for message in body.messages)
    return ToolUse(tool_format, tool_format.family, tools, choice, body.parallel_tool_calls is not False, earlier)


def no_tools(param: str) -> ApiError:
    """Builds the error of a target whose chat template has no tools."""
    text = "The chat template of this model has no tools. Remove them, or serve a model that was trained with tools."
    return bad_request(text, param=param, code="tools_not_supported")


class AnswerParser:
    """The parser of one answer that may have thoughts and tool calls. It returns the keys of messages and deltas."""

    def __init__(self, use: ToolUse, request: Request) -> None:
        self._use = use
        self._parser = use.format.parser(use.definitions, request.prompt_ids, has_calls=bool(use.tools))
        self._num_calls = 0

    def message(self, text: str) -> dict[str, Any]:
        """Returns the keys of a message for a whole answer."""
        parsed = self._parse(text, is_last=True)
        content = parsed.content or (None if parsed.calls or parsed.reasoning else "")
        message: dict[str, Any] = _texts(parsed) | {"content": content}
        calls = [self._call(number, call) for number, call in enumerate(parsed.calls)]
        return message | ({"tool_calls": calls} if calls else {})

    def deltas(self, text: str, is_last: bool) -> list[dict[str, Any]]:
        """Returns the keys of the deltas for new text. A call has two: its id and name, then its arguments."""
        content = None if is_last else self._parser.feed_content(text)
        if content is not None:
            return [{"content": content}] if content else []
        first = self._num_calls
        parsed = self._parse(text, is_last)
        deltas: list[dict[str, Any]] = [_texts(parsed)] if parsed.content or parsed.reasoning else []
        for number, parsed_call in enumerate(parsed.calls, first):
            call: dict[str, Any] = self._call(number, parsed_call) | {"index": number}
            arguments = {"arguments": call["function"]["arguments"]}
            deltas.append({"tool_calls": [call | {"function": call["function"] | {"arguments": ""}}]})
            deltas.append({"tool_calls": [{"index": number, "function": arguments}]})
        return deltas

    def finish_reason(self, reason: str | None) -> str | None:
        """Returns the finish reason of the answer. As with OpenAI, an answer to a named tool ends with "stop"."""
        return "tool_calls" if reason == "stop" and self.has_calls and self._use.choice != "named" else reason

    @property
    def has_calls(self) -> bool:
        """True if the answer has calls so far."""
        return self._num_calls > 0

    def count_thought_tokens(self, output: RequestOutput) -> int:
        """Returns the number of tokens that are thoughts in the output, which has been parsed to its end."""
        return self._parser.phases(output.text_ends).count("thoughts")

    def _parse(self, text: str, is_last: bool) -> ParsedText:
        parsed = self._parser.feed(text)
        if is_last:
            parsed += self._parser.finish()
        if not parsed.calls:
            return parsed
        calls = parsed.calls if self._use.is_parallel else parsed.calls[: 1 - self._num_calls]
        self._num_calls += len(calls)
        return ParsedText(parsed.content, parsed.reasoning, calls)

    def _call(self, number: int, call: ParsedCall) -> dict[str, Any]:
        call_id = new_call_id(self._use.family.call_id, call.name, self._use.num_earlier_calls + number)
        return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _texts(parsed: ParsedText) -> dict[str, Any]:
    texts = {"content": parsed.content} if parsed.content else {}
    return texts | {"reasoning_content": text, "reasoning": text} if (text := parsed.reasoning) else texts
