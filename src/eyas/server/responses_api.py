"""Response objects and events of POST /v1/responses, built from the messages and deltas of the chat API.

    chat chunk         events
    reasoning          output_item.added, content_part.added, reasoning_text.delta ...
    content            (the item before: .done events) output_item.added, content_part.added, output_text.delta ...
    tool call          output_item.added, function_call_arguments.delta, function_call_arguments.done, output_item.done

A stream begins with response.created and ends with response.completed, .incomplete or .failed. Each event has a number.
"""

import json
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal

from pydantic import Field

from eyas.engine.request import RequestOutput
from eyas.server import openai_responses as responses
from eyas.server.generation import Generation, OutputDelta
from eyas.server.http_errors import ApiError
from eyas.server.response_builder import ChatResponseBuilder, Json
from eyas.server.responses_api_requests import ResponsesRequest

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class TextPart(responses.ResponseModel):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[responses.TokenLogprobs]


class ReasoningPart(responses.ResponseModel):
    """The text of a reasoning item."""

    type: Literal["reasoning_text"]
    text: str


class MessageOutput(responses.ResponseModel):
    """A message of the model."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: Status
    content: list[TextPart]


class CallOutput(responses.ResponseModel):
    """A function call of the model. arguments: a JSON object as text."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


class ReasoningOutput(responses.ResponseModel):
    """The thoughts of the model."""

    type: Literal["reasoning"]
    id: str
    summary: list[Any]
    content: list[ReasoningPart]
    status: Status


OutputItem = MessageOutput | CallOutput | ReasoningOutput


class InputDetails(responses.PromptDetails):
    """The input tokens that were found in the prefix cache. The server does not count those that it adds."""

    cache_write_tokens: int


class ResponsesUsage(responses.ResponseModel):
    """The token counts of one call."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: responses.CompletionDetails
    total_tokens: int


class IncompleteDetails(responses.ResponseModel):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponsesError(responses.ResponseModel):
    """Why a response failed."""

    code: Literal["server_error"]
    message: str


class ResponsesResponse(responses.ResponseModel):
    """The body of a response to POST /v1/responses without stream."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Status
    output: list[OutputItem]
    error: ResponsesError | None
    incomplete_details: IncompleteDetails | None
    usage: ResponsesUsage | None
    parallel_tool_calls: bool
    tool_choice: Any
    tools: list[Any]
    store: Literal[False]
    background: Literal[False]
    previous_response_id: None
    truncation: Literal["disabled"]
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str] = Field(description="As in the request.")
    temperature: float
    top_p: float
    top_logprobs: int
    reasoning: Json
    text: Json


