"""Google's own client library sends its requests to a server of this test, which has the limits of the real service."""

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from tests.doubles.loopback import send_json

from eyas.base.errors import InputError, StageError
from eyas.privacy import dlp_detector as dlp
from eyas.privacy.config import PrivacyConfig
from eyas.privacy.dlp_detector import DlpDetector
from eyas.privacy.filter import CleanedRecord, DroppedRecord, PrivacyFilter
from eyas.privacy.span import KINDS, Span
from eyas.privacy.word_lists import read_kinds

pytest.importorskip("google.cloud.dlp_v2", reason="the extra dlp is not installed")

from google.auth import credentials as google_credentials
from google.cloud import dlp_v2  # pyright: ignore

# Documented limits: https://cloud.google.com/sensitive-data-protection/limits
MAX_REQUEST_BYTES = 500_000
MAX_TABLE_VALUES = 50_000
# What the server finds: words of a text, and their info type and likelihood.
WORDS = {
    "SECRET": ("PASSWORD", "LIKELY", 4),
    "Aapeli": ("PERSON_NAME", "VERY_LIKELY", 5),
    "Mononen": ("PERSON_NAME", "POSSIBLE", 3),
    "FRNIR": ("FRANCE_NIR", "LIKELY", 4),
    "TODAY": ("DATE", "LIKELY", 4),
    "MEMBER9": ("CUSTOMER_ID", "LIKELY", 4),
    "ODDITY": ("ACME_TYPE", "LIKELY", 4),
}


class Service:
    """Answers content:inspect. `failures` are the HTTP codes of the first answers."""

    def __init__(self, failures=(), max_findings=3_000, numbers=False):
        self.failures, self.max_findings, self.numbers = list(failures), max_findings, numbers
        self.calls, self.requests = 0, []

    def answer(self, path, body):
        self.calls += 1
        if self.failures:
            code = self.failures.pop(0)
            return code, {"error": {"code": code, "message": f"refused {body[-200:].decode()}", "status": "X"}}
        request = json.loads(body)
        rows = request["item"]["table"]["rows"]
        if len(body) > MAX_REQUEST_BYTES or len(rows) > MAX_TABLE_VALUES:
            return 400, {"error": {"code": 400, "message": "too large", "status": "INVALID_ARGUMENT"}}
        self.requests.append((path, request))
        assert request["item"]["table"]["headers"] == [{"name": "text"}]
        limits = request["inspectConfig"]["limits"]
        assert limits == {"maxFindingsPerRequest": 3_000}
        findings = []
        for index, row in enumerate(rows):
            (value,) = row["values"]
            for match in re.finditer("|".join(WORDS), value["stringValue"]):
                findings.append(self.finding(match, index))
        is_truncated = {"findingsTruncated": True} if len(findings) > self.max_findings else {}
        result = {"findings": findings[: self.max_findings], **is_truncated}
        return 200, {"result": result}

    def finding(self, match, index):
        # 64-bit integers are strings, and zeros are left out, as in the JSON of protocol buffers.
        name, likelihood, number = WORDS[match[0]]
        points = {"start": str(match.start()), "end": str(match.end())}
        table = {"rowIndex": str(index)} if index else {}
        return {
            "infoType": {"name": name},
            "likelihood": number if self.numbers else likelihood,
            "location": {
                "codepointRange": points if match.start() else {"end": points["end"]},
                "contentLocations": [{"recordLocation": {"tableLocation": table}}],
            },
        }


@contextmanager
def running(service):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code, reply = service.answer(self.path, body)
            send_json(self, code, reply)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield dlp_v2.DlpServiceClient(
            transport="rest",
            client_options={"api_endpoint": f"http://127.0.0.1:{server.server_port}"},
            credentials=google_credentials.AnonymousCredentials(),
        )
    finally:
        server.shutdown()
        server.server_close()


