"""What a client wrote -> prompt ids, through the one function that renders chats."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from eyas.chat.conversation import Message, Role
from eyas.chat.render import render_prompt
from eyas.server.http_errors import refusal
from eyas.server.openai_requests import AssistantMessage, ChatMessage, Tool, ToolCall, ToolMessage, text_of


@dataclass(frozen=True)
class _WireMessage(Message):
    """A message with what only templates know: the tools' calls and results, a name."""

    rest: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"role": self.role, "content": self.content, **self.rest}


def chat_ids(
    messages: Sequence[ChatMessage], tools: Sequence[Tool], tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...]:
    """The ids before the next answer. ApiError, or InputError of a template that refuses them."""
    described = [tool.model_dump(exclude_none=True) for tool in tools]
    return tuple(
        render_prompt([_message(place, message) for place, message in enumerate(messages)], tokenizer, described)
    )


def text_ids(text: str, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """A plain prompt, with the begin-of-text token if the tokenizer adds one: no template does it here."""
    return tuple(tokenizer.encode(text, verbose=False))


def _message(place: int, message: ChatMessage) -> Message:
    rest: dict[str, Any] = {} if message.name is None else {"name": message.name}
    if isinstance(message, AssistantMessage) and message.tool_calls is not None:
        rest["tool_calls"] = [_call(place, number, call) for number, call in enumerate(message.tool_calls)]
    if isinstance(message, ToolMessage):
        rest["tool_call_id"] = message.tool_call_id
    role = "system" if message.role == "developer" else message.role
    # Templates take roles and contents that training data never has: a tool's result, an answer of calls alone.
    return _WireMessage(cast(Role, role), cast(str, text_of(message.content)), rest)


def _call(place: int, number: int, call: ToolCall) -> dict[str, Any]:
    """Templates write the arguments as JSON themselves, so they get the object."""
    try:
        arguments = json.loads(call.function.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        param = f"messages.{place}.tool_calls.{number}.function.arguments"
        raise refusal(f"{param} that is no JSON object", "a JSON object as text", "correct it", param=param)
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
