"""GET /metrics in Prometheus' text format, under vLLM's names, so that dashboards and benchmarks written for it work.

Counters and gauges are read from the engine when they are asked for; histograms grow by an answer at its end.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from eyas.engine.async_engine import EngineStats
from eyas.engine.canary import CanaryStatus
from eyas.engine.request import RequestOutput
from eyas.server.observer import SamplingStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Upper bounds in seconds, those of vLLM.
TTFT_BUCKETS_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
ITL_BUCKETS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
FINE_ITL_BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
)  # and three below: a small target on a GPU is faster than vLLM's first bound
E2E_BUCKETS_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FINISH_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}  # ours -> vLLM's

Labels = Mapping[str, str]


class Histogram:
    """Observations by bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value."""
        place = next((i for i, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[place] += times
        self.sum += value * times


class ServerMetrics:
    """Used on the event loop only."""

    def __init__(self, model: str) -> None:
        self.labels = {"model_name": model, "engine": "0"}
        self.ttft_s = Histogram(TTFT_BUCKETS_S)
        self.itl_s = Histogram((*FINE_ITL_BUCKETS_S, *ITL_BUCKETS_S))
        self.e2e_s = Histogram(E2E_BUCKETS_S)

    def observe(self, output: RequestOutput) -> None:
        """A finished answer."""
        self.ttft_s.observe(output.token_times_s[0])
        self.e2e_s.observe(output.token_times_s[-1])
        before_s = output.token_times_s[0]
        for time_s, tokens in groupby(output.token_times_s[1:]):  # tokens of one round share its time
            count = sum(1 for _ in tokens)
            self.itl_s.observe((time_s - before_s) / count, count)
            before_s = time_s

    def render(self, stats: EngineStats, sampled: SamplingStats | None = None) -> str:
        """The whole page. sampled: what became of prompts that went badly, where they are kept."""
        page = _Page(self.labels)
        page.gauge("vllm:num_requests_running", "Requests that run.", stats.running)
        page.gauge("vllm:num_requests_waiting", "Requests that wait.", stats.waiting)
        used = stats.kv_used / stats.kv_total
        page.gauge("vllm:kv_cache_usage_perc", "Share of the key-value memory that running requests hold.", used)
        page.counter("vllm:num_preemptions_total", "Requests that lost their memory to others.", stats.preemptions)
        page.counter("vllm:prompt_tokens_total", "Prompt tokens.", stats.prompt_tokens)
        page.counter("vllm:generation_tokens_total", "Answer tokens.", stats.output_tokens)
        page.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in memory.", stats.prompt_tokens)
        page.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in memory.", stats.cached_tokens)
        finished = [
            ({"finished_reason": name}, stats.requests_finished.get(ours, 0)) for ours, name in FINISH_REASONS.items()
        ]
        page.add("vllm:request_success_total", "counter", "Requests by how they ended.", finished)
        page.histogram("vllm:time_to_first_token_seconds", "Time to the first token.", self.ttft_s)
        what = "Time of a round divided by its tokens, once for each: the mean is the mean TPOT."
        page.histogram("vllm:inter_token_latency_seconds", what, self.itl_s)
        page.histogram("vllm:e2e_request_latency_seconds", "Time to the last token.", self.e2e_s)
        self._speculation(page, stats)
        self._speedup(page, stats)
        if stats.canary is not None:
            self._canary(page, stats.canary)
        if sampled is not None:
            what = "Answers with drafted rounds by what became of their prompts: kept, or why not."
            outcomes = [({"outcome": name}, count) for name, count in sampled.outcomes.items()]
            page.add("eyas_sampled_answers_total", "counter", what, outcomes)
            page.gauge("eyas_sampled_prompts", "Prompts in the file of --sample-low-acceptance.", sampled.prompts)
            page.gauge("eyas_sampled_bytes", "Bytes of that file.", sampled.num_bytes)
        return "".join(f"{line}\n" for line in page.lines)

    def _speculation(self, page: "_Page", stats: EngineStats) -> None:
        page.counter("vllm:spec_decode_num_drafts_total", "Draft trees: one a request and round.", stats.drafts)
        what = "Nodes of the draft trees, roots left out."
        page.counter("vllm:spec_decode_num_draft_tokens_total", what, stats.draft_tokens)
        what = "Accepted nodes; the bonus token is not among them."
        page.counter("vllm:spec_decode_num_accepted_tokens_total", what, stats.accepted_tokens)
        positions = [({"position": str(i)}, count) for i, count in enumerate(stats.accepted_per_position)]
        what = "Draft trees that were accepted down to depth position + 1."
        page.add("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter", what, positions)

    def _speedup(self, page: "_Page", stats: EngineStats) -> None:
        page.add("eyas_arm_info", "gauge", "What the last round ran.", [({"arm": stats.arm}, 1)])
        if stats.speedup is not None:
            what = "Tokens per second over those without speculation, measured on this server's own rounds"
            page.gauge("eyas_speedup_now", f"{what}.", stats.speedup.value)
            page.gauge("eyas_speedup_low", f"{what}: lower end of the 95% interval.", stats.speedup.low)
            page.gauge("eyas_speedup_high", f"{what}: upper end of the 95% interval.", stats.speedup.high)

    def _canary(self, page: "_Page", trial: CanaryStatus) -> None:
        def by_head(counts: Mapping[str, int]) -> list[tuple[Labels, float]]:
            return [({"head": name}, count) for name, count in counts.items()]

        page.add("eyas_head_rounds_total", "counter", "Drafted rounds by head.", by_head(trial.rounds))
        what = "Tokens of these rounds, bonus tokens included."
        page.add("eyas_head_accepted_tokens_total", "counter", what, by_head(trial.tokens))
        page.gauge("eyas_canary_share", "Share of new requests that the canary head gets.", trial.share)
        what = "How the trial of the canary head stands: running, returned to the main head, or promoted."
        page.add("eyas_canary_info", "gauge", what, [({"state": trial.state}, 1)])
        if trial.ratio is not None:
            what = "Tokens per second of the canary's rounds over the main head's, at the last look"
            page.gauge("eyas_canary_ratio", f"{what}.", trial.ratio.value)
            page.gauge("eyas_canary_ratio_low", f"{what}: lower end of its interval.", trial.ratio.interval.low)
            page.gauge("eyas_canary_ratio_high", f"{what}: upper end of its interval.", trial.ratio.interval.high)


class _Page:
    """Lines of the text format; every sample carries the same labels, and its own."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.lines: list[str] = []

    def gauge(self, name: str, what: str, value: float) -> None:
        self.add(name, "gauge", what, [({}, value)])

    def counter(self, name: str, what: str, value: float) -> None:
        self.add(name, "counter", what, [({}, value)])

    def histogram(self, name: str, what: str, histogram: Histogram) -> None:
        self._head(name, "histogram", what)
        total = 0
        for bound, count in zip((*map(str, map(float, histogram.bounds)), "+Inf"), histogram.counts, strict=True):
            total += count
            self._sample(f"{name}_bucket", {"le": bound}, total)
        self._sample(f"{name}_sum", {}, histogram.sum)
        self._sample(f"{name}_count", {}, total)

    def add(self, name: str, kind: str, what: str, samples: Iterable[tuple[Labels, float]]) -> None:
        self._head(name, kind, what)
        for labels, value in samples:
            self._sample(name, labels, value)

    def _head(self, name: str, kind: str, what: str) -> None:
        self.lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]

    def _sample(self, name: str, labels: Labels, value: float) -> None:
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in {**self.labels, **labels}.items())
        self.lines.append(f"{name}{{{pairs}}} {value}")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
