"""Every HTTP error: its status, OpenAI's shape and exception, and a message that says what is wrong."""

import json
import select
import socket
from pathlib import Path

import openai
import pytest
from tests.server.server import MODEL, error_of

from eyas.server.openai_requests import IgnoredParameters

HELLO = [{"role": "user", "content": "hi"}]


def chat(http, **rest):
    return http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO, "max_tokens": 2, **rest})


def completion(http, **rest):
    return http.post("/v1/completions", json={"model": MODEL, "prompt": "hi", "max_tokens": 2, **rest})


START = b'{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], '
BODIES = {
    "empty": b"",
    "cut off": b'{"model": "tiny", "messages"',
    "NaN": START + b'"temperature": NaN}',
    "Infinity": START + b'"temperature": Infinity}',
    "NaN deep inside": START + b'"tools": [{"function": {"name": "f", "parameters": {"a": NaN}}}]}',
    "1e999": START + b'"temperature": 1e999}',
    "half a pair": b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud83d"}]}',
    "half a pair in a key": START + b'"\\udc00": 1}',
    "not UTF-8": b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff"}]}',
    "deep": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "deep lists": b"[" * 100_000,
    "a list": b"[]",
    "null": b"null",
    "a text": b'"hi"',
    "digits": START + b'"max_tokens": 1' + b"0" * 9000 + b"}",
    "a large number": START + b'"n": 1' + b"0" * 400 + b"}",
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_invalid_bodies(http, path, body):
    error_of(http.post(path, content=body, headers={"Content-Type": "application/json"}), 400)


def test_invalid_json_is_located(http):
    reply = http.post("/tokenize", content=b"{a", headers={"Content-Type": "application/json"})
    assert error_of(reply, 400)["message"] == "The request body is not valid JSON (line 1, column 2)."


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "x"])
def test_other_content_types(http, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    content = json.dumps({"model": MODEL, "messages": HELLO}).encode()
    assert error_of(http.post("/v1/chat/completions", content=content, headers=headers), 415)["code"]


def test_json_with_a_charset(http):
    content = json.dumps({"prompt": "hi"}).encode()
    reply = http.post("/tokenize", content=content, headers={"Content-Type": "application/json; charset=utf-8"})
    assert reply.status_code == 200


WRONG = {
    "temperature": [-0.1, 2.1, "0.5", True, [1]],
    "top_p": [0, 1.01, "x"],
    "top_k": [-2, 1.5],
    "min_p": [-0.1, 1.1],
    "repetition_penalty": [0, -1],
    "presence_penalty": [2.1],
    "frequency_penalty": [-2.1],
    "n": [0, 129, 1.5],
    "seed": [0.5, "1", True],
    "max_tokens": [-1, 2.5, 10**400],
    "stop": ["", ["a"] * 17, [""], [1], 3],
    "stop_token_ids": [[-1], ["a"], 5, [288]],
    "logit_bias": [{"a": 1}, {"5": 101}, {"288": 1}, [5], {"-1": 1}],
    "ignore_eos": ["yes", 1],
    "stream": ["yes"],
    "stream_options": [{"x": 1}],
    "speculation": ["none", True],
    "user": [5],
    "metadata": [{"a": 1}, "x"],
    "return_token_ids": [1],
    "response_format": [{"type": "xml"}, {"type": "json_schema"}, "json"],
    "guided_regex": ["(", 5],
    "guided_json": [{"type": "nothing"}, 5, "{"],
    "structured_outputs": [{"grammars": "x"}, {"regex": "("}],
}
WRONG_CHAT = {
    "messages": [[], "hi", [{}], [{"role": "user"}], [{"role": "robot", "content": "x"}], [{"role": "assistant"}]],
    "max_completion_tokens": [-1],
    "logprobs": [1, "yes"],
    "top_logprobs": [3, -1, 21],
    "tools": [[{"type": "x"}], {}],
    "tool_choice": ["any", "required", {"type": "function", "function": {"name": "f"}}, {"type": "allowed_tools"}],
    "parallel_tool_calls": ["no"],
}
WRONG_COMPLETION = {
    "prompt": [[], [[]], None, 5, [1, "a"], ["a", [1]], {}, [-1], [[288]], ["x"] * 129, [1.5]],
    "logprobs": [-1, 21, True],
    "echo": ["yes"],
    "suffix": ["x"],
    "best_of": [2],
}
CASES = [(chat, name, value) for name, values in (WRONG | WRONG_CHAT).items() for value in values]
CASES += [(completion, name, value) for name, values in (WRONG | WRONG_COMPLETION).items() for value in values]


@pytest.mark.parametrize(("ask", "name", "value"), CASES, ids=lambda value: getattr(value, "__name__", str(value)[:30]))
def test_wrong_values(http, ask, name, value):
    error = error_of(ask(http, **{name: value}), 400)
    assert name == error["param"].split(".")[0]
    assert "Input should" not in error["message"], "pydantic's own text"
    assert "another value" not in error["message"], "an error type without a text"


IGNORED = {
    "store": False,
    "service_tier": "auto",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "verbosity": "low",
    "metadata": {"a": "b"},
    "skip_special_tokens": True,
}
IGNORED_CHAT = {"modalities": ["text"], "functions": []}
IGNORED_IN_STREAMS = {"include_obfuscation": True}


def test_parameters_without_an_effect_are_accepted(http):
    plain = chat(http, temperature=0).json()["choices"]
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": [part]}]
    reply = chat(http, **IGNORED, **IGNORED_CHAT, messages=messages, temperature=0)
    assert (reply.status_code, reply.json()["choices"]) == (200, plain)
    assert completion(http, **IGNORED, suffix="").status_code == 200
    assert chat(http, stream=True, stream_options=IGNORED_IN_STREAMS).status_code == 200
    for name, value in {"functions": [{"name": "f"}], "modalities": ["audio"]}.items():
        assert error_of(chat(http, **{name: value}), 400)["param"].split(".")[0] == name
    history = [*HELLO, {"role": "assistant", "content": "Yes?", "tool_calls": []}, *HELLO]
    assert chat(http, messages=history).status_code == 200


def test_the_page_of_the_api_lists_what_is_ignored():
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in IgnoredParameters.model_fields if f"`{name}`" not in page] == []


