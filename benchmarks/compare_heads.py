"""Compares the acceptance lengths of two heads of the embedded target on the same answers.

    python benchmarks/compare_heads.py OLD NEW [--run DIR] [--conversations N]

The embedded target answers prompts of the evaluation split, which no head was trained on. Both heads then draft these
answers from the target's bfloat16 features, with the default tree of serving; the heads compute in float32.
The tokens are equal, so the gain of NEW in acceptance length is sum(rounds of OLD) / sum(rounds of NEW) - 1. Its
interval is a paired bootstrap over conversations.

A new head must meet two targets: an overall gain with a lower 95 % bound above 0, and no family that loses more than
2 %. Prints one JSON object for all families and one for each family, and exits 1 if a row misses its target. --run
names a directory for answers and features, which a later call reuses. Progress goes to stderr. Takes ten minutes on
one core.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from features_quantized import answer_eval_prompts
from result_rows import Row, print_rows

from eyas.evaluation.evaluate import EvalConfig
from eyas.evaluation.replay import HeldOutRows
from eyas.features import capture
from eyas.features.reader import Features
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.tree.acceptance_length import RequestRounds, acceptance_length
from eyas.tree.intervals import ratio_interval

CONFIG = EvalConfig()
CONVERSATIONS = 560
MAX_LOSS = 0.02  # of the acceptance length of one family
CAPTURE = capture.CaptureConfig(dtype="bfloat16", held_out=1.0)


def compare(old: Path, new: Path, run_dir: Path, conversations: int) -> Iterator[Row]:
    """Yields the row of all families, then one row for each family."""
    run = answer_eval_prompts(run_dir, conversations)
    capture.run(CAPTURE, run.directory("respond"), run.target, run_dir / "features-bfloat16")
    features = Features(run_dir / "features-bfloat16")
    rows = features.manifest.rows
    indices = tuple(i for i in features.indices("held_out") if not rows[i].looping and rows[i].num_supervised > 0)
    olds, news = (replay_with_head(head, features, indices, run.target) for head in (old, new))
    tasks = np.array([rows[i].task for i in indices])
    yield from _rows("all", olds, news, np.full(len(indices), True))
    for task in sorted(set(tasks)):
        yield from _rows(task, olds, news, tasks == task)


def replay_with_head(
    directory: Path, features: Features, indices: tuple[int, ...], target: Target
) -> list[RequestRounds]:
    """Replays the answers with a head and returns the rounds of each answer."""
    stored = read_head(directory, torch.float32)
    require_fit(stored, target.info, target.digest)
    print(f"Replaying {len(indices)} answers with {directory}", file=sys.stderr, flush=True)
    held_out = HeldOutRows(features, indices, target, CONFIG.shape, CONFIG.batch_tokens)
    return held_out.replay(stored.head, stored.vocab)


def _rows(task: str, olds: list[RequestRounds], news: list[RequestRounds], which: np.ndarray) -> Iterator[Row]:
    old, new = ([one for one, mine in zip(all_, which, strict=True) if mine] for all_ in (olds, news))
    old_rounds, new_rounds = (np.array([len(one.accepted) for one in some]) for some in (old, new))
    gain = old_rounds.sum() / new_rounds.sum() - 1
    span = ratio_interval(old_rounds, new_rounds, CONFIG.seed)
    lengths = f"{acceptance_length(old):.3f} -> {acceptance_length(new):.3f}"
    name = f"{task}, {len(old)} answers: {lengths}, gain 95 % {span.low - 1:+.2%} to {span.high - 1:+.2%}"
    overall = task == "all"
    ok = span.low > 1 if overall else gain >= -MAX_LOSS
    yield Row(name, round(float(gain), 4), "lower bound above 0" if overall else f"at least {-MAX_LOSS}", bool(ok))


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("--run", type=Path, help="directory for answers and features; reused if they exist")
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return print_rows(compare(parsed.old, parsed.new, parsed.run or Path(scratch), parsed.conversations))


if __name__ == "__main__":
    sys.exit(main())
