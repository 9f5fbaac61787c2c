"""Runs one part of `benchmarks.gpu` and prints its rows. benchmarks/gpu.py calls it, each part in a new process.

python benchmarks/gpu_parts.py PART [--tiny] [--seconds N]
python benchmarks/gpu_parts.py machine
"""

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from result_rows import Row, print_rows

ROOT = Path(__file__).resolve().parents[1]
PYTEST_PROCESSES = 8
CHECKS = ("tests", "equality", "soak1", "soak2", "soak3")  # parts that say something also with small shapes
QUERY = "driver_version,clocks.max.sm,clocks.max.mem,power.limit"


@dataclass(frozen=True)
class Job:
    """The settings of a part: small shapes or not, the time at which it is stopped, and the seconds of a soak."""

    tiny: bool
    ends_s: float
    soak_s: float

    @property
    def left_s(self) -> float:
        """The seconds until the part is stopped."""
        return self.ends_s - time.monotonic()


# The parts import their script when they run, so that an error in one of them leaves the others alone.


def run_bandwidth(job: Job) -> Iterator[Row]:
    """Yields the rows of bandwidth and matrix products."""
    from gpu_bandwidth import measure_device

    yield from measure_device(job.tiny)


def run_tests(job: Job) -> Iterator[Row]:
    """Runs tests/gpu and yields the number of tests that passed."""
    target = "all, and one at least"
    if importlib.util.find_spec("pytest") is None:
        yield Row("passed tests of tests/gpu", None, target, None, note="not measured: pytest is not installed")
        return
    spread = ["-n", str(PYTEST_PROCESSES)] if importlib.util.find_spec("xdist") and not job.tiny else []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu", *spread]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout, file=sys.stderr)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", done.stdout)}
    names = [line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    passed, skipped = counts.get("passed", 0), counts.get("skipped", 0)
    notes = [", ".join(f"{count} {word}" for word, count in counts.items()), *names[:8]]
    ok = None if passed == 0 and skipped > 0 and done.returncode == 0 else done.returncode == 0 and passed > 0
    yield Row("passed tests of tests/gpu", passed, target, ok, note="; ".join(filter(None, notes)))


def run_equality(job: Job) -> Iterator[Row]:
    """Yields the number of equal answers of each arm and loop."""
    from gpu_bandwidth import find_device
    from gpu_equality import measure_equality

    yield from measure_equality(find_device(), job.tiny)


def run_engine(job: Job) -> Iterator[Row]:
    """Yields the rows of benchmarks/engine_gpu.py."""
    from engine_gpu import measure_engine

    yield from measure_engine(job.tiny, lambda: job.left_s)


def run_attention(job: Job) -> Iterator[Row]:
    """Yields the rows of benchmarks/attention_gpu.py."""
    from attention_gpu import measure_attention

    yield from measure_attention(job.tiny)


def run_training(job: Job) -> Iterator[Row]:
    """Yields the rows of benchmarks/training_gpu.py."""
    from training_gpu import measure_all

    yield from measure_all(job.tiny)


def run_memory(job: Job) -> Iterator[Row]:
    """Yields the rows of benchmarks/memory_gpu.py."""
    from memory_gpu import measure_memory

    yield from measure_memory(job.tiny)


def run_soak(seed: int, job: Job) -> Iterator[Row]:
    """Yields the rows of a soak. Each seed sends other requests."""
    from gpu_bandwidth import find_device
    from gpu_equality import measure_soak

    yield from measure_soak(find_device(), job.tiny, job.soak_s, seed)


PARTS: dict[str, Callable[[Job], Iterator[Row]]] = {
    "bandwidth": run_bandwidth,
    "tests": run_tests,
    "equality": run_equality,
    "engine": run_engine,
    "attention": run_attention,
    "training": run_training,
    "memory": run_memory,
    **{f"soak{number}": partial(run_soak, number) for number in (1, 2, 3)},
}


def without_speed(row: Row) -> Row:
    """Returns the row of small shapes: its speed says nothing, so it neither meets nor misses a target."""
    is_check = row.target == "told" or "difference" in row.name
    return row if is_check else replace(row, ok=None, note=f"small shapes; {row.note}".removesuffix("; "))


def read_machine() -> dict[str, Any]:
    """Returns the device, its driver and the versions. The device is "cpu" if there is no CUDA device."""
    import numpy as np
    import pydantic
    import torch
    import transformers

    found: dict[str, Any] = {"device": "cpu", "torch": torch.__version__, "transformers": transformers.__version__}
    found |= {"numpy": np.__version__, "pydantic": pydantic.VERSION, "python": platform.python_version()}
    found |= {"cpus": len(os.sched_getaffinity(0))}
    if not torch.cuda.is_available():
        return found
    import triton  # pyright: ignore[reportMissingImports]

    facts = torch.cuda.get_device_properties(0)
    found |= {"device": facts.name, "memory_gib": round(facts.total_memory / 2**30, 1)}
    found |= {"processors": facts.multi_processor_count, "cuda": torch.version.cuda, "triton": triton.__version__}
    try:
        command = ["nvidia-smi", "--id=0", f"--query-gpu={QUERY}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        values = [value.strip() for value in done.stdout.splitlines()[0].split(",")]
        found |= {"driver": values[0], "clocks": ", ".join(values[1:])}
    except (OSError, subprocess.SubprocessError, IndexError):
        found["driver"] = None
    return found


def main() -> int:
    """Prints the rows of a part. Returns 0 also if a row misses its target, which the row says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "machine"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which the part is stopped")
    parser.add_argument("--soak", type=float, default=400.0, help="seconds of a soak")
    parsed = parser.parse_args()
    if parsed.part == "machine":
        print(json.dumps(read_machine()))
        return 0
    job = Job(parsed.tiny, time.monotonic() + parsed.seconds, parsed.soak)
    rows = PARTS[parsed.part](job)
    print_rows(map(without_speed, rows) if job.tiny and parsed.part not in CHECKS else rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