def test_one_model_and_a_head_request(http):
    assert http.get(f"/v1/models/{MODEL}").json() == http.get("/v1/models").json()["data"][0]
    assert error_of(http.get("/v1/models/some/other"), 404)["code"] == "model_not_found"
    head = http.head("/health")
    assert (head.status_code, head.content) == (200, b"")


def test_a_wrong_value_is_quoted_with_what_it_must_be(http):
    assert error_of(chat(http, temperature=3), 400)["message"] == "temperature is 3, but must be at most 2."
    found = error_of(chat(http, stop=3), 400)["message"]
    assert found == "stop is 3, but must be a string or a list."


def test_the_error_of_an_image_names_its_message(http):
    parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": "x"}}]
    error = error_of(chat(http, messages=[{"role": "user", "content": parts}]), 400)
    assert error["param"] == "messages.0.content"


def test_an_unknown_parameter_is_named_with_the_nearest_known_one(http):
    error = error_of(chat(http, max_tokenz=3), 400)
    assert error["code"] == "unknown_parameter"
    assert error["param"] == "max_tokenz"
    assert error["message"] == 'Unknown parameter "max_tokenz". Did you mean max_tokens?'
    assert "openapi.json" in error_of(chat(http, quite_other=3), 400)["message"]
    assert error_of(completion(http, messages=HELLO), 400)["param"] == "messages"
    nested = [{"role": "user", "content": "hi", "mood": "good"}]
    assert error_of(chat(http, messages=nested), 400)["param"] == "messages.0.mood"


