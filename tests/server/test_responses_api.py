"""POST /v1/responses with OpenAI's client, on the embedded pair. The client checks the order of streamed events."""

import json
from collections.abc import Iterator
from typing import Any, cast

import openai
import pytest
from tests.server.server import CHAT, MODEL, ROSES, error_of
from tests.tiny import tiny_tokenizer

from eyas.chat.tool_format import ToolFormat
from eyas.engine.request import Request, RequestOutput
from eyas.server.generation import OutputDelta
from eyas.server.openai_responses import PromptDetails, Usage
from eyas.server.response_builder import ChatResponseBuilder, ServedModel
from eyas.server.responses_api import ResponsesBuilder
from eyas.server.responses_api_requests import ResponsesRequest
from eyas.server.tool_use import find_tool_use

ORDER: Any = {
    "type": "function",
    "name": "order_roses",
    "parameters": {
        "type": "object",
        "properties": {"count": {"type": "integer", "minimum": 1, "maximum": 99}},
        "required": ["count"],
        "additionalProperties": False,
    },
}
SCHEMA = {"type": "object", "properties": {"n": {"enum": [5]}}, "required": ["n"], "additionalProperties": False}


@pytest.fixture
def client(pair) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{pair.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat_content(pair, **keys) -> str:
    """What the chat API answers."""
    with pair.client() as http:
        body = {"model": MODEL, "messages": [{"role": "user", "content": ROSES}], "temperature": 0, **keys}
        return http.post(CHAT, json=body).json()["choices"][0]["message"]["content"]


def streamed(client, **keys) -> tuple[Any, list[Any]]:
    """The final response of a stream, and its events. The client raises on events in a wrong order."""
    with client.responses.stream(model=MODEL, temperature=0, **keys) as stream:
        events = list(stream)
    return events[-1].response, events


def test_text_is_that_of_the_chat_api(pair, client):
    expected = chat_content(pair, max_tokens=100)
    reply = client.responses.create(model=MODEL, input=ROSES, temperature=0, max_output_tokens=100)
    final, events = streamed(client, input=ROSES, max_output_tokens=100)
    for response in (reply, final):
        assert response.output_text == expected
        (message,) = response.output
        assert message.status == response.status == "completed"
        assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:-1] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == expected
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_cut_answer_is_incomplete(client):
    final, events = streamed(client, input=ROSES, max_output_tokens=3)
    assert events[-1].type == "response.incomplete"
    assert (final.status, final.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (final.usage.output_tokens, final.output[0].status) == (3, "incomplete")


@pytest.mark.parametrize("stream", [False, True])
def test_calls_and_their_results(client, stream):
    def ask(items) -> Any:
        keys = {"input": items, "tools": [ORDER], "max_output_tokens": 120, "parallel_tool_calls": False}
        if stream:
            return streamed(client, tool_choice="required", **keys)[0]
        return client.responses.create(model=MODEL, temperature=0, tool_choice="required", **keys)

    conversation: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": ROSES}]}]
    first = ask(conversation)
    (call,) = first.output
    assert (call.type, call.name, call.status) == ("function_call", "order_roses", "completed")
    assert 1 <= json.loads(call.arguments)["count"] <= 99
    conversation += [item.model_dump(exclude_none=True) for item in first.output]
    conversation.append({"type": "function_call_output", "call_id": call.call_id, "output": '{"price": 3}'})
    second = ask(conversation)
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert second.output[0].type == "function_call"
    assert second.output[0].call_id != call.call_id


def test_output_of_a_schema(client):
    form: Any = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}
    reply = client.responses.create(model=MODEL, input=ROSES, text=form, temperature=0, max_output_tokens=40)
    assert json.loads(reply.output_text) == {"n": 5}
    assert reply.text.format.type == "json_schema"


def test_instructions_and_log_probabilities(pair, client):
    reply = client.responses.create(
        model=MODEL,
        input=ROSES,
        instructions="Be short.",
        temperature=0,
        max_output_tokens=5,
        top_logprobs=2,
        include=["message.output_text.logprobs"],
        metadata={"a": "b"},
        store=True,
    )
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": ROSES}]
    assert reply.output_text == chat_content(pair, messages=messages, max_tokens=5)
    logprobs = reply.output[0].content[0].logprobs
    assert len(logprobs) == 5
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs)
    assert (reply.store, reply.metadata, reply.instructions) == (False, {"a": "b"}, "Be short.")


