"""`eyas bench --url` against a server without a model, whose times and faults are known."""

import dataclasses
import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.llm import MODEL, FakeServer, Manner, fake_server

from eyas.base.config import build, parse_overrides
from eyas.base.errors import EyasError, InputError, StageError, UsageError
from eyas.bench.client.bench_server import reproduce_command, run
from eyas.bench.config import ClientConfig, Slo
from eyas.bench.load_test import poisson_arrivals
from eyas.cli import main

CONFIG = ClientConfig(limit=1, repeats=2, one_stream=False, concurrency=(), max_tokens=20, block_s=0.5, timeout_s=10)
TWO = Manner(tokens=20, tokens_a_step=4, step_s=0.004, off_step_s=0.008, owner="eyas", drafting=True)


def measured(server: FakeServer, out: Path, **changes: Any) -> dict[str, Any]:
    return run(server.url, None, dataclasses.replace(CONFIG, **changes), out, progress=False)


def test_two_arms_of_one_eyas_server(tmp_path: Path) -> None:
    with fake_server(TWO) as server:
        found = measured(server, tmp_path, concurrency=(3,), requests_per_stream=2, slo=Slo(tpot_ms=1e-6))
    (point,) = found["concurrency"]
    off, auto = point["baseline"], point["speculative"]
    # 20 tokens in 5 steps: 4 gaps of 8 or 4 ms over 19 tokens. A busy machine makes them longer, none shorter.
    assert off["tpot_ms"]["p50"] >= 0.98 * 8 * 4 / 19
    assert auto["tpot_ms"]["p50"] >= 0.98 * 4 * 4 / 19
    assert auto["acceptance_length"] == pytest.approx(19 / 4)
    assert "acceptance_length" not in off
    assert point["speedup_tpot"] == pytest.approx(off["tpot_ms"]["p50"] / auto["tpot_ms"]["p50"])
    assert off["goodput"] == 0
    low, high = auto["output_tps_ci95"]
    assert low <= auto["output_tps"] <= high
    assert auto["acceptance_length_ci95"] == pytest.approx([19 / 4] * 2)  # no answer differs from another
    assert (auto["requests"], auto["failed"], auto["completed"]) == (12, 0, 12)
    assert auto["total_output_tokens"] == 240
    assert auto["median_tpot_ms"] == auto["tpot_ms"]["p50"]
    assert server.most_open == 3
    assert found["lossless"] == {
        "prompts": 12,
        "identical": 12,
        "dtype": "as served",
        "reference": "the server without speculation, under the same load",
    }
    asked = server.bodies
    assert {body["model"] for body in asked} == {MODEL}
    by_arm = [[b for b in asked if b["speculation"] == arm] for arm in ("off", "auto")]
    assert sorted((b["seed"], str(b["messages"])) for b in by_arm[0]) == sorted(
        (b["seed"], str(b["messages"])) for b in by_arm[1]
    )
    assert json.loads((tmp_path / "results.json").read_bytes()) == json.loads(json.dumps(found))
    assert "<h1>" in (tmp_path / "report.html").read_text()


def test_different_answers_are_counted(tmp_path: Path) -> None:
    with fake_server(dataclasses.replace(TWO, off_words="v")) as server:
        found = measured(server, tmp_path, concurrency=(2,))
    assert (found["lossless"]["prompts"], found["lossless"]["identical"]) == (16, 0)
    assert "the answers DIFFER" in (tmp_path / "report.html").read_text()


def test_sampled_answers_are_not_compared(tmp_path: Path) -> None:
    with fake_server(TWO) as server:
        found = measured(server, tmp_path, concurrency=(1,), temperature=1.0)
    assert found["lossless"]["prompts"] == 0


