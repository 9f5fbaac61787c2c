"""Trains an EAGLE-3 head and a block head on the same features for the same processor time, and replays answers.

`prove_drafters.py` calls it. A run directory of `eyas run` gives the target, the features and the recipe. The recipe's
keys `train.*` stay, except those of OVERRIDES and the number of updates: a short training first measures how long an
update takes, and the number of updates then fills the time. The learning rate falls to zero at the last of them.

    WORK/eagle3/  WORK/block/                     the heads
    WORK/eagle3-time.json  WORK/block-time.json   the number of updates, and the seconds of processor time they took

The same command resumes an interrupted training from its checkpoint.
"""

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from result_rows import Row

from eyas.base.provenance import has_provenance
from eyas.evaluation.replay import replay_heads, sample_held_out
from eyas.features.reader import Features
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import StoredHead, read_head
from eyas.model.devices import DTYPES
from eyas.model.target import Target, load_target_without_layers
from eyas.recipe import load_recipe
from eyas.train import train
from eyas.train.config import TrainConfig
from eyas.tree.acceptance_length import RequestRounds, summarize
from eyas.tree.intervals import ratio_interval
from eyas.tree.shape import TreeShape, chain_shape

Kind = Literal["eagle3", "block"]
KINDS: tuple[Kind, ...] = ("eagle3", "block")
NAMES: dict[Kind, str] = {"eagle3": "EAGLE-3", "block": "block"}
OVERRIDES = {"dtype": "float32", "batch_tokens": 256, "evaluate_answers": 0, "epochs": 1, "init": "random"}
TOKEN_WEIGHT = 1.0  # of a block head, as in recipes/tiny.toml; DSpark's 0.1 learns too slowly from little data
PROBES = (4, 24)  # updates of the trainings that measure the time of an update
SHAPES = {
    "chain of 8": chain_shape(8),
    "tree of 8": TreeShape(4, 4, 8),
    "tree of 16": TreeShape(6, 4, 16),
    "tree of 32": TreeShape(8, 4, 32),
}
BATCH_TOKENS = 8192
EQUAL_TIMES = (0.9, 1.1)  # processor times of two trainings that count as equal


@dataclass(frozen=True)
class RunData:
    """A run directory of `eyas run` whose stage `capture` is finished. model: the target of the run."""

    directory: Path
    model: str

    @staticmethod
    def open(directory: Path, model: str | None = None) -> "RunData":
        """Reads the recipe of the run. model: the target if it is now in another place."""
        return RunData(directory, model or load_recipe(directory / "recipe.toml", {}).target.model)

    @property
    def features(self) -> Path:
        """The directory of the features."""
        return self.directory / "features"

    def train_config(self, kind: Kind) -> TrainConfig:
        """Returns the settings of a training with this kind of head."""
        config = load_recipe(self.directory / "recipe.toml", {}).train
        block = dataclasses.replace(config.block, token_weight=TOKEN_WEIGHT)
        overrides: dict[str, Any] = {**OVERRIDES, "drafter": kind, "block": block}
        return dataclasses.replace(config, **overrides)

    def load_target(self) -> Target:
        """Loads the embedding and the output matrix of the target, in the dtype of the run."""
        config = load_recipe(self.directory / "recipe.toml", {})
        dtype = DTYPES[config.target.dtype]
        return load_target_without_layers(self.model, dtype, config.capture.aux_layer_ids, "cpu")


def train_heads(run: RunData, work: Path, seconds: float, kinds: Sequence[Kind] = KINDS) -> dict[Kind, Path]:
    """Returns the directories of the heads. Trains those that are not finished, each for about `seconds`."""
    for kind in kinds:
        if not has_provenance(work / kind):
            train_head(run, kind, work, seconds)
    return {kind: work / kind for kind in kinds}


def train_head(run: RunData, kind: Kind, work: Path, seconds: float) -> None:
    """Trains one head for about `seconds` of processor time. Writes the updates and the real time beside it."""
    target, config, notes = run.load_target(), run.train_config(kind), training_notes(work / kind)
    work.mkdir(parents=True, exist_ok=True)
    if not notes.is_file():
        fixed_s, update_s = measure_update(run, config, target)
        updates = max(1, round((seconds - fixed_s) / update_s))
        notes.write_text(json.dumps({"updates": updates, "cpu_seconds": 0.0}))
    plan = json.loads(notes.read_text())
    print(f"Training a head ({NAMES[kind]}), {plan['updates']} updates", file=sys.stderr, flush=True)
    began_s = time.process_time()
    try:
        config = dataclasses.replace(config, updates=plan["updates"])
        train.run(config, run.features, target, work / kind, progress=False)
    finally:
        plan["cpu_seconds"] += time.process_time() - began_s
        notes.write_text(json.dumps(plan))


