"""Two heads of one target on the same answers, family by family; one JSON object a row, exit 1 if one misses.

    python benchmarks/compare_heads.py OLD NEW [--run DIR] [--conversations N]

The embedded target answers prompts of the evaluation split, which no head was trained on; both heads draft these
answers again from the target's features in bfloat16, in float32, with the tree that serving uses by default. Tokens
are the same, so acceptance lengths are as rounds are, inverted: NEW gains sum(rounds of OLD) / sum(rounds of NEW) - 1,
with a paired bootstrap over conversations. Asked for is what a shipped head is replaced for: a gain overall whose lower
95 % bound is above 0, and no family that loses more than 2 %. --run keeps answers and features there, or takes them
from there. Progress goes to stderr; ten minutes on one core.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from features_quantized import answers
from rows import Row, print_rows

from eyas.evaluation.evaluate import EvalConfig
from eyas.evaluation.replay import HeldOutRows
from eyas.features import capture
from eyas.features.reader import Features
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.tree.stats import RequestRounds, acceptance_length, ratio_interval

CONFIG = EvalConfig()
CONVERSATIONS = 560
MOST_LOST = 0.02  # of one family
CAPTURE = capture.CaptureConfig(dtype="bfloat16", held_out=1.0)


def compare(old: Path, new: Path, run_dir: Path, conversations: int) -> Iterator[Row]:
    """Overall and by family."""
    run = answers(run_dir, conversations)
    capture.run(CAPTURE, run.directory("respond"), run.target, run_dir / "features-bfloat16")
    features = Features(run_dir / "features-bfloat16")
    rows = features.manifest.rows
    indices = tuple(i for i in features.indices("held_out") if not rows[i].looping and rows[i].num_supervised > 0)
    olds, news = (walked(head, features, indices, run.target) for head in (old, new))
    tasks = np.array([rows[i].task for i in indices])
    yield from _rows("all", olds, news, np.full(len(indices), True))
    for task in sorted(set(tasks)):
        yield from _rows(task, olds, news, tasks == task)


def walked(directory: Path, features: Features, indices: tuple[int, ...], target: Target) -> list[RequestRounds]:
    """The rounds that a head takes for each of the answers."""
    stored = read_head(directory, torch.float32)
    require_fit(stored, target.info, target.digest)
    print(f"walking {len(indices)} answers with {directory}", file=sys.stderr, flush=True)
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
    ok = span.low > 1 if overall else gain >= -MOST_LOST
    yield Row(name, round(float(gain), 4), "lower bound above 0" if overall else f"at least {-MOST_LOST}", bool(ok))


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("--run", type=Path, help="a directory for answers and features, or with them")
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return print_rows(compare(parsed.old, parsed.new, parsed.run or Path(scratch), parsed.conversations))


if __name__ == "__main__":
    sys.exit(main())