def test_each_prompt_alone_by_task(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    lines = [{"turns": [f"question {n}", "later"], "category": "math" if n % 2 else "writing"} for n in range(5)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    with fake_server(TWO) as server:
        found = measured(server, tmp_path / "out", prompts=str(prompts), limit=None, one_stream=True)
    assert {task: entry["prompts"] for task, entry in found["tasks"].items()} == {"writing": 3, "math": 2}
    assert server.most_open == 1
    entry = found["tasks"]["writing"]
    low, high = entry["speedup_ci95"]
    assert low <= entry["speedup"] <= high
    assert entry["acceptance_length"] == pytest.approx(19 / 4)
    assert {len(body["messages"]) for body in server.bodies} == {1}
    assert "later" not in json.dumps(server.bodies)


def test_later_turns_follow_the_servers_answers(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    tools = [{"type": "function", "function": {"name": "f"}}]
    lines = [{"turns": ["one", "two", "three"], "tools": tools}, {"turns": ["alone"]}]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    with fake_server(dataclasses.replace(TWO, tokens=8)) as server:
        found = measured(
            server, tmp_path / "out", prompts=str(prompts), limit=None, turns=2, one_stream=True, warm_up=0
        )
    asked = {json.dumps([message["content"] for message in body["messages"]]) for body in server.bodies}
    assert asked == {'["one"]', '["one", "wwwwwwww", "two"]', '["alone"]'}
    assert {json.dumps(body.get("tools")) for body in server.bodies} == {json.dumps(tools), "null"}
    assert len(server.bodies) == 1 + 3 * 2 * 2  # the answer before turn 2; then 3 prompts, 2 arms, 2 repeats
    assert {axis: list(some) for axis, some in found["slices"].items()} == {
        "turn": ["1", "2"],
        "context": ["<=256"],
        "phase": [],
    }
    assert found["slices"]["turn"]["1"]["conversations"] == 2
    assert found["slices"]["turn"]["2"]["conversations"] == 1


def test_an_open_loop_sends_at_arrival_times(tmp_path: Path) -> None:
    """At 20 requests per second to a server that takes 0.2 s, several requests are in flight."""
    with fake_server(Manner(first_s=0.2, tokens=3)) as server:
        found = measured(server, tmp_path, rates=(20.0,), repeats=1, warm_up=0)
        seconds = found["rates"][0]["arms"]["server"]["duration"]
    (sent,) = [poisson_arrivals(20.0, 20.0, 0.5, 0)]
    assert len(server.bodies) == len(sent)
    assert server.most_open > 1
    assert seconds >= sent[-1] + 0.2


def test_a_ramp_has_a_point_for_each_quarter(tmp_path: Path) -> None:
    with fake_server(TWO) as server:
        found = measured(server, tmp_path, ramp=(10.0, 90.0), block_s=1.0, repeats=1, warm_up=0)
    assert [point["rate"] for point in found["ramp"]] == [20.0, 40.0, 60.0, 80.0]
    counts = [point["speculative"]["requests"] for point in found["ramp"]]
    assert counts == [point["baseline"]["requests"] for point in found["ramp"]]
    assert sum(counts) == len(poisson_arrivals(10.0, 90.0, 1.0, 0)) == len(server.bodies) // 2
    assert counts[0] < counts[-1]


def test_arrivals_are_a_poisson_process_of_that_rate() -> None:
    moments = poisson_arrivals(50.0, 150.0, 100.0, seed=1)
    assert len(moments) == pytest.approx(10_000, rel=0.04)
    assert moments == sorted(moments)
    # Where the rate has grown to 100, half the time is over and 3 of 8 parts of the area below the line.
    assert sum(moment < 50 for moment in moments) == pytest.approx(3_750, rel=0.05)
    last = [moment for moment in moments if moment >= 90]
    gaps = [b - a for a, b in itertools.pairwise(last)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 145, rel=0.08)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.2)  # exponential
    assert poisson_arrivals(50.0, 150.0, 100.0, seed=1) == moments != poisson_arrivals(50.0, 150.0, 100.0, seed=2)


def test_two_servers(tmp_path: Path) -> None:
    with fake_server(Manner(step_s=0.006)) as slow, fake_server(Manner(step_s=0.002)) as fast:
        config = dataclasses.replace(CONFIG, concurrency=(1,), repeats=1)
        found = run(fast.url, slow.url, config, tmp_path, progress=False)
    point = found["concurrency"][0]
    assert point["baseline"]["tpot_ms"]["p50"] >= 0.98 * 6
    assert {len(slow.bodies), len(fast.bodies)} == {6}
    assert all("speculation" not in body for body in slow.bodies + fast.bodies)


def test_a_server_that_does_not_stream_has_no_tpot(tmp_path: Path) -> None:
    with fake_server(Manner(streams=False, owner="eyas")) as server:
        found = measured(server, tmp_path, concurrency=(1,))
    arm = found["concurrency"][0]["speculative"]
    assert "tpot_ms" not in arm
    assert "ttft_ms" not in arm
    assert arm["e2e_ms"]["p50"] > 0
    assert arm["total_output_tokens"] == 160
    assert found["concurrency"][0]["speedup_tps"] > 0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("dies", "broke off before the end"),
        ("429", "HTTP 429 (rate_limit_error)"),
        ("error in stream", "the stream ends with an error (server_error)"),
    ],
)
def test_failures_are_counted_by_error(fault: str, said: str, tmp_path: Path) -> None:
    with fake_server(Manner(fault=fault, fault_from=5)) as server:
        found = measured(server, tmp_path, concurrency=(1,), warm_up=0)
    arm = found["concurrency"][0]["arms"]["server"]
    assert (arm["requests"], arm["failed"], arm["completed"]) == (8, 3, 5)
    assert [error for error in arm["errors"] if said in error]


