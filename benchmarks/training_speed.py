"""Measures the training throughput on this CPU against speculators.

    python benchmarks/training_speed.py [--pairs N] [--steps 3 7] [--env-dir PEERS]

Both train one optimizer step for each pack of 2,048 tokens (documents of at least 512 tokens, 60 % supervised), with
bfloat16 products, float32 weights, 3 and 7 unrolled steps, the same packs and the same number of threads. The arms of a
pair run back to back in rotated order, while the other processes are stopped. speculators 0.9.0 runs with the sdpa and
the eager attention, both with a dense mask, and the faster one counts. Its flex attention has no gradient on a CPU.
`make peers-training` installs its environment; without it, its rows are skipped.

The share of the peak is the rate of all multiplications that ran (torch's FlopCounterMode, which does not count
elementwise work) over the fastest bfloat16 product of three sizes, measured between the steps. Prints one JSON object
for each row and exits 1 if a row misses its target. Progress goes to stderr. Takes ten minutes.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from compare_peers import DRIVERS, Arm, Driver, NotInstalledError, PeerFailedError
from prove_engine import measure_rotated
from result_rows import Row, print_rows
from safetensors.torch import save_file
from torch.utils.flop_counter import FlopCounterMode
from training_fixtures import PACK_TOKENS, OurTrainer, lengths_of_pack, make_rows, make_target, to_tensors

from eyas.model.target import Target
from eyas.tree.intervals import median_interval

DRAFT_VOCAB = 4096
STEPS = (3, 7)
PACKS = 2  # packs that an arm trains in a pair
ATTENTIONS = ("sdpa", "eager")
MIN_RATIO = 2.0
PAIRS = 5
GEMM_SIZES = (1024, 2048, 4096)
OURS, PEER = "eyas", "speculators"


@dataclass(frozen=True)
class PeerOptions:
    """The options of peer_drivers/train_speculators.py."""

    target: str
    packs: str
    threads: int
    steps: int
    attention: str


class TrainDriver(Driver):
    """The process of a trainer, which is stopped except during its own steps."""

    def train(self, packs: list[int]) -> float:
        """Trains one optimizer step on each of these packs and returns the seconds."""
        return self.request({"packs": packs})["seconds"]


def find_interpreter(env_dir: Path) -> Path:
    """Returns the Python interpreter of speculators. Raises NotInstalledError."""
    found = env_dir / PEER / "bin" / "python"
    if not (env_dir / PEER / ".installed").is_file():
        raise NotInstalledError(f"{env_dir / PEER} does not exist. Run `make peers-training`")
    return found


def measure_gemm_peak() -> float:
    """Returns the operations per second of the fastest bfloat16 product."""
    best = 0.0
    for size in GEMM_SIZES:
        a, b = torch.randn(size, size).bfloat16(), torch.randn(size, size).bfloat16()
        torch.mm(a, b)
        times = []
        for _ in range(5):
            began_s = time.perf_counter()
            torch.mm(a, b)
            times.append(time.perf_counter() - began_s)
        best = max(best, 2 * size**3 / min(times))
    return best


def compare_with_speculators(steps: int, target_dir: Path, scratch: Path, pairs: int, env_dir: Path) -> Iterator[Row]:
    """Yields the rows at one number of unrolled steps."""
    target = Target.load(target_dir)
    facts = target.info
    packs = [
        make_rows(lengths_of_pack(PACK_TOKENS, number), facts.hidden_size, facts.vocab_size, number)
        for number in range(PACKS)
    ]
    file = scratch / "packs.safetensors"
    save_file(to_tensors(packs), file)
    ours = OurTrainer.make(target, steps, DRAFT_VOCAB)
    with FlopCounterMode(display=False) as counter:
        for rows in packs:
            ours.step(rows)
    work = counter.get_total_flops() / (PACKS * PACK_TOKENS)
    peaks: list[float] = []

    def run_ours() -> float:
        peaks.append(measure_gemm_peak())
        began_s = time.perf_counter()
        for rows in packs:
            ours.step(rows)
        return report_rate(OURS, PACKS * PACK_TOKENS / (time.perf_counter() - began_s))

    every = list(range(PACKS))
    with ExitStack() as stack:
        arms: dict[str, Any] = {OURS: run_ours}
        try:
            python = find_interpreter(env_dir)
            for attention in ATTENTIONS:
                options = PeerOptions(str(target_dir), str(file), torch.get_num_threads(), steps, attention)
                arm = Arm([python, DRIVERS / "train_speculators.py"], options)
                driver = TrainDriver(arm, scratch / f"{attention}-{steps}.log")
                stack.enter_context(driver)
                print(f"{driver.load()}, {attention}, {steps} steps, is loaded", file=sys.stderr, flush=True)
                driver.train(every)  # warm-up
                name = f"{PEER}, {attention}"
                arms[name] = lambda name=name, one=driver: report_rate(name, PACKS * PACK_TOKENS / one.train(every))
        except NotInstalledError as error:
            print(f"{PEER} is not installed: {error}", file=sys.stderr, flush=True)
        found = measure_rotated(arms, pairs, f"training, {steps} steps")
    yield from _rows(steps, found, work, peaks)


def report_rate(name: str, rate: float) -> float:
    """Prints a line of progress and returns the rate."""
    print(f"{name}: {rate:.0f} tokens/s", file=sys.stderr, flush=True)
    return rate


def _rows(steps: int, found: dict[str, list[float]], work: float, peaks: list[float]) -> Iterator[Row]:
    for name, rates in found.items():
        label = f"training, {steps} steps, tokens/s, {name}: lowest {min(rates):.0f}, highest {max(rates):.0f}"
        yield Row(label, round(median(rates)), "told", True)
    shares = [rate * work / peak for rate, peak in zip(found[OURS], peaks, strict=True)]
    name = f"training, {steps} steps, share of the bfloat16 GEMM peak, {median(peaks) / 1e9:.0f} GFLOP/s"
    yield Row(name, round(median(shares), 3), "told", True)
    others = [name for name in found if name != OURS]
    if others:
        best = max(others, key=lambda name: median(found[name]))
        ratios = [a / b for a, b in zip(found[OURS], found[best], strict=True)]
        middle, span = median_interval(ratios, 0)
        name = f"training, {steps} steps, {OURS} over {best}, 95% {span.low:.2f} to {span.high:.2f}"
        yield Row(name, round(middle, 3), f"at least {MIN_RATIO:g}", middle >= MIN_RATIO)


def training_speed(pairs: int, env_dir: Path, unrolled: Sequence[int] = STEPS) -> Iterator[Row]:
    """Yields the rows at each number of unrolled steps."""
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        target_dir = make_target(scratch / "target")
        for steps in unrolled:
            try:
                yield from compare_with_speculators(steps, target_dir, scratch, pairs, env_dir)
            except PeerFailedError as error:
                print(f"{PEER} failed: {error}", file=sys.stderr, flush=True)
                yield Row(f"training, {steps} steps, {OURS} over {PEER}", None, f"at least {MIN_RATIO:g}", False)


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--steps", type=int, nargs="*", default=STEPS)
    parser.add_argument("--env-dir", type=Path, default=Path.home() / ".cache" / "eyas" / "peers")
    parsed = parser.parse_args()
    return print_rows(training_speed(parsed.pairs, parsed.env_dir.absolute(), parsed.steps))


if __name__ == "__main__":
    sys.exit(main())
