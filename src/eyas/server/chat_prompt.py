"""What a client wrote -> prompt ids, through the one function that renders chats."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from eyas.chat.conversation import Message, Role
from eyas.chat.render import render_prompt
from eyas.server.http_errors import bad_request
from eyas.server.openai_requests import AssistantMessage, ChatMessage, Tool, ToolCall, ToolMessage, content_text


@dataclass(frozen=True)
class _TemplateMessage(Message):
    """A message with what only templates know: the tools' calls and results, a name."""

    extra_fields: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"role": self.role, "content": self.content, **self.extra_fields}


def encode_chat(
    messages: Sequence[ChatMessage], tools: Sequence[Tool], tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...]:
    """The ids before the next answer. ApiError, or InputError of a template that refuses them."""
    described = [tool.model_dump(exclude_none=True) for tool in tools]
    return tuple(
        render_prompt([_to_message(place, message) for place, message in enumerate(messages)], tokenizer, described)
    )


def encode_text(text: str, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """A plain prompt, with the begin-of-text token if the tokenizer adds one: no template does it here."""
    return tuple(tokenizer.encode(text, verbose=False))


def _to_message(place: int, message: ChatMessage) -> Message:
    rest: dict[str, Any] = {} if message.name is None else {"name": message.name}
    if isinstance(message, AssistantMessage) and message.tool_calls is not None:
        rest["tool_calls"] = [_to_tool_call(place, number, call) for number, call in enumerate(message.tool_calls)]
    if isinstance(message, ToolMessage):
        rest["tool_call_id"] = message.tool_call_id
    role = "system" if message.role == "developer" else message.role
    # Templates take roles and contents that training data never has: a tool's result, an answer of calls alone.
    return _TemplateMessage(cast(Role, role), cast(str, content_text(message.content)), rest)


def _to_tool_call(place: int, number: int, call: ToolCall) -> dict[str, Any]:
    """Templates write the arguments as JSON themselves, so they get the object."""
    try:
        arguments = json.loads(call.function.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        param = f"messages.{place}.tool_calls.{number}.function.arguments"
        raise bad_request(f"{param} that is no JSON object", "a JSON object as text", "correct it", param=param)
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
