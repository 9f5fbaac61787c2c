"""Computes TTFT, TPOT, throughput, goodput and acceptance of an arm from measured requests, and compares two arms.

Measurements in this process and over HTTP use these functions. The metrics are reported under the keys of eyas and
under the keys of `vllm bench serve`:

    TTFT         first chunk of text - request sent
    TPOT         (end-to-end - TTFT) / (output tokens - 1), per request; the server counts the output tokens
    step         from one chunk of text to the next; with speculation a chunk is several tokens (vLLM's ITL)
    end-to-end   last chunk of text - request sent
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from statistics import fmean, median, pstdev
from typing import Any

import numpy as np

from eyas.bench.config import Slo
from eyas.tree.intervals import median_interval, percentiles, ratio_interval

BASELINE, SPECULATIVE = "baseline", "speculative"
VLLM_KEYS = {"ttft_ms": "ttft_ms", "tpot_ms": "tpot_ms", "step_ms": "itl_ms", "e2e_ms": "e2el_ms"}
"""Key of a time in eyas -> key in vLLM, which follows mean_, median_, std_ or p99_."""


@dataclass(frozen=True)
class SpecDecodeStats:
    """Counts of speculative decoding, of one answer or of one block.

    Attributes:
        num_steps: The number of steps that drafted.
        num_accepted: The number of draft tokens that were accepted.
        histogram: At index i, the number of steps that accepted i draft tokens; empty if the server does not report it.
    """

    num_steps: int
    num_accepted: int
    histogram: tuple[int, ...] = ()


@dataclass(frozen=True)
class RequestSample:
    """One measured request. All times of a block are seconds of the same clock.

    Attributes:
        id: The number of the request or the id of its prompt.
        sent_s: The time at which the request was sent.
        end_s: The time at which the last byte arrived.
        chunk_times_s: The arrival time of each chunk of text; empty without streaming.
        prompt_tokens: The number of prompt tokens that the server reports; None if it reports none.
        output_tokens: The number of output tokens that the server reports; None if it reports none.
        text: The answer: thoughts, content, and the names and arguments of tool calls.
        spec_decode: The counts of speculative decoding that the answer reports; None if it reports none.
        error: The reason why the request failed; None if it succeeded.
        content: The content of the answer, a part of `text`.
    """

    id: str
    sent_s: float
    end_s: float
    chunk_times_s: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    text: str = ""
    spec_decode: SpecDecodeStats | None = None
    error: str | None = None
    content: str = ""

    @property
    def e2e_s(self) -> float:
        """Seconds from sending to the last token; without streaming to the last byte."""
        return (self.chunk_times_s[-1] if self.chunk_times_s else self.end_s) - self.sent_s

    @property
    def ttft_s(self) -> float | None:
        """Seconds from sending to the first token; None without streaming."""
        return self.chunk_times_s[0] - self.sent_s if self.chunk_times_s else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token, as SGLang and vLLM define it; None for an answer of one token."""
        if self.ttft_s is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)

    def meets(self, slo: Slo) -> bool:
        """Returns True if the request meets all limits. An unknown time fails its limit.

        An answer of one token has no TPOT and meets any limit on it, as in SGLang and vLLM.
        """
        tpot_s = 0.0 if self.output_tokens == 1 else self.tpot_s
        times = ((slo.ttft_ms, self.ttft_s), (slo.tpot_ms, tpot_s), (slo.e2e_ms, self.e2e_s))
        return all(limit is None or (value is not None and 1000 * value <= limit) for limit, value in times)


@dataclass(frozen=True)
class BlockResult:
    """The measured requests of a block in one arm.

    Attributes:
        samples: The samples in the order of the requests.
        seconds: The seconds from the first request to the last byte.
        num_unreached: The number of requests that could not connect.
        spec_decode: The change of the server's counters, which includes requests of other clients. None: not read.
        tokens_in_window: The number of output tokens that arrived within `seconds`. None: all tokens did.
    """

    samples: tuple[RequestSample, ...]
    seconds: float
    num_unreached: int = 0
    spec_decode: SpecDecodeStats | None = None
    tokens_in_window: float | None = None

    @property
    def succeeded(self) -> list[RequestSample]:
        """The samples without an error."""
        return [sample for sample in self.samples if sample.error is None]

    @property
    def output_tokens(self) -> float:
        """The number of output tokens that arrived within `seconds`."""
        if self.tokens_in_window is not None:
            return self.tokens_in_window
        return sum(sample.output_tokens or 0 for sample in self.succeeded)

    @property
    def output_tps(self) -> float:
        """Output tokens per second."""
        return self.output_tokens / self.seconds


