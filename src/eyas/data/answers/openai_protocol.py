"""Builds chat completion requests from questions and parses the replies of OpenAI-compatible servers.

With `return_token_ids`, eyas and vLLM return `prompt_token_ids` beside the choices and `token_ids` in the choice.
SGLang returns both in the choice since its pull request 30917 (July 2026), except in streams; older versions ignore the
key. The ids include reasoning and tool calls, as the target generated them. Requests do not stream.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, NonNegativeInt, ValidationError

from eyas.base.json_parser import describe_error
from eyas.chat.conversation import Finish, Message, ToolCall
from eyas.data.answers.responder import Question, derive_seed


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
    return value | ({"reasoning": value["reasoning_content"]} if "reasoning_content" in value else {})


def message_texts(message: Message) -> list[str]:
    """Returns all texts of a message: reasoning, content, and the names and arguments of tool calls."""
    calls = [text for call in message.tool_calls for text in (call.name, call.arguments)]
    return [message.reasoning or "", message.content, *calls]


def _repair(value: Any) -> Any:
    """Replaces half a surrogate pair in a text: JSON can contain it, but a file in UTF-8 cannot."""
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value


_Text = Annotated[str, BeforeValidator(_repair)]
_TokenIds = list[NonNegativeInt] | None


class _Function(BaseModel, strict=True):
    name: Annotated[_Text, Field(min_length=1)]
    arguments: _Text | None = None


class _Call(BaseModel, strict=True):
    id: _Text | None = None
    function: _Function


class _Answer(BaseModel, strict=True):
    content: _Text | None = None
    reasoning_content: _Text | None = None
    reasoning: _Text | None = None
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel, strict=True):
    message: _Answer
    finish_reason: Literal["stop", "length", "tool_calls", "function_call", "content_filter"]
    token_ids: _TokenIds = None
    prompt_token_ids: _TokenIds = None


class _Reply(BaseModel, strict=True):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    prompt_token_ids: _TokenIds = None


def parse_reply(value: Any, max_tokens: int) -> ChatReply:
    """Parses the first choice of a reply. value: the reply as JSON.

    Raises:
        MalformedReplyError: The reply does not follow the protocol, or the answer is longer than max_tokens.
        ContentFilteredError: The server's content filter removed the answer.
    """
    try:
        reply = _Reply.model_validate(value)
    except ValidationError as error:
        raise MalformedReplyError(describe_error(error)) from None
    choice, message = reply.choices[0], reply.choices[0].message
    if choice.finish_reason == "content_filter":
        raise ContentFilteredError
    if choice.token_ids is not None and len(choice.token_ids) > max_tokens:
        raise MalformedReplyError(f"the answer has {len(choice.token_ids)} tokens, above max_tokens={max_tokens}")
    functions = [(call.id or "", call.function) for call in message.tool_calls or ()]
    calls = [ToolCall(call_id, function.name, function.arguments or "") for call_id, function in functions]
    reasoning = message.reasoning_content or message.reasoning
    answer = Message("assistant", message.content or "", reasoning=reasoning, tool_calls=tuple(calls))
    finish: Finish = "length" if choice.finish_reason == "length" else "stop"
    prompt_ids = choice.prompt_token_ids if reply.prompt_token_ids is None else reply.prompt_token_ids
    return ChatReply(answer, finish, choice.token_ids or None, prompt_ids or None)
