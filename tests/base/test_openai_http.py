"""The HTTP rules that `eyas respond` and `eyas bench --url` share."""

import datetime

import pytest

from eyas.base.errors import UsageError
from eyas.base.openai_http import backoff_s, describe_error, parse_api_url, parse_retry_after_s


def test_backoff_doubles_and_depends_on_the_seed():
    waits = [[backoff_s(seed, f"q:{i}", attempt) for i in range(200)] for seed in (0, 1) for attempt in range(10)]
    assert waits[3] == [backoff_s(0, f"q:{i}", 3) for i in range(200)]
    assert waits[3] != waits[13]
    for attempt, drawn in enumerate(waits[:10]):
        most = min(60.0, 0.5 * 2**attempt)
        assert 0 <= min(drawn) < most / 4
        assert 3 * most / 4 < max(drawn) <= most


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        (None, 0),
        ("", 0),
        ("7", 7),
        ("0.5", 0.5),
        ("-3", 0),
        ("nan", 0),
        ("soon", 0),
        ("99999", 600),
        ("Fri, 20 Nov 2026 00:00:30 GMT", 30),
        ("Fri, 20 Nov 2026 00:00:00 GMT", 0),
        ("Thu, 19 Nov 2026 00:00:30 GMT", 0),
    ],
)
def test_retry_after_is_a_number_or_a_date(header, wait_s):
    now = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC).timestamp()
    assert parse_retry_after_s(header, now) == wait_s


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"error": {"message": "no", "type": "invalid_request_error", "code": 3}}', " (invalid_request_error)"),
        (b'{"error": {"message": "no", "type": "x", "code": "context_length_exceeded"}}', " (context_length_exceeded)"),
        (b'{"object": "error", "message": "no", "type": "BadRequestError"}', " (BadRequestError)"),
        (b'{"detail": [{"loc": ["body"], "type": "missing", "msg": "no", "input": "secret"}]}', " (missing)"),
        (b'{"error": {"type": "Zoe Quill 4556", "code": "sk-7f3a9c"}}', ""),
        (b'{"error": "secret"}', ""),
        (b'{"detail": "secret"}', ""),
        (b"<html>secret</html>", ""),
        (b"", ""),
        (b"[" * 100_000, ""),
        (b'["x"]', ""),
    ],
)
def test_an_error_reply_shows_its_type_and_none_of_its_words(body, shown):
    assert describe_error(400, body) == f"HTTP 400{shown}"


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8000", "ftp://host/v1", "http:///v1", "http://h:x/v1", "http://h:0", "http://h:99999", "http://[::1"],
)
def test_invalid_urls_are_rejected(url):
    with pytest.raises(UsageError, match=r"--url=.* is not the URL of a server"):
        parse_api_url(url, "--url")


def test_a_url_with_a_key_is_rejected_without_the_key():
    with pytest.raises(UsageError, match="--url contains a user name or key") as caught:
        parse_api_url("http://me:sk-7f3a9c@host/v1", "--url")
    assert "sk-7f3a9c" not in str(caught.value)