Blocks = Sequence[BlockResult]
"""The results of the blocks of one load in one arm, in their order."""


def summarize_arm(blocks: Blocks, slo: Slo, seed: int) -> dict[str, Any]:
    """Returns the metrics of one arm at one load, over all its blocks. `output_tps` is the median over blocks.

    A time that no answer has, for example TTFT without streaming, has no key.
    """
    samples = [sample for block in blocks for sample in block.succeeded]
    seconds = sum(block.seconds for block in blocks)
    metrics = count_requests(blocks) | median_with_interval("output_tps", [block.output_tps for block in blocks], seed)
    if len(blocks) == 1:
        del metrics["output_tps_ci95"]
    if slo != Slo():
        metrics["goodput"] = sum(sample.meets(slo) for sample in samples) / seconds
    times = {name: values for name, values in _times_ms(samples).items() if values}
    for name, values in times.items():
        # The steps of one answer are not independent, and there are tens of thousands: they have no interval.
        interval = {} if name == "step_ms" else median_with_interval("p50", values, seed)
        metrics[name] = interval | percentiles(values)
    metrics |= summarize_acceptance(blocks, seed)
    return metrics | _vllm_metrics(blocks, times, metrics)


def median_with_interval(key: str, values: Sequence[float], seed: int) -> dict[str, Any]:
    """Returns the median as `key`, and its 95% interval as `key`_ci95."""
    middle, interval = median_interval(values, seed)
    return {key: middle, f"{key}_ci95": [interval.low, interval.high]}


def count_requests(blocks: Iterable[BlockResult]) -> dict[str, Any]:
    """Returns the number of requests, the number of failed requests, and the five most frequent errors, if any."""
    errors, total = Counter[str](), 0
    for block in blocks:
        total += len(block.samples)
        errors.update(sample.error for sample in block.samples if sample.error is not None)
    counts: dict[str, Any] = {"requests": total, "failed": errors.total()}
    return counts | ({"errors": dict(errors.most_common(5))} if errors else {})


def compare_arms(before: Blocks, after: Blocks, seed: int) -> dict[str, Any]:
    """Returns the speed-ups of the arm `after` over the arm `before`. Requirement: their blocks had the same requests.

    `speedup_tpot` is the ratio of the median TPOTs. `speedup_tps` is the median over blocks of the
    ratio of throughputs.
    """
    comparison: dict[str, Any] = {"blocks": len(before)}
    rates = [(a.output_tps, b.output_tps) for a, b in zip(before, after, strict=True)]
    if ratios := [b / a for a, b in rates if a and b]:
        comparison |= median_with_interval("speedup_tps", ratios, seed)
    pairs = [(a.tpot_s, b.tpot_s) for a, b in _pair_samples(before, after)]
    if times := [(a, b) for a, b in pairs if a is not None and b]:
        comparison |= median_with_interval("speedup_tpot", [a / b for a, b in times], seed)
        comparison["speedup_tpot"] = median(a for a, _ in times) / median(b for _, b in times)
    return comparison


def compare_prompts(tpot_ms: Mapping[str, Sequence[float | None]], seed: int) -> dict[str, Any]:
    """Returns `tpot_ms` of an entry of `tasks`, and its speed-up if there is a baseline.

    The speed-up is the median over prompts of baseline / speculative.

    Args:
        tpot_ms: Arm -> TPOT of each prompt; None for a prompt without a TPOT.
        seed: The seed of the bootstrap.
    """
    metrics: dict[str, Any] = {"tpot_ms": arm_medians(tpot_ms)}
    pairs = zip(tpot_ms.get(BASELINE, ()), tpot_ms.get(SPECULATIVE, ()), strict=True)
    if ratios := [a / b for a, b in pairs if a is not None and b]:
        metrics |= median_with_interval("speedup", ratios, seed)
    return metrics


