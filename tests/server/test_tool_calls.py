"""Tool calls as OpenAI's client sees them, on the embedded pair with drafted trees."""

import json
import threading
from typing import Any, cast

import pytest
import torch
from pydantic import TypeAdapter
from tests.server.server import CHAT, MODEL, ROSES, error_of, serving
from transformers import AutoTokenizer

from eyas.chat.tool_format import ToolFormat
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.async_engine import AsyncEngine
from eyas.engine.engine import Engine
from eyas.engine.request import FinishReason, Request, RequestOutput
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, resolve_target
from eyas.recipe import resolve_head
from eyas.server.generation import OutputDelta
from eyas.server.openai_messages import Messages
from eyas.server.openai_requests import ChatRequest
from eyas.server.response_builder import ChatResponseBuilder, ServedModel
from eyas.server.tool_use import find_tool_use
from eyas.tree.shape import chain_shape

ORDER = {
    "type": "function",
    "function": {
        "name": "order_roses",
        "description": "Orders roses.",
        "parameters": {
            "type": "object",
            "properties": {
                "count": {"type": "integer", "minimum": 1, "maximum": 99},
                "place": {"type": "string", "maxLength": 12},
                "color": {"enum": ["red", "white"]},
            },
            "required": ["count", "place"],
            "additionalProperties": False,
        },
    },
}
DAY = {"type": "object", "properties": {"day": {"enum": ["today"]}}, "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": DAY}}
TOOLS = [ORDER, WEATHER]
ASK = [{"role": "user", "content": ROSES}]
NAMED = {"type": "function", "function": {"name": "order_roses"}}


def ask(pair, **keys) -> dict[str, Any]:
    body = {"model": MODEL, "messages": ASK, "tools": TOOLS, "temperature": 0, "max_tokens": 120, **keys}
    with pair.client() as client:
        reply = client.post(CHAT, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def check_call(call: dict[str, Any]) -> None:
    """Asserts that the arguments of a call fit the schema of its function."""
    assert list(call) == ["id", "type", "function"]
    assert call["id"].startswith("chatcmpl-tool-")
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        assert arguments.get("day", "today") == "today"
        return
    assert call["function"]["name"] == "order_roses"
    assert {"count", "place"} <= set(arguments) <= {"count", "place", "color"}
    assert 1 <= arguments["count"] <= 99
    assert len(arguments["place"]) <= 12
    assert arguments.get("color") in (None, "red", "white")


# --- enforced calls --------------------------------------------------------------------------------------------------


def test_a_required_call(pair):
    (choice,) = ask(pair, tool_choice="required", parallel_tool_calls=False)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert list(choice["message"]) == ["role", "content", "refusal", "tool_calls"]
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    check_call(call)


def test_a_named_call_ends_with_stop(pair):
    (choice,) = ask(pair, tool_choice=NAMED)["choices"]
    assert choice["finish_reason"] == "stop"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "order_roses"
    check_call(call)


def test_allowed_tools(pair):
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]}
    reply = ask(pair, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}, parallel_tool_calls=False, n=2)
    for choice in reply["choices"]:
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "weather"


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_calls_at_temperature_1_fit_their_schemas(pair, choice):
    reply = ask(pair, tool_choice=choice, temperature=1, seed=7, n=8, parallel_tool_calls=False)
    assert len({choice["message"]["tool_calls"][0]["function"]["arguments"] for choice in reply["choices"]}) > 1
    for answer in reply["choices"]:
        (call,) = answer["message"]["tool_calls"]
        check_call(call)


