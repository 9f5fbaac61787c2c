"""The training loop: features in, a head directory out.

head/  config.json  model.safetensors  README.md  metrics.jsonl  (checkpoint.safetensors while it runs)
"""

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from eyas.base.errors import InputError, StageError, UsageError
from eyas.base.progress import Progress
from eyas.base.provenance import (
    Origin,
    Provenance,
    digest_json,
    finish,
    is_finished,
    read_provenance,
    reopen,
    write_atomic,
)
from eyas.base.storage import Place
from eyas.features.reader import Features, Update, plan_epoch
from eyas.formats.head_dir import HeadOrigin, digest_head, write_head
from eyas.model.dtypes import DTYPES
from eyas.model.facts import TargetFacts
from eyas.model.head import Head, HeadConfig
from eyas.model.layer_ids import HFIndex
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.train import metrics
from eyas.train.card import card
from eyas.train.checkpoint import Checkpoint, read_checkpoint, remove_checkpoint, write_checkpoint
from eyas.train.loss import Graded, Lessons, LossName, grade
from eyas.train.optimizer import Masters, Schedule
from eyas.train.start import RANDOM, first_head
from eyas.train.teacher import Teacher
from eyas.train.ttt import Packed, pack, unroll

STAGE = "train"


@dataclass(frozen=True)
class HeadOptions:
    """The head's own choices; None takes the target's value."""

    intermediate_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    fc_norm: bool = False
    norm_output: bool = False


