"""`eyas serve` as a process: ready, asked, told to stop."""

import json
import os
import re
import signal
import socket
import threading
import time

import httpx
import openai
import pytest
from tests.doubles.stores import gcs
from tests.e2e.processes import LONGEST_S
from tests.e2e.small import ERROR

from eyas.cli import main

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"  # as Prometheus asks
LONG = {"model": "tiny", "prompt": "hi", "max_tokens": 400, "ignore_eos": True}


def ask(url: str, **rest: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json={**LONG, **rest}, timeout=60)


def test_a_server_with_a_head_from_start_to_stop(start, finished, target):
    server = start("--target", target, "--head", finished / "head", "--context", 512, "--slots", 1)
    url = server.wait_ready()
    assert server.out.read_text().startswith("eyas serves tiny at ")
    assert "arms: off, " in server.out.read_text()
    assert httpx.get(f"{url}/ready").json() == {"status": "ready"}
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny"]
    reply = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "what is 1 plus 1?"}], max_tokens=20, temperature=0
    )
    assert reply.model_dump()["metrics"]["speculative_decoding"]["num_spec_tokens"] >= 1
    assert server.stop(signal.SIGTERM) == 0
    loaded, head, *lines = server.err.read_text().splitlines()
    assert loaded.startswith(f"eyas: target {target} (sha256:")
    assert head.startswith(f"eyas: head {finished / 'head'} (sha256:")
    assert "for target tiny" in head
    assert "`eyas train` wrote at " in head
    assert [json.loads(line)["path"] for line in lines] == ["/ready", "/v1/models", "/v1/chat/completions"]
    assert len(server.out.read_text().splitlines()) == 1


def test_one_arm_a_name_and_keys(start, finished, target):
    arguments = ("--target", target, "--head", finished / "head", "--speculation", "tree8")
    server = start(*arguments, "--served-name", "mine", "--api-key", "three", EYAS_API_KEY="one, two")
    url = server.wait_ready()
    assert server.out.read_text() == f"eyas serves mine at {url}/v1 (arms: tree8)\n"
    for key, status in (("one", 200), ("two", 200), ("three", 200), ("four", 401)):
        reply = httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"})
        assert reply.status_code == status
    assert httpx.get(f"{url}/ready").status_code == 200
    assert server.stop(signal.SIGINT) == 0


def test_the_metrics_on_a_port_of_their_own(start, target):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = start("--target", target, "--no-head", "--api-key", "secret", "--metrics-port", port)
    url = server.wait_ready()
    reply = httpx.post(
        f"{url}/v1/completions", json={**LONG, "max_tokens": 7}, headers={"Authorization": "Bearer secret"}
    )
    assert reply.status_code == 200
    page = httpx.get(f"http://127.0.0.1:{port}/metrics", headers={"Accept": OPENMETRICS})
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 7.0\n' in page.text
    assert 'vllm:prefix_cache_queries{engine="0",model_name="tiny"} 2.0\n' in page.text
    assert "\nprocess_resident_memory_bytes " in page.text
    assert httpx.get(f"{url}/metrics").status_code == 401
    assert server.stop(signal.SIGTERM) == 0


def test_what_was_accepted_ends_before_the_process_does(start, target):
    server = start("--target", target, "--no-head", "--slots", 1, "--context", 512, "--drain-s", 30)
    url = server.wait_ready()
    replies: dict[str, httpx.Response] = {}
    threads = [
        threading.Thread(target=lambda name=name: replies.update({name: ask(url, stream=name == "streamed")}))
        for name in ("plain", "streamed")
    ]
    with httpx.Client(base_url=url) as client:
        for thread in threads:
            thread.start()
        _wait_busy(client, 2)
        os.kill(server.process.pid, signal.SIGTERM)
        while client.get("/ready").status_code == 200:
            time.sleep(0.01)
        assert client.get("/health").status_code == 200
        assert client.post("/v1/completions", json=LONG).status_code == 503
    server.process.join(LONGEST_S)
    for thread in threads:
        thread.join()
    assert server.process.exitcode == 0
    assert replies["plain"].json()["usage"]["completion_tokens"] == 400
    assert replies["streamed"].text.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"length"' in replies["streamed"].text


def test_what_takes_too_long_gets_an_error(start, target):
    server = start("--target", target, "--no-head", "--slots", 1, "--context", 512, "--drain-s", 0.1)
    url = server.wait_ready()
    replies: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: replies.append(ask(url))) for _ in range(3)]
    for thread in threads:
        thread.start()
    with httpx.Client(base_url=url) as client:
        _wait_busy(client, 3)
    began_s = time.monotonic()
    assert server.stop(signal.SIGTERM) == 0
    assert time.monotonic() - began_s < 10
    for thread in threads:
        thread.join()
    assert [reply.status_code for reply in replies] == [503] * 3
    assert {reply.json()["error"]["code"] for reply in replies} == {"draining"}