def test_a_call_that_max_tokens_cuts_is_content(pair):
    (choice,) = ask(pair, tool_choice="required", max_tokens=8)["choices"]
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]
    assert '<tool_call>\n{"name": "'.startswith(choice["message"]["content"][:10])


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_stop_string_inside_a_call_ends_the_answer(pair, choice):
    """vLLM does the same. A cut call becomes content. If its arguments are complete, it stays a call."""
    keys = {"tool_choice": choice, "parallel_tool_calls": False, "return_token_ids": True}
    (whole,) = ask(pair, **keys)["choices"]
    (call,) = whole["message"]["tool_calls"]
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    text = f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    inside, ending = arguments[len(arguments) // 2 :][:4], "}\n</tool"
    for stop in (inside, [ending, inside], [ending[1:]]):
        stops = [stop] if isinstance(stop, str) else stop
        cut = min((text.find(one) for one in stops if one in text), default=len(text))
        is_whole = text[:cut].count("{") == text[:cut].count("}")
        answers = [ask(pair, stop=stop, speculation=mode, **keys)["choices"][0] for mode in ("off", "max")]
        for answer in answers:
            message = answer["message"]
            assert answer["token_ids"] == whole["token_ids"][: len(answer["token_ids"])]
            if is_whole:
                assert message["tool_calls"][0]["function"] == call["function"]
                assert answer["finish_reason"] == whole["finish_reason"]
            else:
                assert (message["content"], answer["finish_reason"]) == (text[:cut], "stop")
                assert "tool_calls" not in message
        events = events_of(pair, stop=stop, **{**keys, "return_token_ids": False})
        choices = [event["choices"][0] for event in events]
        assert "".join(one["delta"].get("content", "") for one in choices) == ("" if is_whole else text[:cut])
        assert any("tool_calls" in one["delta"] for one in choices) == is_whole
        assert choices[-1]["finish_reason"] == answers[0]["finish_reason"]


def test_strict_tools_leave_text_alone_and_a_schema_of_the_content_too(pair):
    strict = [{**ORDER, "function": {**ORDER["function"], "strict": True}}]
    free, bound = (ask(pair, tools=tools, max_tokens=24)["choices"][0] for tools in ([ORDER], strict))
    assert bound["message"]["content"] == free["message"]["content"]
    schema = {"type": "object", "properties": {"n": {"enum": [5]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    (choice,) = ask(pair, response_format=form)["choices"]
    assert "tool_calls" in choice["message"] or json.loads(choice["message"]["content"]) == {"n": 5}


def test_token_ids_and_logprobs_are_those_of_all_tokens(pair):
    reply = ask(pair, tool_choice=NAMED, return_token_ids=True, logprobs=True)
    (choice,) = reply["choices"]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == reply["usage"]["completion_tokens"]


def test_a_token_that_ends_call_and_answer_reaches_the_parser(pair):
    """Harmony's <|call|> is such a token. Here it is the one that always ends an answer."""
    engine, texts = pair.api.async_engine, []
    prompt = tuple(pair.api.parser.encode_messages(TypeAdapter(Messages).validate_python(ASK), ()))
    end = next(iter(engine.engine.target.info.eos_ids))
    for shown_ids in (frozenset(), frozenset([end])):
        done = threading.Event()
        request = Request(f"end-{len(shown_ids)}", prompt, 300, wants_text=True, shown_ids=shown_ids)

        def on_tokens(output: RequestOutput, count: int, done: threading.Event = done) -> None:
            if output.finish_reason is not None:
                texts.append((output.text, output.finish_reason))
                done.set()

        engine.submit(request, on_tokens)
        assert done.wait(60)
    assert texts == [(texts[0][0], "stop"), (f"{texts[0][0]}<|end|>", "stop")]


# --- streams ---------------------------------------------------------------------------------------------------------


def events_of(pair, **keys) -> list[dict[str, Any]]:
    body = {
        "model": MODEL,
        "messages": ASK,
        "tools": TOOLS,
        "temperature": 0,
        "max_tokens": 120,
        "stream": True,
        **keys,
    }
    with pair.client() as client:
        reply = client.post(CHAT, json=body)
    assert reply.status_code == 200, reply.text
    *events, done, empty = reply.text.split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_a_stream_has_openais_order(pair):
    *chunks, usage = events_of(
        pair, tool_choice="required", parallel_tool_calls=False, stream_options={"include_usage": True}
    )
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] > 0
    choices = [chunk["choices"][0] for chunk in chunks]
    start, head, arguments, last = choices
    assert start["delta"] == {"role": "assistant"}
    (call,) = head["delta"]["tool_calls"]
    assert (call["index"], call["type"], call["function"]["arguments"]) == (0, "function", "")
    whole = ask(pair, tool_choice="required", parallel_tool_calls=False)["choices"][0]["message"]["tool_calls"][0]
    assert call["function"]["name"] == whole["function"]["name"]
    assert arguments["delta"] == {
        "tool_calls": [{"index": 0, "function": {"arguments": whole["function"]["arguments"]}}]
    }
    assert last["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "tool_calls"]


def test_openais_own_accumulator_reads_a_stream(pair):
    import openai

    with (
        openai.OpenAI(base_url=f"{pair.url}/v1", api_key="none", max_retries=0) as client,
        client.chat.completions.stream(
            model=MODEL, messages=cast(Any, ASK), tools=cast(Any, TOOLS), tool_choice="required", temperature=0
        ) as stream,
    ):
        completion = stream.get_final_completion()
    (choice,) = completion.choices
    whole = ask(pair, tool_choice="required", max_tokens=None)["choices"][0]
    assert choice.finish_reason == whole["finish_reason"]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    assert calls == [(c["function"]["name"], c["function"]["arguments"]) for c in whole["message"]["tool_calls"]]


# --- answers that a model writes freely ------------------------------------------------------------------------------

CALL = '<tool_call>\n{"name": "order_roses", "arguments": {"count": 3, "place": "Sal"}}\n</tool_call>'


def builder_of(**keys) -> ChatResponseBuilder:
    tokenizer = AutoTokenizer.from_pretrained(resolve_target(EMBEDDED))
    body = TypeAdapter(ChatRequest).validate_python({"model": MODEL, "messages": ASK, "tools": TOOLS, **keys})
    return ChatResponseBuilder(ServedModel(MODEL, tokenizer, 0), False, find_tool_use(body, ToolFormat(tokenizer)))


def answer(text: str, finish: FinishReason, **keys) -> dict[str, Any]:
    output = RequestOutput(Request("a-0", (1,), 9, wants_text=True), text=text, finish_reason=finish)
    usage = cast(
        Any,
        {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}},
    )
    return json.loads(builder_of(**keys).build_response([output], usage).json_bytes())["choices"][0]


@pytest.mark.parametrize(
    ("text", "finish", "keys", "content", "num_calls", "reason"),
    [
        ("Hello.", "stop", {}, "Hello.", 0, "stop"),
        ("", "stop", {}, "", 0, "stop"),
        (CALL, "stop", {}, None, 1, "tool_calls"),
        (f"I order.\n\n{CALL}\n{CALL}\n", "stop", {}, "I order.", 2, "tool_calls"),
        (f"{CALL}\n{CALL}", "stop", {"parallel_tool_calls": False}, None, 1, "tool_calls"),
        (CALL, "stop", {"tool_choice": NAMED}, None, 1, "stop"),
        (f"{CALL}\n{CALL[:40]}", "length", {}, CALL[:40], 1, "length"),
        (CALL.replace("3", ""), "stop", {}, CALL.replace("3", ""), 0, "stop"),
    ],
)
def test_free_answers(text, finish, keys, content, num_calls, reason):
    choice = answer(text, finish, **keys)
    assert choice["message"]["content"] == content
    assert len(choice["message"].get("tool_calls", [])) == num_calls
    assert ("tool_calls" in choice["message"]) == (num_calls > 0)
    assert choice["finish_reason"] == reason
    for step in (1, 2, 7, 1000):
        assert streamed(text, finish, step, **keys) == (content or "", num_calls, reason)


def streamed(text: str, finish, step: int, **keys) -> tuple[str, int, str]:
    """What a client reads of the answer, which arrives `step` characters at a time."""
    builder, request = builder_of(**keys), Request("a-0", (1,), 9, wants_text=True)
    content, names, arguments, reasons = "", [], {}, []
    pieces = [text[start : start + step] for start in range(0, len(text), step)] or [""]
    for number, piece in enumerate(pieces, 1):
        delta = OutputDelta(0, (1,), piece, (), 0, cast(Any, finish if number == len(pieces) else None))
        for chunk in builder.build_chunks(delta, request, {}):
            (choice,) = json.loads(chunk.json_bytes())["choices"]
            content += choice["delta"].get("content", "")
            for call in choice["delta"].get("tool_calls", []):
                if "id" in call:
                    assert call["index"] == len(names)
                    names.append(call["function"]["name"])
                arguments[call["index"]] = arguments.get(call["index"], "") + call["function"]["arguments"]
            reasons.append(choice["finish_reason"])
    assert [json.loads(text) for text in arguments.values()] == [{"count": 3, "place": "Sal"}] * len(names)
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    return content, len(names), reasons[-1]


# --- history and errors ----------------------------------------------------------------------------------------------


def test_a_conversation_with_calls_goes_on(pair):
    """The answer goes back as the client received it, with the result of the call."""
    (choice,) = ask(pair, tool_choice=NAMED)["choices"]
    result = {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": "ordered"}
    messages = [*ASK, choice["message"], result]
    (again,) = ask(pair, messages=messages, tool_choice="none", max_tokens=12)["choices"]
    assert again["message"]["content"]
    with pair.client() as client:
        ids = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
    tokenizer = AutoTokenizer.from_pretrained(resolve_target(EMBEDDED))
    written = choice["message"]["tool_calls"][0]["function"]
    call = f'<tool_call>\n{{"name": "{written["name"]}", "arguments": {written["arguments"]}}}\n</tool_call>'
    assert tokenizer.decode(ids) == (
        f"<|begin|><|user|>{ROSES}<|end|><|assistant|>{call}<|end|>"
        "<|user|><tool_response>\nordered\n</tool_response><|end|><|assistant|>"
    )


def test_a_template_without_tools_says_so(http):
    body = {"model": MODEL, "messages": ASK, "tools": TOOLS, "max_tokens": 3}
    error = error_of(http.post(CHAT, json=body), 400)
    assert (error["param"], error["code"]) == ("tools", "tools_not_supported")
    assert http.post(CHAT, json={**body, "tool_choice": "none"}).status_code == 200
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
    history = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert error_of(http.post(CHAT, json={**body, "messages": history, "tools": []}), 400)["param"] == "messages"
    error = error_of(http.post("/tokenize", json={"messages": ASK, "tools": TOOLS}), 400)
    assert error["param"] == "tools"


@pytest.mark.parametrize(
    ("keys", "param"),
    [
        ({"tool_choice": "required", "tools": None}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": 'a"b'}}]}, "tools.0.function.name"),
        ({"guided_regex": "a+"}, "tools"),
        ({"tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        (
            {"tool_choice": NAMED, "tools": [{**ORDER, "function": {**ORDER["function"], "parameters": {"type": 5}}}]},
            "tools",
        ),
    ],
)
def test_wrong_tools(pair, keys, param):
    with pair.client() as client:
        reply = client.post(CHAT, json={"model": MODEL, "messages": ASK, "tools": TOOLS, "max_tokens": 3, **keys})
    assert error_of(reply, 400)["param"] == param


# --- speculation -----------------------------------------------------------------------------------------------------


def test_calls_are_the_same_without_drafts_with_chains_and_with_trees(pair):
    stored = read_head(resolve_head(EMBEDDED), torch.float32)
    target = Target.load(EMBEDDED, torch.float32, stored.config.aux_layer_ids)
    draft = Eagle3Spec.on(target.model.device, stored, chain_shape(4))
    chains = AsyncEngine(Engine(target, [draft], 2, 1024), 16)
    chains.start()
    with serving(chains) as chain:
        servers = [(pair, {"speculation": "off"}), (pair, {"speculation": "max"}), (chain, {"speculation": "max"})]
        for choice in ("required", NAMED):
            answers = [ask(server, tool_choice=choice, return_token_ids=True, **keys) for server, keys in servers]
            first, *others = [
                [_without_id(c) for c in reply["choices"][0]["message"]["tool_calls"]] for reply in answers
            ]
            assert first
            assert others == [first] * 2
            assert len({tuple(reply["choices"][0]["token_ids"]) for reply in answers}) == 1
            assert answers[1]["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0
    chains.drain(1)


def _without_id(call: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in call.items() if key != "id"}
