"""Measures the throughput of feature capture as a share of the target's bare prefill.

    python benchmarks/capture_speed.py [--pairs N] [--conversations N]

Prefill: the target computes the same rows in the same batches and stores nothing. Capture: all of
`features.capture.run`, from answered conversations to a finished directory on the local disk, in the default dtype.
Both run back to back in rotated order. Capture also checks the quantization error on up to 8,192 held-out tokens of a
run. Here one conversation is held out, so that this check costs a short measurement no larger share than a long run.
Prints one JSON object for each row. Exits 1 if a row misses its target. Takes a few minutes.

B rows of a batch, T tokens.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import torch
from prove_engine import measure_rotated
from result_rows import Row, print_rows
from training_fixtures import make_target, write_conversations

from eyas.chat.conversation import read_conversation_dir
from eyas.features import capture
from eyas.features.examples import build_text_rows
from eyas.features.extract import prefill_attention
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.tree.intervals import median_interval

LEAST = 0.8
PAIRS, CONVERSATIONS = 5, 32
CONFIG = capture.CaptureConfig(held_out=0.01, max_error=1.0)


@torch.no_grad()
def prefill(target: Target, lengths: Sequence[int]) -> None:
    """Computes rows of these lengths in the target, batched by length with the batch size of capture."""
    batch: list[int] = []
    batches = [batch]
    for length in sorted(lengths):
        if batch and (len(batch) + 1) * length > CONFIG.batch_tokens:
            batch = []
            batches.append(batch)
        batch.append(length)
    for batch in batches:
        ids_BT = torch.randint(0, target.info.vocab_size, (len(batch), batch[-1]))
        positions_1T = torch.arange(batch[-1], device=target.model.device)[None]
        target.forward(ids_BT.to(target.model.device), positions_1T, prefill_attention)
    if target.model.device.type == "cuda":
        torch.cuda.synchronize()


def measure_target(name: str, target: Target, count: int, pairs: int, scratch: Path) -> Iterator[Row]:
    """Yields the rows of one target."""
    conversations = write_conversations(scratch / "conversations", target, count)
    lengths = [
        len(row.ids) for one in read_conversation_dir(conversations) for row in build_text_rows(one, target.tokenizer)
    ]
    out = scratch / "features"

    def measure_capture_rate() -> float:
        shutil.rmtree(out, ignore_errors=True)
        began_s = time.perf_counter()
        capture.run(CONFIG, conversations, target, out, progress=False)
        return sum(lengths) / (time.perf_counter() - began_s)

    def measure_prefill_rate() -> float:
        began_s = time.perf_counter()
        prefill(target, lengths)
        return sum(lengths) / (time.perf_counter() - began_s)

    prefill(target, lengths[:8])  # warm-up
    found = measure_rotated(
        {"capture": measure_capture_rate, "prefill": measure_prefill_rate}, pairs, f"capture, {name}"
    )
    ratios = [a / b for a, b in zip(found["capture"], found["prefill"], strict=True)]
    middle, span = median_interval(ratios, 0)
    for arm, rates in found.items():
        note = f"{min(rates):.0f} to {max(rates):.0f}"
        yield Row(f"{arm}, {name}: tokens/s", round(median(rates)), "told", True, note=note)
    interval = round(span.low, 3), round(span.high, 3)
    label = f"capture over bare prefill, {name}"
    yield Row(label, round(middle, 3), f"at least {LEAST:g}", middle >= LEAST, interval)


def capture_speed(pairs: int, count: int) -> Iterator[Row]:
    """Yields the rows of the embedded target and of a larger target with random weights."""
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        yield from measure_target("embedded, hidden 256", Target.load(EMBEDDED), count, pairs, scratch / "embedded")
        larger = Target.load(make_target(scratch / "target"))
        yield from measure_target("random Llama, hidden 512", larger, count, pairs, scratch / "larger")


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parsed = parser.parse_args()
    return print_rows(capture_speed(parsed.pairs, parsed.conversations))


if __name__ == "__main__":
    sys.exit(main())
