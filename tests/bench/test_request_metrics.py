"""Metrics of samples that are written by hand, and the parsing of raw responses."""

import dataclasses
import json

import pytest

from eyas.bench.client.http_connection import RawResponse
from eyas.bench.client.response_parser import parse_response, split_events
from eyas.bench.config import Slo
from eyas.bench.request_metrics import (
    BlockResult,
    RequestSample,
    SpecDecodeStats,
    compare_arms,
    count_identical,
    summarize_arm,
)

# Sent at 10 s; pieces at 10.2, 10.3, 10.6 s; 9 tokens.
ONE = RequestSample("a", 10.0, 10.7, (10.2, 10.3, 10.6), 5, 9, "xyz", SpecDecodeStats(4, 6, (0, 2, 2)))
SHORT = RequestSample("b", 10.0, 10.2, (10.1,), 5, 1, "x")
WHOLE = RequestSample("c", 10.0, 10.5, (), 5, 9, "xyz")
FAILED = RequestSample("d", 10.0, 10.0, error="HTTP 500")


def test_times_of_an_answer() -> None:
    assert ONE.ttft_s == pytest.approx(0.2)
    assert ONE.e2e_s == pytest.approx(0.6)  # to the last piece of text, not to the end of the connection
    assert ONE.tpot_s == pytest.approx((0.6 - 0.2) / 8)
    assert (SHORT.tpot_s, WHOLE.tpot_s, WHOLE.ttft_s) == (None, None, None)
    assert WHOLE.e2e_s == pytest.approx(0.5)


def test_metrics_of_an_arm() -> None:
    found = summarize_arm([BlockResult((ONE, FAILED), 2.0), BlockResult((SHORT, ONE), 4.0)], Slo(), seed=0)
    assert (found["requests"], found["failed"], found["errors"]) == (4, 1, {"HTTP 500": 1})
    assert found["output_tps"] == pytest.approx((9 / 2 + 10 / 4) / 2)
    assert found["output_throughput"] == pytest.approx(19 / 6)
    assert found["request_throughput"] == pytest.approx(3 / 6)
    assert found["ttft_ms"]["p50"] == pytest.approx(200)
    assert found["mean_ttft_ms"] == pytest.approx(500 / 3)
    assert found["tpot_ms"]["p50"] == pytest.approx(50)  # SHORT has none
    assert found["step_ms"]["p50"] == pytest.approx(200)  # 100, 300 twice
    assert found["acceptance_length"] == pytest.approx(1 + 12 / 8)
    assert found["acceptance_histogram"] == [0, 4, 4]
    assert found["output_tps_ci95"] == [10 / 4, 9 / 2]  # of two blocks a quarter of all draws has one of them twice
    assert found["request_goodput"] is None


def test_intervals_over_several_answers() -> None:
    often, seldom = (dataclasses.replace(ONE, spec_decode=SpecDecodeStats(4, accepted)) for accepted in (8, 4))
    found = summarize_arm([BlockResult((often, seldom), 2.0)], Slo(), seed=0)
    assert found["acceptance_length"] == pytest.approx(1 + 12 / 8)
    assert found["acceptance_length_ci95"] == pytest.approx([1 + 4 / 4, 1 + 8 / 4])
    assert "output_tps_ci95" not in found


def test_an_arm_without_answers() -> None:
    found = summarize_arm([BlockResult((FAILED, FAILED), 2.0)], Slo(), 0)
    assert (found["requests"], found["failed"], found["errors"]) == (2, 2, {"HTTP 500": 2})
    assert found["output_tps"] == 0
    assert not [key for key in found if key.startswith(("tpot", "ttft", "e2e", "acceptance"))]
    assert compare_arms([BlockResult((FAILED,), 2.0)], [BlockResult((ONE,), 2.0)], 0) == {"blocks": 1}


def test_goodput_counts_requests_that_meet_all_limits() -> None:
    assert ONE.meets(Slo(ttft_ms=201, tpot_ms=51, e2e_ms=601))
    assert not ONE.meets(Slo(ttft_ms=199))
    assert not ONE.meets(Slo(tpot_ms=49))
    assert not ONE.meets(Slo(e2e_ms=599))
    assert SHORT.meets(Slo(tpot_ms=0.1))  # no time between tokens
    assert not WHOLE.meets(Slo(ttft_ms=1e9))  # nobody knows
    assert summarize_arm([BlockResult((ONE, SHORT, FAILED), 2.0)], Slo(ttft_ms=150), 0)["goodput"] == pytest.approx(
        1 / 2
    )


def test_arms_are_compared_request_by_request() -> None:
    slow = RequestSample("a", 0.0, 2.0, (1.0, 1.8), 5, 9, "xyz")
    other = RequestSample("a", 0.0, 2.0, (1.0, 1.8), 5, 9, "xyZ")
    before = [BlockResult((slow, slow, FAILED), 2.0)]
    after = [BlockResult((ONE, other, ONE), 1.0)]
    found = compare_arms(before, after, 0)
    assert found["speedup_tps"] == pytest.approx(27 / 1 / (18 / 2))
    assert found["speedup_tpot"] == pytest.approx(0.1 / 0.075)  # the failed pair is no pair
    assert count_identical(before, after) == (2, 1)


def test_events_split_at_any_byte() -> None:
    """A chunk may end inside an event. The event arrives with its last byte."""
    body = b'data: {"a":1}\r\n\r\n: comment\n\ndata: x\ndata: y\n\ndata: [DONE]\n\n'
    whole = ['{"a":1}', "x\ny", "[DONE]"]
    for size in range(1, len(body) + 1):
        pieces = [(float(start), body[start : start + size]) for start in range(0, len(body), size)]
        found = list(split_events(RawResponse(0.0, 200, {}, pieces)))
        assert [data for _, data in found] == whole, size
    assert [time_s for time_s, _ in split_events(RawResponse(0.0, 200, {}, [(1.0, body[:10]), (2.0, body[10:])]))] == [
        2.0
    ] * 3


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"data: {", "broke off before its finish_reason"),
        (b"data: no json\n\n", "not a chat completion"),
        (b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n', "has no text"),
        (b'data: {"choices": [{"delta": {"content": "x"}}]}\n\ndata: [DONE]\n\n', "broke off before"),
        (b'data: {"error": {"message": "full"}}\n\n', "the stream ends with an error"),
    ],
)
def test_broken_streams(body: bytes, said: str) -> None:
    sample = parse_response("a", RawResponse(0.0, 200, {"content-type": "text/event-stream"}, [(1.0, body)], 1.0))
    assert said in (sample.error or "")


def test_reasoning_counts_as_text() -> None:
    pieces = [{"reasoning": "think", "reasoning_content": "think"}, {"content": "word"}]
    stream = [{"choices": [{"delta": piece}]} for piece in pieces]
    stream += [{"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}]
    body = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in stream)
    sample = parse_response("a", RawResponse(0.0, 200, {"content-type": "text/event-stream"}, [(1.0, body)], 1.0))
    assert (sample.text, len(sample.chunk_times_s), sample.output_tokens, sample.error) == ("thinkword", 2, 3, None)


def test_an_answer_that_is_not_json() -> None:
    sample = parse_response("a", RawResponse(0.0, 200, {"content-type": "application/json"}, [(1.0, b"<html>")], 1.0))
    assert "not a chat completion" in (sample.error or "")
