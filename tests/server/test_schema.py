"""/openapi.json against the server, by cases that schemathesis makes from it: valid ones, and broken ones.

EYAS_SCHEMA_EXAMPLES=200 runs as many random cases for each route, for `make prove-clients`.
"""

import os
from collections.abc import Iterator

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
from tests.server.server import MODEL, Server, serving, start_engine

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    allow_header_conformance,
]
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
CODES = {"context_length_exceeded", "tools_not_supported", "unsupported_value"}  # of bodies that fit their schema


@pytest.fixture(scope="module")
def small_server(shallow_target) -> Iterator[Server]:
    """A short context, for answers without max_tokens."""
    async_engine = start_engine(shallow_target, max_waiting=1000, context=48)
    with serving(async_engine) as server:
        yield server
    async_engine.drain(1)


@pytest.fixture(scope="module")
def schema(small_server):
    return schemathesis.openapi.from_url(f"{small_server.url}/openapi.json")


def test_every_operation_is_described(schema):
    assert [operation.ok().label for operation in schema.get_all_operations()] == OPERATIONS
    text = str(schema.raw_schema)
    assert "HTTPValidationError" not in text


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("label", OPERATIONS[:4])
def test_bodies(schema, label, mode):
    method, path = label.split()
    statuses = set()
    body = schema.raw_schema["paths"][path][method.lower()]["requestBody"]["content"]["application/json"]["schema"]
    whole = jsonschema_rs.validator_for({**body, "components": schema.raw_schema["components"]})

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
        if mode is GenerationMode.NEGATIVE and isinstance(case.body, dict):
            assume(not whole.is_valid(case.body))  # broken for one alternative of a union, it may be right for another
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
