"""notebooks/vertex.ipynb, cell by cell: a loopback of Vertex AI, its bucket, its tokens, and two endpoints with TLS."""

import asyncio
import datetime
import ipaddress
import json
import re
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import nbformat
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from nbclient import NotebookClient
from tests.doubles.gcs import Fault
from tests.doubles.llm import FakeServer, Manner, fake_server
from tests.doubles.loopback import Loopback

from eyas.base.errors import EyasError

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "vertex.ipynb"
PARENT = "projects/my-project/locations/us-central1"
TOKEN = "ya29.of-the-test"
LOAD = """LOAD = {
    "limit": 1, "max_tokens": 8, "concurrency": [2], "requests_per_stream": 1, "repeats": 1, "warm_up": 0
}"""


class FakeTokens(Loopback):
    """The OAuth server that a service account's key names: signed assertions for access tokens."""

    assertions: list[str]

    def handler(self) -> type[BaseHTTPRequestHandler]:
        self.assertions = assertions = []

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                assertions.extend(form["assertion"])
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps({"access_token": TOKEN, "expires_in": 3600}).encode())

        return Handler


@pytest.fixture
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def tls(key, tmp_path, monkeypatch) -> ssl.SSLContext:
    """A certificate for this machine, which the notebook's processes trust."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an endpoint of a test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "tls.pem"
    path.write_bytes(_pem(key) + certificate.public_bytes(serialization.Encoding.PEM))
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


@pytest.fixture
def tokens(key, tmp_path, monkeypatch) -> Iterator[FakeTokens]:
    """Application Default Credentials: the key of a service account."""
    with FakeTokens() as server:
        account = {
            "type": "service_account",
            "client_email": "notebook@my-project.iam.gserviceaccount.com",
            "private_key": _pem(key).decode(),
            "token_uri": f"{server.url}/token",
        }
        path = tmp_path / "account.json"
        path.write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        yield server


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


@contextmanager
def endpoint(api, tls: ssl.SSLContext, name: str, step_s: float) -> Iterator[FakeServer]:
    """Runs the server behind the endpoint's own host. It streams answers to clients that send the token."""
    path = f"/v1/{PARENT}/endpoints/{name}:streamRawPredict"
    with fake_server(Manner(tokens=8, step_s=step_s, key=TOKEN, path=path), tls=tls) as server:
        api.hosts[name] = urlsplit(server.url).netloc
        yield server


@pytest.fixture
def recipe(api, bucket, tokens, tmp_path, monkeypatch) -> Path:
    """The embedded pair on machines without a GPU."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = tmp_path / "pair.toml"
    path.write_text(
        f'[target]\nhead = "embedded"\n[deploy]\nengine = "eyas"\n[deploy.vertex]\naccelerator_count = 0\n'
        f'api_endpoint = "{api.url}"\n'
    )
    return path


def settings(recipe: Path, baseline: bool) -> str:
    return f"""
