"""The entrypoints of both engines' images, with a double for the engine that records how it was called."""

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.deploy.container import ROOT, Container, free_port
from tests.doubles.stores import gcs

LOCAL = {"EYAS_TARGET": "org/model", "EYAS_HEAD": "/models/head"}


@pytest.fixture
def start(tmp_path) -> Iterator:
    started = []

    def run(engine: str, *arguments: str, **environment: str):
        number = len(started)
        container = Container.of(engine, tmp_path / str(number))
        started.append(container.start(*arguments, **environment))
        return started[-1]

    yield run
    for running in started:
        running.kill()


def after(arguments: list[str], flag: str) -> str:
    assert arguments.count(flag) == 1, (flag, arguments)
    return arguments[arguments.index(flag) + 1]


def test_sglang_gets_target_head_tree_and_the_arguments(start):
    running = start("sglang", "--tp", "4", EYAS_SPECULATION="6,4,16", EYAS_SERVED_NAME="scout", **LOCAL)
    arguments = running.call["arguments"]
    assert after(arguments, "--model-path") == "org/model"
    assert after(arguments, "--speculative-algorithm") == "EAGLE3"
    assert after(arguments, "--speculative-draft-model-path") == "/models/head"
    assert after(arguments, "--speculative-num-steps") == "6"
    assert after(arguments, "--speculative-eagle-topk") == "4"
    assert after(arguments, "--speculative-num-draft-tokens") == "16"
    assert after(arguments, "--served-model-name") == "scout"
    assert after(arguments, "--host") == "127.0.0.1"
    assert arguments[-2:] == ["--tp", "4"], "the operator's arguments come last, so that they win"
    assert running.stop() == 0


def test_vllm_gets_a_chain_and_no_variable_that_adds_routes(start):
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", **LOCAL}
    running = start("vllm", "--max-model-len", "4096", EYAS_SPECULATION="3,1,4", **environment)
    arguments = running.call["arguments"]
    assert arguments[:2] == ["serve", "org/model"]
    told = json.loads(after(arguments, "--speculative-config"))
    assert told == {"method": "eagle3", "model": "/models/head", "num_speculative_tokens": 3}
    assert after(arguments, "--served-model-name") == "org/model"
    assert arguments[-2:] == ["--max-model-len", "4096"]
    assert not [name for name in running.call["environment"] if name.startswith(("VLLM_", "AIP_"))]


BLOCKS = {"dspark": ("Qwen3DSparkModel", 7), "dflash": ("DFlashDraftModel", 8)}


def block_head(place: Path, method: str = "dspark") -> str:
    """The directory of a block head of 7 slots, as far as an entrypoint reads it."""
    place.mkdir()
    architecture, size = BLOCKS[method]
    (place / "config.json").write_text(json.dumps({"architectures": [architecture], "block_size": size}))
    return str(place)


@pytest.mark.parametrize("method", BLOCKS)
def test_a_block_head_drafts_all_its_slots(start, tmp_path, method):
    """The tree of the recipe is that of EAGLE-3; a block head has the width that it was trained with."""
    head = block_head(tmp_path / "head", method)
    environment = {"EYAS_TARGET": "org/model", "EYAS_HEAD": head, "EYAS_SPECULATION": "6,4,16"}
    arguments = start("sglang", "--tp", "4", **environment).call["arguments"]
    assert after(arguments, "--speculative-algorithm") == method.upper()
    assert after(arguments, "--speculative-draft-model-path") == head
    assert after(arguments, "--speculative-num-draft-tokens") == "8"
    assert not {"--speculative-num-steps", "--speculative-eagle-topk"} & set(arguments)
    told = json.loads(after(start("vllm", **environment).call["arguments"], "--speculative-config"))
    assert told.pop("draft_sample_method", None) == ("probabilistic" if method == "dspark" else None)
    assert told == {"method": method, "model": head, "num_speculative_tokens": 7}


