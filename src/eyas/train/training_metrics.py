"""Computes the lines of metrics.jsonl and the share of peak FLOPS, and sends copies of the lines to trackers.

K steps, Q chains, J teacher rows, P rows of a micro-batch, D hidden, V draft vocabulary, W target vocabulary.

FLOPS utilization compares the matrix products of training with the fastest matrix product on this machine:

    share of peak = operations of the products below / seconds / operations a second of a square product, measured once

    weight matrix                             rows of its input        products: forward, backward of input and weight
    fc                                        P rows                   2: the features need no gradient
    block: q, k, v, o, gate, up, down         P + (K - 1) Q            3
    output rows of the head                   supervised tokens        3
    output matrix of the target               J teacher rows           1: the target is not trained

Of a block head (Q blocks of K rows):

    fc                                        P rows                   2
    keys and values of the context            P rows                   3
    layers                                    K Q                      3
    output matrix of the target               supervised tokens        2: forward, backward of the input
    correction                                supervised tokens        3
    output matrix of the target, as teacher   J teacher rows           1

A product of [m, n] and [n, k] is 2 m n k operations. Attention, norms, softmax, the optimizer and reading are not
counted, so the true utilization is higher.

metrics.jsonl is always written, and eyas reads only this file. Trackers get copies of its lines. A tracker adds times
to its files, so they are outside the head's directory, where equal runs write equal bytes:

    RUN/head/metrics.jsonl
    RUN/watch/tensorboard/    tensorboard --logdir RUN/watch/tensorboard
    RUN/watch/wandb/          sent to wandb only with WANDB_MODE=online, or later by `wandb sync`
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from eyas.base.environment import import_extra
from eyas.model.block_head import BlockHead
from eyas.model.head import DraftHead, Head
from eyas.train.loss import LossOutput
from eyas.train.ttt import PackedBatch

MAX_CURVE_POINTS = 40  # the most points of the training curve in a report
NUM_SUMS = 4  # rows of sums_SK besides the loss: supervised tokens, hits, overlap, runs
MEASURED_S = 0.2
MATRIX_SIZES = {"cpu": 1024, "cuda": 8192}
"""The side of the square product by device type. It is limited by arithmetic, not by memory bandwidth."""

TrackerName = Literal["tensorboard", "wandb"]
LogMetrics = Callable[[Mapping[str, Any]], None]
TRACKER_DIRECTORY = "watch"


class MetricSums:
    """The sums since the last line of metrics.jsonl, in one float64 tensor, which checkpoints store exactly.

    sums_SK has a column for each step and these rows: supervised tokens; hits (`LossOutput.hits_JK`); overlap
    (`LossOutput.overlap_JK`); chains whose steps up to this step are all hits. The first column of the last row holds
    the loss.
    """

    def __init__(self, steps: int) -> None:
        self.sums_SK = torch.zeros(NUM_SUMS + 1, steps, dtype=torch.float64)

    def add(self, packed: PackedBatch, output: LossOutput, count: int) -> None:
        """Adds a micro-batch. count: the supervised tokens of the whole update; the loss is divided by it."""
        hits_N = torch.zeros_like(packed.supervised_KQ, dtype=torch.bool).flatten()
        hits_N[packed.student_index_JK[packed.supervised_JK]] = output.hits_JK[packed.supervised_JK]
        runs_K = hits_N.view_as(packed.supervised_KQ).long().cumprod(0).sum(1)
        sums = (packed.supervised_JK.sum(0), output.hits_JK.sum(0), output.overlap_JK.sum(0), runs_K)
        self.sums_SK[:NUM_SUMS] += torch.stack([sums_K.double() for sums_K in sums]).cpu()
        self.sums_SK[NUM_SUMS, 0] += float(output.loss.detach()) / count

    def to_line(self, update: int, num_updates: int, learning_rate: float) -> dict[str, Any]:
        """Returns a line of metrics.jsonl.

        Its keys: `loss` is the mean over the updates. `accuracy` is the share of supervised tokens at which the head's
        most likely token is the target's. `acceptance` is the probability that one sampled draft is accepted.
        `chain_length` is the mean number of tokens that a round with a chain of K drafts accepts, the bonus token
        included.

        Args:
            update: The last update, counted from 1.
            num_updates: The number of updates since the previous line.
            learning_rate: The learning rate of the update.
        """
        supervised_K, hits_K, overlap_K, runs_K, loss_K = self.sums_SK
        supervised_K = supervised_K.clamp(min=1)
        return {
            "update": update,
            "learning_rate": learning_rate,
            "loss": float(loss_K[0]) / num_updates,
            "accuracy": [round(x, 6) for x in (hits_K / supervised_K).tolist()],
            "acceptance": [round(x, 6) for x in (overlap_K / supervised_K).tolist()],
            "chain_length": round(1 + float(runs_K.sum() / supervised_K[0]), 6),
        }


def to_jsonl(lines: list[dict[str, Any]]) -> str:
    """Returns the content of metrics.jsonl."""
    return "".join(json.dumps(line) + "\n" for line in lines)


def read_training_curve(path: Path) -> list[dict[str, float]]:
    """Returns at most MAX_CURVE_POINTS evenly spaced lines of metrics.jsonl, the last line included; [] if missing."""
    if not path.is_file():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    step = max(1, math.ceil(len(lines) / MAX_CURVE_POINTS))
    names, shown = ("update", "loss", "chain_length"), lines[::-1][::step][::-1]
    return [{name: line[name] for name in names} | {"accuracy": line["accuracy"][0]} for line in shown]


def format_line(line: dict[str, Any]) -> str:
    """Returns the text of a line of metrics.jsonl for the progress bar."""
    return f"loss {line['loss']:.3f}  accuracy {line['accuracy'][0]:.1%}  chain length {line['chain_length']:.2f}"


# --- FLOPS utilization -----------------------------------------------------------------------------------------------


def count_flops(head: DraftHead, target_vocab: int, packed: PackedBatch) -> int:
    """Returns the operations of forward and backward of one micro-batch, by the table in the module docstring."""
    num_rows, (num_steps, num_chains) = packed.ids_P.shape[0], packed.tokens_KQ.shape
    num_supervised, num_teachers = int(packed.supervised_JK.sum()), packed.hidden_JD.shape[0]
    if isinstance(head, BlockHead):
        config = head.config
        layers = sum(weight.numel() for weight in head.layers.parameters() if weight.ndim == 2)
        context = 2 * config.num_layers * config.num_kv_heads * config.head_dim * config.hidden_size
        return 2 * (
            num_rows * (2 * head.fc.weight.numel() + 3 * context)
            + 3 * config.num_rows * num_chains * layers
            + num_supervised * (2 * config.hidden_size + 3 * config.markov_rank) * target_vocab
            + num_teachers * config.target_hidden_size * target_vocab
        )
    assert isinstance(head, Head), "the other kind of head"
    block = sum(weight.numel() for weight in head.midlayer.parameters() if weight.ndim == 2)
    return 2 * (
        2 * num_rows * head.fc.weight.numel()
        + 3 * (num_rows + (num_steps - 1) * num_chains) * block
        + 3 * num_supervised * head.lm_head.weight.numel()
        + num_teachers * head.config.target_hidden_size * target_vocab
    )


def measure_peak_flops(dtype: torch.dtype, device: torch.device) -> float:
    """Returns the operations a second of the fastest square product within MEASURED_S seconds."""
    side = MATRIX_SIZES.get(device.type, MATRIX_SIZES["cuda"])
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    best_s, spent_s = float("inf"), 0.0
    while spent_s < MEASURED_S:
        _synchronize(device)
        start_s = time.perf_counter()
        torch.mm(a, b)
        _synchronize(device)
        elapsed_s = time.perf_counter() - start_s
        best_s, spent_s = min(best_s, elapsed_s), spent_s + elapsed_s
    return 2 * side**3 / best_s


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class FlopsUtilization:
    """A meter of FLOPS utilization: the share of peak FLOPS since the last call of `format_share`."""

    def __init__(self, head: DraftHead, target_vocab: int, peak_per_s: float) -> None:
        self.head, self.target_vocab, self.peak_per_s = head, target_vocab, peak_per_s
        self._flops, self._start_s = 0, time.perf_counter()

    def add(self, packed: PackedBatch) -> None:
        """Adds the operations of a micro-batch."""
        self._flops += count_flops(self.head, self.target_vocab, packed)

    def format_share(self) -> str:
        """Returns the share as text, for example "41% of peak", and starts a new measurement."""
        now_s = time.perf_counter()
        share = self._flops / (now_s - self._start_s) / self.peak_per_s
        self._flops, self._start_s = 0, now_s
        return f"{share:.0%} of peak"


# --- experiment trackers ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_trackers(
    trackers: Sequence[TrackerName], directory: Path, origin: str, first_update: int
) -> Iterator[LogMetrics]:
    """Yields a function that logs a line of metrics.jsonl to all trackers.

    Args:
        trackers: The names of the trackers; may be empty.
        directory: The directory that the trackers write to.
        origin: A digest of everything that determines the head. A resumed run continues the tracker run of this digest.
        first_update: The number of updates that a resumed run has already made, else 0. TensorBoard discards lines of
            later updates that the interrupted run had logged.

    Raises:
        InputError: If the package of a tracker is not installed.
    """
    openers = {"tensorboard": _open_tensorboard, "wandb": _open_wandb}
    with contextlib.ExitStack() as stack:
        logs = [openers[name](stack, directory, origin, first_update) for name in dict.fromkeys(trackers)]

        def log(line: Mapping[str, Any]) -> None:
            for log_to_tracker in logs:
                log_to_tracker(line)

        yield log


def to_scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a line by name. A list becomes one number for each step: accuracy/0, accuracy/1, ..."""
    values: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, list):
            values |= {f"{name}/{step}": float(item) for step, item in enumerate(value)}
        elif isinstance(value, int | float) and name != "update":
            values[name] = float(value)
    return values


