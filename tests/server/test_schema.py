"""/openapi.json against the server, by cases that schemathesis makes from it: valid ones, and broken ones.

EYAS_SCHEMA_EXAMPLES=200 runs as many random cases for each route, for `make prove-clients`.
"""

import os
from collections.abc import Iterator

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.server.server import CHAT, MODEL, Server, serving, start_engine

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    allow_header_conformance,
]
COMPLETIONS = "/v1/completions"
OPERATIONS = [
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "POST /tokenize",
    "GET /v1/models",
    "GET /health",
    "GET /ready",
    "GET /metrics",
]
IS_RANDOM = "EYAS_SCHEMA_EXAMPLES" in os.environ
EXAMPLES = int(os.environ.get("EYAS_SCHEMA_EXAMPLES", "20"))
# What a body that fits its schema may be refused for: what the schema cannot know, because it depends on the model, on
# the size of the server or on the library of grammars.
CODES = {"context_length_exceeded", "tools_not_supported", "unknown_tool", "too_many_choices"}
CODES |= {"unknown_token_id", "suffix_not_supported", "invalid_grammar"}


@pytest.fixture(scope="module")
def small_server(shallow_target) -> Iterator[Server]:
    """A short context, for answers without max_tokens."""
    async_engine = start_engine(shallow_target, max_waiting=1000, context=48)
    with serving(async_engine) as server:
        yield server
    async_engine.drain(1)


@pytest.fixture(scope="module")
def openapi(small_server):
    return httpx.get(f"{small_server.url}/openapi.json").json()


@pytest.fixture(scope="module")
def schema(openapi, small_server):
    schema = schemathesis.openapi.from_dict(openapi)
    schema.config.update(base_url=small_server.url)
    return schema


@pytest.fixture(scope="module")
def validators(openapi):
    """For each path, the validator of its request body."""
    found = {}
    for label in OPERATIONS[:4]:
        path = label.split()[1]
        body = openapi["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        found[path] = jsonschema_rs.validator_for({**body, "components": openapi["components"]})
    return found


def test_every_operation_is_described(openapi, schema):
    assert [operation.ok().label for operation in schema.get_all_operations()] == OPERATIONS
    assert "HTTPValidationError" not in str(openapi)


TOOLS = [{"type": "function", "function": {"name": "f"}}]
TOGETHER = [  # path, parameters, the parameter that is refused
    (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
    (CHAT, {"top_logprobs": 2, "logprobs": True}, None),
    (CHAT, {"top_logprobs": None}, None),
    (COMPLETIONS, {"echo": True, "logprobs": 0}, "echo"),
    (COMPLETIONS, {"echo": False, "logprobs": 0}, None),
    (COMPLETIONS, {"echo": True, "logprobs": None}, None),
    (CHAT, {"guided_regex": "a+", "ignore_eos": True}, "ignore_eos"),
    (CHAT, {"guided_regex": "a+", "ignore_eos": False, "min_tokens": 0}, None),
    (CHAT, {"response_format": {"type": "text"}, "ignore_eos": True, "min_tokens": 1}, None),
    (CHAT, {"response_format": {"type": "json_object"}, "min_tokens": 1}, "min_tokens"),
    (COMPLETIONS, {"guided_json": {}, "min_tokens": 1}, "min_tokens"),
    (COMPLETIONS, {"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
    (COMPLETIONS, {"structured_outputs": {"regex": None}, "ignore_eos": True}, None),
    (CHAT, {"tools": [], "guided_regex": "a+"}, None),
    (CHAT, {"tools": TOOLS, "tool_choice": "none", "guided_regex": "a+"}, None),
]


@pytest.mark.parametrize(("path", "rest", "refused"), TOGETHER)
def test_rules_between_parameters(small_server, validators, path, rest, refused):
    source = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    body = {"model": MODEL, "max_tokens": 2, **source, **rest}
    reply = httpx.post(f"{small_server.url}{path}", json=body, timeout=60)
    assert validators[path].is_valid(body) == (refused is None) == (reply.status_code == 200), reply.text
    assert refused is None or reply.json()["error"]["param"] == refused


@pytest.mark.parametrize("rest", [{"guided_regex": "a+"}, {"structured_outputs": {"regex": "a+"}}])
def test_tools_and_a_regular_expression(validators, rest):
    """The target of these tests has no tools. tests/server/test_tool_calls.py has one that refuses both together."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
    assert validators[CHAT].is_valid(body)
    assert not validators[CHAT].is_valid(body | rest)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("label", OPERATIONS[:4])
def test_bodies(schema, validators, label, mode):
    method, path = label.split()
    statuses = set()

    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        derandomize=not IS_RANDOM,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    def run(case):
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = MODEL
        if isinstance(case.body, dict):  # broken for one alternative of a union, it may be right for another
            assume(validators[path].is_valid(case.body) == (mode is GenerationMode.POSITIVE))
        response = case.call()
        case.validate_response(response, checks=CHECKS)
        statuses.add(response.status_code)
        if mode is GenerationMode.POSITIVE and response.status_code == 400:
            assert response.json()["error"]["code"] in CODES, response.text

    run()
    assert statuses <= ({200, 400} if mode is GenerationMode.POSITIVE else {400, 415})
    assert (200 in statuses) == (mode is GenerationMode.POSITIVE)


@pytest.mark.parametrize("label", OPERATIONS[4:])
def test_operations_without_a_body(schema, label):
    method, path = label.split()
    case = schema[path][method].Case()
    case.call_and_validate(checks=CHECKS)