class ResponsesBuilder:
    """The builder of the response, or the events, of one call. It may be used once."""

    def __init__(self, body: ResponsesRequest, chat: ChatResponseBuilder) -> None:
        self._chat = chat
        self._header = _describe(body) | {"id": f"resp_{chat.call_id}", "object": "response"}
        self._header |= {"created_at": chat.header["created"], "model": chat.header["model"]}
        self._items: list[Json] = []
        self._is_open = False  # the last item may still grow
        self._reason: str | None = None
        self._num_events = 0

    def build_response(self, outputs: Sequence[RequestOutput], usage: responses.Usage) -> ResponsesResponse:
        """Builds the response of a call without stream."""
        (choice,) = self._chat.build_response(outputs, usage).choices
        for _ in chain(self._add(choice.message, choice.logprobs), self._finish(choice.finish_reason)):
            pass  # the events are for a stream; here only the items count
        return self._response(self._chat.add_details(usage, outputs))

    def begin(self) -> Iterator[Json]:
        """Yields the first events."""
        response = self._response(None).model_dump()
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def continue_with(self, delta: OutputDelta, generation: Generation) -> Iterator[Json]:
        """Yields the events of a delta."""
        for chunk in self._chat.build_chunks(delta, generation.requests[delta.index], {}):
            choice = chunk.choices[0]
            yield from self._add(choice.delta, choice.logprobs)
            if choice.finish_reason is not None:
                yield from self._finish(choice.finish_reason)

    def end(self, usage: responses.Usage, outputs: Sequence[RequestOutput]) -> Iterator[Json]:
        """Yields the last event."""
        response = self._response(self._chat.add_details(usage, outputs))
        yield self._event(f"response.{response.status}", response=response.model_dump())

    def fail(self, error: ApiError) -> Iterator[Json]:
        """Yields the last event of a response that the server could not finish."""
        response = self._response(None).model_dump()
        failure = {"code": "server_error", "message": error.body.error.message}
        yield self._event("response.failed", response=response | {"status": "failed", "error": failure})

    def _add(
        self, part: responses.ResponseMessage | responses.Delta, logprobs: responses.ChatLogprobs | None
    ) -> Iterator[Json]:
        """Yields the events of a whole message or of its new part."""
        if part.reasoning_content:
            yield from self._add_text("reasoning", part.reasoning_content, [])
        if part.content:
            entries = [] if logprobs is None else logprobs.content
            yield from self._add_text("message", part.content, [entry.model_dump() for entry in entries])
        for call in part.tool_calls:
            if call.id:
                name = call.function.name
                yield from self._open({"type": "function_call", "call_id": call.id, "name": name, "arguments": ""})
            if arguments := call.function.arguments:
                self._items[-1]["arguments"] += arguments
                yield self._item_event("response.function_call_arguments.delta", delta=arguments)

    def _add_text(self, kind: str, text: str, logprobs: list[Json]) -> Iterator[Json]:
        if not self._is_open or self._items[-1]["type"] != kind:
            role = {"role": "assistant"} if kind == "message" else {"summary": []}
            yield from self._open({"type": kind, **role, "content": []})
            empty: Json = {"type": "reasoning_text", "text": ""}
            if kind == "message":
                empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self._items[-1]["content"].append(empty)
            yield self._item_event("response.content_part.added", content_index=0, part=empty)
        (part,) = self._items[-1]["content"]
        part["text"] += text
        if kind == "message":
            part["logprobs"] += logprobs
        extra = {"logprobs": logprobs} if kind == "message" else {}
        yield self._item_event(f"response.{part['type']}.delta", content_index=0, delta=text, **extra)

    def _open(self, item: Json) -> Iterator[Json]:
        yield from self._close("completed")
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[item["type"]]
        item = {"id": f"{prefix}_{uuid.uuid4().hex}", "status": "in_progress", **item}
        self._items.append(item)
        self._is_open = True
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=item)

    def _close(self, status: Status) -> Iterator[Json]:
        """Ends the last item, if it is still open."""
        if not self._is_open:
            return
        item = self._items[-1]
        item["status"] = status
        self._is_open = False
        if item["type"] == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield self._item_event("response.function_call_arguments.done", **done)
        else:
            (part,) = item["content"]
            texts = {"text": part["text"]} | ({"logprobs": part["logprobs"]} if "logprobs" in part else {})
            yield self._item_event(f"response.{part['type']}.done", content_index=0, **texts)
            yield self._item_event("response.content_part.done", content_index=0, part=part)
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _finish(self, reason: str) -> Iterator[Json]:
        if not self._items:
            yield from self._add_text("message", "", [])
        self._reason = reason
        yield from self._close("incomplete" if reason == "length" else "completed")

    def _item_event(self, kind: str, **fields: Any) -> Json:
        return self._event(kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, **fields)

    # Items and parts change later: an event is valid until the next one is asked for.
    def _event(self, kind: str, **fields: Any) -> Json:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **fields}

    def _response(self, usage: responses.Usage | None) -> ResponsesResponse:
        is_cut = self._reason == "length"
        return ResponsesResponse.model_validate(
            {
                **self._header,
                "status": "in_progress" if usage is None else "incomplete" if is_cut else "completed",
                "output": self._items,
                "error": None,
                "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
                "usage": None if usage is None else _convert_usage(usage),
            }
        )


async def stream_response_events(generation: Generation, builder: ResponsesBuilder) -> AsyncIterator[bytes]:
    """Yields the server-sent events of a submitted generation."""
    yield _to_bytes(builder.begin())
    try:
        async for delta in generation.deltas():
            if events := _to_bytes(builder.continue_with(delta, generation)):
                yield events
        yield _to_bytes(builder.end(generation.usage, generation.finished_outputs))
    except ApiError as error:
        yield _to_bytes(builder.fail(error))


def _to_bytes(events: Iterable[Json]) -> bytes:
    texts = (f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events)
    return "".join(texts).encode()


def _describe(body: ResponsesRequest) -> Json:
    """Returns the parameters of the request that the response repeats."""
    text = {} if body.text is None else body.text.model_dump(exclude_none=True, by_alias=True)
    choice = body.tool_choice or "auto"
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "text": {"format": {"type": "text"}} | text,
        "store": False,
        "background": False,
        "previous_response_id": None,
        "truncation": "disabled",
    }


def _convert_usage(usage: responses.Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": usage.completion_tokens_details.model_dump(),
        "total_tokens": usage.total_tokens,
    }
