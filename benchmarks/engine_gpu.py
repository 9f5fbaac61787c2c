"""Measures the engine on a GPU: a step against one read of the weights, a round against a step, overlap, idle share.

    python benchmarks/engine_gpu.py [--tiny]

The target has the shape of Llama-3.1-8B and the head that of EAGLE-3, with random weights in bfloat16. No draft token
is accepted, which does not change the times, because the shapes of a round are fixed before it runs. Prints one JSON
object for each row. Exits 1 if a row misses its target, and 2 without CUDA. --tiny uses a small shape, also on a CPU,
to test the script. Needs 30 GB of GPU memory.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
from overlap_speed import LOOPS, run_loop
from result_rows import Row, print_rows
from transformers import AutoModelForCausalLM, LlamaConfig

from eyas.bench.workload import Prompt
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.cost_profiler import CostProfiler
from eyas.engine.device_stream import stream_for
from eyas.engine.engine import Engine
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
from eyas.tree.shape import TreeShape

TREE = Arm("tree", TreeShape(depth=5, top_k=4, nodes=16))
DRAFT_VOCAB = 32_000
CONTEXT, PROMPT = 2048, 512
REPEATS = 20
STREAMS = (1, 8, 32)
COPY_BYTES, COPIES = 2**30, 20

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
    pack_head(head)
    return Eagle3Spec(head, vocab.to(target.model.device), TREE.shape or TreeShape(1, 1, 2))


def measure_bandwidth(device: torch.device) -> float:
    """Returns the bytes read and written in one second by a large copy, the best of COPIES."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device)
    goal = torch.empty_like(source)
    stream = stream_for(device)
    return max(2 * COPY_BYTES / stream.launch(lambda: goal.copy_(source)).wait().seconds for _ in range(COPIES))


def measure_steps(target: Target, draft: Eagle3Spec) -> Iterator[Row]:
    """Yields the rows of one stream: a step without a head, and a round."""
    plain = CostProfiler(Engine(target, (), 1, CONTEXT))
    drafted = CostProfiler(Engine(target, [draft], 1, CONTEXT))
    step_s = [plain.measure_round_s(OFF, 1, PROMPT) for _ in range(REPEATS)]
    round_s = [drafted.measure_round_s(TREE, 1, PROMPT) for _ in range(REPEATS)]
    weights = [weight for weight in target.model.parameters() if weight is not target.embedding.weight]
    bound_s = sum(weight.nbytes for weight in weights) / measure_bandwidth(target.model.device)
    ratio = median(step_s) / bound_s
    yield Row("baseline step over weight bytes / bandwidth, 1 stream", round(ratio, 3), "at most 1.15", ratio <= 1.15)
    ratio = median(round_s) / median(step_s)
    yield Row("a whole round (depth 5, 16 nodes) over a baseline step", round(ratio, 3), "below 1.6", ratio < 1.6)


def measure_overlap(target: Target, draft: Eagle3Spec) -> Iterator[Row]:
    """Yields the rows of both loops, which answer the same requests in alternating order."""
    generator = torch.Generator().manual_seed(0)
    for streams in STREAMS:
        engine = Engine(target, [draft], streams, CONTEXT)
        ids = torch.randint(2, target.info.vocab_size, (2 * streams, PROMPT), generator=generator).tolist()
        prompts = [Prompt(str(number), tuple(text)) for number, text in enumerate(ids)]
        run_loop(engine, "plain", prompts)
        found = {name: [] for name in LOOPS}
        for pair in range(7):
            for name in sorted(LOOPS, reverse=pair % 2 == 1):
                found[name].append(run_loop(engine, name, prompts))
        gain = median([b.tps / a.tps for a, b in zip(found["plain"], found["overlap"], strict=True)])
        idle = median([one.idle for one in found["overlap"]])
        yield Row(f"overlap over plain loop, {streams} streams", round(gain, 3), "at least 1", gain >= 1)
        yield Row(f"device idle with overlap, {streams} streams", round(idle, 4), "below 0.03", idle < 0.03)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parsed = parser.parse_args()
    if not (parsed.tiny or torch.cuda.is_available()):
        print("This machine has no CUDA device. Use --tiny to test the script.", file=sys.stderr)
        return 2
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as place:
        target = make_target(TINY if parsed.tiny else LLAMA_8B, Path(place), device)
    draft = make_draft(target)
    return print_rows(row for part in (measure_steps, measure_overlap) for row in part(target, draft))


if __name__ == "__main__":
    sys.exit(main())
