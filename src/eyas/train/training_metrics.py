"""The figures of training: sums over the updates since the last line, and the line itself.

K steps, Q chains, J teacher rows.

How much of what the machine can do goes into training: the products of the weights, against one plain product.

    share of peak = operations of the products below / seconds / operations a second of a square product, measured once

    product                                   rows                     forward, and backward for input and weight
    fc                                        P rows                   2 of 3: nobody asks for the features' gradient
    block: q, k, v, o, gate, up, down         P + (K - 1) Q            3
    output rows of the head                   taught places            3
    output matrix of the target               J teachers               1

A product of [m, n] and [n, k] is 2 m n k operations. Attention, norms, softmax, the optimizer and reading of features
count for nothing, so the share says how much of the time is left for what must be done, and is never too high.

P rows of a micro-batch, Q chains, K steps, J teacher rows, D hidden, V draft vocabulary, W target vocabulary.

Lines of metrics.jsonl, handed on to TensorBoard and Weights & Biases while training runs, for those who ask.

metrics.jsonl is written in any case and is what eyas itself reads; these are copies for people, they carry times, and
they lie outside the head's directory, whose bytes must not depend on who watches:

    RUN/head/metrics.jsonl
    RUN/watch/tensorboard/    tensorboard --logdir RUN/watch/tensorboard
    RUN/watch/wandb/          offline unless WANDB_MODE=online; `wandb sync` sends it later
"""

import contextlib
import importlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from eyas.base.errors import InputError
from eyas.model.head import Head
from eyas.train.loss import LossOutput
from eyas.train.ttt import PackedBatch

NUM_SUMS = 4  # rows of Window.sums: taught, hits, overlap, run


class MetricSums:
    """Sums since the last line, in one float64 tensor: processes add theirs up, a checkpoint keeps every bit.

    For each step: taught tokens, hits, overlap, and chains whose drafts were all hits up to here; then the loss.
    """

    def __init__(self, steps: int) -> None:
        self.sums_SK = torch.zeros(NUM_SUMS + 1, steps, dtype=torch.float64)

    def add(self, packed: PackedBatch, graded: LossOutput, count: int) -> None:
        """count: the divisor of this update's loss."""
        hits_N = torch.zeros_like(packed.supervised_KQ, dtype=torch.bool).flatten()
        hits_N[packed.student_index_JK[packed.supervised_JK]] = graded.hits_JK[packed.supervised_JK]
        run_K = hits_N.view_as(packed.supervised_KQ).long().cumprod(0).sum(1)
        tensors = (packed.supervised_JK.sum(0), graded.hits_JK.sum(0), graded.overlap_JK.sum(0), run_K)
        self.sums_SK[:NUM_SUMS] += torch.stack([sums_K.double() for sums_K in tensors]).cpu()
        self.sums_SK[NUM_SUMS, 0] += float(graded.loss.detach()) / count

    def to_line(self, update: int, num_updates: int, learning_rate: float) -> dict[str, Any]:
        """Update is counted from 1; num_updates is how many the sums are over.

        loss: mean over the updates. accuracy: the head's first choice is the target's, among all taught tokens.
        acceptance: chance that one sampled draft is accepted. chain_length: tokens a chain of this depth would add to
        the text, the target's own included, over all places a round can start.
        """
        taught_K, hits_K, overlap_K, run_K, loss_K = self.sums_SK
        taught_K = taught_K.clamp(min=1)
        return {
            "update": update,
            "learning_rate": learning_rate,
            "loss": float(loss_K[0]) / num_updates,
            "accuracy": [round(x, 6) for x in (hits_K / taught_K).tolist()],
            "acceptance": [round(x, 6) for x in (overlap_K / taught_K).tolist()],
            "chain_length": round(1 + float(run_K.sum() / taught_K[0]), 6),
        }


