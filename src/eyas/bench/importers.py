"""Imports results of other tools into results.json: JSON of AIPerf, guidellm, `vllm bench serve` and SGLang's bench.

The keys of each tool for the metrics of eyas:

    metric        AIPerf                     guidellm                             vLLM, SGLang
    TTFT          time_to_first_token        time_to_first_token_ms               *_ttft_ms
    TPOT          inter_token_latency        inter_token_latency_ms               *_tpot_ms
    step          inter_chunk_latency        -                                    *_itl_ms
    end-to-end    request_latency            request_latency (seconds)            *_e2el_ms, *_e2e_latency_ms

guidellm's inter-token latency is the TPOT of eyas. guidellm's time per output token includes the TTFT, so it is not
imported.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.base.errors import InputError, UsageError
from eyas.base.storage import convert_read_errors
from eyas.bench.request_metrics import BASELINE, SPECULATIVE
from eyas.bench.results import SCHEMA, lookup, read_number, redact_location

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
        return list(map(_parse_guidellm, measured))
    if any(isinstance(value.get(name), Mapping) for name in ("time_to_first_token", "request_latency")):
        return [_parse_aiperf(value)]
    return [_parse_vllm(value)] if "median_ttft_ms" in value else []


def _parse_aiperf(value: Mapping[str, Any]) -> tuple[int, Metrics]:
    names = {
        "ttft_ms": "time_to_first_token",
        "tpot_ms": "inter_token_latency",
        "step_ms": "inter_chunk_latency",
        "e2e_ms": "request_latency",
    }

    def read(name: str, key: str = "avg") -> float | None:
        return read_number(value, name, key)

    # Since 0.13 the load is in phases, the warm-up among them.
    phases = lookup(value, "input_config", "phases") or []
    streams = [read_number(phase, "concurrency") for phase in phases if lookup(phase, "kind") == "profiling"]
    streams.append(read_number(value, "input_config", "loadgen", "concurrency"))
    metrics = _read_times(names, read) | {
        "output_tps": read("output_token_throughput"),
        "acceptance_length": read("spec_decode_acceptance_length"),
        "goodput": read("goodput"),
    }
    return _build_run(next(filter(None, streams), 0), metrics, read("request_count"), read("error_request_count"))


def _parse_guidellm(value: Mapping[str, Any]) -> tuple[int, Metrics]:
    names = {"ttft_ms": "time_to_first_token_ms", "tpot_ms": "inter_token_latency_ms", "e2e_ms": "request_latency"}

    def read(name: str, percentile: str) -> float | None:
        found = read_number(value, "metrics", name, "successful", "percentiles", percentile)
        return found if found is None or name != "request_latency" else 1000 * found

    tps = read_number(value, "metrics", "output_tokens_per_second", "successful", "mean")
    completed, failed = (read_number(value, "metrics", "request_totals", key) for key in ("successful", "errored"))
    strategy = lookup(value, "config", "strategy") or lookup(value, "scheduler", "strategy") or {}
    streams = read_number(strategy, "streams") or read_number(strategy, "max_concurrency")
    return _build_run(streams, _read_times(names, read) | {"output_tps": tps}, completed, failed)


def _parse_vllm(value: Mapping[str, Any]) -> tuple[int, Metrics]:
    """Parses a run of vLLM or SGLang. vLLM has only the percentiles that were requested."""
    e2e = "e2el" if "median_e2el_ms" in value else "e2e_latency"
    names = {"ttft_ms": "ttft", "tpot_ms": "tpot", "step_ms": "itl", "e2e_ms": e2e}

    def read(name: str, percentile: str) -> float | None:
        return read_number(value, f"{'median' if percentile == 'p50' else percentile}_{name}_ms")

    lengths = (read_number(value, name) for name in ("spec_decode_acceptance_length", "accept_length"))
    metrics = _read_times(names, read) | {
        "output_tps": read_number(value, "output_throughput"),
        "acceptance_length": next(filter(None, lengths), None),
        "goodput": read_number(value, "request_goodput"),
    }
    streams, completed, failed = (read_number(value, name) for name in ("max_concurrency", "completed", "failed"))
    return _build_run(streams, metrics, completed, failed)


def _read_times(names: Mapping[str, str], read: Callable[[str, str], float | None]) -> Metrics:
    """Returns time -> percentiles; None for a time without a median.

    Args:
        names: The name of a time in eyas -> its name in the file.
        read: Returns a percentile of a time in the file; None if it is missing.
    """
    times = {
        ours: {p: value for p in PERCENTILES if (value := read(name, p)) is not None} for ours, name in names.items()
    }
    return {name: percentiles if "p50" in percentiles else None for name, percentiles in times.items()}


def _build_run(
    streams: float | None, metrics: Metrics, completed: float | None, failed: float | None
) -> tuple[int, Metrics]:
    """Returns the number of streams and the metrics of an imported run, without the metrics that its file lacks.

    Args:
        streams: The number of streams; None if the file does not give it, which becomes 0.
        metrics: The metrics by name; None for one that the file does not give.
        completed: The number of completed requests; None leaves out the metrics `requests` and `failed`.
        failed: The number of failed requests; None counts as 0.
    """
    known = {name: value for name, value in metrics.items() if value is not None}
    if completed is not None:
        known |= {"requests": int(completed + (failed or 0)), "failed": int(failed or 0)}
    return int(streams or 0), known


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
