"""Measures reading of features against training, in tokens per second.

    python benchmarks/loading_speed.py [--pairs N] [--conversations N]

Reading: the rows of an epoch in training order are read, verified against their checksums and dequantized to bfloat16.
Training: the head of training_fixtures.py is trained on the same rows with 3 unrolled steps, because few steps consume
rows fastest. Features come from the local disk, after the files are dropped from the page cache, and from gs:// URLs.
These lead to the fake GCS of the tests in this process, which delays every request by 20 ms.

Prints one JSON object for each row and exits 1 if a row misses its target. Progress goes to stderr. Takes some minutes.
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
from result_rows import Row, print_rows
from training_fixtures import OurTrainer, make_target, write_conversations

from eyas.base.storage import StoragePath
from eyas.features import capture
from eyas.features.reader import Features
from eyas.model.target import Target
from eyas.train.batches import plan_epoch
from eyas.tree.intervals import median_interval

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # the fake object stores are in tests/doubles

MIN_RATIO = 3.0
LATENCY_S = 0.02
PAIRS, CONVERSATIONS = 5, 64
STEPS, DRAFT_VOCAB = 3, 4096
BATCH_TOKENS, MICRO_TOKENS = 2048, 8192  # the defaults of training
TRAINED_BATCHES = 4  # micro-batches that the trainer consumes in a pair


def drop_page_cache(directory: Path) -> None:
    """Asks the system to drop the files from its page cache, so that they are read from the disk."""
    for path in directory.glob("*.safetensors"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def micro_batches(features: Features) -> list[tuple[int, ...]]:
    """Returns the row indices of the micro-batches of the first epoch, in training order."""
    indices = features.indices("train")
    updates = plan_epoch(features.manifest.rows, indices, (0, 0), BATCH_TOKENS, MICRO_TOKENS)
    return [micro for update in updates for micro in update.micro_batches]


def measure_reading(place: Path | StoragePath) -> float:
    """Opens the features, reads all rows once and returns the tokens per second."""
    began_s, tokens = time.perf_counter(), 0
    features = Features(place, torch.bfloat16)
    for micro in micro_batches(features):
        tokens += sum(row.ids_T.shape[0] for row in features.rows(micro))
    return tokens / (time.perf_counter() - began_s)


def measure_training(features: Features, trainer: OurTrainer) -> float:
    """Trains on rows that are in memory and returns the tokens per second."""
    micros = [list(features.rows(micro)) for micro in micro_batches(features)[:TRAINED_BATCHES]]
    began_s = time.perf_counter()
    for rows in micros:
        trainer.step(rows)
    return sum(row.ids_T.shape[0] for rows in micros for row in rows) / (time.perf_counter() - began_s)


@contextlib.contextmanager
def serve_from_store(local: Path) -> Iterator[StoragePath]:
    """Copies the files to a fake GCS whose requests are delayed by LATENCY_S, and yields their URL."""
    import pytest
    from tests.doubles.stores import gcs

    with pytest.MonkeyPatch.context() as patch, gcs(patch, LATENCY_S) as store:
        for path in local.iterdir():
            store.create(f"bucket/features/{path.name}", path.read_bytes(), only_new=True)
        yield StoragePath("gs://bucket/features")


def loading_speed(pairs: int, count: int) -> Iterator[Row]:
    """Yields the rows of the local disk and of the object store."""
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
            drop_page_cache(local)
            return measure_reading(local)

        with serve_from_store(local) as place:
            arms = {
                "local disk": read_local,
                f"gs://, {1000 * LATENCY_S:.0f} ms a request": lambda: measure_reading(place),
            }
            found = measure_rotated(arms | {"trainer": lambda: measure_training(features, trainer)}, pairs, "loading")
        for name, rates in found.items():
            yield Row(
                f"loading, {name}: tokens/s, {min(rates):.0f} to {max(rates):.0f}", round(median(rates)), "told", True
            )
        for name in arms:
            ratios = [a / b for a, b in zip(found[name], found["trainer"], strict=True)]
            middle, span = median_interval(ratios, 0)
            label = f"loading, {name} over the trainer, 95% {span.low:.2f} to {span.high:.2f}"
            yield Row(label, round(middle, 2), f"at least {MIN_RATIO:g}", middle >= MIN_RATIO)


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parsed = parser.parse_args()
    return print_rows(loading_speed(parsed.pairs, parsed.conversations))


if __name__ == "__main__":
    sys.exit(main())