def _open_tensorboard(stack: contextlib.ExitStack, directory: Path, origin: str, first_update: int) -> LogMetrics:
    import_extra("tensorboard", "tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = stack.enter_context(SummaryWriter(str(directory / "tensorboard"), purge_step=first_update + 1))

    def log(line: Mapping[str, Any]) -> None:
        for name, value in to_scalars(line).items():
            writer.add_scalar(name, value, int(line["update"]))
        writer.flush()

    return log


def _open_wandb(stack: contextlib.ExitStack, directory: Path, origin: str, first_update: int) -> LogMetrics:
    wandb = import_extra("wandb", "wandb")
    directory.mkdir(parents=True, exist_ok=True)
    quiet = dict.fromkeys(("silent", "disable_git", "x_disable_stats", "x_disable_machine_info"), True)
    run = wandb.init(
        project="eyas",
        dir=str(directory),
        id=origin[:32],
        name=directory.resolve().parent.name,
        resume="allow",
        mode=os.environ.get("WANDB_MODE", "offline"),  # nothing leaves this machine unless the user sets it
        # Log the lines only: no output, code, packages or data about this machine.
        settings=wandb.Settings(console="off", save_code=False, x_save_requirements=False, **quiet),
    )
    stack.callback(run.finish)
    return lambda line: run.log(to_scalars(line), step=int(line["update"]))
