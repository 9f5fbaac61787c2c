"""What others measured, in the words of results.json: JSON of AIPerf, guidellm, vLLM's and SGLang's benchmarks.

                  AIPerf                     guidellm                             vLLM, SGLang
    TTFT          time_to_first_token        time_to_first_token_ms               *_ttft_ms
    TPOT          inter_token_latency        inter_token_latency_ms               *_tpot_ms
    steps         inter_chunk_latency        –                                    *_itl_ms
    end-to-end    request_latency            request_latency (seconds)            *_e2el_ms, *_e2e_latency_ms

guidellm calls our TPOT inter-token latency; what it calls time per output token contains the TTFT and is left alone.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.base.errors import InputError, UsageError
from eyas.bench.machine import redact_location
from eyas.bench.number_format import lookup, read_number
from eyas.bench.report import SCHEMA
from eyas.bench.single_stream import BASELINE, SPECULATIVE

PERCENTS = ("p50", "p90", "p99")
Metrics = dict[str, Any]


def import_results(items: Sequence[str]) -> dict[str, Any]:
    """results.json of ARM=FILE, ...: points of the same number of streams side by side. UsageError, InputError."""
    points: dict[int, dict[str, Metrics]] = {}
    for item in items:
        arm, equals, path = item.partition("=")
        if not equals or not arm or not path:
            raise UsageError(f"--import {item}", "ARM=FILE", "write for example --import baseline=run.json")
        for streams, figures in read_benchmark_file(Path(path)):
            if arm in points.setdefault(streams, {}):
                raise UsageError(f"two figures of {arm} at {streams} streams", "one", "name one of the arms otherwise")
            points[streams][arm] = figures
    named = [f"{arm}={redact_location(path)}" for arm, _, path in (item.partition("=") for item in items)]
    command = shlex.join(["eyas", "bench", *(word for item in named for word in ("--import", item))])
    listed = [_point(n, points[n]) for n in sorted(points)]
    return {"schema": SCHEMA, "tasks": {}, "concurrency": listed, "command": command}


def read_benchmark_file(path: Path) -> list[tuple[int, Metrics]]:
    """(streams, figures) of each run in a file; 0 streams: the file does not say. InputError for any other file."""
    try:
        text = path.read_text(encoding="utf-8")
        # SGLang appends an object a line.
        values = (
            [json.loads(line) for line in text.splitlines() if line.strip()] if _is_lines(text) else [json.loads(text)]
        )
    except FileNotFoundError:
        raise InputError(f"no file {path}", "the JSON of a benchmark", "check the path") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} that is no JSON ({error})", "the JSON of a benchmark", "check the file") from None
    found = [run for value in values for run in _runs(value)]
    if not found:
        raise InputError(
            f"{path} without figures that are known",
            "what aiperf (profile_export_aiperf.json), guidellm, vllm bench serve or sglang.benchmark.serving write",
            "name another file",
        )
    return found


def _is_lines(text: str) -> bool:
    first = text.lstrip().split("\n", 1)[0]
    try:
        json.loads(first)
    except ValueError:
        return False
    return True


def _runs(value: Any) -> list[tuple[int, Metrics]]:
    if not isinstance(value, Mapping):
        return []
    if isinstance(value.get("benchmarks"), list):
        return [_guidellm(one) for one in value["benchmarks"] if lookup(one, "metrics", "output_tokens_per_second")]
    if isinstance(value.get("time_to_first_token"), Mapping) or isinstance(value.get("request_latency"), Mapping):
        return [_aiperf(value)]
    if "median_ttft_ms" in value:
        return [_vllm(value)]
    return []


def _aiperf(value: Mapping[str, Any]) -> tuple[int, Metrics]:
    names = {
        "ttft_ms": "time_to_first_token",
        "tpot_ms": "inter_token_latency",
        "step_ms": "inter_chunk_latency",
        "e2e_ms": "request_latency",
    }
    figures = _times(names, lambda name, percent: read_number(value, name, percent))
    told = {"output_tps": "output_token_throughput", "acceptance_length": "spec_decode_acceptance_length"}
    figures |= {
        ours: found for ours, theirs in told.items() if (found := read_number(value, theirs, "avg")) is not None
    }
    figures |= _counts(
        *(read_number(value, name, "avg") for name in ("request_count", "error_request_count", "goodput"))
    )
    phases = lookup(value, "input_config", "phases") or []  # since 0.13; the warm-up is one of them
    streams = [read_number(phase, "concurrency") for phase in phases if lookup(phase, "kind") == "profiling"]
    streams.append(read_number(value, "input_config", "loadgen", "concurrency"))
    return int(next(filter(None, streams), 0)), figures


def _guidellm(value: Mapping[str, Any]) -> tuple[int, Metrics]:
    names = {"ttft_ms": "time_to_first_token_ms", "tpot_ms": "inter_token_latency_ms", "e2e_ms": "request_latency"}

    def look(name: str, percent: str) -> float | None:
        found = read_number(value, "metrics", name, "successful", "percentiles", percent)
        return found if found is None or name != "request_latency" else 1000 * found

    figures = _times(names, look)
    tps = read_number(value, "metrics", "output_tokens_per_second", "successful", "mean")
    totals = lookup(value, "metrics", "request_totals")
    figures |= _counts(read_number(totals, "successful"), read_number(totals, "errored"), None)
    strategy = lookup(value, "config", "strategy") or lookup(value, "scheduler", "strategy") or {}
    streams = read_number(strategy, "streams") or read_number(strategy, "max_concurrency")
    return int(streams or 0), figures | ({"output_tps": tps} if tps is not None else {})


def _vllm(value: Mapping[str, Any]) -> tuple[int, Metrics]:
    """SGLang calls the end-to-end time e2e_latency, and has p90 where vLLM has the percentiles that were asked for."""
    e2e = "e2el" if "median_e2el_ms" in value else "e2e_latency"
    names = {"ttft_ms": "ttft", "tpot_ms": "tpot", "step_ms": "itl", "e2e_ms": e2e}

    def look(name: str, percent: str) -> float | None:
        return read_number(value, f"{'median' if percent == 'p50' else percent}_{name}_ms")

    figures = _times(names, look)
    length = read_number(value, "spec_decode_acceptance_length") or read_number(value, "accept_length")
    tps = read_number(value, "output_throughput")
    figures |= {"acceptance_length": length} if length is not None else {}
    figures |= _counts(*(read_number(value, name) for name in ("completed", "failed", "request_goodput")))
    return int(read_number(value, "max_concurrency") or 0), figures | ({"output_tps": tps} if tps is not None else {})


def _counts(done: float | None, failed: float | None, goodput: float | None) -> Metrics:
    """A count of failures that is missing is none, as AIPerf and SGLang write it."""
    found: Metrics = {} if goodput is None else {"goodput": goodput}
    return found if done is None else found | {"requests": int(done + (failed or 0)), "failed": int(failed or 0)}


def _times(names: Mapping[str, str], look: Callable[[str, str], float | None]) -> Metrics:
    """Of each time the percentiles that are there; a time without a median is left out."""
    found: Metrics = {}
    for ours, theirs in names.items():
        values = {percent: value for percent in PERCENTS if (value := look(theirs, percent)) is not None}
        if "p50" in values:
            found[ours] = values
    return found


def _point(n: int, arms: Mapping[str, Metrics]) -> dict[str, Any]:
    named = (BASELINE, SPECULATIVE)
    found: dict[str, Any] = {"n": n, **{name: arms[name] for name in named if name in arms}}
    found["arms"] = {name: figures for name, figures in arms.items() if name not in named}
    before, after = (read_number(found, name, "tpot_ms", "p50") for name in named)
    if before and after:
        found["speedup_tpot"] = before / after
    before, after = (read_number(found, name, "output_tps") for name in named)
    if before and after:
        found["speedup_tps"] = after / before
    return found
