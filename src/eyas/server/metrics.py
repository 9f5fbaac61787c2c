"""GET /metrics: the metrics in Prometheus' text format. They have vLLM's names, so dashboards made for vLLM work.

Counters and gauges are read from the engine at each scrape; request_metrics.py has the histograms. The series that
SGLang's dashboard asks for, and old names of vLLM, repeat others.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from eyas.engine.async_engine import EngineStats
from eyas.engine.canary import CanaryStatus
from eyas.engine.counters import STEP_BOUNDS, EngineCounters
from eyas.server.request_metrics import RequestMetrics, build_histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FINISH_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}  # eyas's -> vLLM's
MIN_PERIOD_S = 1.0  # of the throughput
# Metric -> its other names: old ones of vLLM, and those of SGLang. A counter's own name is that name without `_total`,
# which vLLM's k8s dashboard asks for.
ALIASES = {
    "vllm:kv_cache_usage_perc": ("vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "vllm:inter_token_latency_seconds": ("vllm:time_per_output_token_seconds", "sglang:inter_token_latency_seconds"),
    "vllm:time_to_first_token_seconds": ("sglang:time_to_first_token_seconds",),
    "vllm:e2e_request_latency_seconds": ("sglang:e2e_request_latency_seconds",),
    "vllm:num_requests_running": ("sglang:num_running_reqs",),
    "vllm:num_requests_waiting": ("sglang:num_queue_reqs",),
    "vllm:prompt_tokens": ("sglang:prompt_tokens",),
    "vllm:generation_tokens": ("sglang:generation_tokens",),
    "vllm:prefix_cache_hits": ("vllm:prompt_tokens_cached", "sglang:cached_tokens", "vllm:prefix_cache_hits"),
    "vllm:prefix_cache_queries": ("vllm:prefix_cache_queries",),
}

Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily)


class ServerMetrics(Collector):
    """The metrics of one server.

    Args:
        model: the value of the label model_name of every sample about the model.
        read_stats: returns a snapshot of the engine. Any thread may call it.
        max_context: the maximum number of tokens of a text.
        collectors: further sources of metrics, for example the prompt sampler.

    Attributes:
        requests: The histograms of requests. `Api` adds to them on the event loop.
        registry: The registry of all metrics.
    """

    def __init__(
        self,
        model: str,
        read_stats: Callable[[], EngineStats],
        max_context: int = 4096,
        collectors: Sequence[Collector] = (),
    ) -> None:
        self.labels = {"model_name": model, "engine": "0"}
        self.requests = RequestMetrics(max_context)
        self._read_stats, self._base = read_stats, EngineCounters()
        self._collectors = (*self.requests.collectors, *collectors)
        self._throughput, self._counted, self._counted_at_s = 0.0, 0, time.monotonic()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def forget_warm_up(self) -> None:
        """Leaves out everything that the engine has counted so far."""
        self._base = self._read_stats().counters

    def render(self) -> bytes:
        """Returns the body of GET /metrics."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Yields every metric. Those about the model get the labels model_name and engine."""
        stats = self._read_stats()
        stats = replace(stats, counters=stats.counters.since(self._base))
        canary = () if stats.canary is None else _canary_metrics(stats.canary)
        of_model = chain(
            _engine_metrics(stats),
            _speculation_metrics(stats),
            self._sglang_metrics(stats),
            canary,
            *(collector.collect() for collector in self._collectors),
        )
        for metric in of_model:
            metric.samples = [
                sample._replace(labels={**self.labels, **sample.labels}) for sample in _without_created(metric)
            ]
            yield metric
            yield from (_renamed(metric, name) for name in ALIASES.get(metric.name, ()))
        for metric in chain(*(collector.collect() for collector in self.requests.http_collectors)):
            metric.samples = _without_created(metric)
            yield metric

    def _sglang_metrics(self, stats: EngineStats) -> Iterator[Metric]:
        """Yields the gauges of SGLang that no metric of vLLM has."""
        counters, now_s = stats.counters, time.monotonic()
        if now_s - self._counted_at_s >= MIN_PERIOD_S:
            self._throughput = max(counters.output_tokens - self._counted, 0) / (now_s - self._counted_at_s)
            self._counted, self._counted_at_s = counters.output_tokens, now_s
        accepted = sum(counters.accepted_per_position)
        gauges = {
            "gen_throughput": ("Output tokens per second since the scrape before.", self._throughput),
            "cache_hit_rate": ("Share of the prompt tokens found in the prefix cache, 0 to 1.",
                               counters.cached_tokens / max(counters.prompt_tokens, 1)),
            "num_used_tokens": ("Tokens of the KV cache that running requests use.", stats.kv_used),
            "kv_used_tokens": ("Tokens of the KV cache that running requests use.", stats.kv_used),
            "max_total_num_tokens": ("Tokens that the KV cache can hold.", stats.kv_total),
            "spec_accept_length": ("Acceptance length: the output tokens of a round with drafting, mean of all.",
                                   1 + accepted / max(counters.drafts, 1)),
            "spec_accept_rate": ("Accepted draft tokens divided by draft tokens.",
                                 accepted / max(counters.draft_tokens, 1)),
        }  # fmt: skip
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"sglang:{name}", text, value)


def _without_created(metric: Metric) -> list[Sample]:
    """Returns the samples without those of OpenMetrics, which vLLM's pages do not have."""
    return [sample for sample in metric.samples if not sample.name.endswith("_created")]


def _renamed(metric: Metric, name: str) -> Metric:
    """Returns a copy of a metric with another name. A counter with its own name loses `_total`."""
    is_bare, start = name == metric.name, len(metric.name)
    copy = Metric(name, f"The same as {metric.name}{'_total' * is_bare}.", "gauge" if is_bare else metric.type)
    copy.samples = [sample._replace(name=name + sample.name[start:] * (not is_bare)) for sample in metric.samples]
    return copy


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
    info = {"block_size": "1", "num_gpu_blocks": str(stats.kv_total), "enable_prefix_caching": "True"}
    config = GaugeMetricFamily("vllm:cache_config_info", "Always 1; the labels describe the KV cache.", labels=[*info])
    config.add_metric([*info.values()], 1)
    yield config
    name, text = "vllm:iteration_tokens_total", "Prompt tokens of a prefill, or output tokens of a round."
    yield build_histogram(name, text, STEP_BOUNDS, counters.steps, counters.step_tokens)
    yield CounterMetricFamily(
        "vllm:num_preemptions",
        "Preemptions: a running request gave up its memory and waits again.",
        counters.preemptions,
    )
    text = "Reads that made the host wait for the device while it launched work: grammars run on the host."
    yield CounterMetricFamily("eyas_device_syncs", text, counters.device_syncs)
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
    text = "Rounds, by the draft tree of the round, or off."
    yield _by_label(CounterMetricFamily("eyas_rounds", text, labels=["arm"]), counters.rounds_by_arm)
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
