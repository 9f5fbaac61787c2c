"""Disconnects, full queues, shutdown and failure of the engine, API keys, request ids, the access log."""

import hmac
import json
import re
import socket
import threading
import time

import httpx
import openai
import pytest
from tests.server.server import MODEL, error_of, serving, start_engine, wait_until

from eyas.base.provenance import digest_bytes
from eyas.server.request_parser import RequestParser

LONG = {"model": MODEL, "prompt": "hi", "max_tokens": 500, "ignore_eos": True}


def ask_aside(server, body):
    """Sends a request from another thread. Its response will be in the list."""
    replies = []
    thread = threading.Thread(
        target=lambda: replies.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=60))
    )
    thread.start()
    return thread, replies


# --- disconnects -----------------------------------------------------------------------------------------------------


@pytest.fixture
def server_of_two(shallow_target):
    """Two slots, and one request may wait."""
    async_engine = start_engine(shallow_target, slots=2, max_waiting=1)
    with serving(async_engine) as server:
        yield server
    async_engine.drain(0.1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_disconnect_frees_the_slots(server_of_two, stream, n):
    async_engine = server_of_two.api.async_engine
    body = json.dumps({**LONG, "stream": stream, "n": n}).encode()
    address = ("127.0.0.1", int(server_of_two.url.rsplit(":", 1)[1]))
    with socket.create_connection(address) as connection:
        head = ("POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json")
        connection.sendall("\r\n".join((*head, f"Content-Length: {len(body)}", "", "")).encode() + body)
        wait_until(lambda: async_engine.stats().running == min(n, 2))
        if stream:
            while b"data: {" not in connection.recv(5000):
                pass
    wait_until(lambda: async_engine.stats().running + async_engine.stats().waiting == 0)
    assert async_engine.stats().counters.finished == {"cancelled": n}
    wait_until(lambda: server_of_two.lines)
    (line,) = map(json.loads, server_of_two.lines)
    assert line["status"] == (200 if stream else 499)
    assert line["finish"] == "cancelled"
    assert httpx.post(f"{server_of_two.url}/v1/completions", json={**LONG, "max_tokens": 2}).status_code == 200


# --- full queues -----------------------------------------------------------------------------------------------------


def test_a_full_queue_says_when_to_retry(server_of_two):
    async_engine = server_of_two.api.async_engine
    busy = [ask_aside(server_of_two, {**LONG, "max_tokens": 250, "n": n}) for n in (2, 1)]
    wait_until(lambda: async_engine.stats().running + async_engine.stats().waiting == 3)
    client = openai.OpenAI(base_url=f"{server_of_two.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.RateLimitError) as refused:
        client.completions.create(model=MODEL, prompt="hi", max_tokens=1)
    assert refused.value.code == "queue_full"
    assert refused.value.type == "rate_limit_error"
    assert refused.value.response.headers["Retry-After"] == "1"
    for thread, replies in busy:
        thread.join()
        assert replies[0].status_code == 200
    assert client.completions.create(model=MODEL, prompt="hi", max_tokens=1).choices[0].text is not None


def test_a_call_with_more_requests_than_the_limit_is_refused(server_of_two):
    async_engine = server_of_two.api.async_engine
    error = error_of(httpx.post(f"{server_of_two.url}/v1/completions", json={**LONG, "n": 4}), 400)
    limits = "this server runs at most 3 (--slots 2 + --max-waiting 1)"
    assert error["message"] == f"n=4 needs 4 sequences, but {limits}. Lower n."
    assert error["param"] == "n"
    assert async_engine.stats().counters.finished == {}


# --- connections -----------------------------------------------------------------------------------------------------


def test_slow_headers_close_the_connection(server_of_two, monkeypatch):
    monkeypatch.setattr("eyas.server.server.HEADER_TIMEOUT_S", 0.3)
    host, port = server_of_two.url.removeprefix("http://").split(":")
    whole = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(whole[:20])
        assert connection.recv(100) == b""
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(whole)
        reply = b""
        while not reply.endswith(b"}"):
            reply += connection.recv(1000)
        assert reply.startswith(b"HTTP/1.1 200")
        time.sleep(0.5)  # between requests, a connection may stay open
        connection.sendall(whole[:20])
        assert connection.recv(100) == b""


def test_a_long_answer_outlasts_the_header_timeout(server_of_two, monkeypatch):
    monkeypatch.setattr("eyas.server.server.HEADER_TIMEOUT_S", 0.01)
    assert httpx.post(f"{server_of_two.url}/v1/completions", json=LONG, timeout=60).status_code == 200


# --- shutdown and failure --------------------------------------------------------------------------------------------


def test_no_client_hangs_when_the_engine_ends(shallow_target):
    async_engine = start_engine(shallow_target, slots=1)
    with serving(async_engine) as server:
        plain = ask_aside(server, LONG)
        streamed = ask_aside(server, {**LONG, "stream": True})
        wait_until(lambda: async_engine.stats().running + async_engine.stats().waiting == 2)
        server.api.phase = "draining"
        assert error_of(httpx.get(f"{server.url}/ready"), 503)["code"] == "draining"
        assert error_of(httpx.post(f"{server.url}/v1/completions", json=LONG), 503)["code"] == "draining"
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert not async_engine.drain(0.2)
        for thread, _ in (plain, streamed):
            thread.join(5)
            assert not thread.is_alive()
        assert error_of(plain[1][0], 503)["code"] == "draining"
        events = streamed[1][0].text.strip().split("\n\n")
        assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "draining"
        assert events[-1] == "data: [DONE]"


def test_accepted_requests_finish_before_the_end(shallow_target):
    async_engine = start_engine(shallow_target)
    with serving(async_engine) as server:
        thread, replies = ask_aside(server, {**LONG, "max_tokens": 50})
        wait_until(lambda: async_engine.stats().running == 1)
        assert async_engine.drain(30)
        thread.join()
        assert replies[0].json()["usage"]["completion_tokens"] == 50
        assert error_of(httpx.post(f"{server.url}/v1/completions", json=LONG), 503)["code"] == "draining"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failed_engine_is_reported_to_every_client(shallow_target, monkeypatch):
    async_engine = start_engine(shallow_target)
    with serving(async_engine) as server:
        plain, streamed = ask_aside(server, LONG), ask_aside(server, {**LONG, "stream": True})
        wait_until(lambda: async_engine.stats().running == 2)

        def fail(*_):
            raise ZeroDivisionError("a bug of eyas")

        monkeypatch.setattr(async_engine.engine, "launch", fail)
        for thread, _ in (plain, streamed):
            thread.join(5)
            assert not thread.is_alive()
        assert error_of(plain[1][0], 500)["code"] == "internal_error"
        assert "a bug of eyas" not in plain[1][0].text
        assert '"internal_error"' in streamed[1][0].text
        assert error_of(httpx.get(f"{server.url}/health"), 503)["code"] == "engine_failed"
        assert error_of(httpx.post(f"{server.url}/v1/completions", json=LONG), 503)


def test_an_exception_in_a_route_is_reported_as_any_error(server, http, monkeypatch):
    words = "a bug of eyas"

    def fail(*_):
        raise ZeroDivisionError(words)

    monkeypatch.setattr(server.api.async_engine, "stats", fail)
    reply = http.get("/metrics", headers={"X-Request-Id": "fault-1"})
    assert error_of(reply, 500)["code"] == "internal_error"
    assert reply.headers["X-Request-Id"] == "fault-1"
    error = server.line_of("fault-1")["error"]
    assert error.startswith("ZeroDivisionError\n")
    assert "in fail" in error
    assert words not in error + reply.text


def test_the_server_before_it_is_ready(server, http):
    server.api.phase = "warming"
    try:
        assert error_of(http.get("/ready"), 503)["code"] == "warming_up"
        assert error_of(http.post("/v1/completions", json=LONG), 503)["code"] == "warming_up"
        assert http.get("/health").json() == {"status": "up"}
    finally:
        server.api.phase = "ready"
    assert http.get("/ready").json() == {"status": "ready"}


# --- API keys---------------------------------------------------------------------------------------------------------


@pytest.fixture
def locked(shallow_target):
    async_engine = start_engine(shallow_target)
    with serving(async_engine, keys=("first", "sécond")) as server:
        yield server
    async_engine.drain(1)


def test_every_path_but_the_probes_needs_a_key(locked):
    wrongs = (None, "", "Bearer", "Bearer firs", "Bearer firstt", "Basic first", "first", "Bearer \xff")

    client = locked.client()

    def status(path, authorization=None):
        headers = {} if authorization is None else {"Authorization": authorization.encode()}
        return client.get(path, headers=headers).status_code

    assert status("/health") == status("/ready") == status("/metrics") == 200
    for path in ("/v1/models", "/openapi.json", "/nothing"):
        for wrong in wrongs:
            assert status(path, wrong) == 401, (path, wrong)
        for right in ("Bearer first", "bearer first", "Bearer sécond"):
            assert status(path, right) == (404 if path == "/nothing" else 200)
    reply = client.post("/v1/completions", content=b"{")
    assert error_of(reply, 401)["code"] == "invalid_api_key"


@pytest.mark.parametrize(("keys", "owners"), [(("first", "sécond"), ["0/", "0/a", "1/a", ""]), ((), [""] * 4)])
def test_the_owner_of_a_request_is_its_key_and_user(shallow_target, monkeypatch, keys, owners):
    """Drafts are copied only from outputs of the same owner. Without keys, or with store: false, there is none."""
    found, parse = [], RequestParser.parse

    def watched(*arguments):
        requests = parse(*arguments)
        found.extend(request.tenant for request in requests)
        return requests

    monkeypatch.setattr(RequestParser, "parse", watched)
    async_engine = start_engine(shallow_target)
    with serving(async_engine, keys=keys) as server:
        for key, user, store in (
            ("first", None, None),
            ("first", "a", True),
            ("sécond", "a", None),
            ("first", "a", False),
        ):
            body = {"model": MODEL, "prompt": "roses", "max_tokens": 1, "user": user, "store": store}
            headers = {b"Authorization": f"Bearer {key}".encode()}
            assert server.client().post("/v1/completions", json=body, headers=headers).status_code == 200
            if store is False:
                spoken = {"model": MODEL, "input": "roses", "max_output_tokens": 16, "user": user, "store": store}
                assert server.client().post("/v1/responses", json=spoken, headers=headers).status_code == 200
    async_engine.drain(1)
    tenants = {"": digest_bytes(b""), "a": digest_bytes(b"a")}
    assert found == [owner and f"{owner[:2]}{tenants[owner[2:]]}" for owner in (*owners, "")]


@pytest.mark.parametrize(
    ("keys", "metrics_key", "metrics_port", "opening"),
    [
        ((), None, None, (None, "Bearer any")),
        ((), "scraper", None, ("Bearer scraper",)),
        (("first",), "scraper", None, ("Bearer scraper", "Bearer first")),
        (("first",), None, 9000, ("Bearer first",)),
    ],
)
def test_the_key_of_the_metrics(shallow_target, keys, metrics_key, metrics_port, opening):
    async_engine = start_engine(shallow_target)
    with serving(async_engine, keys, metrics_key=metrics_key, metrics_port=metrics_port) as server:
        client = server.client()
        for authorization in (None, "Bearer any", "Bearer scraper", "Bearer first"):
            headers = {} if authorization is None else {"Authorization": authorization}
            wanted = 200 if authorization in opening else 401
            if not (metrics_key or metrics_port):
                wanted = 200
            assert client.get("/metrics", headers=headers).status_code == wanted, authorization
        if metrics_key:  # it opens nothing else
            models = client.get("/v1/models", headers={"Authorization": "Bearer scraper"})
            assert models.status_code == (401 if keys else 200)
    async_engine.drain(1)


def test_openais_client_and_keys(locked):
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong", max_retries=0).models.list()
    (model,) = openai.OpenAI(base_url=f"{locked.url}/v1", api_key="first", max_retries=0).models.list()
    found = model.model_dump()
    assert (found["id"], found["object"], found["max_model_len"]) == (MODEL, "model", 512)


def test_keys_are_compared_in_constant_time(locked, monkeypatch):
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    for key in ("first", "wrong"):
        compared.clear()
        httpx.get(f"{locked.url}/v1/models", headers={"Authorization": f"Bearer {key}"})
        # Every key is compared, wherever the right one stands.
        assert compared == [(key.encode(), b"first"), (key.encode(), "sécond".encode())]


# --- ids and the log-------------------------------------------------------------------------------------------------


def test_request_ids_of_clients_and_new_ones(http):
    assert http.get("/health", headers={"X-Request-Id": "abc-1"}).headers["X-Request-Id"] == "abc-1"
    for bad in ("", "a b", "x" * 129, "é"):
        made = http.get("/health", headers={"X-Request-Id": bad.encode()}).headers["X-Request-Id"]
        assert re.fullmatch("[0-9a-f]{32}", made)


def test_two_calls_may_carry_the_same_id(server, http):
    headers = {"X-Request-Id": "same"}
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 3}
    first, second = (http.post("/v1/completions", json=body, headers=headers).json() for _ in range(2))
    assert first["id"] != second["id"]


def test_the_log_has_figures_and_no_text(server, http):
    secret = "a secret that no log may hold"
    body = {"model": MODEL, "messages": [{"role": "user", "content": secret}], "max_tokens": 8, "ignore_eos": True}

    def ask(name, **rest):
        return http.post("/v1/chat/completions?also=secret", json={**body, **rest}, headers={"X-Request-Id": name})

    reply = ask("log-whole")
    ask("log-streamed", stream=True)
    ask("log-refused", temperature=secret)
    for name in ("log-whole", "log-streamed"):
        line = server.line_of(name)
        assert (line["path"], line["status"], line["finish"]) == ("/v1/chat/completions", 200, "length")
        assert line["prompt_tokens"] == reply.json()["usage"]["prompt_tokens"]
        assert line["output_tokens"] == 8
        assert line["acceptance"] >= 1
        assert 0 < line["ttft_ms"] < line["duration_ms"]
        assert line["tpot_ms"] > 0
    refused = server.line_of("log-refused")
    assert refused["status"] == 400
    assert "finish" not in refused
    assert not any("secret" in line or "\n" in line for line in server.lines)


def test_others_are_answered_while_one_streams(shallow_target):
    async_engine = start_engine(shallow_target)
    with serving(async_engine) as server:
        thread, replies = ask_aside(server, {**LONG, "stream": True})
        wait_until(lambda: async_engine.stats().running == 1)
        for _ in range(5):
            assert httpx.post(f"{server.url}/v1/completions", json={**LONG, "max_tokens": 1}).status_code == 200
        assert thread.is_alive()
        thread.join()
    async_engine.drain(1)
    assert replies[0].text.endswith("data: [DONE]\n\n")
