"""The baseline compared with transformers: `generate` with a static cache, on the same target, dtype and prompts."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from eyas.base.progress import Progress
from eyas.bench.lossless_check import load_reference_model
from eyas.bench.single_stream import WARM_UP_TOKENS, generate_one
from eyas.bench.workload import Prompt, run_paired
from eyas.engine.engine import Engine
from eyas.model.target import Target


@dataclass(frozen=True)
class PeerComparison:
    """TPOT by prompt, median over the repeats, in ms. Prompts with an answer of one token are left out."""

    eyas_tpot_ms: tuple[float, ...]
    peer_tpot_ms: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """Peer / eyas for each prompt: above 1 the baseline of eyas is faster."""
        return tuple(b / a for a, b in zip(self.eyas_tpot_ms, self.peer_tpot_ms, strict=True))

    @property
    def ratio(self) -> float:
        """Median over the prompts; at least one must be timed."""
        return median(self.ratios)


class TokenTimer(BaseStreamer):
    """A streamer that records when `generate` yields each token. The first call gets the prompt."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def put(self, value: Tensor) -> None:
        """Records the time."""
        self.times_s.append(time.perf_counter())

    def end(self) -> None:
        """Does nothing at the end of an answer."""

    @property
    def tpot_s(self) -> float | None:
        """(last - first) / (tokens - 1), as for an answer of eyas; None for an answer of one token."""
        tokens_s = self.times_s[1:]
        return (tokens_s[-1] - tokens_s[0]) / (len(tokens_s) - 1) if len(tokens_s) > 1 else None


def compare_with_generate(
    target: Target, prompts: Sequence[Prompt], max_tokens: int, repeats: int, progress: bool = True
) -> PeerComparison:
    """Runs both on one prompt back to back, in rotated order, after a warm-up. On a CPU neither is compiled."""
    model = load_reference_model(target.directory, target.model.dtype, target.model.device)
    engine = Engine(target, (), 1, max(len(prompt.ids) for prompt in prompts) + max_tokens)
    generators: dict[str, Callable[[Prompt, int], float | None]] = {
        "eyas": lambda prompt, limit: generate_one(engine, prompt, limit).tpot_s,
        "peer": lambda prompt, limit: _generate(model, prompt, limit),
    }
    for generate in generators.values():
        generate(prompts[0], min(WARM_UP_TOKENS, max_tokens))
    with Progress("bench, against transformers", len(prompts) * repeats * 2, "answers", enabled=progress) as bar:

        def measure(generate: Callable[[Prompt, int], float | None], prompt: Prompt) -> float | None:
            bar.advance()
            return generate(prompt, max_tokens)

        found = run_paired({name: partial(measure, one) for name, one in generators.items()}, prompts, repeats)
    timed = [(a, b) for a, b in zip(found["eyas"], found["peer"], strict=True) if None not in (*a, *b)]
    eyas_ms, peer_ms = (tuple(1000 * median(tpot_s or 0.0 for tpot_s in pair[arm]) for pair in timed) for arm in (0, 1))
    return PeerComparison(eyas_ms, peer_ms)


@torch.inference_mode()
def _generate(model: Any, prompt: Prompt, max_tokens: int) -> float | None:
    ids_1T = torch.tensor([prompt.ids], device=model.device)
    timer = TokenTimer()
    model.generate(
        ids_1T,
        attention_mask=torch.ones_like(ids_1T),
        do_sample=False,
        max_new_tokens=max_tokens,
        cache_implementation="static",
        streamer=timer,
    )
    return timer.tpot_s
