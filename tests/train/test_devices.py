"""Training runs where the target is. Without a second device: what would be made on the wrong one has no values."""

import dataclasses
from pathlib import Path

import torch
from tests.train.test_train import CONFIG

from eyas.features.reader import Features
from eyas.model.target import Target
from eyas.train.trainer import Trainer
from eyas.train.training_metrics import MetricSums


def test_a_micro_batch_makes_every_tensor_where_its_inputs_are(target: Target, features: Path) -> None:
    """With "meta" as the default device, a tensor whose place is not said meets those of the CPU and fails."""
    trainer = Trainer(CONFIG, Features(features), target)
    packed = trainer._read_micro_batch((0, tuple(trainer.indices[:3])))
    for loss in ("soft", "kl", "lk", "lk_log"):
        trainer.config = dataclasses.replace(CONFIG, loss=loss)
        plain, moved = MetricSums(CONFIG.steps), MetricSums(CONFIG.steps)
        graded = trainer.compute_loss(packed)
        graded.loss.backward()
        plain.add(packed, graded, 7)
        wanted = [weight.grad for weight in trainer.head.parameters()]
        trainer.head.zero_grad(set_to_none=True)
        with torch.device("meta"):
            graded = trainer.compute_loss(packed.map(lambda tensor: tensor.clone()))
            graded.loss.backward()
            moved.add(packed, graded, 7)
        torch.testing.assert_close(moved.sums_SK, plain.sums_SK)
        torch.testing.assert_close([weight.grad for weight in trainer.head.parameters()], wanted)
        trainer.head.zero_grad(set_to_none=True)
