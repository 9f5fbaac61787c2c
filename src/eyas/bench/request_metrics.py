"""From answers to figures: one arm of one point, and what two arms say of each other.

Ours and vLLM's names stand side by side: who reads the JSON of `vllm bench serve` reads this.

    TTFT         first piece of text - sent
    TPOT         (end-to-end - TTFT) / (output tokens - 1), a request; output tokens as the server counts them
    step         from one piece of text to the next; a step of a speculating server is several tokens (vLLM's ITL)
    end-to-end   last piece of text - sent
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import Any, Literal

import numpy as np

from eyas.bench.client.config import Slo
from eyas.bench.client.http_request_loops import BlockResult
from eyas.bench.client.response_parser import RequestSample
from eyas.tree.stats import Interval, median_interval, percentiles, ratio_interval

VLLM = {"ttft_ms": "ttft_ms", "tpot_ms": "tpot_ms", "step_ms": "itl_ms", "e2e_ms": "e2el_ms"}
"""Our names of times, and those in vLLM's JSON behind mean_, median_, std_ and p99_."""


@dataclass(frozen=True)
class AcceptanceSummary:
    """histogram: steps by number of accepted draft tokens, empty where nobody tells. source: who told.

    interval: bootstrap over what was told of, answers or blocks of them; of a single one it has no width.
    """

    length: float
    interval: Interval
    histogram: list[int]
    source: Literal["answers", "counters"]


def summarize_arm(blocks: Sequence[BlockResult], slo: Slo, seed: int) -> dict[str, Any]:
    """The figures of one arm at one point, its blocks pooled; output_tps is the median over blocks.

    A time that the server does not let us see (no streaming), or that no answer has, has no key.
    """
    answered = _good([sample for block in blocks for sample in block.samples])
    errors = Counter(sample.error for block in blocks for sample in block.samples if sample.error is not None)
    seconds = sum(block.seconds for block in blocks)
    tokens = sum(sample.output_tokens or 0 for sample in answered)
    output_tps, span = median_interval([_tokens(block) / block.seconds for block in blocks], seed)
    found: dict[str, Any] = {
        "requests": len(answered) + errors.total(),
        "failed": errors.total(),
        "output_tps": output_tps,
    }
    if len(blocks) > 1:
        found["output_tps_ci95"] = [span.low, span.high]
    if slo.is_set:
        found["goodput"] = sum(meets_slo(sample, slo) for sample in answered) / seconds
    times = {name: values for name, values in _times_ms(answered).items() if values}
    for name, values in times.items():
        found[name] = percentiles(values)
        if name != "step_ms":  # steps of one answer are no independent draws, and tens of thousands
            _, span = median_interval(values, seed)
            found[name]["p50_ci95"] = [span.low, span.high]
    found |= _drafting(blocks, seed)
    if errors:
        found["errors"] = dict(errors.most_common(5))
    prompt_tokens = sum(sample.prompt_tokens or 0 for sample in answered)
    found |= {
        "duration": seconds,
        "completed": len(answered),
        "total_input_tokens": prompt_tokens,
        "total_output_tokens": tokens,
        "request_throughput": len(answered) / seconds,
        "request_goodput": found.get("goodput"),
        "output_throughput": sum(_tokens(block) for block in blocks) / seconds,
        "total_token_throughput": (sum(_tokens(block) for block in blocks) + prompt_tokens) / seconds,
    }
    for name, values in times.items():
        key, ours = VLLM[name], found[name]
        found |= {f"mean_{key}": fmean(values), f"median_{key}": ours["p50"], f"std_{key}": pstdev(values)}
        found[f"p99_{key}"] = ours["p99"]
    return found


