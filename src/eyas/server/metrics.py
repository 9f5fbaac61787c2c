"""GET /metrics: the metrics in Prometheus' text format. They have vLLM's names, so dashboards made for vLLM work.

Counters and gauges are read from the engine at each scrape; request_metrics.py has the histograms. The series that
SGLang's dashboard asks for, and old names of vLLM, repeat others.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eyas.engine.async_engine import EngineStats
from eyas.engine.canary import CanaryStatus
from eyas.engine.counters import STEP_BOUNDS, EngineCounters
from eyas.server.request_metrics import TABLES, RequestMetrics, build_histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FINISH_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}  # eyas's -> vLLM's
MIN_PERIOD_S = 1.0  # of the throughput
Values = dict[str, float | Mapping[str, float]]
"""Name of a metric -> its value; for a metric with a label: name -> label -> value."""
FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
disable_created_metrics()  # samples of OpenMetrics, which vLLM's pages do not have


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
        values = _engine_values(stats) | self._sglang_values(stats)
        values |= {} if stats.canary is None else _canary_values(stats.canary)
        collected = (collector.collect() for collector in self._collectors)
        for metric in chain(_build_metrics(values), _cache_and_step_metrics(stats), *collected):
            metric.samples = [sample._replace(labels={**self.labels, **sample.labels}) for sample in metric.samples]
            yield metric
            yield from (_renamed(metric, name) for name in TABLES["alias"].get(metric.name, ()))
        for collector in self.requests.http_collectors:
            yield from collector.collect()

    def _sglang_values(self, stats: EngineStats) -> Values:
        """Returns the gauges of SGLang that no metric of vLLM has."""
        counters, now_s = stats.counters, time.monotonic()
        if now_s - self._counted_at_s >= MIN_PERIOD_S:
            self._throughput = max(counters.output_tokens - self._counted, 0) / (now_s - self._counted_at_s)
            self._counted, self._counted_at_s = counters.output_tokens, now_s
        accepted = sum(counters.accepted_per_position)
        return {
            "sglang:gen_throughput": self._throughput,
            "sglang:cache_hit_rate": counters.cached_tokens / max(counters.prompt_tokens, 1),
            "sglang:num_used_tokens": stats.kv_used,
            "sglang:kv_used_tokens": stats.kv_used,
            "sglang:max_total_num_tokens": stats.kv_total,
            "sglang:spec_accept_length": 1 + accepted / max(counters.drafts, 1),
            "sglang:spec_accept_rate": accepted / max(counters.draft_tokens, 1),
        }


def _renamed(metric: Metric, name: str) -> Metric:
    """Returns a copy of a metric with another name. A counter with its own name loses `_total`."""
    is_bare, start = name == metric.name, len(metric.name)
    copy = Metric(name, f"The same as {metric.name}{'_total' * is_bare}.", "gauge" if is_bare else metric.type)
    copy.samples = [sample._replace(name=name + sample.name[start:] * (not is_bare)) for sample in metric.samples]
    return copy


def _build_metrics(values: Values) -> Iterator[Metric]:
    """Yields metrics of metrics.toml."""
    for name, value in values.items():
        kind, family = next((kind, family) for kind, family in FAMILIES.items() if name in TABLES[kind])
        if isinstance(value, Mapping):
            metric = family(name, TABLES[kind][name], labels=[TABLES["label"][name]])
            for label, part in value.items():
                metric.add_metric([label], part)
            yield metric
        else:
            yield family(name, TABLES[kind][name], value)


def _cache_and_step_metrics(stats: EngineStats) -> Iterator[Metric]:
    info = {"block_size": "1", "num_gpu_blocks": str(stats.kv_total), "enable_prefix_caching": "True"}
    config = GaugeMetricFamily("vllm:cache_config_info", "Always 1; the labels describe the KV cache.", labels=[*info])
    config.add_metric([*info.values()], 1)
    yield config
    name, text = "vllm:iteration_tokens_total", "Prompt tokens of a prefill, or output tokens of a round."
    yield build_histogram(name, text, STEP_BOUNDS, stats.counters.steps, stats.counters.step_tokens)


def _engine_values(stats: EngineStats) -> Values:
    counters, accepted = stats.counters, stats.counters.accepted_per_position
    values: Values = {
        "vllm:num_requests_running": stats.running,
        "vllm:num_requests_waiting": stats.waiting,
        "vllm:kv_cache_usage_perc": stats.kv_used / stats.kv_total,
        "vllm:num_preemptions": counters.preemptions,
        "eyas_device_syncs": counters.device_syncs,
        "vllm:prompt_tokens": counters.prompt_tokens,
        "vllm:generation_tokens": counters.output_tokens,
        "vllm:prefix_cache_queries": counters.prompt_tokens,
        "vllm:prefix_cache_hits": counters.cached_tokens,
        "vllm:request_success": {name: counters.finished.get(own, 0) for own, name in FINISH_REASONS.items()},
        "vllm:spec_decode_num_drafts": counters.drafts,
        "vllm:spec_decode_num_draft_tokens": counters.draft_tokens,
        "vllm:spec_decode_num_accepted_tokens": sum(accepted),
        "vllm:spec_decode_num_accepted_tokens_per_pos": {str(i): count for i, count in enumerate(accepted)},
        "eyas_copied_tokens": counters.copied_tokens,
        "eyas_arm_info": {counters.arm: 1},
        "eyas_rounds": counters.rounds_by_arm,
    }
    if (ratio := stats.speedup) is not None:
        values |= {"eyas_speedup_now": ratio.value, "eyas_speedup_low": ratio.low, "eyas_speedup_high": ratio.high}
    if errors := stats.scale_errors:
        values["eyas_draft_calibration_error"] = {source: error.ece for source, error in errors.items()}
        values["eyas_draft_bias"] = {source: error.bias for source, error in errors.items()}
    if stats.forecast:
        values["eyas_forecast_ratio"] = stats.forecast
    return values


def _canary_values(canary: CanaryStatus) -> Values:
    values: Values = {
        "eyas_head_rounds": canary.rounds,
        "eyas_head_accepted_tokens": canary.tokens,
        "eyas_canary_share": canary.share,
        "eyas_canary_info": {canary.state: 1},
    }
    if canary.ratio is not None:
        sides = {"": canary.ratio.value, "_low": canary.ratio.interval.low, "_high": canary.ratio.interval.high}
        values |= {f"eyas_canary_ratio{side}": value for side, value in sides.items()}
    return values