@pytest.mark.parametrize(
    ("keys", "param", "text"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "keeps no responses"),
        ({"conversation": "conv_1"}, "conversation", "keeps no responses"),
        ({"tools": [{"type": "web_search"}]}, "tools", ""),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input", ""),
        ({"input": []}, "input", ""),
        ({"tool_choice": "required"}, "tool_choice", "only with tools"),
        ({"tools": [ORDER], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "not one of the tools"),
        ({"background": True}, "background", ""),
        ({"temperatur": 1}, "temperatur", "Did you mean temperature?"),
    ],
)
def test_what_is_refused(pair, keys, param, text):
    with pair.client() as http:
        error = error_of(http.post("/v1/responses", json={"model": MODEL, "input": "hi", **keys}), 400)
    assert error["param"].split(".")[0] == param
    assert text in error["message"]


def test_one_turn_is_one_message():
    items = [
        {"role": "developer", "content": "D"},
        {"role": "user", "content": "U"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A", "annotations": []}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "X"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "Y"}]},
        {"role": "assistant", "content": "B"},
        {"role": "assistant", "content": "C"},
    ]
    chat = ResponsesRequest.model_validate({"model": "m", "input": items}).to_chat()
    shown = [message.model_dump(exclude_none=True) for message in chat.messages]
    assert [message["role"] for message in shown] == [
        *("developer", "user", "assistant", "tool", "tool", "assistant", "assistant")
    ]
    assert (shown[2]["reasoning_content"], shown[2]["content"]) == ("R", "A")
    assert [call["id"] for call in shown[2]["tool_calls"]] == ["1", "2"]
    assert [message["content"] for message in shown[3:]] == ["X", "Y", "B", "C"]


@pytest.mark.parametrize("content", [[], [{"type": "reasoning_text", "text": "R"}]])
def test_reasoning_may_be_alone(pair, content):
    items = [{"type": "reasoning", "content": content}]
    body = {"model": MODEL, "input": items, "max_output_tokens": 2, "temperature": 0}  # a sampled answer may end
    with pair.client() as http:
        assert http.post("/v1/responses", json=body).json()["status"] == "incomplete"


@pytest.mark.parametrize("size", [1, 5, 100])
def test_thoughts_are_an_item_of_their_own(size):
    tokenizer = tiny_tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}{# <think> </think> #}")
    body = ResponsesRequest.model_validate({"model": "m", "input": "Hi"})
    chat = ChatResponseBuilder(
        ServedModel("m", tokenizer, 0), False, find_tool_use(body.to_chat(), ToolFormat(tokenizer))
    )
    builder = ResponsesBuilder(body, chat)
    request = Request("a-0", tuple(tokenizer.encode("Hi")), 9, wants_text=True)
    text = "<think>Hm.</think>Yes."
    usage = Usage(
        prompt_tokens=1, completion_tokens=1, total_tokens=2, prompt_tokens_details=PromptDetails(cached_tokens=0)
    )
    generation = cast(Any, type("Generation", (), {"requests": [request]}))
    events = json.loads(json.dumps([*builder.begin()]))
    for start in range(0, len(text), size):
        is_last = start + size >= len(text)
        delta = OutputDelta(0, (1,), text[start : start + size], (), 0, "stop" if is_last else None)
        events += [json.loads(json.dumps(event)) for event in builder.continue_with(delta, generation)]
    events += builder.end(usage, [])
    thoughts, message = events[-1]["response"]["output"]
    assert (thoughts["content"][0]["text"], message["content"][0]["text"]) == ("Hm.", "Yes.")
    deltas = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
    assert "".join(deltas) == "Hm."
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [0, 1]
    whole = ResponsesBuilder(body, chat).build_response(
        [RequestOutput(request, text=text, finish_reason="stop")], usage
    )
    assert [item.type for item in whole.output] == ["reasoning", "message"]
