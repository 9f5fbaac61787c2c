"""GET /metrics: the metrics in Prometheus' text format. They have vLLM's names, so dashboards made for vLLM work.

Counters and gauges are read from the engine at each scrape. Histograms are updated when a request finishes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import TypeVar

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eyas.engine.async_engine import EngineStats
from eyas.engine.canary import CanaryStatus
from eyas.engine.request import RequestOutput

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Upper bounds in seconds. They are vLLM's, and three below for the time between tokens, because a small target on a GPU
# is faster than vLLM's first bound.
TTFT_BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
TTFT_BUCKETS_S += (1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
ITL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75)
ITL_BUCKETS_S += (1, 2.5, 5, 7.5, 10, 20, 40, 80)
E2E_BUCKETS_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FINISH_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}  # eyas's -> vLLM's

Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily)


class ServerMetrics(Collector):
    """The metrics of one server. `Api` owns them and calls `observe` on the event loop.

    Args:
        model: the value of the label model_name of every sample.
        read_stats: returns a snapshot of the engine.
        collectors: further sources of metrics, for example the prompt sampler.
    """

    def __init__(self, model: str, read_stats: Callable[[], EngineStats], collectors: Sequence[Collector] = ()) -> None:
        self.labels = {"model_name": model, "engine": "0"}
        self.ttft_s = _histogram("time_to_first_token", "Time to the first token", TTFT_BUCKETS_S)
        text = "Time between tokens: the duration of a round divided by its tokens, once for each token"
        self.itl_s = _histogram("inter_token_latency", text, ITL_BUCKETS_S)
        self.e2e_s = _histogram("e2e_request_latency", "Time to the last token", E2E_BUCKETS_S)
        self._read_stats = read_stats
        self._collectors = (self.ttft_s, self.itl_s, self.e2e_s, *collectors)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def observe(self, output: RequestOutput) -> None:
        """Adds the latencies of a finished output to the histograms."""
        self.ttft_s.observe(output.token_times_s[0])
        self.e2e_s.observe(output.token_times_s[-1])
        previous_s = output.token_times_s[0]
        for time_s, tokens in groupby(output.token_times_s[1:]):  # the tokens of a round share its time
            count = sum(1 for _ in tokens)
            for _ in range(count):
                self.itl_s.observe((time_s - previous_s) / count)
            previous_s = time_s

    def render(self) -> bytes:
        """Returns the body of GET /metrics."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yields every metric, with the labels model_name and engine added to each sample."""
        stats = self._read_stats()
        engine = chain(_engine_metrics(stats), _speculation_metrics(stats))
        canary = () if stats.canary is None else _canary_metrics(stats.canary)
        for metric in chain(engine, canary, *(collector.collect() for collector in self._collectors)):
            metric.samples = [
                sample._replace(labels={**self.labels, **sample.labels})
                for sample in metric.samples
                if not sample.name.endswith("_created")  # of OpenMetrics; vLLM's pages have none by default
            ]
            yield metric


def _histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
    return Histogram(f"vllm:{name}_seconds", f"{text}, in seconds.", buckets=buckets, registry=None)


def _by_label(family: Family, values: Mapping[str, float]) -> Family:
    """Adds a sample for each label value to a metric family and returns it."""
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def _engine_metrics(stats: EngineStats) -> Iterator[Metric]:
    counters = stats.counters
    yield GaugeMetricFamily("vllm:num_requests_running", "Requests that run now.", stats.running)
    yield GaugeMetricFamily("vllm:num_requests_waiting", "Requests that wait in the queue now.", stats.waiting)
    used = stats.kv_used / stats.kv_total
    yield GaugeMetricFamily(
        "vllm:kv_cache_usage_perc", "Share of the KV cache that running requests use, 0 to 1.", used
    )
    yield CounterMetricFamily(
        "vllm:num_preemptions",
        "Preemptions: a running request gave up its memory and waits again.",
        counters.preemptions,
    )
    yield CounterMetricFamily("vllm:prompt_tokens", "Prompt tokens of all requests.", counters.prompt_tokens)
    yield CounterMetricFamily("vllm:generation_tokens", "Output tokens of all requests.", counters.output_tokens)
    yield CounterMetricFamily(
        "vllm:prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache.", counters.prompt_tokens
    )
    yield CounterMetricFamily(
        "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", counters.cached_tokens
    )
    finished = CounterMetricFamily(
        "vllm:request_success", "Finished requests, by finish reason.", labels=["finished_reason"]
    )
    yield _by_label(finished, {name: counters.finished.get(reason, 0) for reason, name in FINISH_REASONS.items()})


def _speculation_metrics(stats: EngineStats) -> Iterator[Metric]:
    counters = stats.counters
    yield CounterMetricFamily(
        "vllm:spec_decode_num_drafts", "Draft trees: one for each request and round.", counters.drafts
    )
    text = "Draft tokens: the nodes of the draft trees without their roots."
    yield CounterMetricFamily("vllm:spec_decode_num_draft_tokens", text, counters.draft_tokens)
    text = "Accepted draft tokens, bonus tokens excluded."
    yield CounterMetricFamily("vllm:spec_decode_num_accepted_tokens", text, sum(counters.accepted_per_position))
    text = "Draft trees of which at least position + 1 draft tokens were accepted."
    name = "vllm:spec_decode_num_accepted_tokens_per_pos"
    positions = {str(position): count for position, count in enumerate(counters.accepted_per_position)}
    yield _by_label(CounterMetricFamily(name, text, labels=["position"]), positions)
    yield _by_label(
        GaugeMetricFamily(
            "eyas_arm_info", "Always 1; the label `arm` names the draft tree of the last round, or off.", labels=["arm"]
        ),
        {counters.arm: 1},
    )
    if stats.speedup is not None:
        text = "Output tokens per second with speculation divided by those without it, from the rounds of this server"
        yield GaugeMetricFamily("eyas_speedup_now", f"{text}.", stats.speedup.value)
        yield GaugeMetricFamily("eyas_speedup_low", f"{text}: lower end of the 95% interval.", stats.speedup.low)
        yield GaugeMetricFamily("eyas_speedup_high", f"{text}: upper end of the 95% interval.", stats.speedup.high)


def _canary_metrics(canary: CanaryStatus) -> Iterator[Metric]:
    rounds = CounterMetricFamily("eyas_head_rounds", "Rounds with drafting, by head.", labels=["head"])
    yield _by_label(rounds, canary.rounds)
    text = "Output tokens of rounds with drafting, bonus tokens included, by head."
    yield _by_label(CounterMetricFamily("eyas_head_accepted_tokens", text, labels=["head"]), canary.tokens)
    yield GaugeMetricFamily(
        "eyas_canary_share", "Share of the new requests that use the canary head, 0 to 1.", canary.share
    )
    text = "Always 1; the label `state` is running, returned (to the main head) or promoted (the canary head won)."
    yield _by_label(GaugeMetricFamily("eyas_canary_info", text, labels=["state"]), {canary.state: 1})
    if canary.ratio is not None:
        text, interval = (
            "Output tokens per second with the canary head divided by those with the main head",
            canary.ratio.interval,
        )
        yield GaugeMetricFamily("eyas_canary_ratio", f"{text}.", canary.ratio.value)
        yield GaugeMetricFamily("eyas_canary_ratio_low", f"{text}: lower end of its interval.", interval.low)
        yield GaugeMetricFamily("eyas_canary_ratio_high", f"{text}: upper end of its interval.", interval.high)
