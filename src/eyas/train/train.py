"""The stage: features in, a head directory out.

head/  config.json  model.safetensors  README.md  metrics.jsonl  (checkpoint*, while it runs)

The card of a head: README.md beside its weights. No times, no paths: equal runs write equal bytes.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from eyas.evaluation.replay import HeldOutRows, sample_held_out
from eyas.features.reader import Features
from eyas.features.store import RowInfo
from eyas.formats.config import HeadMetadata
from eyas.formats.head_dir import digest_head, write_head
from eyas.model.devices import DTYPES
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.train import training_metrics as metrics
from eyas.train.checkpoint import remove_checkpoint
from eyas.train.config import TrainConfig
from eyas.train.distributed import SINGLE_PROCESS, ProcessGroup
from eyas.train.init_head import RANDOM
from eyas.train.trainer import STAGE, Trainer
from eyas.train.training_metrics import TRACKER_DIRECTORY

NOT_IN_DIGEST = ("checkpoint_every_s", "checkpoint_url", "shard", "watch")


def build_origin(config: TrainConfig, features: Features, target: Target) -> StageInputs:
    """What decides the head: not where the head to start from lies, how often a run saves itself, where, who watches,
    and divided among how many processes. Their number changes the order in which gradients are added up, so a rounding.

    `InputError` where that one is missing.
    """
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in NOT_IN_DIGEST}
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
    ranks: ProcessGroup = SINGLE_PROCESS,
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
    origin = build_origin(config, features, target)
    if ranks.any_rank(ranks.is_main and is_finished(out_dir, origin)):
        return read_provenance(out_dir) if ranks.is_main else None
    trainer = Trainer(config, features, target, ranks, _build_held_out(config, features_dir, target))
    if ranks.is_main:
        mark_unfinished(out_dir)
    place = StoragePath.of(out_dir if config.checkpoint_url is None else config.checkpoint_url)
    watch_dir = out_dir.parent / TRACKER_DIRECTORY if ranks.is_main else None
    trainer.train(place, digest_json(dataclasses.asdict(origin)), progress and ranks.is_main, watch_dir)
    weights = trainer.optimizer.gather_weights()
    if not ranks.is_main:
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
    write_atomic(out_dir / "metrics.jsonl", metrics.to_jsonl(trainer.metrics_lines))
    told = build_head_card(
        trainer.head,
        trainer.vocab,
        features,
        rows,
        trainer.metrics_lines[-1],
        _describe_choices(config, trainer, origin),
    )
    write_atomic(out_dir / "README.md", "\n".join(part for part in (told, data_card) if part))
    for kept in (place, StoragePath.of(out_dir)):  # the recipe may have said another place before
        remove_checkpoint(kept)
    return finish_stage(out_dir, origin, started_s)


def _build_held_out(config: TrainConfig, features_dir: Path | StoragePath, target: Target) -> HeldOutRows | None:
    """The answers that decide which weights are kept, read in float32 as `eyas eval` does; None: there are none."""
    features = Features(features_dir, target=target)
    indices = sample_held_out(features, config.evaluate_answers, config.seed)
    return HeldOutRows(features, indices, target, config.evaluate_tree, config.micro_tokens) if indices else None


def _describe_choices(config: TrainConfig, trainer: Trainer, origin: StageInputs) -> dict[str, str]:
    """For the card: what differs from a plain EAGLE-3 head and its training."""
    sizes, chosen, last = trainer.head.config, trainer.selection.chosen, trainer.metrics_lines[-1]["update"]
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


def build_head_card(
    head: Head,
    vocab: DraftVocab,
    features: Features,
    rows: Sequence[RowInfo],
    last_metrics: Mapping[str, Any],
    choices: Mapping[str, str],
) -> str:
    """Markdown. last: the last line of metrics.jsonl. choices: what is unusual about this head, by name."""
    manifest = features.manifest
    counts = Counter(row.task for row in rows)
    counts_W = features.generated_counts(features.indices("train"))
    coverage = f"{vocab.coverage(counts_W):.2%} of the generated ones"
    if unseen := int((counts_W[vocab.t2d_W] == 0).sum()):
        coverage += f"; {unseen:,} of them occur in none of those"
    more = "".join(f"| {name} | {text} |\n" for name, text in choices.items())
    table = "\n".join(
        f"| {step} | {accuracy:.1%} | {acceptance:.1%} |"
        for step, (accuracy, acceptance) in enumerate(
            zip(last_metrics["accuracy"], last_metrics["acceptance"], strict=True)
        )
    )
    return f"""# EAGLE-3 draft head for {manifest.target}

A draft head for speculative decoding. It proposes tokens, the target decides: answers do not change.

| | |
|---|---|
| target | {manifest.target}, digest `{manifest.target_digest}` |
| captured layers (Hugging Face index) | {", ".join(str(i) for i in manifest.aux_layer_ids)} |
| features | digest `{features.digest}` |
| parameters | {head.num_parameters:,} |
| draft vocabulary | {vocab.size:,} of {vocab.target_size:,} tokens, {coverage} |
| trained on | {len(rows):,} texts, {sum(row.num_supervised for row in rows):,} supervised tokens |
| tasks | {", ".join(f"{task} {count}" for task, count in sorted(counts.items()))} |
{more}
At the end of training, on training texts (held-out acceptance stands in eval/acceptance.json): a chain adds
{last_metrics["chain_length"]:.2f} tokens to the text, the target's own included.

| step | accuracy | acceptance |
|---|---|---|
{table}
"""