def _wait_busy(client: httpx.Client, count: int) -> None:
    """Until so many requests run or wait."""
    end_s = time.monotonic() + LONGEST_S
    figures = re.compile(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\d+)\.0$", re.MULTILINE)
    while sum(map(int, figures.findall(client.get("/metrics").text))) < count:
        assert time.monotonic() < end_s, "they do not come in"
        time.sleep(0.01)


def test_a_machine_without_a_compiler_is_told_of_once(start, target, tmp_path):
    empty = {name: str(tmp_path / name) for name in ("PATH", "XDG_CACHE_HOME")}
    server = start("--target", target, "--no-head", "--slots", 1, "--context", 512, **empty)
    assert ask(server.wait_ready(), max_tokens=3).status_code == 200
    assert server.stop(signal.SIGTERM) == 0
    loaded, said, *requests = server.err.read_text().splitlines()
    assert loaded.startswith(f"eyas: target {target} (sha256:")
    assert said.startswith("eyas: warning: attention runs without its C operator, which is slower: ")
    assert "no gcc or cc" in said
    assert [json.loads(line)["path"] for line in requests] == ["/v1/completions"]


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--port", "70000"], "--port = 70000"),
        (["--metrics-port", "70000"], "--metrics-port = 70000"),
        (["--metrics-port", "0"], "--metrics-port 0"),
        (["--metrics-port", "9001", "--port", "9001"], "--metrics-port 9001 is 0 or the same as --port"),
        (["--device", "auto"], "one device"),
        (["--device", "cuda:9"], "device cuda:9"),
        (["--device", "gpu"], "cuda:N"),
        (["--host", "192.0.2.1"], "--host 192.0.2.1"),
        (["--slots", "0"], "--slots = 0"),
        (["--context", "1"], "--context = 1"),
        (["--max-waiting", "-1"], "--max-waiting = -1"),
        (["--drain-s", "-1"], "--drain-s = -1"),
        (["--drain-s", "nan"], "--drain-s = nan"),
        (["--api-key", ""], "An API key is empty"),
        (["--head", "x", "--no-head"], "--no-head"),
    ],
)
def test_wrong_usage(arguments, named, capsys):
    assert main(["serve", "--port", "0", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert ERROR.fullmatch(err.strip()), err
    assert named in err


@pytest.mark.parametrize("option", ["--port", "--metrics-port"])
def test_a_port_in_use(option, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        began_s = time.monotonic()
        words = ["serve", "--target", "/nowhere", "--port", "0", option, str(port)]
        assert main(words) == 2  # before any target is looked for
    err = capsys.readouterr().err
    assert ERROR.fullmatch(err.strip()), err
    assert f"{option} {port}" in err
    assert "in use" in err
    assert time.monotonic() - began_s < 20


def test_as_a_container_of_vertex_ai(start, finished, target, monkeypatch, tmp_path):
    """Port, routes and artifacts come from the environment; the target and its head from a bucket."""
    with gcs(monkeypatch) as store, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        for name, directory in (("target", target), ("head", finished / "head")):
            for path in directory.iterdir():
                if path.is_file():
                    store.create(f"bucket/model/{name}/{path.name}", path.read_bytes(), only_new=False)
        free.close()
        environment = {
            "AIP_HTTP_PORT": str(port),
            "AIP_HEALTH_ROUTE": "/health",
            "AIP_PREDICT_ROUTE": "/predict",
            "AIP_STORAGE_URI": "gs://bucket/model",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "STORAGE_EMULATOR_HOST": store.url,
        }
        server = start("--served-name", "tiny", "--context", 512, port=None, **environment)
        server.wait_ready()
        url = f"http://127.0.0.1:{port}"
        assert "arms: off, " in server.out.read_text(), "there is no head"
        assert httpx.get(f"{url}/health").status_code == 200
        question = [{"role": "user", "content": "what is 1 plus 1?"}]
        body = {"model": "tiny", "messages": question, "max_tokens": 12, "temperature": 0}
        whole = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()["choices"]
        raw = httpx.post(f"{url}/predict", json=body, timeout=60).json()["choices"]
        told = httpx.post(f"{url}/predict", json={"instances": [body]}, timeout=60).json()["predictions"]
        assert raw == told[0]["choices"] == whole
        assert server.stop(signal.SIGTERM) == 0


def test_a_bucket_that_has_nothing_is_said_at_once(capsys, monkeypatch):
    monkeypatch.setenv("AIP_HTTP_PORT", "0")
    with gcs(monkeypatch):
        assert main(["serve", "--target", "gs://bucket/none", "--no-head"]) == 2
    assert "No file below gs://bucket/none" in capsys.readouterr().err
