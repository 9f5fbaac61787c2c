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
from eyas.evaluation.held_out import HeldOut
from eyas.features.reader import Features
from eyas.model.devices import DTYPES
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab, required_ids
from eyas.train import training_metrics as metrics
from eyas.train.batch_order import Update, plan_epoch, shares
from eyas.train.checkpoint import Checkpoint, Damaged, read_checkpoint, read_tensors, write_checkpoint
from eyas.train.checkpoint_selection import Selection, looks_at
from eyas.train.config import TrainConfig, head_config
from eyas.train.experiment_trackers import watching
from eyas.train.flops_utilization import Pace, peak
from eyas.train.init_head import first_head
from eyas.train.loss import Graded, Lessons, LossName, grade
from eyas.train.optimizer import Masters, Schedule
from eyas.train.prefetch import THREADS, feed
from eyas.train.ranks import ALONE, Ranks, notice
from eyas.train.teacher import Teacher
from eyas.train.ttt import Packed, pack, unroll

STAGE = "train"
MAX_NAMED = 8  # conversations in a message


def learn(
    head: Head, packed: Packed, teacher: Teacher, target: Target, decay: float, loss: LossName = "soft"
) -> Graded:
    """All steps of a micro-batch and their loss, not yet divided."""
    with torch.no_grad():
        dtype = packed.aux_PL.dtype
        rows_PD, chains_KQD = (target.embed(ids).to(dtype) for ids in (packed.next_ids_P, packed.tokens_KQ))
    out_KQD = unroll(head, packed, rows_PD, chains_KQD)
    normed_ND = head.norm(out_KQD).flatten(0, 1)
    lessons = Lessons(packed.hidden_JD, packed.pupils_JK, packed.taught_JK)
    return grade(normed_ND, head.lm_head.weight, lessons, teacher, decay, loss)