def measure_update(run: RunData, config: TrainConfig, target: Target) -> tuple[float, float]:
    """Returns the processor time of starting and ending a training, and of an update, in seconds."""
    seconds = []
    for updates in PROBES:
        with tempfile.TemporaryDirectory() as scratch:
            began_s = time.process_time()
            train.run(
                dataclasses.replace(config, updates=updates), run.features, target, Path(scratch) / "h", progress=False
            )
            seconds.append(time.process_time() - began_s)
    update_s = max((seconds[1] - seconds[0]) / (PROBES[1] - PROBES[0]), 1e-4)
    return seconds[0] - PROBES[0] * update_s, update_s


def training_notes(directory: Path) -> Path:
    """Returns the file beside a head with the updates and the processor time of its training."""
    return directory.with_name(f"{directory.name}-time.json")


def describe_training(directory: Path) -> str:
    """Returns the updates and the processor time of a head of `train_heads`; "given" for other heads."""
    notes = training_notes(directory)
    if not notes.is_file():
        return "given"
    plan = json.loads(notes.read_text())
    return f"{plan['updates']} updates, {plan['cpu_seconds']:.0f} CPU seconds"


# --- the acceptance length on held-out answers -----------------------------------------------------------------------


@torch.inference_mode()
def replay_both(
    run: RunData, heads: Mapping[Kind, Path], limit: int
) -> tuple[dict[Kind, dict[str, list[RequestRounds]]], int]:
    """Replays held-out answers with both heads in float32. Returns the rounds by head and shape, and the answers."""
    target, features = run.load_target(), Features(run.features)
    indices = sample_held_out(features, limit, 0)
    stored: dict[Kind, StoredHead] = {}
    for kind, directory in heads.items():
        stored[kind] = read_head(directory, torch.float32)
        require_fit(stored[kind], target.info, target.digest)
    found: dict[Kind, dict[str, list[RequestRounds]]] = {kind: {} for kind in heads}
    for name, shape in SHAPES.items():
        print(f"Replaying {len(indices)} answers, {name}", file=sys.stderr, flush=True)
        pairs = [(one.head, one.vocab) for one in stored.values()]
        for kind, rounds in zip(
            stored, replay_heads(features, indices, pairs, target, shape, BATCH_TOKENS), strict=True
        ):
            found[kind][name] = [rounds[index] for index in indices]
    return found, len(indices)


def measure_lengths(run: RunData, heads: Mapping[Kind, Path], limit: int, where: str) -> Iterator[Row]:
    """Yields the acceptance length of each head and shape, then the ratio of both heads for each shape.

    The tokens are equal, so the ratio is that of the rounds. Its interval is a paired bootstrap over answers.
    """
    found, count = replay_both(run, heads, limit)
    told = f"{where}, {count} held-out answers"
    for kind, by_shape in found.items():
        for name, rounds in by_shape.items():
            stats = summarize(rounds)
            interval = (round(stats.ci95.low, 3), round(stats.ci95.high, 3))
            length = round(stats.acceptance_length, 3)
            note = describe_training(heads[kind])
            yield Row(f"{told}: acceptance length, {NAMES[kind]} head, {name}", length, "told", True, interval, note)
    if all(training_notes(directory).is_file() for directory in heads.values()):
        yield compare_training(where, heads)
    for name in SHAPES:
        yield compare_rounds(f"{told}: block {name} over EAGLE-3 {name}, acceptance length", found, name)


def compare_training(where: str, heads: Mapping[Kind, Path]) -> Row:
    """Returns the row of the processor time of training the block head over that of the EAGLE-3 head."""
    ours, theirs = (json.loads(training_notes(heads[kind]).read_text())["cpu_seconds"] for kind in ("block", "eagle3"))
    low, high = EQUAL_TIMES
    ratio = round(ours / theirs, 3)
    name = f"{where}: processor time of training, block over EAGLE-3"
    return Row(name, ratio, f"{low:g} to {high:g}", low <= ratio <= high)


def compare_rounds(name: str, found: Mapping[Kind, Mapping[str, Sequence[RequestRounds]]], shape: str) -> Row:
    """Returns the row of the rounds of EAGLE-3 over those of the block head."""
    ours, theirs = (np.array([len(one.accepted) for one in found[kind][shape]]) for kind in ("block", "eagle3"))
    span = ratio_interval(theirs, ours, 0)
    ratio = round(float(theirs.sum() / ours.sum()), 3)
    return Row(name, ratio, "told", True, (round(span.low, 3), round(span.high, 3)))
