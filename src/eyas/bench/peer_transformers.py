"""The baseline beside a peer: transformers `generate` with a static cache, on the same target, dtype and prompts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from eyas.base.progress import Progress
from eyas.bench.lossless_check import force_greedy
from eyas.bench.single_stream import WARM_UP_TOKENS, generate_one
from eyas.bench.workload import Prompt, run_paired
from eyas.engine.engine import Engine
from eyas.model.target import Target


@dataclass(frozen=True)
class PeerComparison:
    """TPOTs by prompt, medians over the rounds, in ms; prompts with an answer of one token are left out."""

    eyas_tpot_ms: tuple[float, ...]
    peer_tpot_ms: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """Peer / eyas for each prompt: above 1, eyas's baseline is the faster."""
        return tuple(b / a for a, b in zip(self.eyas_tpot_ms, self.peer_tpot_ms, strict=True))

    @property
    def ratio(self) -> float:
        """Median over the prompts; asserts that one was timed."""
        return median(self.ratios)


class TokenTimer(BaseStreamer):
    """Takes the time of every token; generate calls it first with the prompt."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def put(self, value: Tensor) -> None:
        self.times_s.append(time.perf_counter())

    def end(self) -> None:
        pass

    @property
    def tpot_s(self) -> float | None:
        """As Answer.tpot_s: (last - first) / (tokens - 1)."""
        tokens_s = self.times_s[1:]
        return (tokens_s[-1] - tokens_s[0]) / (len(tokens_s) - 1) if len(tokens_s) > 1 else None


def compare_with_generate(
    target: Target, prompts: Sequence[Prompt], max_tokens: int, repeats: int, progress: bool = True
) -> PeerComparison:
    """Both on one prompt back to back, in alternating order, after a warm-up of each; neither is compiled on a CPU."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        target.directory,
        dtype=target.model.dtype,
        trust_remote_code=False,
        use_safetensors=True,
        local_files_only=True,
    )
    model.to(target.model.device).eval()
    force_greedy(model)
    engine = Engine(target, None, 1, max(len(prompt.ids) for prompt in prompts) + max_tokens)
    with Progress("bench, beside transformers", len(prompts) * repeats * 2, "answers", enabled=progress) as bar:

        def ours(prompt: Prompt) -> float | None:
            tpot_s = generate_one(engine, prompt, max_tokens).tpot_s
            bar.advance()
            return tpot_s

        def theirs(prompt: Prompt) -> float | None:
            tpot_s = _generate(model, prompt, max_tokens)
            bar.advance()
            return tpot_s

        generate_one(engine, prompts[0], min(WARM_UP_TOKENS, max_tokens))
        _generate(model, prompts[0], min(WARM_UP_TOKENS, max_tokens))
        found = run_paired({"eyas": ours, "peer": theirs}, prompts, repeats)
    timed = [(a, b) for a, b in zip(found["eyas"], found["peer"], strict=True) if None not in (*a, *b)]
    eyas_ms, peer_ms = (
        tuple(median(1000 * (tpot_s or 0.0) for tpot_s in pair[arm]) for pair in timed) for arm in (0, 1)
    )
    return PeerComparison(eyas_ms, peer_ms)


@torch.inference_mode()
def _generate(model: Any, prompt: Prompt, max_tokens: int) -> float | None:
    ids_1T = torch.tensor([prompt.ids], device=model.device)
    clock = TokenTimer()
    model.generate(
        ids_1T,
        attention_mask=torch.ones_like(ids_1T),
        do_sample=False,
        max_new_tokens=max_tokens,
        cache_implementation="static",
        streamer=clock,
    )
    return clock.tpot_s
