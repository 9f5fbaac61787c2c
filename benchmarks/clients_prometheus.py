"""Part `metrics` of `make prove-clients`: Prometheus scrapes a served embedded pair under load.

Every expression of vLLM's and SGLang's dashboards and of deploy/monitoring/dashboard.json must return data, without a
NaN and without a series that is 0 all the time. Then clients make calls and count what they see. The counters, and the
expressions whose values clients can know, must agree with them. Needs the programs prometheus and promtool (on Debian:
`apt install prometheus`). The expressions of others are restated here. If UPSTREAM names a directory with the source of
vLLM and SGLang, they are compared with those of their dashboards.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from clients_load import KEY, SLOTS, WAITING, Clients, Seen
from clients_load import MODEL as MODEL_NAME
from peer_drivers.protocol import free_port
from result_rows import Row, print_rows

MONITORING = Path(__file__).parents[1] / "deploy" / "monitoring"
PERIOD = "30s"
LOAD_S, COUNT_S, MARGIN_S = 90, 30, 3  # MARGIN_S: longer than two scrapes
TOLERANCE = 0.1  # of values over a window, which Prometheus extrapolates to its ends
HTTP_S = 0.5  # the longest time that a call needs, on average, on its way to the engine and back
JOB = "vllm-or-eyas"  # a panel of vLLM's asks for scrape jobs with "vllm" in their name
# Read as text, because SGLang's dashboard was published with marks of a merge, so that it is no JSON.
LOST = re.compile(r"<{7} .*?={7}", re.DOTALL)
# SGLang's server writes sglang:NAME. Its gateway and its newest dashboard (since 186a56f6) write sglang_NAME.
SERIES = re.compile(r"\b(vllm|sglang)[:_](\w+)")
EXPRESSION = re.compile(r'"expr": *"((?:[^"\\]|\\.)*)"')


def _latency(name: str, labels: str = "") -> list[str]:
    sums = f"rate({name}_sum{labels}[{PERIOD}])", f"rate({name}_count{labels}[{PERIOD}])"
    return [
        *(_quantile(share, name, labels) for share in (0.5, 0.9, 0.95, 0.99)),
        f"{sums[0]} / {sums[1]}",
        f"sum({sums[0]}) / sum({sums[1]})",
    ]


def _quantile(share: float, name: str, labels: str, by: str = "le") -> str:
    return f"histogram_quantile({share}, sum by ({by}) (rate({name}_bucket{labels}[{PERIOD}])))"


def _with_old_name(name: str, by: str = "") -> str:
    """Returns the rate of a counter by its name without `_total`, which no server has, or else by its name with it."""
    return " or ".join(f"sum{by} (rate(vllm:{name}{total}{MODEL}[{PERIOD}]))" for total in ("", "_total"))


# What the dashboards ask for, restated by hand from vLLM's prometheus_grafana/grafana.json (4b5c627c) with the old
# names of 004f771f, its k8s-monitoring/grafana-dashboard.json (cf6f12c2), SGLang's sglang-dashboard.json (0e6ed14d).
MODEL = f'{{model_name=~"{MODEL_NAME}"}}'
VLLM = [
    *_latency("vllm:e2e_request_latency_seconds", MODEL),
    *_latency("vllm:time_per_output_token_seconds", MODEL),
    *_latency("vllm:inter_token_latency_seconds", MODEL),
    *_latency("vllm:time_to_first_token_seconds", MODEL),
    _quantile(0.99, "vllm:e2e_request_latency_seconds", MODEL, "le, pod"),
    *(_quantile(0.95, f"vllm:request_{name}_time_seconds", MODEL) for name in ("queue", "prefill", "decode")),
    *(f"rate(vllm:request_{name}_time_seconds_sum{MODEL}[{PERIOD}])" for name in ("queue", "prefill", "decode")),
    f"rate(vllm:request_max_num_generation_tokens_sum{MODEL}[{PERIOD}])",
    f"rate(vllm:prompt_tokens_total{MODEL}[{PERIOD}])",
    f"rate(vllm:generation_tokens_total{MODEL}[{PERIOD}])",
    *(_with_old_name(name) for name in ("prompt_tokens", "generation_tokens", "request_success", "num_preemptions")),
    _with_old_name("request_success", " by (finished_reason)"),
    f"sum by (finished_reason) (increase(vllm:request_success_total{MODEL}[{PERIOD}]))",
    *(f"vllm:num_requests_{state}{MODEL}" for state in ("running", "waiting")),
    *(f"sum(vllm:num_requests_{state}{MODEL})" for state in ("running", "waiting")),
    *(f"vllm:{name}_cache_usage_perc{MODEL}" for name in ("kv", "gpu")),
    *(f"avg(vllm:{name}_cache_usage_perc{MODEL})" for name in ("kv", "gpu")),
    f"vllm:kv_cache_usage_perc{MODEL} or vllm:gpu_cache_usage_perc{MODEL}",
    f"avg(vllm:kv_cache_usage_perc{MODEL}) or avg(vllm:gpu_cache_usage_perc{MODEL})",
    *(
        f"sum by (le) (increase(vllm:{name}_bucket{MODEL}[{PERIOD}]))"
        for name in ("request_prompt_tokens", "request_generation_tokens", "iteration_tokens_total")
    ),
    "vllm:cache_config_info",
    f"sum(rate(vllm:prefix_cache_hits{MODEL}[{PERIOD}])) / sum(rate(vllm:prefix_cache_queries{MODEL}[{PERIOD}]))",
    'count(up{job=~".*vllm.*"} == 1)',
]
SGLANG = [
    *_latency("sglang:e2e_request_latency_seconds"),
    *_latency("sglang:time_to_first_token_seconds"),
    *(
        f"sum by (le) (increase(sglang:{name}_seconds_bucket{MODEL}[{PERIOD}]))"
        for name in ("e2e_request_latency", "time_to_first_token")
    ),
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:gen_throughput",
    "sglang:cache_hit_rate",
    "sglang:token_usage",
    "sglang:spec_accept_length",
    "sglang:spec_accept_rate",
]
# What promtool finds in names that vLLM and SGLang chose.
NAMES_OF_OTHERS = (
    "metric names should not contain ':'",
    'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix',
)
# Series that may be 0 all the time if others of the same expression are not: the server makes no errors, a bucket may
# lie below all values, the fifth node of a path may never be accepted, and an arm may only have been tried at first.
MAY_BE_ZERO = re.compile(r"finished_reason=error|le=[0-9]|position=[1-9]|arm=")


def upstream_rows(directory: str | None) -> Iterator[Row]:
    """Yields for vLLM and SGLang how many expressions of their dashboards are not restated here.

    Two expressions are equal if they ask for the same series with the same functions.
    """
    name = "metrics: expressions of {} dashboards that are not restated"
    if directory is None:
        yield Row(name.format("upstream"), None, "told (UPSTREAM is not set)", True)
        return
    for owner, files, restated in (
        ("vLLM's", ("grafana.json", "grafana-dashboard.json"), VLLM),
        ("SGLang's", ("sglang-dashboard.json",), SGLANG),
    ):
        paths = [path for file in files for path in Path(directory).rglob(file)]
        texts = [LOST.sub("", path.read_text()) for path in paths]
        asked = {expr for text in texts for expr in EXPRESSION.findall(text) if SERIES.search(expr)}
        missing = {_essence(expr) for expr in asked} - {_essence(expr) for expr in restated}
        print(*sorted(map(str, missing)), sep="\n", file=sys.stderr)
        yield Row(name.format(owner) + f" (of {len(asked)})", len(missing), "0", bool(asked) and not missing)


def _essence(expression: str) -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
    """Returns the series and the functions of an expression. Counters without `_total` are those with it."""
    series = {(owner, name.removesuffix("_total")) for owner, name in SERIES.findall(expression)}
    return frozenset(series), frozenset(re.findall(r"\b(histogram_quantile|rate|increase)\b", expression))


def metrics_rows() -> Iterator[Row]:
    """Yields the rows about GET /metrics."""
    yield from upstream_rows(os.environ.get("UPSTREAM"))
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        yield Row("metrics: Prometheus scrapes a served pair", None, "prometheus and promtool are installed", False)
        return
    for name, command in (
        ("check rules", ["promtool", "check", "rules", "alerts.yaml"]),
        ("test rules", ["promtool", "test", "rules", "alerts_test.yaml"]),
    ):
        done = subprocess.run(command, cwd=MONITORING, capture_output=True, check=False)
        yield Row(f"metrics: promtool {name}, exit code", done.returncode, "0", done.returncode == 0)
    with tempfile.TemporaryDirectory() as directory, _server(Path(directory)) as url:
        page = httpx.get(f"{url}/metrics")
        done = subprocess.run(["promtool", "check", "metrics"], input=page.content, capture_output=True, check=False)
        lines = (done.stdout + done.stderr).decode().splitlines()
        problems = [line for line in lines if not line.endswith(NAMES_OF_OTHERS)]
        print(*problems, sep="\n", end="", file=sys.stderr)
        yield Row("metrics: problems that promtool check metrics finds", len(problems), "0", not problems)
        with _prometheus(Path(directory), url) as prometheus:
            clients = Clients(url)
            clients.start()
            start_s = time.time()
            time.sleep(LOAD_S)
            own = json.loads((MONITORING / "dashboard.json").read_text())
            targets = [target["expr"] for panel in own["panels"] for target in panel.get("targets", ())]
            filled = [
                expr.replace("$__rate_interval", PERIOD).replace("$job", ".*").replace("$instance", ".*")
                for expr in targets
            ]
            for name, expressions in (("vLLM's", VLLM), ("SGLang's", SGLANG), ("eyas's", filled)):
                problems = {expr: _find_problem(prometheus, expr, start_s + 40) for expr in expressions}
                for expr, problem in problems.items():
                    if problem:
                        print(f"{problem}: {expr}", file=sys.stderr)
                share = sum(not problem for problem in problems.values()) / len(problems)
                yield Row(f"metrics: expressions of {name} dashboards with data", share, "1", share == 1)
            clients.stop()
            yield from _agreement_rows(url, prometheus, clients, {*VLLM, *SGLANG, *filled})
            yield Row("metrics: calls of the load", float(clients.calls), "told", True)


def _agreement_rows(url: str, prometheus: str, clients: Clients, expressions: set[str]) -> Iterator[Row]:
    """Yields how the counters and the expressions compare with what clients see of calls that they make now."""
    time.sleep(MARGIN_S)
    start_s, before = time.time(), _read_samples(url)
    seen = clients.count(COUNT_S)
    yield from _counter_rows(before, _read_samples(url), _client_counts(seen))
    time.sleep(MARGIN_S)
    now_s = time.time()
    window_s = round(now_s - start_s + MARGIN_S - 1)
    ranges = _client_values(seen, window_s)
    unknown = {*ranges} - expressions
    assert not unknown, f"of no dashboard: {unknown}"
    wrong = 0
    for expression, expected in ranges.items():
        found = _query(prometheus, expression.replace(PERIOD, f"{window_s}s"), now_s)
        misses = {label: span for label, span in expected.items() if not span[0] <= _value(found, label) <= span[1]}
        if misses:
            print(f"{expression}: {found}, but clients saw {misses}", file=sys.stderr)
        wrong += bool(misses)
    yield Row(f"metrics: expressions (of {len(ranges)}) that differ from what clients saw", wrong, "0", not wrong)
    before = _read_samples(url)
    clients.leave_after_first_token()
    clients.leave_before_first_token()
    rejected = int(clients.ask_too_much() == 429)
    counts = {
        'eyas_aborted_requests_total phase="before_first_token"': 1,
        'eyas_aborted_requests_total phase="after_first_token"': 1,
        'vllm:request_success_total finished_reason="abort"': 2,
        'vllm:admission_rejections_total reason="queue_full"': rejected,
    }
    time.sleep(1)  # the server learns that a client has left when it looks
    yield from _counter_rows(before, _read_samples(url), counts)


def _client_counts(seen: Seen) -> dict[str, float]:
    """Returns for each series by how much it must have grown."""
    calls = len(seen.prompts)
    return {
        "vllm:prompt_tokens_total": sum(seen.prompts),
        "vllm:generation_tokens_total": sum(seen.outputs),
        "vllm:prefix_cache_queries_total": sum(seen.prompts),
        "vllm:prefix_cache_hits_total": seen.totals["cached"],
        'vllm:request_success_total finished_reason="stop"': seen.finished["stop"],
        'vllm:request_success_total finished_reason="length"': seen.finished["length"],
        "vllm:time_to_first_token_seconds_count": calls,
        "vllm:inter_token_latency_seconds_count": seen.totals["rounds"],
        "vllm:e2e_request_latency_seconds_count": calls,
        "vllm:request_queue_time_seconds_count": calls,
        "vllm:request_prompt_tokens_sum": sum(seen.prompts),
        "vllm:request_generation_tokens_sum": sum(seen.outputs),
        'http_requests_total handler="/v1/completions"': calls,
    }


def _client_values(seen: Seen, window_s: float) -> dict[str, dict[str, tuple[float, float]]]:
    """Returns for expressions of dashboards the range of the value of each series, by its labels."""
    calls, totals, itl_s = len(seen.prompts), seen.totals, seen.seconds["itl"]
    sums = {"prompt_tokens": sum(seen.prompts), "generation_tokens": sum(seen.outputs), "request_success": calls}
    near = {_with_old_name(name): total / window_s for name, total in sums.items()}
    for name, total in (
        ("prompt_tokens_total", sums["prompt_tokens"]),
        ("generation_tokens_total", sums["generation_tokens"]),
        ("request_max_num_generation_tokens_sum", sums["generation_tokens"]),
        ("request_decode_time_seconds_sum", itl_s),
    ):
        near[f"rate(vllm:{name}{MODEL}[{PERIOD}])"] = total / window_s
    near[_latency("vllm:inter_token_latency_seconds", MODEL)[-1]] = itl_s / totals["rounds"]
    hits, queries = (f"sum(rate(vllm:prefix_cache_{name}{MODEL}[{PERIOD}]))" for name in ("hits", "queries"))
    near[f"{hits} / {queries}"] = totals["cached"] / sums["prompt_tokens"]
    own = f'{{job=~".*",instance=~".*"}}[{PERIOD}]'
    accepted, drafts = (f"sum(rate(vllm:spec_decode_num_{name}_total{own}))" for name in ("accepted_tokens", "drafts"))
    near[f"1 + {accepted} / {drafts}"] = 1 + totals["accepted"] / totals["drafts"]
    values = {expression: {"": _near(value)} for expression, value in near.items()}
    for name, kind in (("time_to_first_token", "ttft"), ("e2e_request_latency", "e2e")):
        mean_s = seen.seconds[kind] / calls
        for owner, labels in (("vllm", MODEL), ("sglang", "")):
            values[_latency(f"{owner}:{name}_seconds", labels)[-1]] = {"": (mean_s - HTTP_S, mean_s)}
    reasons = {f"finished_reason={reason}": count for reason, count in seen.finished.items()}
    by_reason = {label: _near(count / window_s) for label, count in reasons.items()}
    values[_with_old_name("request_success", " by (finished_reason)")] = by_reason
    counts = {label: _near(count) for label, count in reasons.items()}
    values[f"sum by (finished_reason) (increase(vllm:request_success_total{MODEL}[{PERIOD}]))"] = counts
    for name, lengths in (("prompt", seen.prompts), ("generation", seen.outputs)):
        below = {f"le={le}": _near(sum(length <= le for length in lengths)) for le in (5.0, 10.0, 20.0, 50.0)}
        values[f"sum by (le) (increase(vllm:request_{name}_tokens_bucket{MODEL}[{PERIOD}]))"] = below
    values[f"sum by (status) (rate(http_requests_total{own}))"] = {"status=2xx": _near(calls / window_s)}
    return values


def _near(value: float) -> tuple[float, float]:
    return value * (1 - TOLERANCE), value * (1 + TOLERANCE)


def _counter_rows(before: dict[str, float], after: dict[str, float], counts: Mapping[str, float]) -> Iterator[Row]:
    """Yields by how much each series has grown. counts: the growth that clients saw, by name and a label."""

    def total(samples: dict[str, float], name: str, label: str) -> float:
        return sum(value for key, value in samples.items() if key.startswith(f"{name}{{") and label in key)

    for series, count in counts.items():
        name, _, label = series.partition(" ")
        growth = total(after, name, label) - total(before, name, label)
        row = f"metrics: growth of {series}"
        yield Row(row, growth, f"{count} (as clients saw), above 0", growth == count > 0)


def _read_samples(url: str) -> dict[str, float]:
    """Returns the value of each sample of /metrics, by its name and labels."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return {name: float(value) for line in lines if line[0] != "#" for name, value in [line.rsplit(" ", 1)]}


