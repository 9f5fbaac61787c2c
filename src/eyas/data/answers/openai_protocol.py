"""One question as a request to an OpenAI-compatible server, and the server's reply as an answer.

Token ids: with `return_token_ids` eyas and vLLM give `prompt_token_ids` beside the choices and `token_ids` in the
choice. SGLang gives both in the choice since its pull request 30917 (July 2026), except in streams; before, it ignored
the key. The ids are those generated, before reasoning and tool calls are split off. Replies are asked for whole.
"""

from dataclasses import dataclass
from typing import Any

from eyas.chat.conversation import Finish, Message, ToolCall
from eyas.data.answers.responder import Question, seed_of

FINISHES: dict[str, Finish] = {"stop": "stop", "tool_calls": "stop", "function_call": "stop", "length": "length"}
FILTERED = "content_filter"


class MalformedReplyError(Exception):
    """A reply that is no answer; its text says what is wrong without a word of the reply."""


class ContentFilteredError(Exception):
    """The server keeps the answer back."""


@dataclass(frozen=True)
class ChatReply:
    """What a server answered. ids: None where it gave none."""

    message: Message
    finish: Finish
    token_ids: tuple[int, ...] | None
    prompt_ids: tuple[int, ...] | None


def build_request(question: Question, model: str, seed: int, with_ids: bool) -> dict[str, Any]:
    """The body of POST /chat/completions. with_ids: ask for token ids."""
    decoding = question.decoding
    body: dict[str, Any] = {
        "model": model,
        "messages": [_wire_message(message) for message in question.messages],
        "max_tokens": decoding.max_tokens,
        "temperature": decoding.temperature,
    }
    if decoding.temperature > 0:
        body["seed"] = seed_of(seed, question.id)
    if decoding.top_p is not None:
        body["top_p"] = decoding.top_p
    if decoding.top_k is not None:
        body["top_k"] = decoding.top_k
    if with_ids:
        body["return_token_ids"] = True
    return body


def _wire_message(message: Message) -> dict[str, Any]:
    """An earlier answer goes back as it came. vLLM reads `reasoning`, SGLang `reasoning_content`."""
    value = message.to_json()
    if "reasoning_content" in value:
        value["reasoning"] = value["reasoning_content"]
    return value


def parse_reply(value: Any, max_tokens: int) -> ChatReply:
    """The first choice of a reply. GarbledError, FilteredError."""
    choice = _object(_first(_object(value, "a reply").get("choices")), "a choice")
    message = _object(choice.get("message"), "a message")
    finish = choice.get("finish_reason")
    if finish == FILTERED:
        raise ContentFilteredError
    if not isinstance(finish, str) or finish not in FINISHES:
        raise MalformedReplyError("a finish_reason that is none of stop, length, tool_calls")
    token_ids = _ids(choice.get("token_ids"))
    if token_ids is not None and len(token_ids) > max_tokens:
        raise MalformedReplyError(f"an answer of {len(token_ids)} tokens where {max_tokens} were asked for")
    prompt_ids = value.get("prompt_token_ids")
    return ChatReply(
        Message(
            "assistant",
            _text(message.get("content")) or "",
            reasoning=_text(message.get("reasoning_content")) or _text(message.get("reasoning")),
            tool_calls=tuple(_call(call) for call in _list(message.get("tool_calls") or [])),
        ),
        FINISHES[finish],
        token_ids or None,
        _ids(choice.get("prompt_token_ids") if prompt_ids is None else prompt_ids) or None,
    )


def _first(choices: Any) -> Any:
    if not _list(choices):
        raise MalformedReplyError("a reply without choices")
    return choices[0]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise MalformedReplyError("something else where a list should be")
    return value


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedReplyError(f"{name} that is no object")
    return value


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise MalformedReplyError("a text that is no string")
    # JSON can spell half a surrogate pair, which no file in UTF-8 holds.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _call(value: Any) -> ToolCall:
    call = _object(value, "a tool call")
    function = _object(call.get("function"), "a function")
    name, arguments = _text(function.get("name")), _text(function.get("arguments"))
    if not name:
        raise MalformedReplyError("a tool call without a name")
    return ToolCall(_text(call.get("id")) or "", name, arguments or "")


def _ids(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(token) is int and token >= 0 for token in value):
        raise MalformedReplyError("token ids that are no whole numbers")
    return tuple(value)
