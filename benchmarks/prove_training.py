"""`make prove-training`: the rows of training's "Measured" list, one JSON object a row on stdout; exit 1 if one misses.

    python benchmarks/prove_training.py [--only PART] [--env-dir PEERS] [--data DIR] [--work DIR]

    features   bytes of a token on disk, and the acceptance length that 8 bits cost
    speed      training beside speculators, as far as `make peers-training` has installed it
    memory     a training step over the tokens it holds, beside the plain way to write it
    loading    reading features beside what the trainer eats
    capture    capture beside the target's bare prefill
    scaling    acceptance length over the amount of data
    gpu        training and capture on a GPU; left out, and said so, where there is none
    real       a target and its head on GSM8K; only with --data, for it takes hours (--work keeps what it made)

Every part is a script of its own in benchmarks/ that says how it measures. Progress goes to stderr; under two hours on
two idle cores without `real`.
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
import loading
import real_text
import torch
import training_memory
import training_speed
from rows import Row, print_rows

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Options:
    """What the parts are told. work: where `real` and `scaling` keep what they made."""

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
    yield from loading.loading(loading.PAIRS, loading.CONVERSATIONS)


def capture(options: Options) -> Iterator[Row]:
    yield from capture_speed.capture_speed(capture_speed.PAIRS, capture_speed.CONVERSATIONS)


def scaling(options: Options) -> Iterator[Row]:
    yield from data_scaling.data_scaling(data_scaling.BASE, data_scaling.UPDATES, options.work / "scaling")


def gpu(options: Options) -> Iterator[Row]:
    """In a process of its own, which gives the device's memory back."""
    if not torch.cuda.is_available():
        print("gpu: left out: torch sees no CUDA device here", file=sys.stderr)
        return
    done = subprocess.run([sys.executable, HERE / "training_gpu.py"], stdout=subprocess.PIPE, text=True, check=False)
    lines = [Row(**json.loads(line)) for line in done.stdout.splitlines()]
    yield from lines
    if done.returncode and all(row.ok for row in lines):
        yield Row(f"training_gpu.py ended with {done.returncode}", None, "0", False)


def real(options: Options) -> Iterator[Row]:
    if options.data is None:
        print("real: left out: no --data (make prove-training DATA=DIR, with gsm8k-*.jsonl)", file=sys.stderr)
        return
    yield from real_text.real_text(options.data, options.work / "real_text")


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
    """Run the parts, print the rows."""
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
