"""The training loop of one process, alone or one of several that compute the same updates together.

update    micro-batches of this process: read ahead, forward, backward, gradients added up in float32
          sum over processes: is every loss a number, must anybody go, figures          a few numbers
          sum over processes: gradients                                                 once an update
          optimizer step                                                                the same in each process
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
from eyas.base.storage import StoragePath
from eyas.evaluation.replay import HeldOutRows
from eyas.features.reader import Features
from eyas.model.devices import DTYPES
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab, required_ids
from eyas.train import training_metrics as metrics
from eyas.train.batches import THREADS, Update, assign_to_ranks, plan_epoch, prefetch
from eyas.train.checkpoint import Checkpoint, DamagedCheckpoint, load_tensors, read_checkpoint, write_checkpoint
from eyas.train.checkpoint_selection import CheckpointSelection, evaluation_updates
from eyas.train.config import TrainConfig, build_head_config
from eyas.train.distributed import SINGLE_PROCESS, ProcessGroup, catch_sigterm
from eyas.train.init_head import init_head
from eyas.train.loss import LossName, LossOutput, Teacher, TeacherTargets, compute_loss
from eyas.train.optimizer import CosineSchedule, MasterWeightOptimizer
from eyas.train.training_metrics import FlopsUtilization, measure_peak_flops, open_trackers
from eyas.train.ttt import PackedBatch, pack_rows, unroll

STAGE = "train"
MAX_NAMED = 8  # conversations in a message


def compute_batch_loss(
    head: Head, packed: PackedBatch, teacher: Teacher, target: Target, decay: float, loss: LossName = "soft"
) -> LossOutput:
    """All steps of a micro-batch and their loss, not yet divided."""
    with torch.no_grad():
        dtype = packed.aux_PL.dtype
        rows_PD, chains_KQD = (target.embed(ids).to(dtype) for ids in (packed.next_ids_P, packed.tokens_KQ))
    out_KQD = unroll(head, packed, rows_PD, chains_KQD)
    normed_ND = head.norm(out_KQD).flatten(0, 1)
    lessons = TeacherTargets(packed.hidden_JD, packed.student_index_JK, packed.supervised_JK)
    return compute_loss(normed_ND, head.lm_head.weight, lessons, teacher, decay, loss)


class Trainer:
    """A head, its optimizer and its data, where the target is."""

    def __init__(
        self,
        config: TrainConfig,
        features: Features,
        target: Target,
        ranks: ProcessGroup = SINGLE_PROCESS,
        held_out: HeldOutRows | None = None,
    ) -> None:
        """held_out: the answers that decide which weights are kept; None: the last ones are."""
        self.config = config
        self.features = features
        self.target = target
        self.ranks = ranks
        self.dtype = DTYPES[config.dtype]
        self.device = target.embedding.weight.device
        rows = features.manifest.rows
        self.indices = [i for i in features.indices("train") if rows[i].num_supervised > 0]
        if not self.indices:
            raise InputError(
                f"no row to train on in {features.directory}",
                "at least one with two generated tokens that is not held out",
                "capture more conversations, or lower capture.held_out",
            )
        # Whole shards, so that each is read by one process.
        counted = [i for i in self.indices if rows[i].shard % ranks.world_size == ranks.rank]
        counts_W = ranks.all_reduce_sum(features.generated_counts(counted))
        sizes = build_head_config(config, features.manifest.aux_layer_ids, target.info)
        forced = required_ids(target.tokenizer, target.info.eos_ids, counts_W)
        self.vocab = DraftVocab.from_counts(counts_W, sizes.draft_vocab_size, forced)
        self.head = init_head(sizes, self.vocab, target, config.seed, config.init, config.lm_head).to(self.device)
        # Before the cast to another precision: the masters start from the very numbers that the head starts from.
        self.optimizer = MasterWeightOptimizer(self.head, config.weight_decay, config.clip, ranks, config.shard)
        self.head.to(self.dtype)
        self.teacher = Teacher(target.lm_head, self.vocab, self.dtype, target.logit_softcap)
        self.selection = CheckpointSelection(config, sizes, self.vocab, self.optimizer, held_out)
        self.metric_sums = metrics.MetricSums(config.steps)
        self.window_start = 0
        self.metrics_lines: list[dict[str, Any]] = []
        self.utilization: FlopsUtilization | None = None

    def train(
        self, checkpoint_dir: StoragePath | Path, origin: str, progress: bool, tracker_dir: Path | None = None
    ) -> None:
        """All updates, from the checkpoint of the same origin if `place` has one. The masters end as what is chosen.

        watch_dir: where `train.watch` writes; None: nobody watches.
        """
        config, checkpoint_dir = self.config, StoragePath.of(checkpoint_dir)
        epochs = list(self._plan_epochs())
        updates = [update for epoch in epochs for update in epoch]
        looks = (
            evaluation_updates([len(epoch) for epoch in epochs], config.evaluate_every)
            if self.selection.held_out
            else set()
        )
        schedule = CosineSchedule(config.learning_rate, max(1, round(config.warmup * len(updates))), len(updates))
        first = self._resume(checkpoint_dir, origin)
        rows, saved_s = self.features.manifest.rows, time.monotonic()
        own = [assign_to_ranks(update, rows, self.ranks.world_size)[self.ranks.rank] for update in updates]
        self._warn_of_idle_ranks(updates)
        jobs = (micro for micros in own[first:] for micro in micros)
        total = sum(update.num_supervised for update in updates)
        if progress:
            self.utilization = FlopsUtilization(
                self.head, self.target.info.vocab_size, measure_peak_flops(self.dtype, self.device)
            )
        with (
            open_trackers(config.watch if tracker_dir else (), tracker_dir or Path(), origin, first) as tell,
            catch_sigterm() as leaving,
            # The forward of a target that computes features need not stand two threads.
            prefetch(self._read_micro_batch, jobs, threads=1 if self.features.manifest.online else THREADS) as packed,
            Progress(STAGE, total, "tokens", enabled=progress) as bar,
        ):
            bar.skip(sum(update.num_supervised for update in updates[:first]))
            for number, update in enumerate(updates[first:], first + 1):
                rate = schedule.learning_rate(number - 1)
                self._accumulate_gradients(update, own[number - 1], packed, number)
                self._step(rate, number)
                self.selection.update_ema(number)
                seen = self.selection.evaluate(number) if number in looks else {}
                is_last = number == len(updates) or self.selection.should_stop
                note = ""
                if number % config.log_every == 0 or is_last or seen:
                    line = self.metric_sums.to_line(number, number - self.window_start, rate) | seen
                    self.metrics_lines.append(line)
                    tell(line)
                    self.metric_sums, self.window_start = metrics.MetricSums(config.steps), number
                    note = "  ".join(
                        [metrics.format_line(line), *([self.utilization.format_share()] if self.utilization else [])]
                    )
                bar.advance(update.num_supervised, note)
                is_due = self.ranks.is_main and time.monotonic() - saved_s >= config.checkpoint_every_s
                must_go, must_save = self.ranks.all_reduce_sum(
                    torch.tensor([leaving.received, leaving.received or is_due]).int()
                ).tolist()
                if not is_last and must_save:
                    self._save(checkpoint_dir, origin, number)
                    saved_s = time.monotonic()
                if is_last:
                    break
                if must_go:
                    raise StageError(
                        f"SIGTERM, the notice that a machine is about to go, during update {number} of {len(updates)}",
                        "to train on to the end",
                        "run the same command again: a checkpoint is written, and it continues there",
                    )
        self.selection.apply_chosen()

    def _plan_epochs(self) -> Iterator[list[Update]]:
        """The updates of each; `train.updates` may end in the middle of one."""
        config, made, epoch = self.config, 0, 0
        while epoch < config.epochs if config.updates is None else made < config.updates:
            order = (config.seed, epoch)
            rows = self.features.manifest.rows
            updates = plan_epoch(rows, self.indices, order, config.batch_tokens, config.micro_tokens)
            yield updates if config.updates is None else updates[: config.updates - made]
            made += len(updates)
            epoch += 1

    def _read_micro_batch(self, micro: tuple[int, ...]) -> PackedBatch:
        packed = pack_rows(list(self.features.rows(micro)), self.config.steps, self.dtype)
        return packed.map(torch.Tensor.pin_memory) if self.device.type == "cuda" else packed

    def _accumulate_gradients(
        self, update: Update, micros: list[tuple[int, ...]], packed: Iterator[PackedBatch], number: int
    ) -> None:
        """The gradients of this process, and the figures of all."""
        own, bad = metrics.MetricSums(self.config.steps), None
        for micro in micros:
            batch = next(packed).map(lambda tensor: tensor.to(self.device, non_blocking=True))
            graded = self.compute_loss(batch)
            loss = graded.loss / update.num_supervised
            if not torch.isfinite(loss):
                bad = micro
                break
            loss.backward()
            self.optimizer.accumulate_gradients()
            own.add(batch, graded, update.num_supervised)
            if self.utilization is not None:
                self.utilization.add(batch)
        # Nobody may wait for the gradients of a process that has none: all hear of it before.
        sums = self.ranks.all_reduce_sum(
            torch.cat((torch.tensor([float(bad is not None)]).double(), own.sums_SK.flatten()))
        )
        if sums[0] > 0:
            raise self._not_finite_error(
                "a loss", number, self._name_conversations(bad) if bad else "in another process"
            )
        self.metric_sums.sums_SK += sums[1:].view_as(own.sums_SK)

    def _step(self, learning_rate: float, number: int) -> None:
        if not math.isfinite(self.optimizer.step(learning_rate)):
            raise self._not_finite_error("a gradient", number, "though each loss was one")

    def _not_finite_error(self, what: str, number: int, where: str) -> StageError:
        return StageError(
            f"{what} that is no finite number in update {number}, {where}",
            "numbers",
            "lower train.learning_rate, or raise train.warmup; if data did it, capture those conversations again."
            " The last checkpoint is kept, the same command continues there",
        )

    def _name_conversations(self, micro: tuple[int, ...]) -> str:
        ids = [self.features.manifest.rows[i].id for i in micro]
        more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
        return f"conversations {', '.join(ids[:MAX_NAMED])}{more}"

    def compute_loss(self, packed: PackedBatch) -> LossOutput:
        """All steps of a micro-batch and their loss, not yet divided."""
        return compute_batch_loss(self.head, packed, self.teacher, self.target, self.config.decay, self.config.loss)

    def _save(self, place: StoragePath, origin: str, number: int) -> None:
        window = self.metric_sums.sums_SK.tolist()
        checkpoint = Checkpoint(number, self.window_start, window, self.metrics_lines, self.selection.to_json())
        state = self.selection.add_state(self.optimizer.state())
        write_checkpoint(place, checkpoint, state, origin, self.ranks)

    def _resume(self, place: StoragePath, origin: str) -> int:
        """How many updates are made. A checkpoint that cannot be used is said to be so, and training starts anew."""
        found = read_checkpoint(place, origin)
        state = self.selection.add_state(self.optimizer.state()).empty_like()
        if isinstance(found, Checkpoint):
            found = load_tensors(place, found, state, self.ranks) or found
        damage = {
            text for text in self.ranks.all_gather(found.reason if isinstance(found, DamagedCheckpoint) else "") if text
        }
        updates = set(self.ranks.all_gather(str(found.update) if isinstance(found, Checkpoint) else "none"))
        if not damage and len(updates) > 1:
            damage = {f"other checkpoints in other processes (after updates {', '.join(sorted(updates))})"}
        if damage and self.ranks.is_main:
            print(f"eyas: no usable checkpoint: found {'; '.join(sorted(damage))}; starting anew", file=sys.stderr)
        if damage or not isinstance(found, Checkpoint):
            return 0
        self.optimizer.load_state(state)
        self.selection.load_state(state, found.selection)
        self.metric_sums.sums_SK.copy_(torch.tensor(found.window_SK, dtype=torch.float64))
        self.window_start, self.metrics_lines = found.window_start, list(found.lines)
        return found.update

    def _warn_of_idle_ranks(self, updates: list[Update]) -> None:
        world = self.ranks.world_size
        few = sum(len(update.micro_batches) < world for update in updates)
        if few and self.ranks.is_main:
            print(
                f"eyas: {few} of {len(updates)} updates have fewer micro-batches than the {world} processes, some of"
                " which wait: raise train.batch_tokens, or lower train.micro_tokens",
                file=sys.stderr,
            )