def compare_arms(before: Sequence[BlockResult], after: Sequence[BlockResult], seed: int) -> dict[str, Any]:
    """Block i of both had the same requests. speedup_tpot: of the medians; speedup_tps: median over the blocks in which
    both answered something."""
    rates = [(_tokens(a) / a.seconds, _tokens(b) / b.seconds) for a, b in zip(before, after, strict=True)]
    ratios = [b / a for a, b in rates if a and b]
    found: dict[str, Any] = {"blocks": len(before)}
    if ratios:
        speedup, span = median_interval(ratios, seed)
        found |= {"speedup_tps": speedup, "speedup_tps_ci95": [span.low, span.high]}
    pairs = [(a.tpot_s, b.tpot_s) for a, b in _answered_by_both(before, after)]
    times = [(a, b) for a, b in pairs if a is not None and b]
    if times:
        found["speedup_tpot"] = median(a for a, _ in times) / median(b for _, b in times)
        _, span = median_interval([a / b for a, b in times], seed)
        found["speedup_tpot_ci95"] = [span.low, span.high]
    return found


def count_identical(before: Sequence[BlockResult], after: Sequence[BlockResult]) -> tuple[int, int]:
    """(answers that both gave, those with the very same text)."""
    pairs = _answered_by_both(before, after)
    return len(pairs), sum(a.text == b.text for a, b in pairs)


def meets_slo(sample: RequestSample, slo: Slo) -> bool:
    """Whether an answer is within all limits; a time that is not known keeps none."""
    asked = ((slo.ttft_ms, sample.ttft_s), (slo.tpot_ms, _tpot_or_0(sample)), (slo.e2e_ms, sample.e2e_s))
    return all(limit is None or (value is not None and 1000 * value <= limit) for limit, value in asked)


def _good(samples: Sequence[RequestSample]) -> list[RequestSample]:
    return [sample for sample in samples if sample.error is None]


def _answered_by_both(
    before: Sequence[BlockResult], after: Sequence[BlockResult]
) -> list[tuple[RequestSample, RequestSample]]:
    blocks = zip(before, after, strict=True)
    pairs = [pair for one, other in blocks for pair in zip(one.samples, other.samples, strict=True)]
    return [(a, b) for a, b in pairs if a.error is None and b.error is None]


def _tpot_or_0(sample: RequestSample) -> float | None:
    """An answer of one token has none and keeps any limit, as with SGLang and vLLM."""
    return 0.0 if sample.output_tokens == 1 else sample.tpot_s


def _times_ms(samples: Sequence[RequestSample]) -> dict[str, list[float]]:
    seconds = {
        "tpot_ms": [sample.tpot_s for sample in samples],
        "ttft_ms": [sample.ttft_s for sample in samples],
        "step_ms": [b - a for sample in samples for a, b in pairwise(sample.chunk_times_s)],
        "e2e_ms": [sample.e2e_s for sample in samples],
    }
    return {name: [1000 * value for value in values if value is not None] for name, values in seconds.items()}


def summarize_acceptance(blocks: Sequence[BlockResult], seed: int) -> AcceptanceSummary | None:
    """From answers that say how they were drafted, else from the counters of the server; None where neither tells."""
    answers = [
        sample.spec_decode for block in blocks for sample in _good(block.samples) if sample.spec_decode is not None
    ]
    told = answers or [block.spec_decode for block in blocks if block.spec_decode is not None]
    if not told:
        return None
    steps = np.array([one.num_steps for one in told])
    tokens = steps + np.array([one.num_accepted for one in told])
    histogram = [0] * max(len(one.histogram) for one in told)
    for one in told:
        for accepted, count in enumerate(one.histogram):
            histogram[accepted] += count
    length, interval = float(tokens.sum() / steps.sum()), ratio_interval(tokens, steps, seed)
    return AcceptanceSummary(length, interval, histogram, "answers" if answers else "counters")


def _tokens(block: BlockResult) -> float:
    if block.tokens_in_window is not None:
        return block.tokens_in_window
    return sum(sample.output_tokens or 0 for sample in _good(block.samples))


def _drafting(blocks: Sequence[BlockResult], seed: int) -> dict[str, Any]:
    told = summarize_acceptance(blocks, seed)
    if told is None:
        return {}
    found: dict[str, Any] = {
        "acceptance_length": told.length,
        "spec_decode_acceptance_length": told.length,
        "acceptance_length_ci95": [told.interval.low, told.interval.high],
        "acceptance_source": told.source,
    }
    return found | ({"acceptance_histogram": told.histogram} if told.histogram else {})
