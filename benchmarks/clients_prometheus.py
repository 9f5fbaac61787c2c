"""Part `metrics` of `make prove-clients`: Prometheus scrapes a served embedded pair under load.

Every expression of vLLM's and SGLang's dashboards and of deploy/monitoring/dashboard.json must return data that is no
NaN, and the counters must agree with what the clients saw. Needs the programs prometheus and promtool (on Debian: `apt
install prometheus`). The expressions of others are restated here. If UPSTREAM names a directory with the source of vLLM
and SGLang, they are compared with those of their dashboards.
"""

import contextlib
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from result_rows import Row, print_rows

MONITORING = Path(__file__).parents[1] / "deploy" / "monitoring"
PERIOD = "15s"
LOAD_S, STREAMS, MAX_TOKENS = 40, 4, 48
SLOTS, WAITING = 8, 4
KEY = "a-key-of-clients"
# Read as text, because SGLang's dashboard was published with marks of a merge, so that it is no JSON.
LOST = re.compile(r"<{7} .*?={7}", re.DOTALL)
# SGLang's server writes sglang:NAME. Its gateway and its newest dashboard (since 186a56f6) write sglang_NAME.
SERIES = re.compile(r"\b(vllm|sglang)[:_](\w+)")
EXPRESSION = re.compile(r'"expr": *"((?:[^"\\]|\\.)*)"')
PROMPTS = ("Write a short poem.", "How many apples are left?", "Name three towns.", "Explain a queue.")


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
MODEL = '{model_name=~"embedded"}'
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
]
# Panels of vLLM's k8s dashboard that cannot have data: the first asks for counters without `_total`, which vLLM does
# not serve either; the second only counts scrape jobs whose name has "vllm" in it.
VLLM_EMPTY = [
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
COUNTED = {
    "output tokens": "vllm:generation_tokens_total",
    "prompt tokens": "vllm:prompt_tokens_total",
    "requests": "vllm:e2e_request_latency_seconds_count",
}
# What promtool finds in names that vLLM and SGLang chose.
NAMES_OF_OTHERS = (
    "metric names should not contain ':'",
    'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix',
)
# These may be 0 all the time under a load that fits the server.
MAY_BE_ZERO = ("num_requests_waiting", "num_queue_reqs", "queue_time", "preemptions", 'arm="off"')


def upstream_rows(directory: str | None) -> Iterator[Row]:
    """Yields for vLLM and SGLang how many expressions of their dashboards are not restated here.

    Two expressions are equal if they ask for the same series with the same functions.
    """
    name = "metrics: expressions of {} dashboards that are not restated"
    if directory is None:
        yield Row(name.format("upstream"), None, "told (UPSTREAM is not set)", True)
        return
    for owner, files, restated in (
        ("vLLM's", ("grafana.json", "grafana-dashboard.json"), [*VLLM, *VLLM_EMPTY]),
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
            load = _Load(url)
            seen = load.run(LOAD_S)
            own = json.loads((MONITORING / "dashboard.json").read_text())
            targets = [target["expr"] for panel in own["panels"] for target in panel.get("targets", ())]
            filled = [
                expr.replace("$__rate_interval", PERIOD).replace("$job", ".*").replace("$instance", ".*")
                for expr in targets
            ]
            for name, expressions in (("vLLM's", VLLM), ("SGLang's", SGLANG), ("eyas's", filled)):
                good = [expr for expr in expressions if _has_data(prometheus, expr)]
                for expr in sorted({*expressions} - {*good}):
                    print(f"no data: {expr}", file=sys.stderr)
                share = len(good) / len(expressions)
                yield Row(f"metrics: expressions of {name} dashboards with data", share, "1", share == 1)
            told_empty = sum(not _has_data(prometheus, expr) for expr in VLLM_EMPTY)
            yield Row("metrics: further expressions of vLLM's dashboards, without data", told_empty, "told", True)
            load.stop()
            before = [_read_total(url, series) for series in COUNTED.values()]
            usages = [load.ask_once(number) for number in range(STREAMS)]
            seen_by_clients = (
                sum(usage["completion_tokens"] for usage in usages),
                sum(usage["prompt_tokens"] for usage in usages),
                len(usages),
            )
            for (name, series), start, told in zip(COUNTED.items(), before, seen_by_clients, strict=True):
                ratio = (_read_total(url, series) - start) / told
                yield Row(f"metrics: {name} counted over those that clients saw", ratio, "1", ratio == 1)
            yield Row("metrics: calls of the load", float(seen), "told", True)


class _Load:
    """Clients that ask all the time, until `stop`."""

    def __init__(self, url: str) -> None:
        self.calls = 0
        self._client = httpx.Client(timeout=60, headers={"Authorization": f"Bearer {KEY}"})
        self._url, self._lock, self._is_over = url, threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(STREAMS)]
        self._threads.append(threading.Thread(target=self._misbehave))

    def run(self, seconds: float) -> int:
        """Starts the clients, waits, and returns the number of calls so far. The clients go on."""
        for thread in self._threads:
            thread.start()
        time.sleep(seconds)
        return self.calls

    def stop(self) -> None:
        """Ends the clients after their current call."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def ask_once(self, number: int) -> dict[str, int]:
        """Makes one call and returns its usage; none if the server refuses it."""
        body = {"model": "embedded", "prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": MAX_TOKENS}
        if number == 0:
            body["speculation"] = "max"  # under load the policy may choose no drafts for longer than PERIOD
        reply = self._client.post(f"{self._url}/v1/completions", json=body)
        return reply.json()["usage"] if reply.status_code == 200 else {}

    def _ask(self, number: int) -> None:
        while not self._is_over.is_set():
            self.ask_once(number)
            with self._lock:
                self.calls += 1

    def _misbehave(self) -> None:
        """Leaves before the first token and after it, and asks for more than the queue holds."""
        body = {"model": "embedded", "prompt": PROMPTS[0], "max_tokens": 400, "ignore_eos": True, "stream": True}
        url = f"{self._url}/v1/completions"
        while not self._is_over.is_set():
            for timeout_s in (0.002, 60):
                with (
                    contextlib.suppress(httpx.TimeoutException),
                    self._client.stream("POST", url, json=body, timeout=timeout_s) as stream,
                ):
                    next(stream.iter_lines())
            self._client.post(url, json={**body, "stream": False, "n": SLOTS + WAITING - 1})


def _read_total(url: str, series: str) -> float:
    """Returns the sum of the samples of a series, over all labels."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{series}{{"))


