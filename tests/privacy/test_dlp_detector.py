"""Google's service is stood in for by a client that finds the word SECRET, with the limits of the real one."""

from types import SimpleNamespace

import pytest

from eyas.base.errors import StageError
from eyas.privacy import dlp_detector as dlp
from eyas.privacy.dlp_detector import DlpDetector
from eyas.privacy.span import KINDS, Span
from eyas.privacy.word_lists import read_kinds


class ResourceExhausted(Exception):
    pass


class Client:
    def __init__(self, failures=0, max_findings=dlp.MAX_FINDINGS, error=ResourceExhausted):
        self.requests = []
        self.failures, self.max_findings, self.error = failures, max_findings, error

    def inspect_content(self, request):
        if self.failures:
            self.failures -= 1
            raise self.error("quota exceeded for 'SECRET'")
        self.requests.append(request)
        rows = [row["values"][0]["string_value"] for row in request["item"]["table"]["rows"]]
        assert sum(len(row.encode()) for row in rows) <= 500_000
        findings = []
        for index, row in enumerate(rows):
            at = row.find("SECRET")
            while at >= 0:
                place = SimpleNamespace(
                    record_location=SimpleNamespace(table_location=SimpleNamespace(row_index=index))
                )
                findings.append(
                    SimpleNamespace(
                        info_type=SimpleNamespace(name="PASSWORD"),
                        likelihood=SimpleNamespace(name="LIKELY"),
                        location=SimpleNamespace(
                            content_locations=[place], codepoint_range=SimpleNamespace(start=at, end=at + 6)
                        ),
                    )
                )
                at = row.find("SECRET", at + 1)
        cut = len(findings) > self.max_findings
        result = SimpleNamespace(findings=findings[: self.max_findings], findings_truncated=cut)
        return SimpleNamespace(result=result)


def find(client, texts, waits=None):
    sleep = (waits if waits is not None else []).append
    return DlpDetector("my-project", client, sleep).find(texts, ["en"] * len(texts))


def test_many_texts_travel_in_one_request():
    client = Client()
    texts = ["a SECRET", "", "nothing", "é SECRET SECRET"]
    assert find(client, texts) == [
        [Span(2, 8, "SECRET", 0.8)],
        [],
        [],
        [Span(2, 8, "SECRET", 0.8), Span(9, 15, "SECRET", 0.8)],
    ]
    (request,) = client.requests
    assert request["parent"] == "projects/my-project/locations/global"
    assert request["inspect_config"]["include_quote"] is False


def test_requests_keep_to_the_size():
    client = Client()
    texts = ["é" * 40_000 + " SECRET"] * 30
    found = find(client, texts)
    assert len(client.requests) > 1
    assert [{(span.start, span.end) for span in spans} for spans in found] == [{(40_001, 40_007)}] * 30


def test_a_long_text_goes_in_pieces():
    text = "x" * 49_997 + "SECRET" + "y" * 60_000 + "SECRET"
    spans = find(Client(), [text])[0]
    assert {(span.start, span.end) for span in spans} >= {(49_997, 50_003), (110_003, 110_009)}


def test_too_many_findings_are_asked_again_in_halves():
    client = Client(max_findings=10)
    texts = ["SECRET " * 4] * 16 + [" ".join(["x" * 100 + " SECRET"] * 30)]
    found = find(client, texts)
    assert [len({(span.start, span.end) for span in spans}) for spans in found] == [4] * 16 + [30]


def test_a_full_quota_is_waited_for():
    waits = []
    assert find(Client(failures=3), ["a SECRET"], waits)[0]
    assert waits == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("error", [ResourceExhausted, PermissionError])
def test_a_failure_names_no_value(error):
    waits = []
    with pytest.raises(StageError, match=error.__name__) as caught:
        find(Client(failures=100, error=error), ["a SECRET"], waits)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert len(waits) == (dlp.MAX_TRIES - 1 if error is ResourceExhausted else 0)


def test_every_kind_has_a_type():
    assert set(read_kinds("google").values()) == set(KINDS)
