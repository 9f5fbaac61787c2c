"""Faults in the middle of a run, and what of the results remains."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.llm import FakeServer, Manner, fake_server

from eyas.base.errors import StageError, UsageError
from eyas.bench.client.bench_server import run
from eyas.bench.client.http_connection import Endpoint
from eyas.bench.config import ClientConfig
from eyas.bench.load_test import split_windows
from eyas.bench.request_metrics import BlockResult, RequestSample
from eyas.cli import main

CONFIG = ClientConfig(limit=1, repeats=1, one_stream=False, concurrency=(), max_tokens=20, warm_up=0, timeout_s=10)
TWO = Manner(tokens=20, tokens_a_step=4, step_s=0.004, off_step_s=0.008, owner="eyas", drafting=True)


def measured(server: FakeServer, out: Path, **changes: Any) -> dict[str, Any]:
    return run(server.url, None, dataclasses.replace(CONFIG, **changes), out, progress=False)


def page(out: Path) -> str:
    """Returns the text of the report."""
    return " ".join(re.sub(r"<[^>]*>", "", (out / "report.html").read_text()).split())


def test_windows_hold_the_requests_due_in_them() -> None:
    """A request belongs to the window in which it was due, even if an arm sends it late."""
    arrivals_s = (0.1, 0.99, 1.01, 2.0, 4.0)

    def block(late_s: float) -> BlockResult:
        sent = [10.0 + arrival_s + late_s * (place > 0) for place, arrival_s in enumerate(arrivals_s)]
        return BlockResult(
            tuple(RequestSample(str(place), s, s + 0.5, (s + 0.5,), 1, 1) for place, s in enumerate(sent)), 5.0
        )

    for late_s in (0.0, 0.4):
        cut = split_windows(block(late_s), arrivals_s, 4.0)
        assert [[one.id for one in some.samples] for some in cut] == [["0", "1"], ["2"], ["3"], ["4"]]
    # Answers come half a second after they are sent: the second of them in the next window, the last after the end.
    assert [some.tokens_in_window for some in split_windows(block(0.0), arrivals_s, 4.0)] == [1, 2, 1, 0]


def test_a_ramp_past_the_breaking_point_keeps_earlier_points(tmp_path: Path) -> None:
    """From the fourth request on the server answers nothing, and the last points have no answer."""
    with fake_server(Manner(fault="429", fault_from=4)) as server:
        found = measured(server, tmp_path, concurrency=(1,), requests_per_stream=2, ramp=(4.0, 12.0), block_s=1.0)
    (point,) = found["concurrency"]
    assert point["arms"]["server"]["completed"] == 2
    last = found["ramp"][-1]["arms"]["server"]
    assert last["requests"] == last["failed"] > 0
    assert last["errors"] == {"HTTP 429 (rate_limit_error)": last["failed"]}
    assert last["output_tps"] == 0
    assert "tpot_ms" not in last
    assert sum(one["arms"]["server"]["completed"] for one in found["ramp"]) == 2
    assert "HTTP 429 (rate_limit_error)" in page(tmp_path)
    assert "slow down" not in page(tmp_path), "messages of servers are not shown"


def test_a_rejected_task_leaves_the_others(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    lines = [{"turns": ["short"], "category": "short"}, {"turns": ["endless"], "category": "long"}]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    with fake_server(dataclasses.replace(TWO, refused="endless")) as server:
        found = measured(server, tmp_path / "out", prompts=str(prompts), limit=None, one_stream=True)
    assert found["tasks"]["short"]["speedup"] > 0
    long = found["tasks"]["long"]
    assert (long["requests"], long["failed"]) == (2, 2)
    assert long["errors"] == {"HTTP 400 (context_length_exceeded)": 2}
    assert "speedup" not in long
    assert "2 of 4 requests" in page(tmp_path / "out")
    assert "context_length_exceeded" in page(tmp_path / "out")


def test_a_server_that_goes_down_leaves_earlier_points(tmp_path: Path) -> None:
    with (
        fake_server(Manner(fault="gone", fault_from=6)) as server,
        pytest.raises(StageError, match=r"went down during the measurement \(server: no connection .*report.html"),
    ):
        measured(server, tmp_path, concurrency=(1, 2, 4), requests_per_stream=2, rates=(5.0,))
    found = json.loads((tmp_path / "results.json").read_bytes())
    # 2 requests of the first point and 4 of the second were answered; the third began with nobody there.
    assert [point["n"] for point in found["concurrency"]] == [1, 2]
    assert found["rates"] == []
    assert found["gone"].startswith("server: no connection")
    assert "went down" in page(tmp_path)


def test_one_arm_that_goes_down_ends_both(tmp_path: Path) -> None:
    """Blocks are compared as long as both servers answered."""
    with fake_server(Manner()) as plain, fake_server(Manner(fault="gone", fault_from=7)) as head:
        config = dataclasses.replace(CONFIG, concurrency=(1, 2), requests_per_stream=3, repeats=2)
        with pytest.raises(StageError, match="went down"):
            run(head.url, plain.url, config, tmp_path, progress=False)
    found = json.loads((tmp_path / "results.json").read_bytes())
    # 6 requests of the first point in two blocks; then 6 of the second point in the first of its blocks, cut short.
    (point,) = found["concurrency"]
    assert (point["blocks"], point["speculative"]["failed"]) == (2, 0)


def test_the_command_line_when_a_server_goes_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["client.limit=1", "client.repeats=1", "client.warm_up=0", "client.concurrency=[2]"]
    with fake_server(Manner(fault="gone", fault_from=7)) as server:
        assert main(["bench", "--url", server.url, *keys, "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "went down" in said
    assert "Traceback" not in said
    assert len(json.loads((tmp_path / "results.json").read_bytes())["tasks"]) == 7


def test_a_server_that_rejects_streams_is_measured_without(tmp_path: Path) -> None:
    with fake_server(Manner(refuses_stream=True)) as server:
        with pytest.raises(StageError, match=r"rejects streams: HTTP 400 .*Set client\.stream=false"):
            measured(server, tmp_path, concurrency=(1,), rates=(1.0,), block_s=60.0)
        assert len(server.bodies) == 4, "it is said after the first block"
        found = measured(server, tmp_path, concurrency=(1,), one_stream=True, stream=False)
    assert "stream" not in server.bodies[-1]
    assert "stream_options" not in server.bodies[-1]
    arm = found["concurrency"][0]["arms"]["server"]
    assert arm["e2e_ms"]["p50"] > 0
    assert arm["output_tps"] > 0
    assert "ttft_ms" not in arm
    assert "The answers were not streamed" in page(tmp_path)


def test_a_chat_route_on_another_path(tmp_path: Path) -> None:
    """A route like Vertex AI's rawPredict: without /v1 at its end, with a query, without a list of models."""
    path = "/v1/projects/p/locations/l/endpoints/7:rawPredict?a=b%2Fc"
    with fake_server(Manner(path=path)) as server:
        with pytest.raises(UsageError, match=r"lists no models.*Set client\.model"):
            measured(server, tmp_path, concurrency=(1,))
        found = measured(server, tmp_path, concurrency=(1,), model="served-name")
    assert {body["model"] for body in server.bodies} == {"served-name"}
    assert found["target"]["name"] == "served-name"
    assert found["concurrency"][0]["arms"]["server"]["completed"] == 4
    assert "a=... " in found["command"] or "a=...'" in found["command"]
    assert "b%2Fc" not in json.dumps(found)


def test_an_ipv6_server(tmp_path: Path) -> None:
    try:
        with fake_server(Manner(), host="::1") as server:
            measured(server, tmp_path, concurrency=(1,))
            assert {head["host"] for head in server.heads} == {server.url.removeprefix("http://").removesuffix("/v1")}
            assert server.heads[0]["host"].startswith("[::1]:")
    except OSError:
        pytest.skip("no IPv6 on this machine")


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://[::1]:8000/v1", "[::1]:8000"),
        ("https://[2001:db8::1]/v1", "[2001:db8::1]"),
        ("http://h/v1", "h"),
        ("https://h:80/v1", "h:80"),
    ],
)
def test_the_host_header(url: str, authority: str) -> None:
    assert Endpoint.parse(url, "--url").authority == authority