def arm_medians(values: Mapping[str, Sequence[float | None]]) -> dict[str, float]:
    """Returns arm -> median of its values. None values are ignored; an arm without a value is left out."""
    known = {name: [value for value in some if value is not None] for name, some in values.items()}
    return {name: median(some) for name, some in known.items() if some}


def find_median(values: Iterable[float | None]) -> float | None:
    """Returns the median of the values that are not None; None if there is no such value."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def count_identical(before: Blocks, after: Blocks) -> tuple[int, int]:
    """Returns the number of requests that both arms answered, and how many of them have the same text in both."""
    pairs = _pair_samples(before, after)
    return len(pairs), sum(a.text == b.text for a, b in pairs)


def summarize_acceptance(blocks: Blocks, seed: int) -> dict[str, Any]:
    """Returns the keys `acceptance_*` of results.json, from the answers, else from the server's counters, else {}.

    The interval of a single answer has no width.
    """
    answers = [sample.spec_decode for block in blocks for sample in block.succeeded if sample.spec_decode is not None]
    stats = answers or [block.spec_decode for block in blocks if block.spec_decode is not None]
    if not stats:
        return {}
    steps = np.array([one.num_steps for one in stats])
    tokens = steps + np.array([one.num_accepted for one in stats])
    histogram = [sum(counts) for counts in zip_longest(*(one.histogram for one in stats), fillvalue=0)]
    length, interval = float(tokens.sum() / steps.sum()), ratio_interval(tokens, steps, seed)
    keys: dict[str, Any] = {
        "acceptance_length": length,
        "acceptance_length_ci95": [interval.low, interval.high],
        "acceptance_source": "answers" if answers else "counters",
    }
    return keys | ({"acceptance_histogram": histogram} if histogram else {})


def _pair_samples(before: Blocks, after: Blocks) -> list[tuple[RequestSample, RequestSample]]:
    """Returns the samples of requests that both arms answered."""
    pairs = [pair for a, b in zip(before, after, strict=True) for pair in zip(a.samples, b.samples, strict=True)]
    return [(a, b) for a, b in pairs if a.error is None and b.error is None]


def _times_ms(samples: Sequence[RequestSample]) -> dict[str, list[float]]:
    seconds = {
        "tpot_ms": [sample.tpot_s for sample in samples],
        "ttft_ms": [sample.ttft_s for sample in samples],
        "step_ms": [b - a for sample in samples for a, b in pairwise(sample.chunk_times_s)],
        "e2e_ms": [sample.e2e_s for sample in samples],
    }
    return {name: [1000 * value for value in values if value is not None] for name, values in seconds.items()}


def _vllm_metrics(blocks: Blocks, times: Mapping[str, Sequence[float]], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the same metrics under the keys of `vllm bench serve`."""
    samples = [sample for block in blocks for sample in block.succeeded]
    seconds = sum(block.seconds for block in blocks)
    prompt_tokens = sum(sample.prompt_tokens or 0 for sample in samples)
    output_tokens = sum(block.output_tokens for block in blocks)
    keys: dict[str, Any] = {
        "duration": seconds,
        "completed": len(samples),
        "total_input_tokens": prompt_tokens,
        "total_output_tokens": sum(sample.output_tokens or 0 for sample in samples),
        "request_throughput": len(samples) / seconds,
        "request_goodput": metrics.get("goodput"),
        **({"spec_decode_acceptance_length": metrics["acceptance_length"]} if "acceptance_length" in metrics else {}),
        "output_throughput": output_tokens / seconds,
        "total_token_throughput": (output_tokens + prompt_tokens) / seconds,
    }
    for name, values in times.items():
        key, percentile = VLLM_KEYS[name], metrics[name]
        keys |= {f"mean_{key}": fmean(values), f"median_{key}": percentile["p50"], f"std_{key}": pstdev(values)}
        keys[f"p99_{key}"] = percentile["p99"]
    return keys