class Trainer:
    """A head, its optimizer and its data, where the target is."""

    def __init__(
        self,
        config: TrainConfig,
        features: Features,
        target: Target,
        ranks: Ranks = ALONE,
        held_out: HeldOut | None = None,
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
        counted = [i for i in self.indices if rows[i].shard % ranks.world == ranks.rank]
        counts_W = ranks.sum_(features.generated_counts(counted))
        sizes = head_config(config, features.manifest.aux_layer_ids, target.info)
        forced = required_ids(target.tokenizer, target.info.eos_ids, counts_W)
        self.vocab = DraftVocab.from_counts(counts_W, sizes.draft_vocab_size, forced)
        self.head = first_head(sizes, self.vocab, target, config.seed, config.init, config.lm_head).to(self.device)
        # Before the cast to another precision: the masters start from the very numbers that the head starts from.
        self.masters = Masters(self.head, config.weight_decay, config.clip, ranks, config.shard)
        self.head.to(self.dtype)
        self.teacher = Teacher(target.lm_head, self.vocab, self.dtype, target.logit_softcap)
        self.selection = Selection(config, sizes, self.vocab, self.masters, held_out)
        self.window = metrics.Window(config.steps)
        self.window_start = 0
        self.lines: list[dict[str, Any]] = []
        self.pace: Pace | None = None

    def train(self, place: StoragePath | Path, origin: str, progress: bool, watch_dir: Path | None = None) -> None:
        """All updates, from the checkpoint of the same origin if `place` has one. The masters end as what is chosen.

        watch_dir: where `train.watch` writes; None: nobody watches.
        """
        config, place = self.config, StoragePath.of(place)
        epochs = list(self._epochs())
        updates = [update for epoch in epochs for update in epoch]
        looks = looks_at([len(epoch) for epoch in epochs], config.evaluate_every) if self.selection.held_out else set()
        schedule = Schedule(config.learning_rate, max(1, round(config.warmup * len(updates))), len(updates))
        first = self._resume(place, origin)
        rows, saved_s = self.features.manifest.rows, time.monotonic()
        own = [shares(update, rows, self.ranks.world)[self.ranks.rank] for update in updates]
        self._tell_of_idling(updates)
        jobs = (micro for micros in own[first:] for micro in micros)
        total = sum(update.num_supervised for update in updates)
        if progress:
            self.pace = Pace(self.head, self.target.info.vocab_size, peak(self.dtype, self.device))
        with (
            watching(config.watch if watch_dir else (), watch_dir or Path(), origin, first) as tell,
            notice() as leaving,
            # The forward of a target that computes features need not stand two threads.
            feed(self._read, jobs, threads=1 if self.features.manifest.online else THREADS) as packed,
            Progress(STAGE, total, "tokens", enabled=progress) as bar,
        ):
            bar.skip(sum(update.num_supervised for update in updates[:first]))
            for number, update in enumerate(updates[first:], first + 1):
                rate = schedule.at(number - 1)
                self._learn(update, own[number - 1], packed, number)
                self._step(rate, number)
                self.selection.follow(number)
                seen = self.selection.look(number) if number in looks else {}
                is_last = number == len(updates) or self.selection.is_over
                note = ""
                if number % config.log_every == 0 or is_last or seen:
                    line = self.window.line(number, number - self.window_start, rate) | seen
                    self.lines.append(line)
                    tell(line)
                    self.window, self.window_start = metrics.Window(config.steps), number
                    note = "  ".join([metrics.summary(line), *([self.pace.note()] if self.pace else [])])
                bar.advance(update.num_supervised, note)
                is_due = self.ranks.is_first and time.monotonic() - saved_s >= config.checkpoint_every_s
                must_go, must_save = self.ranks.sum_(
                    torch.tensor([leaving.given, leaving.given or is_due]).int()
                ).tolist()
                if not is_last and must_save:
                    self._save(place, origin, number)
                    saved_s = time.monotonic()
                if is_last:
                    break
                if must_go:
                    raise StageError(
                        f"SIGTERM, the notice that a machine is about to go, during update {number} of {len(updates)}",
                        "to train on to the end",
                        "run the same command again: a checkpoint is written, and it continues there",
                    )
        self.selection.take()

    def _epochs(self) -> Iterator[list[Update]]:
        """The updates of each; `train.updates` may end in the middle of one."""
        config, made, epoch = self.config, 0, 0
        while epoch < config.epochs if config.updates is None else made < config.updates:
            order = (config.seed, epoch)
            rows = self.features.manifest.rows
            updates = plan_epoch(rows, self.indices, order, config.batch_tokens, config.micro_tokens)
            yield updates if config.updates is None else updates[: config.updates - made]
            made += len(updates)
            epoch += 1

    def _read(self, micro: tuple[int, ...]) -> Packed:
        packed = pack(list(self.features.rows(micro)), self.config.steps, self.dtype)
        return packed.map(torch.Tensor.pin_memory) if self.device.type == "cuda" else packed

    def _learn(self, update: Update, micros: list[tuple[int, ...]], packed: Iterator[Packed], number: int) -> None:
        """The gradients of this process, and the figures of all."""
        own, bad = metrics.Window(self.config.steps), None
        for micro in micros:
            batch = next(packed).map(lambda tensor: tensor.to(self.device, non_blocking=True))
            graded = self.forward(batch)
            loss = graded.loss / update.num_supervised
            if not torch.isfinite(loss):
                bad = micro
                break
            loss.backward()
            self.masters.collect()
            own.add(batch, graded, update.num_supervised)
            if self.pace is not None:
                self.pace.add(batch)
        # Nobody may wait for the gradients of a process that has none: all hear of it before.
        sums = self.ranks.sum_(torch.cat((torch.tensor([float(bad is not None)]).double(), own.sums_SK.flatten())))
        if sums[0] > 0:
            raise self._no_number("a loss", number, self._named(bad) if bad else "in another process")
        self.window.sums_SK += sums[1:].view_as(own.sums_SK)

    def _step(self, learning_rate: float, number: int) -> None:
        if not math.isfinite(self.masters.update(learning_rate)):
            raise self._no_number("a gradient", number, "though each loss was one")

    def _no_number(self, what: str, number: int, where: str) -> StageError:
        return StageError(
            f"{what} that is no finite number in update {number}, {where}",
            "numbers",
            "lower train.learning_rate, or raise train.warmup; if data did it, capture those conversations again."
            " The last checkpoint is kept, the same command continues there",
        )

    def _named(self, micro: tuple[int, ...]) -> str:
        ids = [self.features.manifest.rows[i].id for i in micro]
        more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
        return f"conversations {', '.join(ids[:MAX_NAMED])}{more}"

    def forward(self, packed: Packed) -> Graded:
        """All steps of a micro-batch and their loss, not yet divided."""
        return learn(self.head, packed, self.teacher, self.target, self.config.decay, self.config.loss)

    def _save(self, place: StoragePath, origin: str, number: int) -> None:
        window = self.window.sums_SK.tolist()
        checkpoint = Checkpoint(number, self.window_start, window, self.lines, self.selection.note())
        state = self.selection.with_mine(self.masters.state())
        write_checkpoint(place, checkpoint, state, origin, self.ranks)

    def _resume(self, place: StoragePath, origin: str) -> int:
        """How many updates are made. A checkpoint that cannot be used is said to be so, and training starts anew."""
        found = read_checkpoint(place, origin)
        state = self.selection.with_mine(self.masters.state()).like()
        if isinstance(found, Checkpoint):
            found = read_tensors(place, found, state, self.ranks) or found
        damage = {text for text in self.ranks.gather(found.reason if isinstance(found, Damaged) else "") if text}
        updates = set(self.ranks.gather(str(found.update) if isinstance(found, Checkpoint) else "none"))
        if not damage and len(updates) > 1:
            damage = {f"other checkpoints in other processes (after updates {', '.join(sorted(updates))})"}
        if damage and self.ranks.is_first:
            print(f"eyas: no usable checkpoint: found {'; '.join(sorted(damage))}; starting anew", file=sys.stderr)
        if damage or not isinstance(found, Checkpoint):
            return 0
        self.masters.load_state(state)
        self.selection.load(state, found.selection)
        self.window.sums_SK.copy_(torch.tensor(found.window_SK, dtype=torch.float64))
        self.window_start, self.lines = found.window_start, list(found.lines)
        return found.update

    def _tell_of_idling(self, updates: list[Update]) -> None:
        world = self.ranks.world
        few = sum(len(update.micro_batches) < world for update in updates)
        if few and self.ranks.is_first:
            print(
                f"eyas: {few} of {len(updates)} updates have fewer micro-batches than the {world} processes, some of"
                " which wait: raise train.batch_tokens, or lower train.micro_tokens",
                file=sys.stderr,
            )
