"""Acceptance from the counters of a server's /metrics (Prometheus), for servers whose answers do not report it.

vLLM      draft steps, accepted draft tokens, and these by position    acceptance length = 1 + accepted / steps
SGLang    verify steps and tokens of finished answers                  acceptance length = tokens / steps

The counters are read before and after a block. Their difference belongs to the block and includes requests that other
clients sent meanwhile. SGLang's gauge `sglang:spec_accept_length` covers only its last few steps and is not read.
"""

import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from eyas.bench.request_metrics import SpecDecodeStats

DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
VERIFICATIONS = "sglang:spec_verify_calls_total"
TOKENS = "sglang:generation_tokens_total"
LINE = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)", re.MULTILINE)
POSITION = re.compile(r'(?:^|,)position="(\d+)"')


@dataclass(frozen=True)
class SpecDecodeCounters:
    """Counts over all labels since the server started. by_position[i]: drafts whose token i was accepted."""

    num_steps: int
    num_accepted: int
    by_position: tuple[int, ...] = ()


def parse_counters(page: str) -> SpecDecodeCounters | None:
    """Parses a /metrics page. Returns None for a page of another server; a missing counter is 0."""
    if "vllm:" not in page and "sglang:" not in page:
        return None
    counts, positions = Counter[str](), Counter[int]()
    for name, labels, value in LINE.findall(page):
        if name in (DRAFTS, ACCEPTED, VERIFICATIONS, TOKENS):
            counts[name] += int(float(value))
        elif name == BY_POSITION and (position := POSITION.search(labels)) is not None:
            positions[int(position[1])] += int(float(value))
    if "sglang:" in page:
        return SpecDecodeCounters(counts[VERIFICATIONS], counts[TOKENS] - counts[VERIFICATIONS])
    by_position = tuple(positions[position] for position in range(max(positions, default=-1) + 1))
    return SpecDecodeCounters(counts[DRAFTS], counts[ACCEPTED], by_position)


def counter_difference(before: SpecDecodeCounters | None, after: SpecDecodeCounters | None) -> SpecDecodeStats | None:
    """Returns what was counted between two readings; None if nothing was drafted or the server restarted."""
    if before is None or after is None:
        return None
    steps, accepted = after.num_steps - before.num_steps, after.num_accepted - before.num_accepted
    if steps <= 0 or accepted < 0:
        return None
    reached = [b - a for a, b in zip_longest(before.by_position, after.by_position, fillvalue=0)]
    histogram = tuple(a - b for a, b in pairwise([steps, *reached, 0])) if reached else ()
    return SpecDecodeStats(steps, accepted, histogram if all(count >= 0 for count in histogram) else ())