@pytest.mark.parametrize(
    ("rest", "param", "near"),
    [
        ({"messages": [{"role": "user", "content": "hi", "nam": "me"}]}, "messages.0.nam", "name"),
        ({"tools": [{"function": {"name": "f", "paramters": {}}}]}, "tools.0.function.paramters", "parameters"),
        ({"stream": True, "stream_options": {"include_round": True}}, "stream_options.include_round", "include_rounds"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn", "json"),
    ],
)
def test_a_nested_unknown_parameter_is_named_with_the_nearest_one_there(http, rest, param, near):
    error = error_of(chat(http, **rest), 400)
    assert (error["param"], error["code"]) == (param, "unknown_parameter")
    assert error["message"] == f'Unknown parameter "{param}". Did you mean {near}?'


def test_parameters_that_do_not_fit_together(http):
    assert "logprobs=true" in error_of(chat(http, top_logprobs=2), 400)["message"]
    both_limits = chat(http, max_completion_tokens=3, ignore_eos=True).json()
    assert both_limits["usage"]["completion_tokens"] == 3, "as in vLLM, the newer name wins"
    both = {"guided_regex": "a+", "guided_json": {"type": "object"}}
    assert error_of(chat(http, **both), 400)["param"] == "guided_regex"
    assert error_of(chat(http, guided_regex="a+", ignore_eos=True), 400)["param"] == "ignore_eos"
    assert "either prompt or messages" in error_of(http.post("/tokenize", json={}), 400)["message"]


def test_null_counts_as_left_out(http):
    long = "x" * 495  # without max_tokens, the answer goes on to the end of the context
    names = [*WRONG, "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "max_completion_tokens"]
    assert chat(http, **dict.fromkeys(names), messages=[{"role": "user", "content": long}]).status_code == 200
    assert completion(http, **dict.fromkeys([*WRONG, "logprobs", "echo", "suffix", "best_of"])).status_code == 200


def test_more_than_the_context(http):
    error = error_of(chat(http, max_tokens=511), 400)
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]
    assert error["param"] == "messages"
    assert error_of(completion(http, prompt="x" * 512), 400)["code"] == "context_length_exceeded"
    for ask in (  # so long that they are not even tokenised
        lambda: completion(http, prompt="x" * 9_000_000),
        lambda: completion(http, prompt=["x", "x" * 9_000_000]),
        lambda: chat(http, messages=[{"role": "user", "content": [{"type": "text", "text": "x" * 9_000_000}]}]),
    ):
        assert "characters" in error_of(ask(), 400)["message"]
    assert completion(http, prompt="x" * 511, max_tokens=1).status_code == 200


def test_too_many_answers_in_one_call(http):
    assert error_of(completion(http, prompt=["a"] * 65, n=2), 400)["param"] == "n"


def test_a_body_that_is_too_large(server, http):
    huge = b'{"prompt": "' + b"x" * (10 * 2**20) + b'"}'
    headers = {"Content-Type": "application/json"}
    assert error_of(http.post("/tokenize", content=huge, headers=headers), 413)["code"] == "request_too_large"
    pieces = (huge[i : i + 2**16] for i in range(0, len(huge), 2**16))  # without a declared length
    assert error_of(http.post("/tokenize", content=pieces, headers=headers), 413)


@pytest.fixture
def connection(server):
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        yield connection


def test_a_large_body_is_rejected_before_it_is_sent(connection):
    head = ("POST /tokenize HTTP/1.1", "Host: x", "Content-Type: application/json", "Content-Length: 99999999")
    connection.sendall("\r\n".join((*head, "", "")).encode())
    assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_an_endless_body_is_read_up_to_the_limit(connection):
    head = ("POST /tokenize HTTP/1.1", "Host: x", "Content-Type: application/json", "Transfer-Encoding: chunked")
    connection.sendall("\r\n".join((*head, "", "")).encode())
    chunk, sent = b"x" * 2**16, 0
    while not select.select([connection], [], [], 0)[0]:
        connection.sendall(b"10000\r\n" + chunk + b"\r\n")
        sent += len(chunk)
        assert sent < 60 * 2**20, "the server reads on"
    assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_unknown_paths_and_methods(http):
    assert error_of(http.get("/v1/nothing"), 404)["code"] == "unknown_url"
    reply = http.get("/v1/chat/completions")
    assert error_of(reply, 405)["code"] == "method_not_allowed"
    assert reply.headers["allow"] == "POST"
    assert http.get("/docs").status_code == 404
    assert "Anthropic" in error_of(http.post("/v1/messages", json={}), 404)["message"]


def test_openais_client_raises_its_own_exceptions(client):
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="gpt-4", messages=HELLO)
    assert not_found.value.code == "model_not_found"
    assert not_found.value.param == "model"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=HELLO, temperature=3)
    assert bad.value.param == "temperature"
    assert bad.value.type == "invalid_request_error"
