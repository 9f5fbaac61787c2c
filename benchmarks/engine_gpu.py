"""Measures the engine on a GPU: a step against one read of the weights, a round against a step, overlap, idle share.

    python benchmarks/engine_gpu.py [--tiny]

The target has the shape of Llama-3.1-8B and the head that of EAGLE-3, with random weights in bfloat16. Such a head is
never right, so the rows of throughput simulate the acceptance: in each round, the target's tokens are replaced by
those of a path of ACCEPTED draft tokens. The work of a round is that of a real one, because its shapes are fixed before
it runs. Their names say `simulated`. Prints one JSON object for each row. Exits 1 if a row misses its target, and 2
without CUDA. --tiny uses a small shape, also on a CPU, to test the script. Needs 40 GB of GPU memory.

B requests, M tree nodes, T rows, W vocabulary.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from gpu_bandwidth import TINY_BYTES, best_bandwidth, find_device, run_script
from overlap_speed import LOOPS, LoopResult, run_loop, warm_up
from result_rows import Row
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig
from worker_stream import TimedStream

from eyas.bench.workload import Prompt
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.cost_profiler import CostProfiler
from eyas.engine.device_stream import stream_for
from eyas.engine.engine import Engine
from eyas.engine.sampler import SamplerBatch
from eyas.kernels.aot_compile import compile_pair
from eyas.kernels.dispatch import pack_head
from eyas.model.attention_probe import probe_attention
from eyas.model.head import Head, HeadConfig
from eyas.model.hook import ATTENTION_NAME, register_attention
from eyas.model.layer_ids import choose_aux_layers
from eyas.model.target import Target
from eyas.model.target_dir import resolve_target
from eyas.model.target_info import read_target_info
from eyas.model.vocab import DraftVocab
from eyas.speculation.arms import OFF, Arm
from eyas.tree.intervals import median_interval
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree

TREE = Arm("tree", TreeShape(depth=5, top_k=4, nodes=16))
DRAFT_VOCAB = 32_000
CONTEXT, PROMPT = 2048, 512
REPEATS, TINY_REPEATS, STEP_STREAMS = 20, 3, (1, 8, 32)
STREAMS, TINY_STREAMS = (1, 8, 32, 128), (1, 2)
SHORT_PROMPT, MAX_TOKENS, TINY_TOKENS = 128, 128, 12  # of the requests of both loops
MIN_TURNS, MAX_TURNS = 3, 9  # of all contestants, for each number of streams
TURNS_S, LEAST_S = 20.0, 15.0  # seconds for all turns; seconds without which a number of streams does not start
ACCEPTED = 3  # simulated draft tokens of each round
SHARPNESS = 30  # of the head's logits, so that its trees are deep, as those of a trained head

LLAMA_8B = {
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
TINY = {
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def make_target(shape: dict[str, int], place: Path, device: torch.device) -> Target:
    """Makes a target with random weights on the device. `place` gets its configuration and the embedded tokenizer."""
    config = LlamaConfig(
        **{**shape, "rope_theta": 500_000.0}, max_position_embeddings=131_072, eos_token_id=1, bos_token_id=0
    )
    config.save_pretrained(place)
    for path in resolve_target("embedded").iterdir():
        if path.name.startswith("tokenizer") or path.name == "chat_template.jinja":
            shutil.copy(path, place)
    register_attention()
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=ATTENTION_NAME)
    attention = probe_attention(model.eval(), config.num_hidden_layers)
    info = read_target_info("random weights", model, attention)
    return Target(place, model, info, choose_aux_layers(config.num_hidden_layers))


def make_draft(target: Target) -> Eagle3Spec:
    """Makes a head with random weights."""
    size = min(DRAFT_VOCAB, target.info.vocab_size // 2)
    config = HeadConfig.for_target(target.info, draft_vocab_size=size, aux_layer_ids=target.aux_layer_ids)
    vocab = DraftVocab.from_counts(torch.arange(target.info.vocab_size).flip(0), size)
    head = Head.init(config, 0, torch.bfloat16).to(target.model.device)
    with torch.no_grad():
        head.norm.weight.mul_(SHARPNESS)
    pack_head(head)
    return Eagle3Spec(head, vocab.to(target.model.device), TREE.shape or TreeShape(1, 1, 2))


def simulate_acceptance(engine: Engine, accepted: int) -> None:
    """Makes the target agree with a path of `accepted` draft tokens in every tree, or with a shorter one at its end."""
    sampler = engine.runner.sampler
    choose_BM = sampler.next_BM

    def next_BM(logits_TW: Tensor, tree: Tree, rows_T: Tensor | None, batch: SamplerBatch, lengths_B: Tensor) -> Tensor:
        chosen_BM = choose_BM(logits_TW, tree, rows_T, batch, lengths_B)
        depths_BM = tree.depths_BM.masked_fill(~tree.valid_BM | (tree.depths_BM > accepted), -1)
        last_B11 = depths_BM.argmax(1)[:, None, None]
        num_nodes = tree.tokens_BM.shape[1]
        on_path_BM = tree.ancestors_BMM().gather(1, last_B11.expand(-1, 1, num_nodes))[:, 0]
        is_root_M = torch.arange(num_nodes, device=on_path_BM.device) == 0
        tokens_BM = tree.tokens_BM.masked_fill(~on_path_BM | is_root_M, -1)
        child_BM = torch.full_like(tokens_BM, -1).scatter_reduce(1, tree.parents_BM, tokens_BM, "amax")
        return torch.where(child_BM >= 0, child_BM, chosen_BM)

    sampler.next_BM = next_BM


def measure_steps(target: Target, draft: Eagle3Spec, tiny: bool) -> Iterator[Row]:
    """Yields the rows of a step without a head and of a round. Both are measured in turn."""
    streams = TINY_STREAMS if tiny else STEP_STREAMS
    prompt = 64 if tiny else PROMPT
    bandwidth = best_bandwidth(target.model.device, *([TINY_BYTES] if tiny else []))
    weights = [weight for weight in target.model.parameters() if weight is not target.embedding.weight]
    num_bytes = sum(weight.nbytes for weight in weights)
    for count in streams:
        plain = CostProfiler(Engine(target, (), count, 2 * prompt))
        drafted = CostProfiler(Engine(target, [draft], count, 2 * prompt))
        times = [
            (plain.measure_round_s(OFF, count, prompt), drafted.measure_round_s(TREE, count, prompt))
            for _ in range(TINY_REPEATS if tiny else REPEATS)
        ]
        step_s = median(step for step, _ in times)
        note = f"{1000 * step_s:.3f} ms; {num_bytes / 1e9:.2f} GB at {bandwidth / 1e12:.2f} TB/s"
        figure, is_first = step_s * bandwidth / num_bytes, count == 1
        name = f"baseline step over weight bytes / best bandwidth, {count} streams"
        yield Row(name, round(figure, 3), "at most 1.15" if is_first else "told", figure <= 1.15 or not is_first,
                  note=note)  # fmt: skip
        ratio, span = median_interval([round_s / step for step, round_s in times], 0)
        name = f"a whole round (depth 5, 16 nodes) over a baseline step, {count} streams"
        yield Row(name, round(ratio, 3), "below 1.6" if is_first else "told", ratio < 1.6 or not is_first,
                  (round(span.low, 3), round(span.high, 3)))  # fmt: skip


@dataclass(frozen=True)
class Contest:
    """The baseline and both loops, which answer the same requests in turn."""

    engine: Engine
    baseline: Engine
    prompts: list[Prompt]
    max_tokens: int

    def run(self, name: str) -> LoopResult:
        """Runs "plain" or "overlap", or the baseline with the overlap loop as "off"."""
        if name == "off":
            return run_loop(self.baseline, "overlap", self.prompts, self.max_tokens)
        return run_loop(self.engine, name, self.prompts, self.max_tokens)

    def run_turns(self, limit_s: float) -> dict[str, list[LoopResult]]:
        """Captures all CUDA graphs, then runs turns in rotated order until the seconds are over."""
        for engine in (self.engine, self.baseline):
            warm_up(engine, self.prompts, self.max_tokens)
        names = [*LOOPS, "off"]
        found: dict[str, list[LoopResult]] = {name: [] for name in names}
        began_s = time.perf_counter()
        for turn in range(MAX_TURNS):
            if turn >= MIN_TURNS and time.perf_counter() - began_s > limit_s:
                break
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                found[name].append(self.run(name))
        return found


def make_contest(target: Target, draft: Eagle3Spec, streams: int, tiny: bool) -> Contest:
    """Makes the engines and twice as many requests as streams; of 32 streams and more, as many as streams."""
    length, max_tokens = (32, TINY_TOKENS) if tiny else (SHORT_PROMPT, MAX_TOKENS)
    generator = torch.Generator().manual_seed(streams)
    count = streams if streams >= 32 else 2 * streams
    ids = torch.randint(2, target.info.vocab_size, (count, length), generator=generator).tolist()
    prompts = [Prompt(str(number), tuple(text)) for number, text in enumerate(ids)]
    engine, baseline = (
        Engine(target, drafts, streams, length + max_tokens, stream=TimedStream(stream_for(target.model.device)))
        for drafts in ([draft], [])
    )
    simulate_acceptance(engine, ACCEPTED)
    return Contest(engine, baseline, prompts, max_tokens)


def measure_overlap(
    target: Target, draft: Eagle3Spec, tiny: bool, left_s: Callable[[], float] = lambda: float("inf")
) -> Iterator[Row]:
    """Yields the rows of both loops by number of streams. left_s: returns the seconds until the end."""
    for streams in TINY_STREAMS if tiny else STREAMS:
        if left_s() < LEAST_S and not tiny:
            note = f"not measured: {left_s():.0f} s were left"
            yield Row(f"overlap over plain loop, {streams} streams", None, "at least 1", None, note=note)
            continue
        contest = make_contest(target, draft, streams, tiny)
        found = contest.run_turns(0 if tiny else min(TURNS_S, left_s() / 4))
        counters = contest.engine.counters
        accepted = sum(counters.accepted_per_position) / max(counters.drafts, 1)
        name = f"accepted draft tokens of a round, {streams} streams, simulated acceptance of {ACCEPTED}"
        yield Row(name, round(accepted, 3), "told", True)
        yield from _overlap_rows(found, streams)
        graphs = contest.engine.runner.graphs
        if graphs is not None and graphs.disabled_reason is not None:
            yield Row(f"CUDA graphs, {streams} streams", None, "captured", False, note=graphs.disabled_reason)


def _overlap_rows(found: dict[str, list[LoopResult]], streams: int) -> Iterator[Row]:
    label = f"{streams} streams, simulated acceptance"

    def ratio(above: Sequence[LoopResult], below: Sequence[LoopResult]) -> tuple[float, tuple[float, float]]:
        middle, span = median_interval([a.tps / b.tps for a, b in zip(above, below, strict=True)], 0)
        return round(middle, 3), (round(span.low, 3), round(span.high, 3))

    gain, span = ratio(found["overlap"], found["plain"])
    note = f"{len(found['plain'])} pairs"
    yield Row(f"overlap over plain loop, tokens/s, {label}", gain, "at least 1", gain >= 1, span, note)
    for name, runs in found.items():
        shown = f"without a head, {streams} streams" if name == "off" else f"{name} loop, {label}"
        rate, idle = median(run.tps for run in runs), median(run.idle for run in runs)
        yield Row(f"tokens/s: {shown}", round(rate, 1), "told", True)
        is_told = name != "overlap"
        yield Row(f"device idle: {shown}", round(idle, 4), "told" if is_told else "below 0.03",
                  is_told or idle < 0.03)  # fmt: skip
    gain, span = ratio(found["overlap"], found["off"])
    yield Row(f"tokens/s with over without a head, {label} of {ACCEPTED}", gain, "told", True, span)


def measure_engine(tiny: bool, left_s: Callable[[], float] = lambda: float("inf")) -> Iterator[Row]:
    """Makes target and head, and yields all rows. left_s: returns the seconds until the end."""
    device = find_device()
    with tempfile.TemporaryDirectory() as place:
        target = make_target(TINY if tiny else LLAMA_8B, Path(place), device)
    draft = make_draft(target)
    if device.type == "cuda":
        compile_pair(target, draft.head)
    yield from measure_steps(target, draft, tiny)
    yield from measure_overlap(target, draft, tiny, left_s)


if __name__ == "__main__":
    sys.exit(run_script(__doc__, measure_engine))