def find(service, texts, argument="my-project"):
    with running(service) as client:
        return DlpDetector(argument, client).find(texts, ["en"] * len(texts))


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(dlp, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(dlp, "RETRY_S", 0.5)


@pytest.mark.parametrize("numbers", [False, True])
def test_many_texts_travel_in_one_request(numbers):
    service = Service(numbers=numbers)
    texts = ["a SECRET", "", "nothing", "é SECRET \U0001f600 SECRET", "Aapeli TODAY Mononen"]
    assert find(service, texts) == [
        [Span(2, 8, "SECRET", 0.8, "dlp.PASSWORD")],
        [],
        [],
        [Span(2, 8, "SECRET", 0.8, "dlp.PASSWORD"), Span(11, 17, "SECRET", 0.8, "dlp.PASSWORD")],
        [Span(0, 6, "PERSON", 1.0, "dlp.PERSON_NAME"), Span(13, 20, "PERSON", 0.5, "dlp.PERSON_NAME")],
    ]
    ((path, request),) = service.requests
    assert urlsplit(path).path == "/v2/projects/my-project/locations/global/content:inspect"
    config = request["inspectConfig"]
    assert {"name": "PERSON_NAME"} in config["infoTypes"]
    assert len(config["infoTypes"]) == len(read_kinds("google"))
    assert config["minLikelihood"] in ("POSSIBLE", 3)
    assert not config.get("includeQuote")
    assert "inspectTemplateName" not in request
    assert [row["values"][0]["stringValue"] for row in request["item"]["table"]["rows"]] == [t for t in texts if t]


@pytest.mark.parametrize(
    ("argument", "template"),
    [
        ("p/europe-west1?template=mine", "projects/p/locations/europe-west1/inspectTemplates/mine"),
        ("p/europe-west1?template=organizations/7/inspectTemplates/all", "organizations/7/inspectTemplates/all"),
    ],
)
def test_a_template_replaces_the_types(argument, template):
    service = Service()
    assert find(service, ["FRNIR TODAY"], argument) == [[Span(0, 5, "GOVERNMENT_ID", 0.8, "dlp.FRANCE_NIR")]]
    ((path, request),) = service.requests
    assert urlsplit(path).path == "/v2/projects/p/locations/europe-west1/content:inspect"
    assert request["inspectTemplateName"] == template
    assert "infoTypes" not in request["inspectConfig"]
    assert "minLikelihood" not in request["inspectConfig"]


def test_types_of_a_template_that_are_no_kind():
    spans = [[Span(0, 7, "CUSTOMER_ID", 0.8, "dlp.CUSTOMER_ID")]]  # a custom type with the name of a kind
    assert find(Service(), ["MEMBER9"], "p?template=t") == spans
    with pytest.raises(InputError, match="ACME_TYPE, which eyas does not know"):
        find(Service(), ["an ODDITY"], "p?template=t")


@pytest.mark.parametrize(
    ("region", "host"),
    [("global", "dlp.googleapis.com"), ("europe-west1", "dlp.europe-west1.rep.googleapis.com")],
)
def test_the_endpoint_of_a_region(region, host):
    client, _ = dlp._connect(region, google_credentials.AnonymousCredentials())
    assert client.api_endpoint == host
    assert client.transport.kind == "rest"


@pytest.mark.parametrize(
    "texts",
    [
        ["é" * 40_000 + " SECRET"] * 30,
        ["\U0001f600" * 60_000 + " SECRET"] * 3,  # 12 bytes of JSON each
        ['"\\\n\x01' * 20_000 + " SECRET"] * 4,
        ["a SECRET"] * 20_000,
    ],
)
def test_requests_keep_to_the_size(texts):
    service = Service()
    found = find(service, texts)
    assert len(service.requests) > 1
    at = texts[0].index("SECRET")
    assert [{(span.start, span.end) for span in spans} for spans in found] == [{(at, at + 6)}] * len(texts)


def test_a_long_text_goes_in_pieces():
    text = "x" * 29_997 + "SECRET" + "y" * 60_000 + "SECRET"
    spans = find(Service(), [text])[0]
    assert {(span.start, span.end) for span in spans} >= {(29_997, 30_003), (90_003, 90_009)}


def test_half_a_surrogate_pair_keeps_the_positions():
    assert find(Service(), ["\ud83d SECRET"]) == [[Span(2, 8, "SECRET", 0.8, "dlp.PASSWORD")]]


def test_too_many_findings_are_asked_again_in_halves():
    texts = ["SECRET " * 4] * 16 + [" ".join(["x" * 100 + " SECRET"] * 30)]
    found = find(Service(max_findings=10), texts)
    assert [len({(span.start, span.end) for span in spans}) for spans in found] == [4] * 16 + [30]
    with pytest.raises(StageError, match="truncates its findings in a text of 35 characters"):
        find(Service(max_findings=3), ["SECRET " * 5])


@pytest.mark.parametrize("failures", [(429, 429), (503,), (504, 500)])
def test_a_busy_service_is_asked_again(failures):
    service = Service(failures)
    assert find(service, ["a SECRET"])[0]
    assert service.calls == len(failures) + 1


@pytest.mark.parametrize(
    ("code", "error", "fix"),
    [
        (400, "BadRequest", "Check the project, the region and the template"),
        (401, "InvalidOperation", "gcloud auth application-default login"),  # anonymous credentials cannot be renewed
        (403, "Forbidden", "grant your account the role roles/dlp.user"),
        (404, "NotFound", "Check the project"),
    ],
)
def test_a_refusal_is_not_repeated(code, error, fix):
    service = Service([code] * 9)
    with pytest.raises(StageError, match=f"failed with {error} for projects/my-project/locations/global") as caught:
        find(service, ["a SECRET"])
    assert fix in caught.value.fix
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert service.calls == 1


def test_a_quota_that_stays_used_up():
    service = Service([429] * 10_000)
    with pytest.raises(StageError, match="failed with TooManyRequests") as caught:
        find(service, ["a SECRET"])
    assert "quota" in caught.value.fix
    assert "SECRET" not in str(caught.value)
    assert service.calls > 2


def test_no_server():
    with running(Service()) as client:
        pass
    with pytest.raises(StageError, match="failed with ConnectionError") as caught:
        DlpDetector("my-project", client).find(["a SECRET"], ["en"])
    assert "Check the connection" in caught.value.fix


def test_the_filter_replaces_what_the_service_finds():
    text = "Aapeli Mononen asked. TODAY Aapeli got it."
    with running(Service()) as client:
        detectors = [DlpDetector("my-project", client)]
        filter_ = PrivacyFilter(PrivacyConfig(names="all"), b"sixteen bytes key", detectors)
        cleaned, dropped = filter_.clean([((text,), "ja"), (("SECRET",), "ja")])
    assert isinstance(cleaned, CleanedRecord)
    assert cleaned.changed == {"PERSON": 3}
    assert not re.search("Aapeli|Mononen", cleaned.texts[0])
    assert "TODAY" in cleaned.texts[0]
    assert dropped == DroppedRecord("secret", {"SECRET": 1})


def test_no_credentials(monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(StageError, match="DefaultCredentialsError before the first request") as caught:
        DlpDetector("my-project")
    assert "gcloud auth application-default login" in caught.value.fix


def test_the_project_of_the_credentials(monkeypatch, tmp_path):
    file = tmp_path / "credentials.json"
    fields = {"client_id": "c", "client_secret": "s", "refresh_token": "r", "type": "authorized_user"}
    file.write_text(json.dumps(fields))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "mine")
    assert DlpDetector("")._parent == "projects/mine/locations/global"
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    monkeypatch.setenv("PATH", str(tmp_path))  # no gcloud
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with pytest.raises(StageError, match="name no project"):
        DlpDetector("")


def test_every_mapped_kind_exists():
    assert set(read_kinds("google").values()) == set(KINDS) - {"CUSTOMER_ID", "HANDLE"}
    assert set(read_kinds("google_template").values()) <= {*KINDS, "NONE"}
    assert not set(read_kinds("google")) & set(read_kinds("google_template"))
