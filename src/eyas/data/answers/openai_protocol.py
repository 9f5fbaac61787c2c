"""Builds chat completion requests from questions and parses the replies of OpenAI-compatible servers.

With `return_token_ids`, eyas and vLLM return `prompt_token_ids` beside the choices and `token_ids` in the choice.
SGLang returns both in the choice since its pull request 30917 (July 2026), except in streams; older versions ignore the
key. The ids include reasoning and tool calls, as the target generated them. Requests do not stream.
"""

from dataclasses import dataclass
from typing import Any

from eyas.chat.conversation import Finish, Message, ToolCall
from eyas.data.answers.responder import Question, derive_seed

FINISHES: dict[str, Finish] = {"stop": "stop", "tool_calls": "stop", "function_call": "stop", "length": "length"}
CONTENT_FILTER = "content_filter"


class FailedAttemptError(Exception):
    """A request that failed and may succeed later. Its text names the cause and quotes nothing from the reply.

    Attributes:
        wait_s: The seconds to wait before the next attempt, from the server's Retry-After.
    """

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class MalformedReplyError(FailedAttemptError):
    """A reply that does not follow the protocol."""


class ContentFilteredError(Exception):
    """A reply without an answer, because the server's content filter removed it."""


@dataclass(frozen=True)
class ChatReply:
    """The answer in a server's reply.

    Attributes:
        message: The answer as a message.
        finish: "stop" for a complete answer, "length" for one that was cut at max_tokens.
        token_ids: The token ids of the answer; None if the server does not return them.
        prompt_ids: The token ids of the prompt; None if the server does not return them.
    """

    message: Message
    finish: Finish
    token_ids: list[int] | None
    prompt_ids: list[int] | None


def build_request(question: Question, model: str, seed: int, with_ids: bool) -> dict[str, Any]:
    """Returns the body of a POST /chat/completions request.

    Args:
        question: The question.
        model: The name of the target on the server.
        seed: The seed of sampling, from the recipe.
        with_ids: Requests the token ids of prompt and answer.
    """
    decoding = question.decoding
    body: dict[str, Any] = {
        "model": model,
        "messages": [_to_wire(message) for message in question.messages],
        "max_tokens": decoding.max_tokens,
        "temperature": decoding.temperature,
        "seed": derive_seed(seed, question.id) if decoding.temperature > 0 else None,
        "top_p": decoding.top_p,
        "top_k": decoding.top_k,
        "chat_template_kwargs": dict(question.template_variables) or None,
        "return_token_ids": with_ids or None,
    }
    return {key: value for key, value in body.items() if value is not None}


def _to_wire(message: Message) -> dict[str, Any]:
    """Returns the message with its reasoning under both names: vLLM reads `reasoning`, SGLang `reasoning_content`."""
    value = message.to_json()
    if "reasoning_content" in value:
        value["reasoning"] = value["reasoning_content"]
    return value


def message_texts(message: Message) -> list[str]:
    """Returns all texts of a message: reasoning, content, and the names and arguments of tool calls."""
    calls = [text for call in message.tool_calls for text in (call.name, call.arguments)]
    return [message.reasoning or "", message.content, *calls]


def parse_reply(value: Any, max_tokens: int) -> ChatReply:
    """Parses the first choice of a reply. value: the reply as JSON.

    Raises:
        MalformedReplyError: The reply does not follow the protocol, or the answer is longer than max_tokens.
        ContentFilteredError: The server's content filter removed the answer.
    """
    choices = _require_list(_require_object(value, "the reply").get("choices"), "choices")
    if not choices:
        raise MalformedReplyError("the reply has no choices")
    choice = _require_object(choices[0], "the choice")
    message = _require_object(choice.get("message"), "the message")
    finish = choice.get("finish_reason")
    if finish == CONTENT_FILTER:
        raise ContentFilteredError
    if not isinstance(finish, str) or finish not in FINISHES:
        raise MalformedReplyError("finish_reason is not stop, length or tool_calls")
    token_ids = _parse_ids(choice.get("token_ids"))
    if token_ids is not None and len(token_ids) > max_tokens:
        raise MalformedReplyError(f"the answer has {len(token_ids)} tokens, above max_tokens={max_tokens}")
    prompt_ids = value.get("prompt_token_ids")
    return ChatReply(
        Message(
            "assistant",
            _parse_text(message.get("content")) or "",
            reasoning=_parse_text(message.get("reasoning_content")) or _parse_text(message.get("reasoning")),
            tool_calls=tuple(map(_parse_call, _require_list(message.get("tool_calls") or [], "tool_calls"))),
        ),
        FINISHES[finish],
        token_ids or None,
        _parse_ids(choice.get("prompt_token_ids") if prompt_ids is None else prompt_ids) or None,
    )


def _require_list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise MalformedReplyError(f"{name} is not a list")
    return value


def _require_object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedReplyError(f"{name} is not an object")
    return value


def _parse_text(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise MalformedReplyError("a text field is not a string")
    # JSON can contain half a surrogate pair, which a file in UTF-8 cannot.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _parse_call(value: Any) -> ToolCall:
    call = _require_object(value, "the tool call")
    function = _require_object(call.get("function"), "the function of the tool call")
    name, arguments = _parse_text(function.get("name")), _parse_text(function.get("arguments"))
    if not name:
        raise MalformedReplyError("a tool call has no name")
    return ToolCall(_parse_text(call.get("id")) or "", name, arguments or "")


def _parse_ids(value: Any) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(token) is int and token >= 0 for token in value):
        raise MalformedReplyError("the token ids are not whole numbers")
    return value
