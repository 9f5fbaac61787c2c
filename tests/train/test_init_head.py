"""Warm starts, the target's rows, and that every loss and variant teaches a small head."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eyas.base.errors import InputError, UsageError
from eyas.base.provenance import is_finished, read_provenance
from eyas.features.reader import Features
from eyas.formats.head_dir import HeadMetadata, digest_head, read_head, write_head
from eyas.model.head import Head, HeadConfig
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.train.config import HeadOptions, TrainConfig
from eyas.train.init_head import init_head
from eyas.train.loss import LossName
from eyas.train.train import build_origin, run
from eyas.train.trainer import Trainer

CONFIG = TrainConfig(
    steps=3, updates=4, batch_tokens=40, micro_tokens=400, draft_vocab_size=150, learning_rate=3e-3, dtype="float32"
)


def vocab_of(target: Target, ids: range) -> DraftVocab:
    counts_W = torch.zeros(target.info.vocab_size)
    counts_W[ids.start : ids.stop] = 1
    return DraftVocab.from_counts(counts_W, len(ids))


def sizes_of(target: Target, size: int, **flags: bool) -> HeadConfig:
    sizes = HeadConfig.for_target(target.info, size, aux_layer_ids=target.aux_layer_ids)
    return dataclasses.replace(sizes, **flags)


@pytest.fixture
def stored(target: Target, tmp_path: Path) -> Path:
    """A head for target tokens 40 to 99, no weight of which is 0 or 1."""
    head = Head.init(sizes_of(target, 60), 7)
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(0.25)
    write_head(tmp_path / "stored", head, vocab_of(target, range(40, 100)), HeadMetadata(), torch.float32)
    return tmp_path / "stored"


def test_a_random_start_is_the_head_of_the_seed(target: Target) -> None:
    sizes, vocab = sizes_of(target, 60), vocab_of(target, range(60))
    for name, weight in Head.init(sizes, 3).state_dict().items():
        assert torch.equal(init_head(sizes, vocab, target, 3).state_dict()[name], weight)


def test_the_output_rows_may_be_the_targets(target: Target) -> None:
    sizes, vocab = sizes_of(target, 60), vocab_of(target, range(20, 80))
    found: Any = init_head(sizes, vocab, target, 3, lm_head="target")
    plain: Any = init_head(sizes, vocab, target, 3)
    weight_WD = target.lm_head.weight
    assert isinstance(weight_WD, Tensor)
    rows_VD = weight_WD[20:80]
    assert torch.equal(found.lm_head.weight, rows_VD)
    assert torch.equal(found.fc.weight, plain.fc.weight), "the other weights are those of the seed"
    assert found.lm_head.weight.requires_grad, "trained on"
    found.lm_head.weight.detach().add_(1.0)
    assert not torch.equal(found.lm_head.weight, rows_VD), "a copy"


@pytest.mark.parametrize("lm_head", ["random", "target"])
def test_a_warm_start_matches_rows_by_target_token(target: Target, stored: Path, lm_head) -> None:
    """Draft vocabularies 40..99 and 60..149: tokens 60..99 keep their rows, under other draft ids."""
    sizes, vocab = sizes_of(target, 90), vocab_of(target, range(60, 150))
    found: Any = init_head(sizes, vocab, target, 3, str(stored), lm_head)
    old: Any = read_head(stored, torch.float32).head
    usual: Any = init_head(sizes, vocab, target, 3, lm_head=lm_head)
    assert torch.equal(found.lm_head.weight[:40], old.lm_head.weight[20:])
    assert torch.equal(found.lm_head.weight[40:], usual.lm_head.weight[40:])
    for name, weight in old.state_dict().items():
        assert name == "lm_head.weight" or torch.equal(found.state_dict()[name], weight)


@pytest.mark.parametrize(
    ("flags", "change", "said"),
    [
        ({"fc_norm": True}, {}, r"has fc_norm False, but this training needs fc_norm True\. Set train\.drafter"),
        ({"norm_output": True}, {}, "has norm_output False, but this training needs norm_output True"),
        (
            {},
            {"intermediate_size": 33, "num_heads": 2},
            "num_heads 4, but .* needs intermediate_size 33, num_heads 2",
        ),
        (
            {},
            {"aux_layer_ids": (0, 1, 2)},
            r"aux_layer_ids \[1, 2, 3\], but .* needs aux_layer_ids \[0, 1, 2\]",
        ),
    ],
)
def test_a_head_of_another_shape_is_refused(target: Target, stored: Path, flags, change, said: str) -> None:
    sizes = dataclasses.replace(sizes_of(target, 60, **flags), **change)
    with pytest.raises(InputError, match=said):
        init_head(sizes, vocab_of(target, range(60)), target, 0, str(stored))


def test_a_warm_start_is_recorded_and_goes_on_from_where_the_head_was(
    target: Target, features: Path, tmp_path: Path
) -> None:
    first, second, moved = tmp_path / "first", tmp_path / "second", tmp_path / "moved"
    run(dataclasses.replace(CONFIG, updates=80, learning_rate=1e-2), features, target, first, progress=False)
    cold = dataclasses.replace(CONFIG, draft_vocab_size=120, log_every=1)
    warm = dataclasses.replace(cold, init=str(first))
    run(warm, features, target, second, progress=False)
    run(cold, features, target, tmp_path / "cold", progress=False)
    provenance = read_provenance(second)
    assert provenance.parents["init"] == digest_head(first)
    assert f"| started from | a head, digest `{digest_head(first)}` |" in (second / "README.md").read_text()
    begun = [json.loads((tmp_path / name / "metrics.jsonl").open().readline()) for name in ("second", "cold")]
    assert begun[0]["acceptance"][0] > begun[1]["acceptance"][0] + 0.02
    assert begun[0]["accuracy"][0] > begun[1]["accuracy"][0] + 0.1
    # The same head elsewhere is the same origin; another head is another.
    first.rename(moved)
    data = Features(features)
    assert is_finished(second, build_origin(dataclasses.replace(warm, init=str(moved)), data, target))
    assert not is_finished(second, build_origin(dataclasses.replace(warm, init=str(second)), data, target))
    assert not is_finished(second, build_origin(dataclasses.replace(warm, init="random"), data, target))


def test_a_start_that_is_not_there_is_refused(target: Target, features: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        run(dataclasses.replace(CONFIG, init=str(tmp_path / "nowhere")), features, target, tmp_path / "h")
    with pytest.raises(UsageError, match="is the directory of the new head"):
        run(dataclasses.replace(CONFIG, init=str(tmp_path / "h")), features, target, tmp_path / "h")
    with pytest.raises(UsageError, match=r"train\.init is empty"):
        TrainConfig(init="")


LEARNING = [("soft", False), ("kl", False), ("lk", False), ("lk_log", False), ("kl", True)]
LEARNING += [pytest.param(loss, True, marks=pytest.mark.full) for loss in ("soft", "lk", "lk_log")]


@pytest.mark.parametrize(("loss", "newer"), LEARNING)
def test_a_small_head_learns_by_every_loss(target: Target, features: Path, loss: LossName, newer: bool) -> None:
    """Acceptance grows at every step, on the texts that it is taught."""
    options = HeadOptions(fc_norm=newer, norm_output=newer)
    config = dataclasses.replace(CONFIG, updates=120, log_every=5, loss=loss, head=options, learning_rate=1e-2)
    trainer = Trainer(config, Features(features), target)
    trainer.train(Path("/nonexistent"), "", progress=False)
    before_K, after_K = (
        torch.tensor(line["acceptance"]) for line in (trainer.metrics_lines[0], trainer.metrics_lines[-1])
    )
    assert ((after_K - before_K) > 0.03).all(), (before_K, after_K)
