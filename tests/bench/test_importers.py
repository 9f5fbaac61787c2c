"""Files of other tools, with numbers written by hand, become results.json."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from eyas.base.errors import InputError, UsageError
from eyas.bench.importers import import_results, read_benchmark_file
from eyas.cli import main


def spread(p50: float) -> dict[str, float]:
    return {"p50": p50, "p90": p50 + 1, "p99": p50 + 2}


AIPERF = {
    "time_to_first_token": {"unit": "ms", "avg": 9.0, **spread(20.0)},
    "inter_token_latency": {"unit": "ms", "avg": 9.0, **spread(3.0)},
    "inter_chunk_latency": {"unit": "ms", **spread(10.0)},
    "request_latency": {"unit": "ms", **spread(100.0)},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 700.0},
    "spec_decode_acceptance_length": {"unit": "tokens", "avg": 2.84},
    "request_count": {"unit": "requests", "avg": 30.0},
    "error_request_count": {"unit": "requests", "avg": 2.0},
    "input_config": {
        "phases": [
            {"name": "warmup", "kind": "warmup", "concurrency": 2},
            {"name": "profiling", "kind": "profiling", "type": "concurrency", "concurrency": 4},
        ]
    },
}
OLDER_AIPERF = {key: value for key, value in AIPERF.items() if not key.startswith("spec")}
OLDER_AIPERF |= {"input_config": {"loadgen": {"concurrency": 4}}}
GUIDELLM = {
    "metadata": {"version": 2},
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "concurrent", "streams": streams}},
            "metrics": {
                "time_to_first_token_ms": {"successful": {"percentiles": spread(20.0)}},
                "inter_token_latency_ms": {"successful": {"percentiles": spread(3.0)}},
                "time_per_output_token_ms": {"successful": {"percentiles": spread(4.6)}},
                "request_latency": {"successful": {"percentiles": {"p50": 0.1, "p90": 0.101, "p99": 0.102}}},
                "output_tokens_per_second": {"successful": {"mean": 700.0}},
                "request_totals": {"successful": 30, "errored": 2, "incomplete": 1, "total": 33},
            },
        }
        for streams in (1, 4)
    ],
}
VLLM = {
    "max_concurrency": 4,
    "completed": 30,
    "failed": 2,
    "output_throughput": 700.0,
    "spec_decode_acceptance_length": 2.84,
    **{f"{kind}_ttft_ms": value for kind, value in zip(("median", "p90", "p99"), (20.0, 21.0, 22.0), strict=True)},
    **{f"{kind}_tpot_ms": value for kind, value in zip(("median", "p90", "p99"), (3.0, 4.0, 5.0), strict=True)},
    "median_itl_ms": 10.0,
    "median_e2el_ms": 100.0,
}
SGLANG = {key: value for key, value in VLLM.items() if key != "median_e2el_ms" and not key.startswith("spec")}
SGLANG |= {"median_e2e_latency_ms": 100.0, "accept_length": 2.84}


def written(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, indent=2) if isinstance(value, dict) else value)
    return path


@pytest.mark.parametrize(
    ("value", "streams", "has_length"),
    [
        (AIPERF, [4], True),
        (OLDER_AIPERF, [4], False),
        (GUIDELLM, [1, 4], False),
        (VLLM, [4], True),
        (json.dumps(SGLANG) + "\n", [4], True),
    ],
    ids=["aiperf", "older aiperf", "guidellm", "vllm", "sglang"],
)
def test_all_tools_give_the_same_metrics(value: Any, streams: list[int], has_length: bool, tmp_path: Path) -> None:
    found = read_benchmark_file(written(tmp_path / "run.json", value))
    assert [n for n, _ in found] == streams
    for _, figures in found:
        assert figures["tpot_ms"] == {"p50": 3.0, "p90": 4.0, "p99": 5.0}
        assert figures["ttft_ms"]["p50"] == 20.0
        assert figures["e2e_ms"]["p50"] == pytest.approx(100.0)
        assert figures["output_tps"] == 700.0
        assert (figures["requests"], figures["failed"]) == (32, 2)
        assert figures.get("acceptance_length") == (2.84 if has_length else None)


def test_one_run_per_line(tmp_path: Path) -> None:
    """SGLang's benchmark appends its runs to a file."""
    lines = "".join(json.dumps(SGLANG | {"max_concurrency": n}) + "\n" for n in (1, 8))
    assert [n for n, _ in read_benchmark_file(written(tmp_path / "runs.jsonl", lines))] == [1, 8]


def test_arms_side_by_side(tmp_path: Path) -> None:
    before = written(tmp_path / "before.json", VLLM)
    after = written(tmp_path / "after.json", VLLM | {"median_tpot_ms": 1.5, "output_throughput": 1000.0})
    found = import_results([f"baseline={before}", f"speculative={after}"])
    (point,) = found["concurrency"]
    assert (point["n"], point["speedup_tpot"]) == (4, 2.0)
    assert point["speedup_tps"] == pytest.approx(1000 / 700)
    imports = ["--import", f"baseline={before}", "--import", f"speculative={after}"]
    assert main(["bench", *imports, "--out", str(tmp_path / "o")]) == 0
    page = " ".join(re.sub(r"<[^>]*>", "", (tmp_path / "o" / "report.html").read_text()).split())
    assert "2.0× faster at 4 streams" in page
    assert "Lowest throughput ratio to the baseline: 1.43× at 4 streams." in page
    assert "4 of 64 requests failed" in page
    assert "Throughput under load" in page
    assert "No task was measured" not in page
    assert "--import baseline=before.json" in page


def test_rejected_imports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"cannot be read \(No such file"):
        read_benchmark_file(tmp_path / "none.json")
    with pytest.raises(InputError, match="not valid JSON"):
        read_benchmark_file(written(tmp_path / "text.json", "hello"))
    with pytest.raises(InputError, match="contains no known benchmark results"):
        read_benchmark_file(written(tmp_path / "other.json", {"a": 1}))
    with pytest.raises(UsageError, match="ARM=FILE"):
        import_results(["run.json"])
    file = written(tmp_path / "run.json", VLLM)
    with pytest.raises(UsageError, match="Two results of the arm a have 4 streams"):
        import_results([f"a={file}", f"a={file}"])
    assert main(["bench", "--import", f"a={file}", "--url", "http://h"]) == 2
    assert "Traceback" not in capsys.readouterr().err
