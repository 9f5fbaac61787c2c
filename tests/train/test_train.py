import dataclasses
import itertools
import json
from pathlib import Path

import pytest
import torch
from tests.features.small import contents
from tests.tiny import tiny_target

from eyas.base.config import build
from eyas.base.errors import InputError, StageError, UsageError
from eyas.base.progress import Progress
from eyas.base.storage import StoragePath
from eyas.features.reader import Features
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.train.config import HeadOptions, TrainConfig
from eyas.train.train import run
from eyas.train.trainer import Trainer
from eyas.train.ttt import pack_rows

CONFIG = TrainConfig(
    steps=3,
    updates=14,
    batch_tokens=40,
    micro_tokens=120,
    draft_vocab_size=150,
    learning_rate=3e-3,
    log_every=4,
    dtype="float32",
    checkpoint_every_s=0.0,
)


pytestmark = pytest.mark.usefixtures("one_thread")


class Stopped(Exception):
    """Raised in the middle of a training."""


def stop_at(update: int, monkeypatch: pytest.MonkeyPatch) -> None:
    advance, counter = Progress.advance, itertools.count(1)

    def advanced(self: Progress, n: int = 1, note: str = "") -> None:
        advance(self, n, note)
        if next(counter) == update:
            raise Stopped

    monkeypatch.setattr(Progress, "advance", advanced)