@pytest.mark.parametrize(("version", "is_served"), [("0.24.1", False), ("0.25.0", True), ("1.0.0", True)])
def test_a_vllm_that_knows_no_block_heads_says_so(version, is_served, tmp_path):
    """The version is that of the installed package."""
    package = tmp_path / "0" / "engine" / f"vllm-{version}.dist-info"
    environment = {"EYAS_TARGET": "org/model", "EYAS_HEAD": block_head(tmp_path / "head")}
    container = Container.of("vllm", tmp_path / "0")
    package.mkdir(parents=True)
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    if is_served:
        running = container.start(**environment)
        assert "--speculative-config" in running.call["arguments"]
        running.kill()
    else:
        assert "Use vLLM 0.25.0 or newer" in container.refused(**environment)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("off", [{"EYAS_SPECULATION": "off"}, {"EYAS_HEAD": "none"}])
def test_without_speculation_there_is_no_draft_model(start, engine, off):
    arguments = start(engine, **{"EYAS_TARGET": "org/model", **off}).call["arguments"]
    assert not [word for word in arguments if "speculative" in word]


def test_target_and_head_come_from_the_artifacts(start, monkeypatch):
    with gcs(monkeypatch) as store:
        store.create("bucket/model/target/config.json", b"the target's", only_new=False)
        store.create("bucket/model/head/model.safetensors", bytes(range(256)) * 999, only_new=False)
        running = start("sglang", AIP_STORAGE_URI="gs://bucket/model/", STORAGE_EMULATOR_HOST=store.url)
    arguments = running.call["arguments"]
    target, head = (Path(after(arguments, flag)) for flag in ("--model-path", "--speculative-draft-model-path"))
    assert (target / "config.json").read_bytes() == b"the target's"
    assert (head / "model.safetensors").read_bytes() == bytes(range(256)) * 999


def test_variables_win_over_the_artifacts(start, monkeypatch):
    with gcs(monkeypatch) as store:
        store.create("bucket/model/head/config.json", b"{}", only_new=False)
        environment = {"AIP_STORAGE_URI": "gs://bucket/model", "STORAGE_EMULATOR_HOST": store.url}
        running = start("vllm", EYAS_TARGET="org/model", **environment)
    assert running.call["arguments"][1] == "org/model"
    head = json.loads(after(running.call["arguments"], "--speculative-config"))["model"]
    assert (Path(head) / "config.json").read_bytes() == b"{}"


