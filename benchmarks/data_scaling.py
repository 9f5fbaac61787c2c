"""Measures the acceptance length over the amount of training data.

    python benchmarks/data_scaling.py [--base N] [--updates U] [--run DIR]

The embedded target answers 8 N prompts of the grammar's training split. Heads are trained from random weights on the
first N, 2 N, 4 N and 8 N conversations. All are measured on the same held-out answers to prompts of the evaluation
split, so the heads differ only in their training data.

Every head gets the same number of updates of the same size. With the same number of epochs, more data would also get
more compute, and the curve would mix both effects. With the same updates, the smallest set is repeated eight times as
often as the largest, and too many epochs can lower the acceptance length. Each size is therefore also trained with half
the updates, and the better head counts. The row names its updates and epochs.

    acceptance length = a + b * log2(conversations)        least squares; b is the gain from twice the data

Prints one JSON object for each row and exits 1 if a row misses its target. --run names a directory that keeps all
results; a later call resumes from them. Progress goes to stderr. Takes half an hour.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from features_quantized import answer_eval_prompts
from result_rows import Row, print_rows

from eyas.base.provenance import StageInputs, finish_stage, is_finished
from eyas.chat.conversation import read_conversation_dir
from eyas.data.answers.respond_config import RespondConfig
from eyas.data.prompts_config import PromptsConfig
from eyas.evaluation.evaluate import EvalConfig, evaluate
from eyas.features import capture
from eyas.features.reader import Features
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.recipe import Recipe, Run
from eyas.train import train as loop
from eyas.train.config import HeadOptions, TrainConfig

TIMES = (1, 2, 4, 8)
BASE, UPDATES = 120, 400
HELD_OUT = 112  # conversations of the evaluation split
EVAL = EvalConfig()
CAPTURE = capture.CaptureConfig(held_out=0.0)
TRAIN = TrainConfig(
    steps=5,
    batch_tokens=256,
    draft_vocab_size=2048,
    learning_rate=3e-3,
    head=HeadOptions(intermediate_size=512),
)


@dataclass(frozen=True)
class Point:
    """The result of the better head for one amount of data."""

    conversations: int
    acceptance_length: float
    ci95: tuple[float, float]
    updates: int
    epochs: float


def answer_training_prompts(work: Path, count: int) -> Path:
    """Answers the first `count` prompts of the training split and returns the directory of the conversations."""
    prompts = PromptsConfig(source="builtin:train", limit=count)
    run = Run(Recipe(prompts=prompts, respond=RespondConfig(max_tokens=160, batch_size=24)), work / "all")
    for stage in ("prompts", "respond"):
        run.run_stage(stage)
    return run.directory("respond")


def write_first(source: Path, place: Path, count: int) -> Path:
    """Writes a finished directory with the first `count` of these conversations and returns it."""
    origin = StageInputs("respond", f"the first {count}", {})
    if not is_finished(place, origin):
        place.mkdir(parents=True, exist_ok=True)
        lines = [one.to_line() for _, one in zip(range(count), read_conversation_dir(source), strict=False)]
        (place / "part-00000.jsonl").write_bytes(b"".join(lines))
        finish_stage(place, origin, time.time())
    return place


def train_and_measure(work: Path, conversations: Path, updates: int, target: Target, held_out: Features) -> Point:
    """Trains a head on these conversations and measures it on the held-out answers."""
    features_dir = conversations.with_name("features")
    capture.run(CAPTURE, conversations, target, features_dir)
    features = Features(features_dir)
    head_dir = work / f"head-{updates}"
    loop.run(_config(updates), features_dir, target, head_dir)
    stored = read_head(head_dir, torch.float32)
    found = evaluate(EVAL, stored, (held_out, features), target, progress=False)["all"]
    rows = features.manifest.rows
    epochs = updates * TRAIN.batch_tokens / sum(row.num_supervised for row in rows)
    count = len({row.id.split("#")[0] for row in rows})
    low, high = found["ci95"]
    print(f"{count} conversations, {updates} updates: {found['acceptance_length']:.3f}", file=sys.stderr, flush=True)
    return Point(count, found["acceptance_length"], (low, high), updates, epochs)


def _config(updates: int) -> TrainConfig:
    return TrainConfig(**{**vars(TRAIN), "updates": updates})


def fit_line(points: Sequence[Point]) -> tuple[float, float, float]:
    """Fits the line and returns a, b and the largest distance of a point from it."""
    x = np.log2([point.conversations for point in points])
    y = np.array([point.acceptance_length for point in points])
    b, a = np.polyfit(x, y, 1)
    return float(a), float(b), float(np.abs(a + b * x - y).max())


def data_scaling(base: int, updates: int, work: Path) -> Iterator[Row]:
    """Yields the rows of the points and of the fitted line."""
    target = Target.load(EMBEDDED)
    held_out_dir = work / "held-out-features"
    run = answer_eval_prompts(work / "held-out", HELD_OUT)
    capture.run(capture.CaptureConfig(held_out=1.0), run.directory("respond"), target, held_out_dir)
    held_out = Features(held_out_dir)
    source = answer_training_prompts(work, base * max(TIMES))
    points = []
    for times in TIMES:
        place = work / f"x{times}"
        conversations = write_first(source, place / "conversations", base * times)
        heads = [train_and_measure(place, conversations, count, target, held_out) for count in (updates // 2, updates)]
        best = max(heads, key=lambda point: point.acceptance_length)
        points.append(best)
        low, high = best.ci95
        name = f"acceptance length of a head from {best.conversations} conversations, {best.updates} updates or"
        told = f"{name} {best.epochs:.1f} epochs, 95% {low:.2f} to {high:.2f}"
        yield Row(told, round(best.acceptance_length, 3), "told", True)
    a, b, off = fit_line(points)
    line = f"{a:.3f} + {b:.3f} * log2(conversations)"
    yield Row(f"data scaling: {line}; what a doubling brings", round(b, 4), "above 0", b > 0)
    yield Row("data scaling: largest distance of a point from that line", round(off, 4), "told", True)
    least, most = points[0], points[-1]
    apart = most.ci95[0] - least.ci95[1]
    name = f"data scaling: lower bound at {TIMES[-1]}x less upper bound at {TIMES[0]}x"
    yield Row(name, round(apart, 3), "above 0", apart > 0)


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=int, default=BASE, help="conversations of the smallest head")
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--run", type=Path, help="directory for all results; reused if they exist")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return print_rows(data_scaling(parsed.base, parsed.updates, parsed.run or Path(scratch)))


if __name__ == "__main__":
    sys.exit(main())