@pytest.mark.parametrize("how", ["a part", "a part is gone", "its list", "cut off"])
def test_a_damaged_checkpoint_is_said_to_be_and_not_used(
    how: str, target: Target, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    config, place = dataclasses.replace(CONFIG, updates=5), tmp_path / "damaged"
    stop_at(4, monkeypatch)
    with pytest.raises(Stopped):
        run(config, features, target, place, progress=False)
    monkeypatch.undo()
    names = ["checkpoint-000003-0-of-1.safetensors", "checkpoint.json"]
    assert sorted(path.name for path in place.iterdir()) == names, "update 4 had been made, but not saved"
    part, listed = (place / name for name in names)
    if how == "a part is gone":
        part.unlink()
    elif how == "cut off":
        listed.write_bytes(listed.read_bytes()[:-9])
    else:
        damaged = part if how == "a part" else listed
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 1
        damaged.write_bytes(data)
    run(config, features, target, place, progress=False)
    said = capsys.readouterr().err
    assert f"the checkpoint is not usable: {part if 'part' in how else listed} " in said
    assert "Training starts from update 0" in said
    run(dataclasses.replace(config, checkpoint_every_s=1e9), features, target, tmp_path / "whole", progress=False)
    assert capsys.readouterr().err == ""
    assert contents(place) == contents(tmp_path / "whole")


def test_checkpoints_may_go_to_any_url(
    target: Target, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = StoragePath("memory://bucket/run")
    config = dataclasses.replace(CONFIG, updates=5, checkpoint_url=place.url)
    stop_at(4, monkeypatch)
    with pytest.raises(Stopped):
        run(config, features, target, tmp_path / "stopped", progress=False)
    monkeypatch.undo()
    assert place.list_files() == ["checkpoint-000003-0-of-1.safetensors", "checkpoint.json"]
    made = itertools.count()
    monkeypatch.setattr(Progress, "advance", lambda *_: next(made))
    run(config, features, target, tmp_path / "stopped", progress=False)
    assert next(made) == 2, "updates 4 and 5"
    assert place.list_files() == []
    run(dataclasses.replace(config, checkpoint_url=None), features, target, tmp_path / "whole", progress=False)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def test_a_checkpoint_of_other_settings_is_not_continued(target: Target, features: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, updates=6)
    other = Trainer(dataclasses.replace(config, seed=1), Features(features), target)
    other.train(tmp_path / "mixed", "another origin", progress=False)
    assert (tmp_path / "mixed" / "checkpoint.json").exists()
    run(config, features, target, tmp_path / "mixed", progress=False)
    run(config, features, target, tmp_path / "clean", progress=False)
    assert contents(tmp_path / "mixed") == contents(tmp_path / "clean")


def test_a_head_learns_its_texts_and_is_written_as_trained(target: Target, features: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(
        CONFIG,
        updates=200,
        learning_rate=1e-2,
        stored_dtype="float32",
        head=HeadOptions(intermediate_size=96),
        evaluate_answers=0,
    )
    run(config, features, target, tmp_path, progress=False)
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"][0] > 0.6
    assert last["chain_length"] > 1.8
    stored = read_head(tmp_path)
    assert stored.config.intermediate_size == 96
    assert stored.vocab.size == 150
    assert stored.metadata.target_digest == target.digest
    assert all(stored.vocab.t2d_W[i] for i in target.info.eos_ids)
    # The stored head gives the loss that training ended with.
    trainer = Trainer(config, Features(features), target)
    trainer.head.load_state_dict(stored.head.state_dict())
    packed = pack_rows(list(trainer.features.rows(trainer.indices)), config.steps, torch.float32)
    graded = trainer.compute_loss(packed)
    assert float(graded.hits_JK.sum() / packed.supervised_JK.sum()) == pytest.approx(
        sum(last["accuracy"]) / 3, abs=0.05
    )


def gradients(trainer: Trainer, groups: list[list[int]]) -> dict[str, torch.Tensor]:
    rows = trainer.features.manifest.rows
    count = sum(rows[i].num_supervised for group in groups for i in group)
    for group in groups:
        graded = trainer.compute_loss(
            pack_rows(list(trainer.features.rows(group)), trainer.config.steps, trainer.dtype)
        )
        (graded.loss / count).backward()
        trainer.optimizer.accumulate_gradients()
    found = {name: grad.clone() for name, grad in trainer.optimizer.grad_sums.items()}
    for grad in trainer.optimizer.grad_sums.values():
        grad.zero_()
    return found


def test_how_a_batch_is_cut_does_not_weigh_tokens(target: Target, features: Path) -> None:
    """One divisor for the whole update: a short text alone in its micro-batch counts no more than with others."""
    trainer = Trainer(CONFIG, Features(features), target)
    indices = trainer.indices
    whole = gradients(trainer, [indices])
    parts = gradients(trainer, [indices[:1], indices[1:4], indices[4:]])
    for name, grad in whole.items():
        torch.testing.assert_close(parts[name], grad, atol=1e-6, rtol=1e-4)


def test_bad_input_is_refused(target: Target, features: Path, tmp_path: Path) -> None:
    other = Target.load(tiny_target(tmp_path / "other", seed=5), torch.float32, layers=(1, 2, 3))
    with pytest.raises(InputError, match=f"digest {target.digest}, but this target has digest {other.digest}"):
        run(CONFIG, features, other, tmp_path / "head", progress=False)
    with pytest.raises(InputError, match="Run `eyas capture` first"):
        run(CONFIG, tmp_path / "nothing", target, tmp_path / "head", progress=False)
    wild = dataclasses.replace(CONFIG, learning_rate=1e30, clip=1e30)
    with pytest.raises(StageError, match=r"The loss of update \d+ is NaN or infinite, in conversations p:\d+"):
        run(wild, features, target, tmp_path / "head", progress=False)
    with pytest.raises(UsageError, match=r"train\.steps = 0"):
        build(TrainConfig, {"steps": 0}, "train")
    heads = dataclasses.replace(CONFIG, head=HeadOptions(num_heads=3))
    with pytest.raises(InputError, match="the head's 3 heads are not a multiple of its 2 key-value heads"):
        run(heads, features, target, tmp_path / "head", progress=False)
    assert not (tmp_path / "head" / "config.json").exists()


@pytest.mark.parametrize("has_instructions", [False, True])
def test_bfloat16_is_computed_in_float32_on_a_cpu_without_instructions_for_it(
    has_instructions: bool, target: Target, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_instructions)
    weights = []
    for dtype in ("float32", "bfloat16"):
        run(dataclasses.replace(CONFIG, updates=2, dtype=dtype), features, target, tmp_path / dtype, progress=False)
        weights.append((tmp_path / dtype / "model.safetensors").read_bytes())
    assert (weights[0] == weights[1]) == (not has_instructions)
