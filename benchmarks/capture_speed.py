"""How much of the target's bare prefill rate is left when features are captured and stored; one JSON object a row.

    python benchmarks/capture_speed.py [--pairs N] [--conversations N]

Bare: the target reads the same rows in the same batches and nothing is kept of it. Capture: `features.capture.run` as a
whole, from answered conversations to a finished directory on the local disk, quantised to the default. Back to back in
an order that rotates. The check of what storing changes, at most 8,192 tokens of any run, is one conversation here, so
that a short measurement pays for it no more than a long run does. Exit 1 if a row misses; a few minutes.

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
from rows import Row, print_rows
from training_fixtures import make_target, write_conversations

from eyas.chat.conversation import read_conversation_dir
from eyas.features import capture
from eyas.features.capture import prefill_attention
from eyas.features.examples import build_text_rows
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.tree.stats import median_interval

LEAST = 0.8
PAIRS, CONVERSATIONS = 5, 32
CONFIG = capture.CaptureConfig(held_out=0.01, max_error=1.0)


@torch.no_grad()
def prefill(target: Target, lengths: Sequence[int]) -> None:
    """The rows through the target, similar lengths together, as many padded tokens at once as capture takes."""
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


def of_target(name: str, target: Target, count: int, pairs: int, scratch: Path) -> Iterator[Row]:
    """The rows of one target."""
    conversations = write_conversations(scratch / "conversations", target, count)
    lengths = [
        len(row.ids) for one in read_conversation_dir(conversations) for row in build_text_rows(one, target.tokenizer)
    ]
    out = scratch / "features"

    def rate_of_capture() -> float:
        shutil.rmtree(out, ignore_errors=True)
        began_s = time.perf_counter()
        capture.run(CONFIG, conversations, target, out, progress=False)
        return sum(lengths) / (time.perf_counter() - began_s)

    def rate_of_prefill() -> float:
        began_s = time.perf_counter()
        prefill(target, lengths)
        return sum(lengths) / (time.perf_counter() - began_s)

    prefill(target, lengths[:8])  # warm-up
    found = measure_rotated({"capture": rate_of_capture, "prefill": rate_of_prefill}, pairs, f"capture, {name}")
    ratios = [a / b for a, b in zip(found["capture"], found["prefill"], strict=True)]
    middle, span = median_interval(ratios, 0)
    for arm, rates in found.items():
        yield Row(f"{arm}, {name}: tokens/s, {min(rates):.0f} to {max(rates):.0f}", round(median(rates)), "told", True)
    label = f"capture over bare prefill, {name}, 95% {span.low:.2f} to {span.high:.2f}"
    yield Row(label, round(middle, 3), f"at least {LEAST:g}", middle >= LEAST)


def capture_speed(pairs: int, count: int) -> Iterator[Row]:
    """The embedded target and a larger one of random weights."""
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        yield from of_target("embedded, hidden 256", Target.load(EMBEDDED), count, pairs, scratch / "embedded")
        larger = Target.load(make_target(scratch / "target"))
        yield from of_target("random Llama, hidden 512", larger, count, pairs, scratch / "larger")


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parsed = parser.parse_args()
    return print_rows(capture_speed(parsed.pairs, parsed.conversations))


if __name__ == "__main__":
    sys.exit(main())
