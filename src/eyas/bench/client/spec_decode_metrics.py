"""How drafting went by the counters of a server's /metrics (Prometheus), for servers whose answers do not say.

vLLM      drafts, accepted draft tokens, and these by position    acceptance length = 1 + accepted / drafts
SGLang    verifications and tokens of finished answers            acceptance length = tokens / verifications

Counters are read before and after a block, and what lies between is the block's, with whatever other clients asked in
the meantime. SGLang's gauge `sglang:spec_accept_length` is of its last few steps and belongs to no block: not read.
"""

import re
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from eyas.bench.client.response_parser import SpecDecodeStats

DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
VERIFICATIONS = "sglang:spec_verify_calls_total"
TOKENS = "sglang:generation_tokens_total"
LINE = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)", re.MULTILINE)
POSITION = re.compile(r'(?:^|,)position="(\d+)"')


@dataclass(frozen=True)
class SpecDecodeCounters:
    """Sums over all labels since the server began; by_position[i]: drafts whose token i was accepted."""

    num_steps: int
    num_accepted: int
    by_position: tuple[int, ...] = ()


def parse_counters(page: str) -> SpecDecodeCounters | None:
    """None for a page that is neither vLLM's nor SGLang's. A counter that is not there yet stands at 0."""
    if "vllm:" not in page and "sglang:" not in page:
        return None
    sums = dict.fromkeys((DRAFTS, ACCEPTED, VERIFICATIONS, TOKENS), 0)
    positions: dict[int, int] = {}
    for name, labels, value in LINE.findall(page):
        if name in sums:
            sums[name] += int(float(value))
        elif name == BY_POSITION and (position := POSITION.search(labels)) is not None:
            place = int(position[1])
            positions[place] = positions.get(place, 0) + int(float(value))
    if "sglang:" in page:
        return SpecDecodeCounters(sums[VERIFICATIONS], sums[TOKENS] - sums[VERIFICATIONS])
    by_position = tuple(positions.get(place, 0) for place in range(max(positions, default=-1) + 1))
    return SpecDecodeCounters(sums[DRAFTS], sums[ACCEPTED], by_position)


def counter_difference(before: SpecDecodeCounters | None, after: SpecDecodeCounters | None) -> SpecDecodeStats | None:
    """What was counted in the meantime; None where nothing was drafted, or the counters began anew."""
    if before is None or after is None:
        return None
    steps, accepted = after.num_steps - before.num_steps, after.num_accepted - before.num_accepted
    if steps <= 0 or accepted < 0:
        return None
    reached = [b - a for a, b in zip_longest(before.by_position, after.by_position, fillvalue=0)]
    histogram = tuple(a - b for a, b in pairwise([steps, *reached, 0])) if reached else ()
    return SpecDecodeStats(steps, accepted, histogram if all(count >= 0 for count in histogram) else ())
