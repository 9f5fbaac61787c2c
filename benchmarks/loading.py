"""Whether reading features keeps up with training; one JSON object a row on stdout, exit 1 if one misses.

    python benchmarks/loading.py [--pairs N] [--conversations N]

The rows of an epoch in training order, read, compared with their checksums and restored to bfloat16, beside what a
trainer eats of the same rows (the head of training_fixtures.py, 3 unrolled steps: few steps eat most). From the local
disk, the files being asked out of the page cache before each reading, and from gs:// URLs that lead to the tests' fake
of GCS in this process, which lets every request wait 20 ms. Progress goes to stderr; a few minutes.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
from prove_engine import measure_rotated
from rows import Row, print_rows
from training_fixtures import OurTrainer, make_target, write_conversations

from eyas.base.storage import StoragePath
from eyas.features import capture
from eyas.features.reader import Features
from eyas.model.target import Target
from eyas.train.batches import plan_epoch
from eyas.tree.stats import median_interval

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # the doubles of object stores are among the tests

LEAST = 3.0
LATENCY_S = 0.02
PAIRS, CONVERSATIONS = 5, 64
STEPS, DRAFT_VOCAB = 3, 4096
BATCH_TOKENS, MICRO_TOKENS = 2048, 8192  # the defaults of training
EATEN = 4  # micro-batches that the trainer eats in a pair


def forget(directory: Path) -> None:
    """Ask the system to drop the files from its page cache, so that the disk is really read."""
    for path in directory.glob("*.safetensors"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def micro_batches(features: Features) -> list[tuple[int, ...]]:
    """Of the first epoch, in order."""
    indices = features.indices("train")
    updates = plan_epoch(features.manifest.rows, indices, (0, 0), BATCH_TOKENS, MICRO_TOKENS)
    return [micro for update in updates for micro in update.micro_batches]


def read_epoch(place: Path | StoragePath) -> float:
    """Tokens a second of opening the features and reading all rows once."""
    began_s, tokens = time.perf_counter(), 0
    features = Features(place, torch.bfloat16)
    for micro in micro_batches(features):
        tokens += sum(row.ids_T.shape[0] for row in features.rows(micro))
    return tokens / (time.perf_counter() - began_s)


def eat(features: Features, trainer: OurTrainer) -> float:
    """Tokens a second of training on rows that are in memory."""
    micros = [list(features.rows(micro)) for micro in micro_batches(features)[:EATEN]]
    began_s = time.perf_counter()
    for rows in micros:
        trainer.step(rows)
    return sum(row.ids_T.shape[0] for rows in micros for row in rows) / (time.perf_counter() - began_s)


@contextlib.contextmanager
def in_store(local: Path) -> Iterator[StoragePath]:
    """The same files behind gs://, each request late."""
    import pytest
    from tests.doubles.stores import gcs

    with pytest.MonkeyPatch.context() as patch, gcs(patch, LATENCY_S) as store:
        for path in local.iterdir():
            store.create(f"bucket/features/{path.name}", path.read_bytes(), only_new=True)
        yield StoragePath("gs://bucket/features")


def loading(pairs: int, count: int) -> Iterator[Row]:
    """Every place that features can be read from."""
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        target = Target.load(make_target(scratch / "target", num_layers=7))
        conversations = write_conversations(scratch / "conversations", target, count)
        local = scratch / "features"
        config = capture.CaptureConfig(held_out=0.0, max_error=1.0, shard_bytes=16 * 2**20)
        capture.run(config, conversations, target, local)
        features = Features(local, torch.bfloat16)
        trainer = OurTrainer.make(target, STEPS, DRAFT_VOCAB)
        trainer.step(list(features.rows(micro_batches(features)[0])))  # warm-up

        def read_local() -> float:
            forget(local)
            return read_epoch(local)

        with in_store(local) as place:
            arms = {"local disk": read_local, f"gs://, {1000 * LATENCY_S:.0f} ms a request": lambda: read_epoch(place)}
            found = measure_rotated(arms | {"trainer": lambda: eat(features, trainer)}, pairs, "loading")
        for name, rates in found.items():
            yield Row(
                f"loading, {name}: tokens/s, {min(rates):.0f} to {max(rates):.0f}", round(median(rates)), "told", True
            )
        for name in arms:
            ratios = [a / b for a, b in zip(found[name], found["trainer"], strict=True)]
            middle, span = median_interval(ratios, 0)
            label = f"loading, {name} over the trainer, 95% {span.low:.2f} to {span.high:.2f}"
            yield Row(label, round(middle, 2), f"at least {LEAST:g}", middle >= LEAST)


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parsed = parser.parse_args()
    return print_rows(loading(parsed.pairs, parsed.conversations))


if __name__ == "__main__":
    sys.exit(main())
