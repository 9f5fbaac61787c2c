"""Histograms of requests and counters of HTTP responses, with the names and buckets of vLLM.

The times of tokens are observed as they arrive, so that a request that never ends is seen, too. The other figures are
observed when a request has finished. Aborted requests are counted apart.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from prometheus_client import Counter, Histogram
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from eyas.base.config import load_toml
from eyas.engine.request import RequestOutput

TABLES = load_toml(Path(__file__).with_name("metrics.toml"))


class RequestMetrics:
    """The metrics of requests and of HTTP responses. `Api` calls its methods on the event loop.

    Args:
        max_context: the maximum number of tokens of a text.

    Attributes:
        collectors: The histograms and counters about the model.
        http_collectors: Those about HTTP responses.
    """

    def __init__(self, max_context: int) -> None:
        bounds = TABLES["buckets"] | {"tokens": _one_two_five(max_context)}
        self._histograms = {
            name: _FastHistogram(f"vllm:{name}", text, bounds[kind])
            for kind, texts in TABLES["histogram"].items()
            for name, text in texts.items()
        }
        text = "Requests whose client left, or that the server stopped, before or after their first token."
        self._aborted = Counter("eyas_aborted_requests", text, ["phase"], registry=None)
        for phase in ("before_first_token", "after_first_token"):
            self._aborted.labels(phase)
        text = "Calls that were refused because the queue is full or the server is not ready."
        self._rejections = Counter("vllm:admission_rejections", text, ["reason"], registry=None)
        labels, text = ["method", "status", "handler"], "HTTP responses, by status class."
        self._responses = Counter("http_requests", text, labels, registry=None)
        name, text = "http_request_duration_seconds", "Time from a request to the end of its response, in seconds."
        self._durations_s = Histogram(name, text, ["method", "handler"], buckets=bounds["http"], registry=None)
        self.collectors = (*self._histograms.values(), self._aborted, self._rejections)
        self.http_collectors = (self._responses, self._durations_s)

    def observe_tokens(self, previous_s: float | None, now_s: float) -> None:
        """Adds the time of new tokens of a request, in seconds since its arrival.

        Args:
            previous_s: the time of the tokens before; None for the first.
            now_s: the time of the new tokens.
        """
        name = "time_to_first_token_seconds" if previous_s is None else "inter_token_latency_seconds"
        self._histograms[name].observe(now_s - (previous_s or 0.0))

    def observe_call(self, outputs: Sequence[RequestOutput], num_choices: int) -> None:
        """Adds the finished outputs of a call. num_choices: the choices for each prompt."""
        outputs = [output for output in outputs if output.token_times_s]
        if outputs:
            self._observe("request_params_n", num_choices)
            self._observe("request_max_num_generation_tokens", max(len(output.token_ids) for output in outputs))
        for output in outputs:
            first_s, last_s = output.token_times_s[0], output.token_times_s[-1]
            self._observe("e2e_request_latency_seconds", last_s)
            self._observe("request_queue_time_seconds", output.queue_s)
            self._observe("request_prefill_time_seconds", first_s - output.queue_s)
            self._observe("request_decode_time_seconds", last_s - first_s)
            self._observe("request_inference_time_seconds", last_s - output.queue_s)
            self._observe("request_prompt_tokens", len(output.request.prompt_ids))
            self._observe("request_generation_tokens", len(output.token_ids))
            self._observe("request_params_max_tokens", output.request.max_tokens)
            self._observe("request_num_preemptions", output.num_preemptions)
            if output.tpot_s is not None:
                self._observe("request_time_per_output_token_seconds", output.tpot_s)

    def count_aborted(self, has_tokens: bool) -> None:
        """Counts a request that was aborted. has_tokens: it had at least one output token."""
        self._aborted.labels("after_first_token" if has_tokens else "before_first_token").inc()

    def count_response(self, method: str, handler: str, status: int, duration_s: float) -> None:
        """Counts an HTTP response. handler: the route, such as /v1/models, or "none"."""
        self._responses.labels(method, f"{status // 100}xx", handler).inc()
        self._durations_s.labels(method, handler).observe(duration_s)

    def count_rejection(self, reason: str) -> None:
        """Counts a call that was refused. reason: queue_full or not_ready."""
        self._rejections.labels(reason).inc()

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)


class _FastHistogram(Collector):
    """A histogram without labels, to which one thread adds. It takes a fifth of the time of prometheus_client's."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name, self.text, self.bounds = name, text, bounds
        self.counts, self.sum = [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def collect(self) -> Iterator[Metric]:
        yield build_histogram(self.name, self.text, self.bounds, self.counts, self.sum)


def build_histogram(name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> Metric:
    """Builds a histogram. counts: the values up to each bound and above the one before, and those above all."""
    uppers = (*(str(float(bound)) for bound in bounds), "+Inf")
    return HistogramMetricFamily(name, text, [*zip(uppers, accumulate(counts), strict=True)], total)


def _one_two_five(largest: int) -> list[int]:
    """Returns 1, 2, 5, 10, 20, 50 and so on up to `largest`, as vLLM's buckets of token counts."""
    bounds = (digit * 10**exponent for exponent in range(len(str(largest))) for digit in (1, 2, 5))
    return [bound for bound in bounds if bound <= largest]