@pytest.mark.parametrize(
    ("manner", "changes", "kind", "said"),
    [
        (Manner(fault="429"), {}, StageError, "No answer to any of"),
        (Manner(fault="hangs"), {"timeout_s": 0.2}, StageError, "the response did not end within"),
        (Manner(usage=False), {}, StageError, "the response has no usage"),
        (Manner(key="k"), {}, InputError, "rejects the API key: HTTP 401"),
        (Manner(), {"model": "other"}, InputError, f"does not serve the model other. Set client.model={MODEL}"),
        (
            Manner(),
            {"api_key_env": "NO_SUCH_VARIABLE"},
            InputError,
            "environment variable NO_SUCH_VARIABLE with the API key is not set",
        ),
        (Manner(), {"prompts": "/no/file.jsonl"}, InputError, "/no/file.jsonl"),
    ],
)
def test_errors(manner: Manner, changes: dict[str, Any], kind: type[EyasError], said: str, tmp_path: Path) -> None:
    with fake_server(manner) as server, pytest.raises(kind, match=said):
        measured(server, tmp_path / "out", concurrency=(1,), requests_per_stream=1, **changes)
    assert not (tmp_path / "out").exists()


def test_a_key_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "secret-words")
    with fake_server(Manner(key="secret-words")) as server:
        measured(server, tmp_path, concurrency=(1,), api_key_env="THE_KEY")
    assert "secret-words" not in (tmp_path / "results.json").read_text()


def test_a_server_that_is_down(tmp_path: Path) -> None:
    with fake_server(Manner()) as server:
        pass
    with pytest.raises(StageError, match="does not answer: no connection"):
        measured(server, tmp_path)


def test_the_command_repeats_the_run() -> None:
    changes = {"prompts": "a file's.jsonl", "stream": False, "rates": (0.5, 2.0), "ramp": (1.0, 9.0), "limit": 3}
    config = dataclasses.replace(ClientConfig(), **changes, slo=Slo(ttft_ms=250.5), api_key_env="THE_KEY")
    words = shlex.split(reproduce_command("http://h:1/v1?key=secret&b", "https://g/v1", config))
    assert words[:6] == ["eyas", "bench", "--url", "http://h:1/v1?key=...&b=...", "--baseline", "https://g/v1"]
    assert build(ClientConfig, parse_overrides(words[6:])["client"], "client") == config
    assert len(words) == 6 + 7, "what is as it is by default is left out"
    assert shlex.split(reproduce_command("http://h/v1", None, ClientConfig(prompts="/home/me/p.jsonl")))[4:] == [
        'client.prompts="p.jsonl"'
    ]
    assert reproduce_command("http://h/v1", None, ClientConfig()) == "eyas bench --url http://h/v1"


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host/v1", "http://me:key@host/v1", "http:///v1"])
def test_invalid_urls(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--url(=.* is not the URL of a server| contains a user name or key)"):
        run(url, None, CONFIG, tmp_path, progress=False)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["client.limit=1", "client.repeats=1", "client.concurrency=[2]", "client.one_stream=false"]
    with fake_server(TWO) as server:
        assert main(["bench", "--url", server.url, *keys, "--out", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "2 streams" in out
        assert "goodput" not in out
        assert "report.html" in out
        assert main(["bench", "--url", server.url, *keys, "client.slo.e2e_ms=1e6", "--out", str(tmp_path)]) == 0
        assert "goodput" in capsys.readouterr().out
        assert main(["bench", "--json", "--url", server.url, *keys, "--out", str(tmp_path)]) == 0
        assert json.loads(capsys.readouterr().out)["concurrency"][0]["n"] == 2
    for words in (["bench"], ["bench", "--baseline", "x"], ["bench", "recipes/tiny.toml", "--url", "http://a"]):
        assert main(words) == 2
        assert "Traceback" not in capsys.readouterr().err