@contextmanager
def _server(directory: Path) -> Iterator[str]:
    """Serves the embedded pair and yields its URL."""
    port = _free_port()
    log = (directory / "serve.log").open("w")
    command = [sys.executable, "-m", "eyas", "serve", "--port", str(port), "--served-name", "embedded"]
    command += ["--api-key", KEY, "--no-compile", "--slots", str(SLOTS), "--max-waiting", str(WAITING)]
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
    scrape = {"job_name": "eyas", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
    config = directory / "prometheus.yml"
    config.write_text(json.dumps({"scrape_configs": [scrape]}))  # JSON is YAML
    port = _free_port()
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


def _has_data(prometheus: str, expression: str) -> bool:
    """Returns True if an expression has a value that is no NaN, and not 0 unless that is usual."""
    reply = httpx.get(f"{prometheus}/api/v1/query", params={"query": expression}).json()
    if reply["status"] != "success":
        print(f"{expression}: {reply}", file=sys.stderr)
        return False
    values = [float(sample["value"][1]) for sample in reply["data"]["result"]]
    finite = [value for value in values if not math.isnan(value)]
    may_be_zero = any(name in expression for name in MAY_BE_ZERO)
    return bool(finite) and (may_be_zero or any(finite))


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


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    sys.exit(print_rows(metrics_rows()))
