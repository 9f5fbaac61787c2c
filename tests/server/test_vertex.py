"""Vertex AI's contract: its routes, both kinds of body, and responses equal to those of the other routes."""

import json
from collections.abc import Iterator

import httpx
import pytest
from tests.server.server import MODEL, Server, error_of, serving, start_engine

from eyas.base.errors import UsageError
from eyas.server.vertex import VertexConfig, read_vertex_config

HEALTH, PREDICT = "/v1/endpoints/7/deployedModels/3", "/v1/endpoints/7/deployedModels/3:predict"
HELLO = [{"role": "user", "content": "hi"}]
SAME = {"max_tokens": 6, "temperature": 0}


@pytest.fixture(scope="module")
def vertex(shallow_target) -> Iterator[Server]:
    async_engine = start_engine(shallow_target, drafts=True)
    with serving(async_engine, ["secret"], VertexConfig(8080, HEALTH, PREDICT)) as server:
        yield server
    async_engine.drain(1)


@pytest.fixture
def http(vertex) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=vertex.url, headers={"Authorization": "Bearer secret"}, timeout=30) as client:
        yield client


def said(reply: dict) -> list[str]:
    return [choice.get("text") or choice["message"]["content"] for choice in reply["choices"]]


def test_the_config_is_read_from_the_environment():
    assert read_vertex_config({}) is None
    assert read_vertex_config({"AIP_HEALTH_ROUTE": "/h"}) is None, "no port: not Vertex AI"
    assert read_vertex_config({"AIP_HTTP_PORT": "8080"}) == VertexConfig(8080)
    whole = {"AIP_HTTP_PORT": "8080", "AIP_HEALTH_ROUTE": HEALTH, "AIP_PREDICT_ROUTE": PREDICT}
    assert read_vertex_config(whole) == VertexConfig(8080, HEALTH, PREDICT)


@pytest.mark.parametrize(
    "wrong", [{"AIP_HTTP_PORT": "http"}, {"AIP_HTTP_PORT": "70000"}, {"AIP_PREDICT_ROUTE": "predict"},
              {"AIP_HEALTH_ROUTE": "/{x}"}],
)  # fmt: skip
def test_invalid_environments(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        read_vertex_config({"AIP_HTTP_PORT": "8080", **wrong})


def test_the_health_route_needs_no_key_and_means_ready(vertex):
    assert httpx.get(f"{vertex.url}{HEALTH}").status_code == 200
    vertex.api.phase = "warming"
    try:
        assert httpx.get(f"{vertex.url}{HEALTH}").status_code == 503
        assert httpx.get(f"{vertex.url}/health").status_code == 200, "the process works"
    finally:
        vertex.api.phase = "ready"
    assert httpx.post(f"{vertex.url}{PREDICT}", json={"prompt": "hi"}).status_code == 401


def test_a_health_route_with_a_path_of_ours_means_ready(shallow_target):
    async_engine = start_engine(shallow_target)
    with serving(async_engine, vertex=VertexConfig(8080, "/health", "/v1/completions")) as server:
        server.api.phase = "warming"
        assert httpx.get(f"{server.url}/health").status_code == 503
        server.api.phase = "ready"
        assert httpx.get(f"{server.url}/health").status_code == 200
        plain = httpx.post(f"{server.url}/v1/completions", json={"model": MODEL, "prompt": "hi", **SAME})
        many = httpx.post(f"{server.url}/v1/completions", json={"instances": [{"prompt": "hi", **SAME}]})
        assert said(many.json()["predictions"][0]) == said(plain.json())
    async_engine.drain(1)


def test_raw_bodies_get_the_responses_of_the_other_routes(http):
    chat = {"model": MODEL, "messages": HELLO, **SAME}
    completion = {"model": MODEL, "prompt": "what", **SAME}
    assert http.post(PREDICT, json={**chat, "model": "another"}).status_code == 404
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", completion)):
        ours, theirs = http.post(path, json=body), http.post(PREDICT, json=body)
        assert (ours.status_code, theirs.status_code) == (200, 200)
        assert theirs.json()["object"] == ours.json()["object"]
        assert said(theirs.json()) == said(ours.json())


def test_a_raw_stream(http):
    body = {"messages": HELLO, **SAME}
    whole = said(http.post(PREDICT, json=body).json())
    with http.stream("POST", PREDICT, json={**body, "stream": True}) as reply:
        events = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert events[-1] == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1]]
    assert ["".join(pieces)] == whole


def test_instances_share_parameters_and_keep_their_order(vertex, http):
    instances = [{"prompt": "what is 1"}, {"messages": HELLO, "max_tokens": 3}, {"prompt": ["a", "b"], "n": 2}]
    alone = [
        http.post("/v1/completions", json={"model": MODEL, "prompt": "what is 1", **SAME}).json(),
        http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO, **SAME, "max_tokens": 3}).json(),
        http.post("/v1/completions", json={"model": MODEL, "prompt": ["a", "b"], "n": 2, **SAME}).json(),
    ]
    reply = http.post(PREDICT, json={"instances": instances, "parameters": SAME}, headers={"X-Request-Id": "many"})
    predictions = reply.json()["predictions"]
    assert list(reply.json()) == ["predictions"]
    assert [said(one) for one in predictions] == [said(one) for one in alone]
    assert [one["usage"]["total_tokens"] for one in predictions] == [one["usage"]["total_tokens"] for one in alone]
    line = vertex.line_of("many")
    assert line["output_tokens"] == sum(one["usage"]["completion_tokens"] for one in alone)
    assert line["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in alone)


WRONG = [
    ([], None),
    ("text", None),
    ({"instances": []}, "instances"),
    ({"instances": "x"}, "instances"),
    ({"instances": ["x"]}, "instances.0"),
    ({"instances": [{"prompt": "x"}] * 129}, "instances"),
    ({"instances": [{"prompt": "x"}], "parameters": 3}, "parameters"),
    ({"instances": [{"prompt": "x"}], "seed": 3}, "seed"),
    ({"instances": [{"prompt": "x"}, {}]}, None),
    ({"instances": [{"prompt": "x"}, {"prompt": "x", "temperature": "hot"}]}, "instances.1.temperature"),
    ({"instances": [{"prompt": "x"}], "parameters": {"temprature": 0}}, "instances.0.temprature"),
    ({"instances": [{"messages": [{"role": "robot", "content": "x"}]}]}, "instances.0.messages.0"),
    ({"instances": [{"prompt": "x", "stream": True}]}, "stream"),
    ({"temperature": 0}, None),
    ({"prompt": "x", "temperature": "hot"}, "temperature"),
]


@pytest.mark.parametrize(("body", "param"), WRONG)
def test_the_error_of_a_body_names_the_parameter(http, body, param):
    assert error_of(http.post(PREDICT, json=body), 400)["param"] == param


def test_all_instances_or_none(shallow_target):
    async_engine = start_engine(shallow_target, slots=1, max_waiting=2)
    with serving(async_engine, vertex=VertexConfig(8080, HEALTH, PREDICT)) as server:
        instances = [{"prompt": "x", "max_tokens": 300, "ignore_eos": True}] * 9
        reply = httpx.post(f"{server.url}{PREDICT}", json={"instances": instances}, timeout=30)
        assert reply.status_code == 429
        assert reply.headers["retry-after"]
        one = httpx.post(f"{server.url}{PREDICT}", json={"instances": [{"prompt": "x", **SAME}]}, timeout=30)
        assert one.status_code == 200, "the slots of the rejected instances are free again"
    async_engine.drain(1)