RECIPE, RUN, NAME = {str(recipe)!r}, {str(recipe.parent / "run")!r}, "pair"
PROJECT, REGION, BUCKET, IMAGE = "my-project", "us-central1", "gs://bucket/eyas", "r/eyas:1"
OTHER_KEYS, BASELINE, PRICE_PER_HOUR = ["deploy.vertex.replicas=[1, 2]"], {baseline}, 1.5
"""


def read_cells() -> dict[str, nbformat.NotebookNode]:
    """The cells of code, in order, by their first tags."""
    cells = nbformat.read(NOTEBOOK, 4).cells
    return {cell.metadata.tags[0]: cell for cell in cells if cell.cell_type == "code"}


def ran(recipe: Path, *passes: list[str]) -> list[list[tuple[str, str]]]:
    """Runs the cells of each pass in a kernel that knows no names, as after a restart. The output of every cell."""
    cells = read_cells()
    cells["settings"].source, cells["load"].source = settings(recipe, True), LOAD
    cells["restart"] = nbformat.v4.new_code_cell("%reset -f")
    notebook = nbformat.read(NOTEBOOK, 4)
    notebook.cells = [nbformat.from_dict(cells[tag]) for order in passes for tag in ["restart", *order]]
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(recipe.parent)}})
    asyncio.run(client.async_execute())
    done: Iterator[Any] = iter(notebook.cells)
    return [[(tag, said(next(done))) for tag in ["restart", *order]] for order in passes]


def said(cell: nbformat.NotebookNode) -> str:
    texts = []
    for output in cell.outputs:
        data = output.get("data", {})
        texts += [output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")]
        texts += ["\n".join(output.get("traceback", []))]
    return "".join(texts)


def test_it_is_stored_without_outputs_and_errors_after_the_plan_do_not_stop_it():
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    cells = read_cells()
    assert list(cells)[-1] == "delete"
    going_on = [tag for tag, cell in cells.items() if "raises-exception" in cell.metadata.tags]
    assert going_on == ["deploy", "authenticate", "request", "measure"]


def test_after_an_interrupt_no_step_begins(recipe, monkeypatch):
    names: dict[str, Any] = {}
    exec(settings(recipe, False) + read_cells()["setup"].source, names)
    monkeypatch.delattr(EyasError, "_render_traceback_")
    names["display"] = lambda *_, **__: SimpleNamespace(update=lambda _: None)
    begun, may_go_on = [], threading.Event()

    def act(deployment):
        for step in ("model", "endpoint"):
            deployment.log(step)
            begun.append(step)
            may_go_on.wait(10)

    async def interrupt():
        cell = asyncio.ensure_future(names["change_endpoints"](act))
        while not begun:
            await asyncio.sleep(0.01)
        cell.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cell
        may_go_on.set()

    asyncio.run(interrupt())  # it ends after the thread that runs `act`
    assert begun == ["model"]


def test_cell_by_cell(recipe, api, bucket, tokens, tls):
    """Run All with an error, then each cell, some twice, then the deletion alone."""
    api.polls = 0
    api.faults.append(Fault("POST", "/pair:deployModel$", 403, times=1))
    setup = ["settings", "setup"]
    good = [*setup, "deploy", "deploy", "authenticate", "request", "load", "measure"]
    with endpoint(api, tls, "pair", 0.001) as fast, endpoint(api, tls, "pair-baseline", 0.004) as slow:
        failed, passed, deleted = ran(recipe, list(read_cells()), good, [*setup, "delete", "delete"])
    assert not any("Traceback" in text or TOKEN in text for _, text in failed + passed + deleted)
    check_plan_and_errors(dict(failed))
    check_outputs(passed, fast.url, slow.url)
    gone = {"speculative: absent", "baseline: absent"}
    assert all(gone <= set(text.splitlines()) for tag, text in failed + deleted if tag == "delete")
    assert (api.endpoints, api.models) == ({}, {})

    changes = Counter(api.asked())
    assert changes["POST endpoints"] == changes["POST models:upload"] == 4, "two of each in two passes"
    assert changes["POST pair:deployModel"] - 1 == changes["POST pair:undeployModel"] == 1, "the first one failed"
    assert changes["POST pair-baseline:deployModel"] == changes["POST pair-baseline:undeployModel"] == 2
    assert changes["DELETE pair"] == changes["DELETE pair-baseline"] == 2
    arguments = [body["model"]["containerSpec"]["args"] for _, path, body in api.requests if path.endswith(":upload")]
    assert {(words[3], words[4:]) for words in map(tuple, arguments)} == {
        ("pair", ()), ("pair-baseline", ("--no-head", "--served-name=pair")),
    }  # fmt: skip

    assert tokens.assertions, "the token comes from Application Default Credentials"
    for server in (fast, slow):
        assert {heads["authorization"] for heads in server.heads} == {f"Bearer {TOKEN}"}
        assert {(body["model"], body["stream"]) for body in server.bodies} == {("pair", True)}
    assert len(fast.bodies) == len(slow.bodies) + 1, "one request, then the same load for both"


def check_plan_and_errors(text: dict[str, str]) -> None:
    assert "replicas  1 to 2, each g2-standard-12" in text["plan"]
    assert re.search("head      sha256:[0-9a-f]{64}", text["plan"])
    assert "price: 3.00 to 6.00 an hour" in text["plan"]
    assert "baseline: serving" in text["deploy"]
    assert "speculative: Vertex AI denies permission: " in text["deploy"]
    assert text["deploy"].splitlines()[-1].startswith("eyas: error: Vertex AI denies permission: ")
    error = "eyas: error: The speculative endpoint does not serve; its state is 'endpoint'. Run section 4."
    assert all(text[tag].endswith(error) for tag in ("authenticate", "request", "measure"))


def check_outputs(told: list[tuple[str, str]], url: str, baseline: str) -> None:
    for text in [text for tag, text in told if tag == "deploy"]:
        assert {"speculative: serving", "baseline: serving"} <= set(text.splitlines())
        assert re.search(r"\d+:\d\d in all", text)
    text = dict(told)
    assert "notebook@my-project.iam.gserviceaccount.com is valid until" in text["authenticate"]
    assert f"speculative: {url}\nbaseline: {baseline}\n" in text["authenticate"]
    assert text["request"].startswith("w" * 8)
    assert "first text after" in text["request"]
    assert re.search(r"speculative +\d", text["measure"])
    assert "Throughput under load" in text["measure"], "the report is shown"
