"""Trains a head on captured features and writes its directory (`eyas train`).

head/  config.json  model.safetensors  README.md  metrics.jsonl  (and checkpoint* until training ends)

README.md is the head's model card. It contains no times and no paths, so equal runs write equal bytes.
"""

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from eyas.base import provenance
from eyas.base.errors import UsageError
from eyas.base.storage import AnyPath, StoragePath, write_atomic
from eyas.base.templates import template_environment
from eyas.evaluation.replay import HeldOutRows, sample_held_out
from eyas.features.reader import Features
from eyas.formats.config import HeadMetadata
from eyas.formats.head_dir import digest_head, write_head
from eyas.model.devices import DTYPES, multiplies_bfloat16
from eyas.model.target import Target
from eyas.train.checkpoint import remove_checkpoint
from eyas.train.config import TrainConfig
from eyas.train.distributed import SINGLE_PROCESS, ProcessGroup
from eyas.train.init_head import RANDOM
from eyas.train.trainer import STAGE, Trainer
from eyas.train.training_metrics import TRACKER_DIRECTORY, to_jsonl

NOT_IN_DIGEST = ("checkpoint_every_s", "checkpoint_url", "shard", "watch")


def build_origin(config: TrainConfig, features: Features, target: Target) -> provenance.StageInputs:
    """Returns the settings and input digests that determine the head.

    Left out are the path of the initial head (its digest is included), and the settings of checkpoints, sharding and
    trackers. The number of processes is left out, too: it only changes the rounding of gradient sums.

    Raises:
        InputError: If the initial head is missing.
    """
    other = () if config.drafter == "block" else ("drafter", "block")  # EAGLE-3 heads keep their digests
    settings = dataclasses.asdict(config)
    settings = {name: value for name, value in settings.items() if name not in (*NOT_IN_DIGEST, *other)}
    parents = {"features": features.digest, "target": target.digest}
    if config.init != RANDOM:
        settings["init"], parents["init"] = "head", digest_head(Path(config.init))
    return features.build_origin(STAGE, settings | {"target_dtype": str(target.model.dtype)}, parents)


def run(
    config: TrainConfig,
    features_dir: AnyPath,
    target: Target,
    out_dir: Path,
    *,
    progress: bool = True,
    data_card: str = "",
    group: ProcessGroup = SINGLE_PROCESS,
) -> provenance.Provenance | None:
    """Trains a head on split "train" of the features and writes its directory. Resumes from a checkpoint of this run.

    An interrupted and resumed run writes the same bytes as an uninterrupted run. The bytes depend on the config, the
    features, the target, the number of threads and the number of processes.

    Args:
        config: The settings.
        features_dir: The directory that `eyas capture` wrote.
        target: The target that computed the features.
        out_dir: The directory of the head.
        progress: Shows a progress bar on stderr.
        data_card: Markdown about data and licenses, appended to README.md.
        group: The processes of this training. Requirement: each of them calls this function.

    Returns:
        The provenance of the head in the process of rank 0, None in all other processes.

    Raises:
        InputError: If the features are damaged, unfinished or of another target.
        UsageError: If a process has other settings, features or weights than rank 0.
        StageError: If a loss is not finite, SIGTERM arrives, or another process has stopped.
        StorageError: If the storage is full or not writable.
    """
    started_s = time.time()
    computed = config if multiplies_bfloat16(target.model.device) else dataclasses.replace(config, dtype="float32")
    features = Features(features_dir, DTYPES[computed.dtype], target)
    features.check_target(target.digest)
    if config.init != RANDOM and Path(config.init).resolve() == out_dir.resolve():
        problem = f"train.init = {config.init} is the directory of the new head"
        raise UsageError(problem, "Copy that head and set train.init to the copy")
    origin = build_origin(config, features, target)
    _require_equal_inputs({"settings": f"{origin.recipe} shard={config.shard}", **origin.parents}, group)
    if group.any_rank(group.is_main and provenance.is_finished(out_dir, origin)):
        return provenance.read_provenance(out_dir) if group.is_main else None
    trainer = Trainer(computed, features, target, group, _build_held_out(config, features_dir, target))
    if group.is_main:
        provenance.mark_unfinished(out_dir)
    checkpoint_dir = StoragePath.of(out_dir if config.checkpoint_url is None else config.checkpoint_url)
    tracker_dir = out_dir.parent / TRACKER_DIRECTORY if group.is_main else None
    origin_digest = provenance.digest_json(dataclasses.asdict(origin))
    trainer.train(checkpoint_dir, origin_digest, progress and group.is_main, tracker_dir)
    weights = trainer.optimizer.gather_weights(trainer.optimizer.weights)
    if not group.is_main:
        return None
    _write_head_files(trainer, weights, origin, out_dir, data_card)
    for directory in (checkpoint_dir, StoragePath.of(out_dir)):  # train.checkpoint_url may have been set later
        remove_checkpoint(directory)
    return provenance.finish_stage(out_dir, origin, started_s)


def _require_equal_inputs(inputs: Mapping[str, str], group: ProcessGroup) -> None:
    first, *others = (json.loads(text) for text in group.all_gather(json.dumps(inputs)))
    for rank, other in enumerate(others, 1):
        if names := [name for name in first | other if first.get(name) != other.get(name)]:
            problem = f"The process of rank {rank} has another value of `{'`, `'.join(names)}` than that of rank 0"
            raise UsageError(problem, "Start all processes with the same recipe, overrides, features and target")


def _write_head_files(
    trainer: Trainer, weights: Mapping[str, Tensor], origin: provenance.StageInputs, out_dir: Path, data_card: str
) -> None:
    config, features, target = trainer.config, trainer.features, trainer.target
    head = type(trainer.head)(trainer.head.config).to_empty(device="cpu")
    head.load_state_dict(weights)
    metadata = HeadMetadata(
        target_name=features.manifest.target,
        target_digest=target.digest,
        trained_context=max(features.manifest.rows[i].length for i in trainer.indices),
        bos_id=target.info.bos_id,
        eos_ids=target.info.eos_ids,
        tokenizer_digest=features.manifest.tokenizer_digest,
        template_digest=features.manifest.template_digest,
    )
    write_head(out_dir, head, trainer.vocab, metadata, DTYPES[config.stored_dtype])
    write_atomic(out_dir / "metrics.jsonl", to_jsonl(trainer.metrics_lines))
    card = build_head_card(trainer, origin.parents.get("init"))
    write_atomic(out_dir / "README.md", "\n".join(part for part in (card, data_card) if part))


def _build_held_out(config: TrainConfig, features_dir: AnyPath, target: Target) -> HeldOutRows | None:
    """Returns the held-out answers that select the weights, with float32 features; None if no answer is held out."""
    features = Features(features_dir, target=target)
    indices = sample_held_out(features, config.evaluate_answers, config.seed)
    return HeldOutRows(features, indices, target, config.evaluate_tree, config.micro_tokens) if indices else None


def build_head_card(trainer: Trainer, init: str | None) -> str:
    """Returns the content of README.md. init: the digest of the head that training started from; None if random."""
    counts_W = trainer.features.generated_counts(trainer.features.indices("train"))
    environment = template_environment("eyas.train", ".", keep_trailing_newline=True)
    return environment.get_template("head_card.md.jinja").render(
        trainer=trainer,
        init=init,
        rows=[trainer.features.manifest.rows[i] for i in trainer.indices],
        coverage=trainer.vocab.coverage(counts_W),
        num_unseen=int((counts_W[trainer.vocab.t2d_W] == 0).sum()),
    )
