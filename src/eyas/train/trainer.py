"""Runs the training loop of one process. Several processes can train one head together; all make the same updates.

Each update has four stages:

1. This process computes its micro-batches: prefetch, forward, backward. Gradients are accumulated in float32.
2. An all-reduce of a few numbers: whether a loss is not finite, and the metrics.
3. An all-reduce of the gradients.
4. The optimizer step, which is the same in each process.
"""

import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from eyas.base.errors import InputError, StageError
from eyas.base.progress import Progress
from eyas.base.storage import AnyPath, StoragePath
from eyas.evaluation.replay import HeldOutRows
from eyas.features.reader import Features, prefetch
from eyas.model.block_head import BlockHead
from eyas.model.devices import DTYPES
from eyas.model.head import DraftHead, Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab, choose_mask_id, required_ids
from eyas.train import checkpoint as checkpoints
from eyas.train.batches import Update, assign_to_ranks, plan_epoch
from eyas.train.block_loss import compute_block_loss
from eyas.train.checkpoint_selection import CheckpointSelection, evaluation_updates
from eyas.train.config import TrainConfig, build_head_config
from eyas.train.distributed import SINGLE_PROCESS, ProcessGroup, catch_sigterm
from eyas.train.init_head import init_head
from eyas.train.loss import LossName, LossOutput, Teacher, compute_loss
from eyas.train.optimizer import MasterWeightOptimizer, cosine_learning_rate
from eyas.train.training_metrics import FlopsUtilization, MetricSums, format_line, measure_peak_flops, open_trackers
from eyas.train.ttt import PackedBatch, pack_rows, unroll

STAGE = "train"
MAX_NAMED = 8  # the most conversations that an error message names
PREFETCH_BATCHES = 4  # micro-batches; enough to hide one slow read among fast ones
PREFETCH_THREADS = 2  # one can wait for a store while the other decodes


def compute_batch_loss(
    head: Head, packed: PackedBatch, teacher: Teacher, target: Target, decay: float, loss: LossName = "soft"
) -> LossOutput:
    """Unrolls all steps over a micro-batch and returns the loss. The caller must divide it (see LossOutput.loss)."""
    with torch.no_grad():
        dtype = packed.aux_PL.dtype
        embeds_PD, embeds_KQD = (target.embed(ids).to(dtype) for ids in (packed.next_ids_P, packed.tokens_KQ))
    out_KQD = unroll(head, packed, embeds_PD, embeds_KQD)
    return compute_loss(head.norm(out_KQD).flatten(0, 1), head.lm_head.weight, packed, teacher, decay, loss)


def compute_loss_by_kind(
    head: DraftHead, packed: PackedBatch, teacher: Teacher, target: Target, config: TrainConfig
) -> LossOutput:
    """Returns the loss of a micro-batch for a head of any kind. The caller must divide it (see LossOutput.loss)."""
    if isinstance(head, BlockHead):
        return compute_block_loss(head, packed, teacher, target, (config.decay, config.block.token_weight))
    assert isinstance(head, Head), "the other kind of head"
    return compute_batch_loss(head, packed, teacher, target, config.decay, config.loss)


