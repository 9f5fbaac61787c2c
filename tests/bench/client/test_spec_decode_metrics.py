"""Acceptance from the counters of servers whose answers do not report it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.llm import FakeServer, Manner, fake_server

from eyas.bench.client import server_arms
from eyas.bench.client.bench_server import run
from eyas.bench.client.http_connection import RawResponse
from eyas.bench.client.response_parser import parse_response
from eyas.bench.client.server_arms import SpecDecodeCounters, counter_difference, parse_counters
from eyas.bench.config import ClientConfig
from eyas.bench.request_metrics import SpecDecodeStats

CONFIG = ClientConfig(limit=1, repeats=2, one_stream=True, concurrency=(2,), max_tokens=20, warm_up=1, timeout_s=10)
# 20 tokens: one of the prompt, then 4 steps of 4, 4, 4 and 4 or what is left: 5 pieces of the stream, 19 tokens.
DRAFTS = Manner(tokens=20, tokens_a_step=4)


def measured(server: FakeServer, out: Path, **changes: Any) -> dict[str, Any]:
    return run(server.url, None, dataclasses.replace(CONFIG, **changes), out, progress=False)


def test_vllm_counters_are_summed_over_labels() -> None:
    page = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a{b}c"} 1.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 2e+01
vllm:spec_decode_num_drafts_created{engine="0"} 1.7e+09
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 30.0 1700000000
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 10.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 15.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 5.0
"""
    assert parse_counters(page) == {server_arms.DRAFTS: 21, server_arms.ACCEPTED: 30, 0: 20, 1: 10}
    assert parse_counters("vllm:num_requests_running 1.0") == {}
    assert parse_counters("<html>") is None
    assert parse_counters("<html> vllm: {") is None


def test_counter_difference() -> None:
    def counted(steps: int, accepted: int, *by_position: int) -> SpecDecodeCounters:
        return SpecDecodeCounters(
            {server_arms.DRAFTS: steps, server_arms.ACCEPTED: accepted, **dict(enumerate(by_position))}
        )

    found = counter_difference(counted(100, 150, 80, 70), counted(110, 165, 89, 75, 1))
    # 10 drafts: 9 of them accepted a token, 5 two, 1 three.
    assert found == SpecDecodeStats(10, 15, (1, 4, 4, 1))
    assert counter_difference(counted(100, 150), counted(100, 150)) is None
    assert counter_difference(counted(100, 150), counted(3, 4)) is None, "the server began anew"
    assert counter_difference(None, counted(3, 4)) is None
    # SGLang: 5 verify steps gave 12 tokens, one of each step from the target itself.
    before = SpecDecodeCounters({server_arms.VERIFICATIONS: 10, server_arms.TOKENS: 30})
    after = SpecDecodeCounters({server_arms.VERIFICATIONS: 15, server_arms.TOKENS: 42})
    assert counter_difference(before, after) == SpecDecodeStats(5, 7)


@pytest.mark.parametrize("whose", ["vllm", "sglang"])
def test_acceptance_from_counters(whose: str, tmp_path: Path) -> None:
    """vLLM counts accepted draft tokens, SGLang all tokens and verify steps."""
    with fake_server(dataclasses.replace(DRAFTS, counters=whose)) as server:
        found = measured(server, tmp_path)
        drafted, accepted = server.steps, sum(server.by_position)
    expected = {"vllm": 1 + accepted / drafted, "sglang": server.tokens / drafted}[whose]
    arm = found["concurrency"][0]["arms"]["server"]
    assert arm["acceptance_length"] == pytest.approx(expected)
    assert arm["acceptance_source"] == "counters"
    assert arm["acceptance_length_ci95"] == pytest.approx([expected] * 2)  # every block is like the other
    assert ("acceptance_histogram" in arm) == (whose == "vllm")
    assert all(task["acceptance_length"] == pytest.approx(expected) for task in found["tasks"].values())
    assert "From counters" in (tmp_path / "report.html").read_text()


def test_acceptance_from_answers_has_priority(tmp_path: Path) -> None:
    with fake_server(dataclasses.replace(DRAFTS, counters="vllm", drafting=True)) as server:
        server.steps = 1000  # of other clients
        found = measured(server, tmp_path)
    arm = found["concurrency"][0]["arms"]["server"]
    assert (arm["acceptance_length"], arm["acceptance_source"]) == (pytest.approx(19 / 4), "answers")


def test_no_acceptance_without_counters(tmp_path: Path) -> None:
    with fake_server(DRAFTS) as server:
        found = measured(server, tmp_path)
    assert "acceptance" not in json.dumps(found)


def test_acceptance_from_sglangs_meta_info(tmp_path: Path) -> None:
    """`meta_info` counts verify steps and all tokens, in a choice or beside the choices."""
    with fake_server(dataclasses.replace(DRAFTS, drafting=True, told_in="meta_info")) as server:
        found = measured(server, tmp_path)
    arm = found["concurrency"][0]["arms"]["server"]
    assert (arm["acceptance_length"], arm["acceptance_source"]) == (pytest.approx(20 / 4), "answers")
    body = {"choices": [{"message": {"content": "x"}}], "usage": {"completion_tokens": 20}}
    told = {"spec_verify_ct": 4, "completion_tokens": 20}
    whole = json.dumps(body | {"meta_info": told}).encode()
    assert parse_response("a", RawResponse(0.0, 200, {}, [(1.0, whole)], 1.0)).spec_decode == SpecDecodeStats(4, 16)
