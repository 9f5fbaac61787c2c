"""Measures features, capture and training. `make prove-training` calls it.

    python benchmarks/prove_training.py [--only PART] [--env-dir PEERS] [--data DIR] [--work DIR]

    features   bytes on disk for each token, and the acceptance length that 8-bit features lose
    speed      training against speculators, if `make peers-training` has installed it
    memory     memory of a training step by its number of tokens, against a plain implementation
    loading    reading of features against training, in tokens per second
    capture    capture against the target's bare prefill
    scaling    acceptance length over the amount of data
    gpu        training and capture on a GPU; skipped with a message if there is none
    real       a target and its head on GSM8K; only with --data, because it takes hours; --work keeps the results

Each part is a script in benchmarks/, which explains its method. Prints one JSON object for each row and exits 1 if a
row misses its target. Progress goes to stderr. Takes less than two hours on two idle cores without `real`.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import capture_speed
import data_scaling
import features_quantized
import gsm8k_benchmark
import loading_speed
import torch
import training_memory
import training_speed
from result_rows import Row, print_rows

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Options:
    """The options of the parts. work: the directory in which `real` and `scaling` keep their results."""

    env_dir: Path
    data: Path | None
    work: Path


def features(options: Options) -> Iterator[Row]:
    yield from features_quantized.features_quantized(None, features_quantized.CONVERSATIONS)


def speed(options: Options) -> Iterator[Row]:
    yield from training_speed.training_speed(training_speed.PAIRS, options.env_dir)


def memory(options: Options) -> Iterator[Row]:
    yield from training_memory.training_memory(training_memory.STEPS)


def load(options: Options) -> Iterator[Row]:
    yield from loading_speed.loading_speed(loading_speed.PAIRS, loading_speed.CONVERSATIONS)


def capture(options: Options) -> Iterator[Row]:
    yield from capture_speed.capture_speed(capture_speed.PAIRS, capture_speed.CONVERSATIONS)


def scaling(options: Options) -> Iterator[Row]:
    yield from data_scaling.data_scaling(data_scaling.BASE, data_scaling.UPDATES, options.work / "scaling")


def gpu(options: Options) -> Iterator[Row]:
    """Runs training_gpu.py in a separate process, which frees the device memory, and yields its rows."""
    if not torch.cuda.is_available():
        print("gpu: skipped, because torch finds no CUDA device", file=sys.stderr)
        return
    done = subprocess.run([sys.executable, HERE / "training_gpu.py"], stdout=subprocess.PIPE, text=True, check=False)
    lines = [Row(**json.loads(line)) for line in done.stdout.splitlines()]
    yield from lines
    if done.returncode and all(row.ok for row in lines):
        yield Row(f"training_gpu.py ended with {done.returncode}", None, "0", False)


def real(options: Options) -> Iterator[Row]:
    if options.data is None:
        print("real: skipped. Run `make prove-training DATA=DIR` with a directory of gsm8k-*.jsonl.", file=sys.stderr)
        return
    yield from gsm8k_benchmark.gsm8k_benchmark(options.data, options.work / "real_text")


PARTS: dict[str, Callable[[Options], Iterator[Row]]] = {
    "features": features,
    "speed": speed,
    "memory": memory,
    "loading": load,
    "capture": capture,
    "scaling": scaling,
    "gpu": gpu,
    "real": real,
}


def main() -> int:
    """Runs the chosen parts and prints their rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--env-dir", type=Path, default=Path.home() / ".cache" / "eyas" / "peers")
    parser.add_argument("--data", type=Path, help="directory with gsm8k-train.jsonl and gsm8k-test.jsonl")
    parser.add_argument("--work", type=Path, default=Path("runs") / "prove-training")
    parsed = parser.parse_args()
    options = Options(parsed.env_dir.absolute(), parsed.data, parsed.work)
    chosen = [part for name, part in PARTS.items() if parsed.only in (None, name)]
    return print_rows(row for part in chosen for row in part(options))


if __name__ == "__main__":
    sys.exit(main())