class Trainer:
    """The state of a training in one process: head, optimizer, data and metrics, on the device of the target."""

    def __init__(
        self,
        config: TrainConfig,
        features: Features,
        target: Target,
        group: ProcessGroup = SINGLE_PROCESS,
        held_out: HeldOutRows | None = None,
    ) -> None:
        """Builds the head, the draft vocabulary and the optimizer. A collective call.

        Args:
            config: The settings.
            features: The features; the rows of split "train" are used.
            target: The target that computed the features.
            group: The processes of this training.
            held_out: The held-out answers that select the weights. None: the last weights become the head.

        Raises:
            InputError: If there is no row to train on, or no head can be built.
        """
        self.config = config
        self.features = features
        self.target = target
        self.group = group
        self.dtype = DTYPES[config.dtype]
        self.device = target.embedding.weight.device
        rows = features.manifest.rows
        self.indices = [i for i in features.indices("train") if rows[i].num_supervised > 0]
        if not self.indices:
            problem = f"The features in {features.directory} have no row to train on: one needs two generated tokens"
            raise InputError(problem, "Capture more conversations, or lower capture.held_out")
        # Each process counts whole shards, so that a shard is read once.
        counted = [i for i in self.indices if rows[i].shard % group.world_size == group.rank]
        counts_W = group.all_reduce_sum(features.generated_counts(counted))
        required = required_ids(target.tokenizer, target.info.eos_ids, counts_W)
        mask_id = choose_mask_id(counts_W, required, target.embedding.weight) if config.drafter == "block" else 0
        sizes = build_head_config(config, features.manifest.aux_layer_ids, target.info, mask_id)
        self.vocab = DraftVocab.from_counts(counts_W, sizes.draft_vocab_size, required)
        self.head = init_head(sizes, self.vocab, target, config.seed, config.init, config.lm_head).to(self.device)
        # Before the cast: the master weights start from the exact initial weights.
        self.optimizer = MasterWeightOptimizer(self.head, config.weight_decay, config.clip, group, config.shard)
        self.head.to(self.dtype)
        self.teacher = Teacher(target.lm_head, self.vocab, self.dtype, target.logit_softcap)
        self.selection = CheckpointSelection(config, self.head.config, self.vocab, self.optimizer, held_out)
        self.metric_sums = MetricSums(config.num_steps)
        self.window_start = 0
        self.metrics_lines: list[dict[str, Any]] = []
        self.utilization: FlopsUtilization | None = None

    def train(self, checkpoint_dir: AnyPath, origin: str, progress: bool, tracker_dir: Path | None = None) -> None:
        """Runs all updates, or the remaining updates if this run has a checkpoint.

        At the end, `optimizer.weights` are the chosen weights (`checkpoint_selection`).

        Args:
            checkpoint_dir: The directory of checkpoints.
            origin: A digest of everything that determines the head. A checkpoint with another digest is ignored.
            progress: Shows a progress bar.
            tracker_dir: The directory for the files of the trackers in `train.watch`. None: no trackers.

        Raises:
            StageError: If a loss or gradient is not finite, SIGTERM arrives, or another process has stopped.
            StorageError: If a checkpoint cannot be written.
        """
        config, checkpoint_dir = self.config, StoragePath.of(checkpoint_dir)
        epochs = list(self._plan_epochs())
        updates = [update for epoch in epochs for update in epoch]
        lengths = [len(epoch) for epoch in epochs]
        evaluate_at = evaluation_updates(lengths, config.evaluate_every) if self.selection.held_out else set[int]()
        warmup_updates = max(1, round(config.warmup * len(updates)))
        first = self._resume(checkpoint_dir, origin)
        rows, self._saved_s = self.features.manifest.rows, time.monotonic()
        own = [assign_to_ranks(update, rows, self.group.world_size)[self.group.rank] for update in updates]
        self._warn_of_idle_ranks(updates)
        jobs = ((number, micro) for number, micros in enumerate(own[first:], first) for micro in micros)
        num_threads = 1 if self.features.manifest.online else PREFETCH_THREADS  # the target runs in one thread
        if progress:
            peak = measure_peak_flops(self.dtype, self.device)
            self.utilization = FlopsUtilization(self.head, self.target.info.vocab_size, peak)
        with (
            open_trackers(config.watch if tracker_dir else (), tracker_dir or Path(), origin, first) as log,
            catch_sigterm() as sigterm,
            prefetch(self._read_micro_batch, jobs, PREFETCH_BATCHES, num_threads) as batches,
            Progress(STAGE, sum(update.num_supervised for update in updates), "tokens", enabled=progress) as bar,
        ):
            bar.skip(sum(update.num_supervised for update in updates[:first]))
            for number, update in enumerate(updates[first:], first + 1):
                learning_rate = cosine_learning_rate(config.learning_rate, warmup_updates, len(updates), number - 1)
                self._accumulate_gradients(update, own[number - 1], batches, number)
                self._step(learning_rate, number)
                self.selection.update_ema(number)
                figures = self.selection.evaluate(number) if number in evaluate_at else {}
                is_last = number == len(updates) or self.selection.should_stop
                note = ""
                if number % config.log_every == 0 or is_last or figures:
                    note = self._end_line(number, learning_rate, figures)
                    log(self.metrics_lines[-1])
                bar.advance(update.num_supervised, note)
                if is_last:
                    break
                if self._save_if_due(checkpoint_dir, origin, number, sigterm.is_set()):
                    problem = f"SIGTERM arrived during update {number} of {len(updates)}; a checkpoint is written"
                    raise StageError(problem, "To continue training from there, run the same command again")
        self.selection.apply_chosen()

    def _end_line(self, number: int, learning_rate: float, figures: dict[str, float]) -> str:
        """Appends a line to `metrics_lines` and resets the metric sums. Returns the text for the progress bar."""
        line = self.metric_sums.to_line(number, number - self.window_start, learning_rate) | figures
        self.metrics_lines.append(line)
        self.metric_sums, self.window_start = MetricSums(self.config.num_steps), number
        return "  ".join([format_line(line), *([self.utilization.format_share()] if self.utilization else [])])

    def _plan_epochs(self) -> Iterator[list[Update]]:
        """Yields the updates of each epoch, until `train.epochs` or `train.updates` is reached."""
        config, epoch, planned = self.config, 0, 0
        while epoch < config.epochs if config.updates is None else planned < config.updates:
            rows = self.features.manifest.rows
            updates = plan_epoch(rows, self.indices, (config.seed, epoch), config.batch_tokens, config.micro_tokens)
            yield updates if config.updates is None else updates[: config.updates - planned]
            planned += len(updates)
            epoch += 1

    def _read_micro_batch(self, job: tuple[int, tuple[int, ...]]) -> PackedBatch:
        """Reads a micro-batch. job: the number of its update, and the indices of its rows."""
        (number, micro), config = job, self.config
        seed = (config.seed, number, micro[0])
        rows, window = list(self.features.rows(micro)), config.window if number % 2 else None
        packed = pack_rows(rows, config.num_steps, self.dtype, config.max_anchors, seed, window)
        return packed.map(torch.Tensor.pin_memory) if self.device.type == "cuda" else packed

    def _accumulate_gradients(
        self, update: Update, micros: list[tuple[int, ...]], batches: Iterator[PackedBatch], number: int
    ) -> None:
        """Accumulates the gradients of the micro-batches of this process. Adds the metrics of all processes."""
        own, failed = MetricSums(self.config.num_steps), None
        rows, most = self.features.manifest.rows, self.config.max_anchors or sys.maxsize
        num_chains = sum(min(rows[i].num_supervised, most) for micro in update.micro_batches for i in micro)
        for micro in micros:
            packed = next(batches).map(lambda tensor: tensor.to(self.device, non_blocking=True))
            output = self.compute_loss(packed)
            loss = output.loss / num_chains
            if not torch.isfinite(loss):
                failed = micro
                break
            loss.backward()
            self.optimizer.accumulate_gradients()
            own.add(packed, output, num_chains)
            if self.utilization is not None:
                self.utilization.add(packed)
        # A process that fails has no gradients. All processes must know this before they all-reduce gradients.
        flag = torch.tensor([float(failed is not None)]).double()
        sums = self.group.all_reduce_sum(torch.cat((flag, own.sums_SK.flatten())))
        if sums[0] > 0:
            where = self._name_conversations(failed) if failed else "in another process"
            raise self._not_finite_error(f"The loss of update {number} is NaN or infinite, {where}")
        self.metric_sums.sums_SK += sums[1:].view_as(own.sums_SK)

    def _step(self, learning_rate: float, number: int) -> None:
        if not math.isfinite(self.optimizer.step(learning_rate)):
            raise self._not_finite_error(f"The gradient of update {number} is NaN or infinite; its losses are finite")

    def _not_finite_error(self, problem: str) -> StageError:
        fix = "Lower train.learning_rate or raise train.warmup; if the features are wrong, run `eyas capture` again"
        return StageError(problem, f"{fix}. The last checkpoint stays, and the same command resumes from it")

    def _name_conversations(self, micro: tuple[int, ...]) -> str:
        ids = [self.features.manifest.rows[i].id for i in micro]
        more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
        return f"in conversations {', '.join(ids[:MAX_NAMED])}{more}"

    def compute_loss(self, packed: PackedBatch) -> LossOutput:
        """Returns the loss of a micro-batch. The caller must divide it (see LossOutput.loss)."""
        return compute_loss_by_kind(self.head, packed, self.teacher, self.target, self.config)

    def _save_if_due(self, directory: StoragePath, origin: str, number: int, must_stop: bool) -> bool:
        """Writes a checkpoint if `train.checkpoint_every_s` has passed, or any process must stop.

        Returns:
            True if any process must stop. must_stop: this process received SIGTERM.
        """
        is_due = self.group.is_main and time.monotonic() - self._saved_s >= self.config.checkpoint_every_s
        num_stops, num_saves = self.group.all_reduce_sum(torch.tensor([must_stop, must_stop or is_due]).int()).tolist()
        if num_saves:
            sums, selection = self.metric_sums.sums_SK.tolist(), self.selection.to_json()
            checkpoint = checkpoints.Checkpoint(number, self.window_start, sums, self.metrics_lines, selection)
            checkpoints.write_checkpoint(directory, checkpoint, self._state(), origin, self.group)
            self._saved_s = time.monotonic()
        return num_stops > 0

    def _state(self) -> dict[str, torch.Tensor]:
        return self.optimizer.state() | self.selection.state()

    def _resume(self, directory: StoragePath, origin: str) -> int:
        """Loads the checkpoint of this run. Returns the number of finished updates, 0 without a usable checkpoint."""
        found, loaded, damage = None, {}, ""
        try:
            found = checkpoints.read_checkpoint(directory, origin)
            if found is not None:
                loaded = checkpoints.load_tensors(directory, found, self._state(), self.group)
        except checkpoints.DamagedCheckpointError as error:
            damage = str(error)
        damages = {text for text in self.group.all_gather(damage) if text}
        updates = set(self.group.all_gather("none" if found is None else str(found.update)))
        if not damages and len(updates) > 1:
            damages = {f"the processes read different checkpoints (updates {', '.join(sorted(updates))})"}
        if damages and self.group.is_main:
            reasons = "; ".join(sorted(damages))
            print(f"eyas: the checkpoint is not usable: {reasons}. Training starts from update 0.", file=sys.stderr)
        if damages or found is None:
            return 0
        self.optimizer.load_state(loaded)
        self.selection.load_state(loaded, found.selection)
        self.metric_sums.sums_SK.copy_(torch.tensor(found.window_SK, dtype=torch.float64))
        self.window_start, self.metrics_lines = found.window_start, list(found.lines)
        return found.update

    def _warn_of_idle_ranks(self, updates: list[Update]) -> None:
        num_small = sum(len(update.micro_batches) < self.group.world_size for update in updates)
        if num_small and self.group.is_main:
            few = f"{num_small} of {len(updates)} updates have fewer micro-batches than the {self.group.world_size}"
            fix = "Raise train.batch_tokens, or lower train.micro_tokens."
            print(f"eyas: {few} processes, so some processes wait. {fix}", file=sys.stderr)