def to_jsonl(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def format_line(line: dict[str, Any]) -> str:
    """A line in the words of the progress bar."""
    first = line["accuracy"][0]
    return f"loss {line['loss']:.3f}  accuracy {first:.1%}  chain length {line['chain_length']:.2f}"


MEASURED_S = 0.2
MATRIX_SIZES = {"cpu": 1024, "cuda": 8192}
"""Of the square product: large enough to be limited by arithmetic, small enough to take well below a second."""


def count_flops(head: Head, target_vocab: int, packed: PackedBatch) -> int:
    """Of one micro-batch, forward and backward, by the table above."""
    num_rows, (num_steps, num_chains) = packed.ids_P.shape[0], packed.tokens_KQ.shape
    block = sum(weight.numel() for weight in head.midlayer.parameters() if weight.ndim == 2)
    taught, teachers = int(packed.supervised_JK.sum()), packed.teacher_rows_J.shape[0]
    return 2 * (
        2 * num_rows * head.fc.weight.numel()
        + 3 * (num_rows + (num_steps - 1) * num_chains) * block
        + 3 * taught * head.lm_head.weight.numel()
        + teachers * head.config.target_hidden_size * target_vocab
    )


def measure_peak_flops(dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second of a square product on this machine and its threads: the best of a fifth of a second."""
    side = MATRIX_SIZES.get(device.type, MATRIX_SIZES["cuda"])
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    best_s, spent_s = float("inf"), 0.0
    while spent_s < MEASURED_S:
        _synchronize(device)
        began_s = time.perf_counter()
        torch.mm(a, b)
        _synchronize(device)
        took_s = time.perf_counter() - began_s
        best_s, spent_s = min(best_s, took_s), spent_s + took_s
    return 2 * side**3 / best_s


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class FlopsUtilization:
    """The share of peak since the last look."""

    def __init__(self, head: Head, target_vocab: int, peak_per_s: float) -> None:
        self.head, self.target_vocab, self.peak_per_s = head, target_vocab, peak_per_s
        self._done, self._since_s = 0, time.perf_counter()

    def add(self, packed: PackedBatch) -> None:
        self._done += count_flops(self.head, self.target_vocab, packed)

    def format_share(self) -> str:
        """For the progress line."""
        now_s = time.perf_counter()
        share = self._done / (now_s - self._since_s) / self.peak_per_s
        self._done, self._since_s = 0, now_s
        return f"{share:.0%} of peak"


TrackerName = Literal["tensorboard", "wandb"]
LogMetrics = Callable[[Mapping[str, Any]], None]
TRACKER_DIRECTORY = "watch"


@contextlib.contextmanager
def open_trackers(
    trackers: Sequence[TrackerName], directory: Path, origin: str, first_update: int
) -> Iterator[LogMetrics]:
    """A function that takes a line of metrics.jsonl and tells all watchers.

    place: where they write. origin: digest of what decides the head, by which a run that goes on is known. first:
    updates that an earlier process has done; what it told beyond them is taken back. InputError for a package that is
    not installed.
    """
    openers = {"tensorboard": _open_tensorboard, "wandb": _open_wandb}
    with contextlib.ExitStack() as stack:
        tells = [
            stack.enter_context(openers[name](directory, origin, first_update)) for name in dict.fromkeys(trackers)
        ]

        def tell(line: Mapping[str, Any]) -> None:
            for each in tells:
                each(line)

        yield tell


def to_scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """The line's numbers by name; a list becomes one for each unrolled step: accuracy/0, accuracy/1, ..."""
    found: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, list):
            found |= {f"{name}/{step}": float(each) for step, each in enumerate(value)}
        elif isinstance(value, int | float) and name != "update":
            found[name] = float(value)
    return found


@contextlib.contextmanager
def _open_tensorboard(place: Path, origin: str, first: int) -> Iterator[LogMetrics]:
    _import_tracker("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(place / "tensorboard"), purge_step=first + 1) as writer:

        def tell(line: Mapping[str, Any]) -> None:
            for name, value in to_scalars(line).items():
                writer.add_scalar(name, value, int(line["update"]))
            writer.flush()

        yield tell


@contextlib.contextmanager
def _open_wandb(place: Path, origin: str, first: int) -> Iterator[LogMetrics]:
    wandb = _import_tracker("wandb")
    place.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        project="eyas",
        dir=str(place),
        id=origin[:32],
        name=place.resolve().parent.name,
        resume="allow",
        mode=os.environ.get("WANDB_MODE", "offline"),  # nothing leaves this machine unless it is asked for
        # Nothing of this machine, its packages or what it prints: the lines are all that is told.
        settings=wandb.Settings(
            console="off",
            silent=True,
            save_code=False,
            disable_git=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        ),
    )
    try:
        yield lambda line: run.log(to_scalars(line), step=int(line["update"]))
    finally:
        run.finish()


def _import_tracker(package: TrackerName) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(
            f"train.watch with {package}, but no package {package}",
            "that package, or nobody who watches: metrics.jsonl is written in any case",
            f"pip install 'eyas[{package}]', or leave train.watch out",
        ) from None