@contextmanager
def _server(directory: Path) -> Iterator[str]:
    """Serves the embedded pair and yields its URL."""
    port = free_port()
    log = (directory / "serve.log").open("w")
    command = [sys.executable, "-m", "eyas", "serve", "--port", str(port), "--served-name", MODEL_NAME]
    command += ["--api-key", KEY, "--no-compile", "--slots", str(SLOTS), "--max-waiting", str(WAITING)]
    command += ["--context", "512", "--memory-tokens", "512"]  # so little that requests are preempted
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(f"{url}/ready", process)
        yield url
    finally:
        process.terminate()
        process.wait(60)
        log.close()


@contextmanager
def _prometheus(directory: Path, url: str) -> Iterator[str]:
    """Runs Prometheus, which scrapes a server every second without a key, and yields its URL."""
    target = url.removeprefix("http://")
    scrape = {"job_name": JOB, "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
    config = directory / "prometheus.yml"
    config.write_text(json.dumps({"scrape_configs": [scrape]}))  # JSON is YAML
    port = free_port()
    options = [f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}"]
    log = (directory / "prometheus.log").open("w")
    command = ["prometheus", *options, f"--web.listen-address=127.0.0.1:{port}"]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(f"{address}/-/ready", process)
        yield address
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def _find_problem(prometheus: str, expression: str, start_s: float) -> str:
    """Returns what is wrong with the values of an expression since a time; "" if nothing."""
    params = {"query": expression, "start": str(start_s), "end": str(time.time()), "step": "1"}
    reply = httpx.get(f"{prometheus}/api/v1/query_range", params=params).json()
    if reply["status"] != "success":
        return str(reply)
    values = {_labels(series): [float(value) for _, value in series["values"]] for series in reply["data"]["result"]}
    if any(math.isnan(value) for series in values.values() for value in series):
        return "NaN"
    if not any(map(any, values.values())):
        return "always 0" if values else "no data"
    zero = [labels for labels, series in values.items() if not any(series) and not MAY_BE_ZERO.search(labels)]
    return f"always 0 ({zero[0]})" if zero else ""


def _query(prometheus: str, expression: str, now_s: float) -> dict[str, float]:
    """Returns the values of an expression, by their labels."""
    params = {"query": expression, "time": str(now_s)}
    result = httpx.get(f"{prometheus}/api/v1/query", params=params).json()["data"]["result"]
    return {_labels(series): float(series["value"][1]) for series in result}


def _value(found: dict[str, float], label: str) -> float:
    """Returns the value with a label, or the first one for no label; NaN if it is missing."""
    return found.get(label, math.nan) if label else next(iter(found.values()), math.nan)


def _labels(series: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in series["metric"].items())


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + 600
    while time.monotonic() < end_s and process.poll() is None:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"{url} does not become ready")


if __name__ == "__main__":
    sys.exit(print_rows(metrics_rows()))
