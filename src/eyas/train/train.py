"""The stage: features in, a head directory out.

head/  config.json  model.safetensors  README.md  metrics.jsonl  (checkpoint*, while it runs)
"""

import dataclasses
import time
from pathlib import Path

from eyas.base.errors import UsageError
from eyas.base.provenance import (
    Provenance,
    StageInputs,
    digest_json,
    finish_stage,
    is_finished,
    mark_unfinished,
    read_provenance,
)
from eyas.base.storage import StoragePath, write_atomic
from eyas.evaluation.held_out import HeldOut, some_held_out
from eyas.features.reader import Features
from eyas.formats.config import HeadMetadata
from eyas.formats.head_dir import digest_head, write_head
from eyas.model.devices import DTYPES
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.train import training_metrics as metrics
from eyas.train.checkpoint import remove_checkpoint
from eyas.train.config import TrainConfig
from eyas.train.experiment_trackers import DIRECTORY
from eyas.train.head_card import card
from eyas.train.init_head import RANDOM
from eyas.train.ranks import ALONE, Ranks
from eyas.train.trainer import STAGE, Trainer

FREE = ("checkpoint_every_s", "checkpoint_url", "shard", "watch")


def origin_of(config: TrainConfig, features: Features, target: Target) -> StageInputs:
    """What decides the head: not where the head to start from lies, how often a run saves itself, where, who watches,
    and divided among how many processes. Their number changes the order in which gradients are added up, so a rounding.

    `InputError` where that one is missing.
    """
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in FREE}
    parents = {"features": features.digest, "target": target.digest}
    if config.init != RANDOM:
        settings["init"], parents["init"] = "head", digest_head(Path(config.init))
    return StageInputs(
        stage=STAGE,
        recipe=digest_json(settings | {"target_dtype": str(target.model.dtype)}),
        parents=parents,
        tokenizer=features.manifest.tokenizer_digest,
        template=features.manifest.template_digest,
    )


def run(
    config: TrainConfig,
    features_dir: Path | StoragePath,
    target: Target,
    out_dir: Path,
    *,
    progress: bool = True,
    data_card: str = "",
    ranks: Ranks = ALONE,
) -> Provenance | None:
    """Train a head on the rows of split "train" and write its directory. Idempotent; resumes after any interruption.

    data_card: what the head's card is to say of data and licences, as Markdown. ranks: all processes call this at once;
    the first writes, and gets the provenance.

    The bytes depend on config, features, target and the number of threads and of processes, not on where a run was
    interrupted. `InputError` for features that are damaged, unfinished or of another target; `StageError` for a loss
    that is no number, a notice that the machine is about to go, and a process that is gone; `StorageError` for a full
    disk.
    """
    started_s = time.time()
    features = Features(features_dir, DTYPES[config.dtype], target)
    features.check_target(target.digest)
    if config.init != RANDOM and Path(config.init).resolve() == out_dir.resolve():
        raise UsageError(f"train.init = {config.init}, where the new head goes", "another directory", "copy that head")
    origin = origin_of(config, features, target)
    if ranks.any(ranks.is_first and is_finished(out_dir, origin)):
        return read_provenance(out_dir) if ranks.is_first else None
    trainer = Trainer(config, features, target, ranks, _held_out(config, features_dir, target))
    if ranks.is_first:
        mark_unfinished(out_dir)
    place = StoragePath.of(out_dir if config.checkpoint_url is None else config.checkpoint_url)
    watch_dir = out_dir.parent / DIRECTORY if ranks.is_first else None
    trainer.train(place, digest_json(dataclasses.asdict(origin)), progress and ranks.is_first, watch_dir)
    weights = trainer.masters.whole()
    if not ranks.is_first:
        return None
    rows = [features.manifest.rows[i] for i in trainer.indices]
    head_origin = HeadMetadata(
        target_name=features.manifest.target,
        target_digest=target.digest,
        trained_context=max(row.length for row in rows),
        bos_id=target.info.bos_id,
        eos_ids=target.info.eos_ids,
        tokenizer_digest=features.manifest.tokenizer_digest,
        template_digest=features.manifest.template_digest,
    )
    head = Head(trainer.head.config).to_empty(device="cpu")
    head.load_state_dict(weights)
    write_head(out_dir, head, trainer.vocab, head_origin, DTYPES[config.stored_dtype])
    write_atomic(out_dir / "metrics.jsonl", metrics.to_jsonl(trainer.lines))
    told = card(trainer.head, trainer.vocab, features, rows, trainer.lines[-1], _choices(config, trainer, origin))
    write_atomic(out_dir / "README.md", "\n".join(part for part in (told, data_card) if part))
    for kept in (place, StoragePath.of(out_dir)):  # the recipe may have said another place before
        remove_checkpoint(kept)
    return finish_stage(out_dir, origin, started_s)


def _held_out(config: TrainConfig, features_dir: Path | StoragePath, target: Target) -> HeldOut | None:
    """The answers that decide which weights are kept, read in float32 as `eyas eval` does; None: there are none."""
    features = Features(features_dir, target=target)
    indices = some_held_out(features, config.evaluate_answers, config.seed)
    return HeldOut(features, indices, target, config.evaluate_tree, config.micro_tokens) if indices else None


def _choices(config: TrainConfig, trainer: Trainer, origin: StageInputs) -> dict[str, str]:
    """For the card: what differs from a plain EAGLE-3 head and its training."""
    sizes, chosen, last = trainer.head.config, trainer.selection.chosen, trainer.lines[-1]["update"]
    choices = {"graph": sizes.variant} if sizes.fc_norm or sizes.norm_output else {}
    if config.loss != "soft":
        choices["loss"] = config.loss
    if config.lm_head != "random":
        choices["output rows"] = "started as the target's"
    is_mean = config.ema > 0 if chosen is None else chosen.is_mean
    if is_mean or (chosen is not None and chosen.update != last):
        choices["weights"] = f"{'the mean of those up to' if is_mean else 'those of'} update "
        choices["weights"] += f"{last if chosen is None else chosen.update} of {last}"
    if "init" in origin.parents:
        choices["started from"] = f"a head, digest `{origin.parents['init']}`"
    return choices
