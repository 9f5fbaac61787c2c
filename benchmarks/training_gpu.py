"""Measures training and capture on a GPU.

    python benchmarks/training_gpu.py [--tiny]

The target has the shape of Llama-3.1-8B and random weights; the head has its layer shape and a draft vocabulary of
32,000. A pack has 4,096 or 16,384 tokens in documents of at least 512, of which 60 % are supervised. Training uses 7
unrolled steps, bfloat16 products with float32 weights, and one optimizer step for each pack. The share of the peak is
the rate of all multiplications that ran (FlopCounterMode) over the fastest bfloat16 product measured here. Capture is
all of `features.capture.run`, to the local disk.

Prints one JSON object for each row. Exits 1 if a row misses its target, and 2 without CUDA. --tiny uses a small shape,
also on a CPU, to test the script. Needs 60 GB of GPU memory.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
from capture_speed import CONFIG, measure_target
from engine_gpu import DRAFT_VOCAB, LLAMA_8B, TINY, make_target
from gpu_bandwidth import best_gemm_rate, find_device, run_script
from result_rows import Row
from torch.utils.flop_counter import FlopCounterMode
from training_fixtures import SHARE, OurTrainer, lengths_of_pack, make_rows

from eyas.base.storage import StoragePath
from eyas.features.store import bytes_per_token, read_manifest
from eyas.model.target import Target

PACK_TOKENS, TINY_PACK_TOKENS, STEPS = (4096, 16_384), (512,), 7
WARM_UPS, TIMED_TOKENS = 2, 80_000  # packs that are not timed; tokens that are
CONVERSATIONS, TINY_CONVERSATIONS, PAIRS = 96, 4, 3


def synchronize(device: torch.device) -> None:
    """Waits for the work of a CUDA device. Does nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_training(target: Target, device: torch.device, pack_tokens: int, peak: float) -> Iterator[Row]:
    """Yields the rows of tokens per second, share of the peak, and memory, for packs of this size.

    Args:
        target: The target, which gives the sizes of the head.
        device: Its device.
        pack_tokens: The tokens of a pack.
        peak: The operations per second of the fastest product.
    """
    facts = target.info
    draft_vocab = min(DRAFT_VOCAB, facts.vocab_size // 2)
    packs = [
        make_rows(lengths_of_pack(pack_tokens, number), facts.hidden_size, facts.vocab_size, number)
        for number in range(WARM_UPS)
    ]
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    trainer = OurTrainer.make(target, STEPS, draft_vocab)
    with FlopCounterMode(display=False) as counter:
        trainer.step(packs[0])
    work = counter.get_total_flops() / pack_tokens
    for rows in packs:
        trainer.step(rows)
    times = []
    for number in range(max(3, TIMED_TOKENS // pack_tokens) if device.type == "cuda" else 1):
        synchronize(device)
        began_s = time.perf_counter()
        trainer.step(packs[number % WARM_UPS])
        synchronize(device)
        times.append(time.perf_counter() - began_s)
    rate = pack_tokens / median(times)
    label = f"packs of {pack_tokens} tokens, hidden {facts.hidden_size}, {STEPS} steps"
    spread = f"{pack_tokens / max(times):.0f} to {pack_tokens / min(times):.0f}"
    yield Row(f"training: tokens/s, {label}", round(rate), "told", True, note=spread)
    note = f"{peak / 1e12:.2f} TFLOP/s"
    yield Row(f"training: share of the bfloat16 peak, {label}", round(rate * work / peak, 3), "told", True, note=note)
    if device.type == "cuda":
        most = torch.cuda.max_memory_allocated(device)
        name = f"training: GiB of GPU memory beside the target, {label}"
        yield Row(name, round((most - before) / 2**30, 2), "told", True)


def measure_capture(target: Target, count: int, scratch: Path) -> Iterator[Row]:
    """Yields the rows of capture, and of its bytes against the forecast of `eyas plan`."""
    yield from measure_target(f"hidden {target.info.hidden_size}", target, count, PAIRS, scratch)
    out = StoragePath.of(scratch / "features")
    tokens = sum(row.length for row in read_manifest(out).rows)
    stored = sum(path.stat().st_size for path in (scratch / "features").rglob("*.safetensors"))
    forecast = tokens * bytes_per_token(CONFIG.dtype, target.info.hidden_size, SHARE)
    ratio = stored / forecast
    name = "capture: stored bytes over the forecast of `eyas plan`"
    yield Row(name, round(ratio, 4), "0.95 to 1.05", 0.95 <= ratio <= 1.05, note=f"{stored / 1e9:.3f} GB")


def measure_all(tiny: bool) -> Iterator[Row]:
    """Makes the target and yields all rows."""
    device = find_device()
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        shape = TINY | {"vocab_size": 4096} if tiny else LLAMA_8B  # the size of the tokenizer
        target = make_target(shape, scratch / "target", device)
        peak = best_gemm_rate(device, tiny)
        for pack_tokens in TINY_PACK_TOKENS if tiny else PACK_TOKENS:
            try:
                yield from measure_training(target, device, pack_tokens, peak)
            except torch.OutOfMemoryError as error:
                yield Row(f"training: packs of {pack_tokens} tokens", None, "told", False, note=str(error)[:200])
        yield from measure_capture(target, TINY_CONVERSATIONS if tiny else CONVERSATIONS, scratch / "capture")


if __name__ == "__main__":
    sys.exit(run_script(__doc__, measure_all))
