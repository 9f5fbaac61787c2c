"""Measures training and capture on a GPU.

    python benchmarks/training_gpu.py [--tiny]

The target has the shape of Llama-3.1-8B and random weights; the head has its layer shape and a draft vocabulary of
32,000. A pack has 4,096 tokens in documents of at least 512, of which 60 % are supervised. Training uses 7 unrolled
steps, bfloat16 products with float32 weights, and one optimizer step for each pack. The share of the peak is the rate
of all multiplications that ran (FlopCounterMode) over the fastest bfloat16 product measured here. Capture is all of
`features.capture.run`, to the local disk.

Prints one JSON object for each row. Exits 1 if a row misses its target, and 2 without CUDA. --tiny uses a small shape,
also on a CPU, to test the script. Needs 20 GB of disk and 60 GB of GPU memory.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
from capture_speed import measure_target
from engine_gpu import DRAFT_VOCAB, LLAMA_8B, TINY, make_target
from result_rows import Row, print_rows
from torch.utils.flop_counter import FlopCounterMode
from training_fixtures import OurTrainer, lengths_of_pack, make_rows

from eyas.model.target import Target

PACK_TOKENS, STEPS = 4096, 7
WARM_UPS, PACKS = 3, 20
GEMM_SIZE, GEMMS = 8192, 20
CONVERSATIONS, PAIRS = 96, 3


def synchronize(device: torch.device) -> None:
    """Waits for the work of a CUDA device. Does nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_gemm_peak(device: torch.device, size: int) -> float:
    """Returns the operations per second of a square bfloat16 product, the best of GEMMS."""
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    b = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    torch.mm(a, b)
    times = []
    for _ in range(GEMMS):
        synchronize(device)
        began_s = time.perf_counter()
        torch.mm(a, b)
        synchronize(device)
        times.append(time.perf_counter() - began_s)
    return 2 * size**3 / min(times)


def measure_training(target: Target, device: torch.device) -> Iterator[Row]:
    """Yields the rows of tokens per second, share of the peak, and memory."""
    facts = target.info
    draft_vocab = min(DRAFT_VOCAB, facts.vocab_size // 2)
    packs = [
        make_rows(lengths_of_pack(PACK_TOKENS, number), facts.hidden_size, facts.vocab_size, number)
        for number in range(WARM_UPS)
    ]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    trainer = OurTrainer.make(target, STEPS, draft_vocab)
    with FlopCounterMode(display=False) as counter:
        trainer.step(packs[0])
    work = counter.get_total_flops() / PACK_TOKENS
    for rows in packs:
        trainer.step(rows)
    times = []
    for number in range(PACKS):
        synchronize(device)
        began_s = time.perf_counter()
        trainer.step(packs[number % WARM_UPS])
        synchronize(device)
        times.append(time.perf_counter() - began_s)
    rate = PACK_TOKENS / median(times)
    spread = f"{PACK_TOKENS / max(times):.0f} to {PACK_TOKENS / min(times):.0f}"
    yield Row(f"training, hidden {facts.hidden_size}, {STEPS} steps: tokens/s, {spread}", round(rate), "told", True)
    peak = measure_gemm_peak(device, GEMM_SIZE if device.type == "cuda" else 1024)
    name = f"training: share of the bfloat16 GEMM peak, {peak / 1e12:.2f} TFLOP/s"
    yield Row(name, round(rate * work / peak, 3), "told", True)
    if device.type == "cuda":
        most = torch.cuda.max_memory_allocated(device)
        yield Row("training: GiB of GPU memory beside the target", round((most - before) / 2**30, 2), "told", True)


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parsed = parser.parse_args()
    if not (parsed.tiny or torch.cuda.is_available()):
        print("This machine has no CUDA device. Use --tiny to test the script.", file=sys.stderr)
        return 2
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        shape = TINY | {"vocab_size": 4096} if parsed.tiny else LLAMA_8B  # the size of the tokenizer
        target = make_target(shape, scratch / "target", device)

        def parts() -> Iterator[Row]:
            yield from measure_training(target, device)
            count = 4 if parsed.tiny else CONVERSATIONS
            yield from measure_target(f"hidden {target.info.hidden_size}", target, count, PAIRS, scratch / "capture")

        return print_rows(parts())


if __name__ == "__main__":
    sys.exit(main())
