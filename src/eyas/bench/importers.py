"""Imports results of other tools into results.json: JSON of AIPerf, guidellm, `vllm bench serve` and SGLang's bench.

importers.toml has the keys of each tool for the metrics of eyas. guidellm's inter-token latency is the TPOT of eyas.
guidellm's time per output token includes the TTFT, so it is not imported.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.base.config import load_toml
from eyas.base.errors import InputError, UsageError
from eyas.base.storage import convert_read_errors
from eyas.bench.request_metrics import BASELINE, SPECULATIVE
from eyas.bench.results import SCHEMA, lookup, read_number, redact_location

TOOLS = load_toml(Path(__file__).with_name("importers.toml"))
PERCENTILES = ("p50", "p90", "p99")
OTHER_FILE = "Use a JSON file of aiperf, guidellm, vllm bench serve or sglang.benchmark.serving"
Metrics = dict[str, Any]


def import_results(items: Sequence[str]) -> dict[str, Any]:
    """Returns results.json from files given as ARM=FILE. Runs with the same number of streams become one entry.

    Raises:
        UsageError: An item is not ARM=FILE, or an arm has two results at one number of streams.
        InputError: A file cannot be read.
    """
    points: dict[int, dict[str, Metrics]] = {}
    words = ["eyas", "bench"]
    for item in items:
        arm, _, path = item.partition("=")
        if not arm or not path:
            raise UsageError(f"--import {item} is not ARM=FILE", "Write for example --import baseline=run.json")
        words += ["--import", f"{arm}={redact_location(path)}"]
        for streams, metrics in read_benchmark_file(Path(path)):
            if arm in points.setdefault(streams, {}):
                problem = f"Two results of the arm {arm} have {streams} streams"
                raise UsageError(problem, "Give one of the arms another name")
            points[streams][arm] = metrics
    entries = [_build_point(streams, points[streams]) for streams in sorted(points)]
    return {"schema": SCHEMA, "tasks": {}, "concurrency": entries, "command": shlex.join(words)}


def read_benchmark_file(path: Path) -> list[tuple[int, Metrics]]:
    """Returns (streams, metrics) of each run in a file; streams is 0 if the file does not contain the number.

    Raises:
        InputError: The file is missing, not JSON, or of an unknown form.
    """
    try:
        with convert_read_errors(path, f"Check the path. {OTHER_FILE}"):
            values = _parse_json(path.read_text(encoding="utf-8"))
    except ValueError:
        raise InputError(f"{path} is not valid JSON", OTHER_FILE) from None
    runs = [run for value in values if isinstance(value, Mapping) for run in _parse_runs(value)]
    if not runs:
        raise InputError(f"{path} contains no known benchmark results", OTHER_FILE)
    return runs


def _parse_json(text: str) -> list[Any]:
    """Returns the JSON values of a file: one value, or one value on each line (SGLang appends its runs)."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def _parse_runs(value: Mapping[str, Any]) -> list[tuple[int, Metrics]]:
    if isinstance(value.get("benchmarks"), list):
        measured = (one for one in value["benchmarks"] if lookup(one, "metrics", "output_tokens_per_second"))
        return [_parse_run(one, TOOLS["guidellm"]) for one in measured]
    if any(isinstance(value.get(name), Mapping) for name in ("time_to_first_token", "request_latency")):
        return [_parse_run(value, TOOLS["aiperf"])]
    return [_parse_run(value, TOOLS["vllm"])] if "median_ttft_ms" in value else []


def _parse_run(value: Mapping[str, Any], tool: Mapping[str, Any]) -> tuple[int, Metrics]:
    """Returns the number of streams and the metrics of a run, without the metrics that its file lacks.

    The number of streams is 0 if it is unknown. A time without a median is left out. tool: a table of importers.toml.
    """

    def read(paths: Sequence[str], percentile: str = "") -> float | None:
        name = tool["median"] if percentile == "p50" else percentile
        numbers = (read_number(value, *path.format(p=name).split(".")) for path in paths)
        return next((number for number in numbers if number is not None), None)

    metrics: Metrics = {}
    for name, paths in tool["times"].items():
        unit = 1000 if name in tool["seconds"] else 1
        times = {p: unit * number for p in PERCENTILES if (number := read(paths, p)) is not None}
        metrics |= {name: times} if "p50" in times else {}
    metrics |= {name: number for name, paths in tool["numbers"].items() if (number := read(paths)) is not None}
    if (completed := read(tool["completed"])) is not None:
        failed = int(read(tool["failed"]) or 0)
        metrics |= {"requests": int(completed) + failed, "failed": failed}
    # Since AIPerf 0.13 the load is in phases, the warm-up among them.
    phases = lookup(value, "input_config", "phases") or []
    streams = [read_number(phase, "concurrency") for phase in phases if lookup(phase, "kind") == "profiling"]
    return int(next(filter(None, [*streams, read(tool["streams"])]), 0)), metrics


def _build_point(streams: int, arms: Mapping[str, Metrics]) -> dict[str, Any]:
    point: dict[str, Any] = {"n": streams, **{name: arms[name] for name in (BASELINE, SPECULATIVE) if name in arms}}
    point["arms"] = {name: metrics for name, metrics in arms.items() if name not in (BASELINE, SPECULATIVE)}
    before, after = (read_number(point, name, "tpot_ms", "p50") for name in (BASELINE, SPECULATIVE))
    if before and after:
        point["speedup_tpot"] = before / after
    before, after = (read_number(point, name, "output_tps") for name in (BASELINE, SPECULATIVE))
    if before and after:
        point["speedup_tps"] = after / before
    return point