WRONG = [
    ({"AIP_HTTP_PORT": "http"}, "AIP_HTTP_PORT=http is not a port"),
    ({"AIP_HTTP_PORT": "30000"}, "are both 30000"),
    ({"EYAS_INNER_PORT": "x"}, "EYAS_INNER_PORT=x is not a port"),
    ({"AIP_HEALTH_ROUTE": "health"}, "The route health does not start with a slash"),
    ({"AIP_PREDICT_ROUTE": "predict"}, "The route predict does not start with a slash"),
    ({"EYAS_SPECULATION": "3"}, "EYAS_SPECULATION=3"),
    ({"EYAS_SPECULATION": "3,1,4,9"}, "EYAS_SPECULATION=3,1,4,9"),
    ({"EYAS_SPECULATION": "3,1,4; rm -rf /"}, "EYAS_SPECULATION"),
    ({"EYAS_TARGET": ""}, "no target"),
    ({"EYAS_HEAD": ""}, "no head"),
    ({"EYAS_HEAD": "file:///none"}, "No file below file:///none"),
    ({"EYAS_TARGET": "nothing://x"}, "nothing://x"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG)
def test_a_wrong_environment_is_rejected(tmp_path, wrong, said):
    message = Container.of("sglang", tmp_path).refused(**{**LOCAL, **wrong})
    assert said in message
    assert re.fullmatch(r"eyas: error: .+[^.]\. [A-Z].+[^.]\.\n", message), message


def test_vllm_rejects_a_tree_and_both_reject_a_port(tmp_path):
    container = Container.of("vllm", tmp_path)
    assert "vLLM runs only chains" in container.refused(EYAS_SPECULATION="6,4,16", **LOCAL)
    for words in (["--port", "9"], ["--port=9"], ["--host", "0.0.0.0"]):
        assert "the engine listens behind the gate" in container.refused(*words, **LOCAL)


# --- the gate --------------------------------------------------------------------------------------------------------


@pytest.fixture
def running(start):
    routes = {"AIP_HEALTH_ROUTE": "/v1/endpoints/7", "AIP_PREDICT_ROUTE": "/v1/endpoints/7:predict"}
    return start("vllm", **routes, **LOCAL)


def test_an_allowed_request_reaches_the_engine_unchanged(running):
    with running.client() as http:
        for method, path, inner in (
            ("GET", "/health", "/health"),
            ("GET", "/metrics", "/metrics"),
            ("GET", "/v1/models?x=1", "/v1/models?x=1"),
            ("POST", "/v1/chat/completions", "/v1/chat/completions"),
            ("POST", "/v1/completions", "/v1/completions"),
            ("POST", "/v1/responses", "/v1/responses"),
            ("GET", "/v1/models/scout", "/v1/models/scout"),
            ("GET", "/v1/models/meta-llama/Llama-3.1-8B", "/v1/models/meta-llama/Llama-3.1-8B"),
            ("GET", "/v1/endpoints/7", "/health"),
            ("POST", "/v1/endpoints/7:predict", "/v1/chat/completions"),
        ):
            content = b'{"prompt": "\xc3\xa4"}' if method == "POST" else b""
            told = http.request(method, path, content=content, headers={"Authorization": "Bearer k"}).json()
            assert (told["method"], told["path"], told["body"].encode()) == (method, inner, content)
            assert told["headers"]["Authorization"] == "Bearer k"


def test_head_asks_the_engine_and_has_no_body(running):
    for path in ("/health", "/v1/endpoints/7"):
        answer = raw(running.url, f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), "engines reject HEAD, so the gate asks them with GET"
        assert body == b""


def test_metrics_can_need_a_key(start, tmp_path):
    keys = {"EYAS_METRICS_KEY_ENV": "SCRAPE_KEY", **LOCAL}
    with start("sglang", SCRAPE_KEY="k-1", **keys).client() as http:
        for headers in (
            {},
            {"Authorization": "Bearer k-2"},
            {"Authorization": "k-1"},
            {"Authorization": b"Bearer \xe4"},
        ):
            assert http.get("/metrics", headers=headers).status_code == 401
        told = http.get("/metrics", headers={"Authorization": "Bearer k-1"})
        assert (told.status_code, told.json()["path"]) == (200, "/metrics")
        assert http.get("/health").status_code == 200
    message = Container.of("vllm", tmp_path / "without").refused(**keys)
    assert "The variable SCRAPE_KEY with the key of /metrics is not set. Add SCRAPE_KEY to the Secret" in message


ADMIN = [
    "/pause",
    "/update_weights",
    "/update_weights_from_disk",
    "/flush_cache",
    "/start_profile",
    "/sleep",
    "/generate",
]
ADMIN += ["/v1/load_lora_adapter", "/collective_rpc", "/abort_requests", "/invocations", "/tokenize", "/ui", "/"]
TRICKS = [
    "/health/../flush_cache",
    "//flush_cache",
    "/v1/chat/completions/",
    "/V1/completions",
    "/%66lush_cache",
    "/health",
]
MODEL_TRICKS = ["/v1/models/", "/v1/models/../flush_cache", "/v1/models/a/../x", "/v1/models/a%2Fb", "/v1/models//x"]
MODEL_TRICKS += ["/v1/responses/7", "/v1/models/a;b", "/v1/models/.."]


def raw(url: str, text: bytes) -> bytes:
    """Sends bytes to the gate and returns its whole answer."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(text)
        answer = b""
        while part := line.recv(65536):
            answer += part
    return answer


def test_every_other_route_is_answered_404(running):
    for method, paths in (
        ("POST", ADMIN + TRICKS),
        ("GET", ADMIN + MODEL_TRICKS),
        ("DELETE", ["/v1/models", "/v1/models/a"]),
    ):
        for path in paths:
            answer = raw(running.url, f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 404 "), (method, path, answer)
            assert b"It offers GET /health" in answer


def test_a_second_request_cannot_be_smuggled_in(running):
    behind = b"POST /flush_cache HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    first = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = raw(running.url, first + behind)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"flush_cache" not in answer
    for lengths in (
        b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 0\r\nContent-Length: 40\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Content-Length: +0\r\n",
    ):
        answer = raw(running.url, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + lengths + b"\r\n" + behind)
        assert answer.startswith(b"HTTP/1.1 400 "), (lengths, answer)
    chunked = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = raw(running.url, chunked + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n" + behind)
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["body"] == "abcde"
    assert raw(running.url, chunked + b"-3\r\n").startswith(b"HTTP/1.1 400 ")


def test_limits(running):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    assert raw(running.url, head + b"Content-Length: 99999999\r\n\r\n").startswith(b"HTTP/1.1 413 ")
    assert raw(running.url, head + b"X: " + b"a" * 70_000).startswith(b"HTTP/1.1 431 ")
    assert raw(running.url, b"GET http://x/health HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_a_stream_is_passed_on_at_once_and_ends_with_its_client(running):
    with running.client() as http, http.stream("POST", "/v1/completions", json={"stream": True}) as reply:
        first = next(reply.iter_bytes())
        assert first.startswith(b"data: 0")
        assert len(first) < 1000, "the stream was held back"
    left = Path(f"{running.seen}.left")
    for _ in range(500):
        if left.exists():
            break
        time.sleep(0.02)
    assert left.exists(), "the engine still works for a client that has disconnected"


def test_an_engine_that_loads_or_exits(tmp_path):
    """Health is 503 until the engine listens; the container exits when the engine does, with its code."""
    port, inner = free_port(), free_port()
    command = [sys.executable, str(ROOT / "deploy" / "gate.py"), "sh", "-c", "sleep 3; exit 7"]
    environment = {"PATH": "/usr/bin:/bin", "AIP_HTTP_PORT": str(port), "EYAS_INNER_PORT": str(inner)}
    with subprocess.Popen(command, env=environment) as process:
        for _ in range(200):
            try:
                assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 503
                break
            except httpx.ConnectError:
                time.sleep(0.02)
        assert process.wait(20) == 7


# --- linters --------------------------------------------------------------------------------------------------------

SCRIPTS = ["deploy/entrypoint.sh", "deploy/sglang/entrypoint.sh", "deploy/vllm/entrypoint.sh"]
DOCKERFILES = ["deploy/Dockerfile", "deploy/Dockerfile.gpu", "deploy/sglang/Dockerfile", "deploy/vllm/Dockerfile"]


@pytest.mark.parametrize("command", [["shellcheck", "-x", *SCRIPTS], ["hadolint", *DOCKERFILES]], ids=lambda c: c[0])
def test_linters_find_nothing(command):
    program = shutil.which(command[0], path=f"{Path(sys.executable).parent}:/usr/bin")
    assert program is not None, "comes with the extra dev"
    done = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", DOCKERFILES)
def test_an_image_has_an_unprivileged_user_and_a_health_check(path):
    lines = (ROOT / path).read_text().splitlines()
    last = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert "USER 10001" in last
    assert any(line.startswith("HEALTHCHECK ") for line in last)
    has_compiler = bool([line for line in last if "gcc" in line])
    assert has_compiler == (path == "deploy/Dockerfile.gpu"), "only Triton needs one"
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), f"{source} is not in the build context"
    named = {line.partition("=")[0] for line in (ROOT / "deploy/images.env").read_text().splitlines() if "=" in line}
    bases = {line.split()[1].strip("${}") for line in lines if line.startswith("FROM ")}
    assert bases <= named, "a base image that is not in images.env"


def test_running_answers_finish_after_sigterm(start):
    """SIGTERM refuses new requests, lets the stream run on, and ends it only after EYAS_DRAIN_S."""
    running = start("vllm", EYAS_DRAIN_S="1.5", **LOCAL)
    with running.client() as http, http.stream("POST", "/v1/chat/completions", json={"stream": True}) as reply:
        lines = reply.iter_lines()
        next(lines)
        begun_s = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert httpx.get(f"{running.url}/health", timeout=60).status_code == 503
        after = 0
        with contextlib.suppress(httpx.RemoteProtocolError):
            for _ in lines:
                after += 1
                if time.monotonic() - begun_s > 1.0:
                    break
        assert time.monotonic() - begun_s > 1.0
        assert after > 10, "the stream goes on"
    assert running.process.wait(60) == 0
