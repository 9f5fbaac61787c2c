"""Processes with different numbers of conversations and tokens, or none, have the gradients of one process together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.together import new_run, train, weights, write_recipe
from torch.distributed.tensor import DTensor

from eyas.features.reader import Features
from eyas.model.target import Target
from eyas.train.batches import Update, assign_to_ranks
from eyas.train.config import TrainConfig
from eyas.train.optimizer import MasterWeightOptimizer
from eyas.train.trainer import Trainer

SETTINGS: dict[str, Any] = {"steps": 3, "updates": 10, "batch_tokens": 60, "micro_tokens": 80, "draft_vocab_size": 151}
OVERRIDES = ("train.checkpoint_every_s=1e9", *(f"train.{name}={value}" for name, value in SETTINGS.items()))


@dataclass(frozen=True)
class SavedGradients:
    """Saves the gradient of each update, as the optimizer gets it, in the order of the weights."""

    file: Path

    def __call__(self) -> None:
        reduce, step, saved = MasterWeightOptimizer._reduce_gradient, MasterWeightOptimizer.step, []

        def reduced(optimizer: MasterWeightOptimizer, grad: torch.Tensor) -> torch.Tensor:
            found = reduce(optimizer, grad)
            saved.append((found.full_tensor() if isinstance(found, DTensor) else found).clone())
            return found

        def stepped(optimizer: MasterWeightOptimizer, learning_rate: float) -> float:
            norm = step(optimizer, learning_rate)
            torch.save(saved, self.file)
            return norm

        setattr(MasterWeightOptimizer, "step", stepped)  # noqa: B010 a patch
        setattr(MasterWeightOptimizer, "_reduce_gradient", reduced)  # noqa: B010 a patch


@dataclass(frozen=True)
class Trained:
    """The weights of a run, and its gradients: one for each update and weight."""

    weights: dict[str, torch.Tensor]
    gradients: list[torch.Tensor]


def run(world: int, recipe: Path, out: Path, features: Path, overrides: Sequence[str] = ()) -> Trained:
    saving = {rank: SavedGradients(out.with_name(f"{out.name}-gradients-{rank}.pt")) for rank in range(world)}
    for ended in train(recipe, new_run(out, features), world, (*OVERRIDES, *overrides), saving):
        assert ended.code == 0, ended.err
    found = [torch.load(saving[rank].file) for rank in range(world)]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)
    return Trained(weights(out), found[0])


@pytest.fixture(scope="module")
def recipe(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe") / "small.toml", target)


@pytest.fixture(scope="module")
def alone(recipe: Path, features: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return run(1, recipe, tmp_path_factory.mktemp("alone") / "run", features)


@pytest.fixture(scope="module")
def trainer(target: Target, features: Path) -> Trainer:
    return Trainer(TrainConfig(**SETTINGS, dtype="float32", seed=0), Features(features), target)


def plan(trainer: Trainer) -> list[Update]:
    return [update for epoch in trainer._plan_epochs() for update in epoch]


def test_the_processes_of_these_tests_are_uneven(trainer: Trainer) -> None:
    rows = trainer.features.manifest.rows
    shares = [
        [
            [sum(rows[i].num_supervised for i in micro) for micro in micros]
            for micros in assign_to_ranks(update, rows, 2)
        ]
        for update in plan(trainer)
    ]
    assert any(not first or not second for first, second in shares), "an update in which one process has nothing"
    assert any(len(first) != len(second) and first and second for first, second in shares), "other counts of batches"
    assert sum(sum(first) != sum(second) for first, second in shares) >= 8, "other counts of tokens"


def test_the_gradient_is_divided_by_all_tokens_of_the_update(trainer: Trainer, alone: Trained) -> None:
    """The first gradient again, from one loss over all rows; the mean of two processes' means is another one."""
    update, rows = plan(trainer)[0], trainer.features.manifest.rows

    def gradient(micros: Sequence[tuple[int, ...]], count: int) -> list[torch.Tensor]:
        trainer.head.zero_grad(set_to_none=True)
        packed = trainer._read_micro_batch((0, tuple(index for micro in micros for index in micro)))
        (trainer.compute_loss(packed).loss / count).backward()
        return [weight.grad for weight in trainer.head.parameters() if weight.grad is not None]

    def supervised(micros: Sequence[tuple[int, ...]]) -> int:
        return sum(rows[index].num_supervised for micro in micros for index in micro)

    whole = gradient(update.micro_batches, supervised(update.micro_batches))
    torch.testing.assert_close(alone.gradients[: len(whole)], whole, rtol=1e-4, atol=1e-7)
    first, second = (gradient(micros, supervised(micros)) for micros in assign_to_ranks(update, rows, 2))
    mean = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
    assert max(float((a - b).norm() / b.norm()) for a, b in zip(mean, whole, strict=True)) > 0.01


@pytest.mark.parametrize(
    ("world", "shard"),
    [(2, "false"), (2, "true"), *(pytest.param(3, s, marks=pytest.mark.full) for s in ("false", "true"))],
)
def test_gradients_and_weights_are_those_of_one_process(
    world: int, shard: str, recipe: Path, alone: Trained, features: Path, tmp_path: Path
) -> None:
    shared = run(world, recipe, tmp_path / "run", features, (f"train.shard={shard}",))
    assert len(alone.gradients) == SETTINGS["updates"] * (len(alone.weights) - 2), "d2t and t2d are not trained"
    for found, wanted in zip(shared.gradients, alone.gradients, strict=True):
        assert float((found - wanted).norm()) <= 1e-5 * float(wanted.norm())
    torch.testing.assert_close(shared.weights, alone.weights, atol=1e-5, rtol=0)