@dataclass(frozen=True)
class TrainConfig:
    """How a head is trained. An *update* is an optimizer step; a *step* is one of the unrolled steps (glossary).

    steps, decay: unrolled steps K and the weight decay^k of step k. epochs: passes over the data; updates: a number of
    updates instead. batch_tokens: supervised tokens of an update; micro_tokens: tokens (prompts included) of one
    forward. warmup: share of all updates. loss: `train.loss` says which there are. init, lm_head: what the weights
    start from, `train.start`. dtype: of the products; weights and moments are float32 throughout. stored_dtype: of
    model.safetensors. log_every: updates a line of metrics.jsonl. Raises UsageError.
    """

    steps: int = 7
    decay: float = 0.8
    epochs: int = 3
    updates: int | None = None
    batch_tokens: int = 2048
    micro_tokens: int = 8192
    learning_rate: float = 1e-3
    warmup: float = 0.03
    weight_decay: float = 0.01
    clip: float = 0.5
    seed: int = 0
    draft_vocab_size: int = 32000
    head: HeadOptions = field(default_factory=HeadOptions)
    init: str = RANDOM
    lm_head: Literal["random", "target"] = "random"
    loss: LossName = "soft"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    stored_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    log_every: int = 20
    checkpoint_every_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.init:
            raise UsageError("an empty train.init", "'random' or a head directory", "leave it out to start at random")
        for name in ("steps", "epochs", "updates", "batch_tokens", "micro_tokens", "draft_vocab_size", "log_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"train.{name} = {value}", "at least 1", f"raise train.{name}")
        for name, high in (("decay", 1.0), ("warmup", 1.0), ("learning_rate", math.inf), ("clip", math.inf)):
            value = getattr(self, name)
            if not 0 <= value <= high or (value == 0 and name != "warmup"):
                raise UsageError(f"train.{name} = {value}", f"above 0 and at most {high}", f"change train.{name}")


def origin_of(config: TrainConfig, features: Features, target: Target) -> Origin:
    """What decides the head. How often a run saves itself changes no byte of it, nor where the head to start from lies.

    `InputError` where that one is missing.
    """
    settings = dataclasses.asdict(dataclasses.replace(config, checkpoint_every_s=0.0))
    parents = {"features": features.digest, "target": target.digest}
    if config.init != RANDOM:
        settings["init"], parents["init"] = "head", digest_head(Path(config.init))
    return Origin(
        stage=STAGE,
        recipe=digest_json(settings | {"target_dtype": str(target.model.dtype)}),
        parents=parents,
        tokenizer=features.manifest.tokenizer_digest,
        template=features.manifest.template_digest,
    )


def run(
    config: TrainConfig,
    features_dir: Path | Place,
    target: Target,
    out_dir: Path,
    *,
    progress: bool = True,
    data_card: str = "",
) -> Provenance:
    """Train a head on the rows of split "train" and write its directory. Idempotent; resumes after any interruption.

    data_card: what the head's card is to say of data and licences, as Markdown.

    The bytes depend on config, features, target and the number of threads, not on where a run was interrupted.
    `InputError` for features that are damaged, unfinished or of another target; `StageError` for a full disk and a loss
    that is no number.
    """
    started_s = time.time()
    features = Features(features_dir, DTYPES[config.dtype])
    features.check_target(target.digest)
    if config.init != RANDOM and Path(config.init).resolve() == out_dir.resolve():
        raise UsageError(f"train.init = {config.init}, where the new head goes", "another directory", "copy that head")
    origin = origin_of(config, features, target)
    if is_finished(out_dir, origin):
        return read_provenance(out_dir)
    trainer = Trainer(config, features, target)
    reopen(out_dir)
    trainer.train(out_dir, digest_json(dataclasses.asdict(origin)), progress)
    rows = [features.manifest.rows[i] for i in trainer.indices]
    head_origin = HeadOrigin(
        target_name=features.manifest.target,
        target_digest=target.digest,
        trained_context=max(row.length for row in rows),
        bos_id=target.facts.bos_id,
        eos_ids=target.facts.eos_ids,
    )
    head = Head(trainer.head.config).to_empty(device="cpu")
    head.load_state_dict(trainer.masters.weights)
    write_head(out_dir, head, trainer.vocab, head_origin, DTYPES[config.stored_dtype])
    write_atomic(out_dir / "metrics.jsonl", metrics.to_jsonl(trainer.lines))
    told = card(
        trainer.head, trainer.vocab, features, rows, trainer.lines[-1], _choices(config, trainer.head.config, origin)
    )
    write_atomic(out_dir / "README.md", "\n".join(part for part in (told, data_card) if part))
    remove_checkpoint(out_dir)
    return finish(out_dir, origin, started_s)


def _choices(config: TrainConfig, sizes: HeadConfig, origin: Origin) -> dict[str, str]:
    """For the card: what differs from a plain EAGLE-3 head and its training."""
    choices = {"graph": sizes.variant} if sizes.fc_norm or sizes.norm_output else {}
    if config.loss != "soft":
        choices["loss"] = config.loss
    if config.lm_head != "random":
        choices["output rows"] = "started as the target's"
    if "init" in origin.parents:
        choices["started from"] = f"a head, digest `{origin.parents['init']}`"
    return choices


def head_config(config: TrainConfig, aux_layer_ids: Sequence[int], facts: TargetFacts) -> HeadConfig:
    """The sizes of the head: the target's layer, with the options of the recipe. `InputError` if none can be built."""
    options = config.head
    sizes = HeadConfig.for_target(
        facts,
        min(config.draft_vocab_size, facts.vocab_size),
        intermediate_size=options.intermediate_size,
        aux_layer_ids=tuple(HFIndex(i) for i in aux_layer_ids),
        fc_norm=options.fc_norm,
        norm_output=options.norm_output,
    )
    sizes = dataclasses.replace(
        sizes,
        num_heads=options.num_heads or sizes.num_heads,
        num_kv_heads=options.num_kv_heads or sizes.num_kv_heads,
        head_dim=options.head_dim or sizes.head_dim,
    )
    if (problem := sizes.problem()) is not None:
        raise InputError(problem, "sizes that make a head", "change train.head, or capture other layers")
    return sizes


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
    """A head, its optimizer and its data."""

    def __init__(self, config: TrainConfig, features: Features, target: Target) -> None:
        self.config = config
        self.features = features
        self.target = target
        self.dtype = DTYPES[config.dtype]
        rows = features.manifest.rows
        self.indices = [i for i in features.indices("train") if rows[i].num_supervised > 0]
        if not self.indices:
            raise InputError(
                f"no row to train on in {features.directory}",
                "at least one with two generated tokens that is not held out",
                "capture more conversations, or lower capture.held_out",
            )
        counts_W = features.generated_counts(self.indices)
        sizes = head_config(config, features.manifest.aux_layer_ids, target.facts)
        self.vocab = DraftVocab.from_counts(counts_W, sizes.draft_vocab_size, target.facts.eos_ids)
        self.head = first_head(sizes, self.vocab, target, config.seed, config.init, config.lm_head)
        # Before the cast to another precision: the masters start from the very numbers that the head starts from.
        self.masters = Masters(self.head, config.weight_decay, config.clip)
        self.head.to(self.dtype)
        self.teacher = Teacher(target.lm_head, self.vocab, self.dtype, target.logit_cap)
        self.window = metrics.Window(config.steps)
        self.lines: list[dict[str, object]] = []

    def train(self, out_dir: Path, origin: str, progress: bool) -> None:
        """All updates, from the checkpoint of the same origin in out_dir if there is one."""
        config = self.config
        updates = list(self._updates())
        schedule = Schedule(config.learning_rate, max(1, round(config.warmup * len(updates))), len(updates))
        first, window_start = self._resume(out_dir, origin)
        saved_s = time.monotonic()
        total = sum(update.num_supervised for update in updates)
        with Progress(STAGE, total, "tokens", enabled=progress) as bar:
            bar.skip(sum(update.num_supervised for update in updates[:first]))
            for number in range(first, len(updates)):
                self._update(updates[number], schedule.at(number), number + 1)
                note = ""
                if (number + 1) % config.log_every == 0 or number + 1 == len(updates):
                    line = self.window.line(number + 1, number + 1 - window_start, schedule.at(number))
                    self.lines.append(line)
                    self.window, window_start = metrics.Window(config.steps), number + 1
                    note = metrics.summary(line)
                bar.advance(updates[number].num_supervised, note)
                if number + 1 < len(updates) and time.monotonic() - saved_s >= config.checkpoint_every_s:
                    tensors = self.masters.state() | {"window": self.window.sums_SK}
                    write_checkpoint(out_dir, Checkpoint(number + 1, window_start, tensors, self.lines), origin)
                    saved_s = time.monotonic()

    def _updates(self) -> Iterator[Update]:
        config, made, epoch = self.config, 0, 0
        while epoch < config.epochs if config.updates is None else made < config.updates:
            order = (config.seed, epoch)
            rows = self.features.manifest.rows
            for update in plan_epoch(rows, self.indices, order, config.batch_tokens, config.micro_tokens):
                if config.updates is None or made < config.updates:
                    yield update
                    made += 1
            epoch += 1

    def _resume(self, out_dir: Path, origin: str) -> tuple[int, int]:
        checkpoint = read_checkpoint(out_dir, origin)
        if checkpoint is None:
            return 0, 0
        self.masters.load_state(checkpoint.tensors)
        self.window = metrics.copy_sums(checkpoint.tensors["window"], self.config.steps)
        self.lines = list(checkpoint.lines)
        return checkpoint.update, checkpoint.window_start

    def _update(self, update: Update, learning_rate: float, number: int) -> None:
        for micro in update.micro_batches:
            packed = pack(list(self.features.rows(micro)), self.config.steps, self.dtype)
            graded = self.forward(packed)
            loss = graded.loss / update.num_supervised
            if not torch.isfinite(loss):
                raise StageError(
                    f"loss {float(loss.detach())} in update {number}",
                    "a finite loss",
                    "lower train.learning_rate, or raise train.warmup",
                )
            loss.backward()
            self.masters.collect()
            self.window.add(packed, graded, update.num_supervised)
        self.masters.update(learning_rate)

    def forward(self, packed: Packed) -> Graded:
        """All steps of a micro-batch and their loss, not yet divided."""
        return learn(self.head, packed, self.teacher, self.target, self.config.decay, self.config.loss)
