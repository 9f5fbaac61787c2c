"""What TensorBoard and Weights & Biases are told, read back from the files that they wrote."""

import dataclasses
import importlib
import re
import time
from pathlib import Path

import pytest
from tests.features.small import contents

from eyas.base.errors import InputError
from eyas.model.target import Target
from eyas.train import train as loop
from eyas.train.config import TrainConfig
from eyas.train.training_metrics import open_trackers, to_scalars

LINES = [
    {"update": n, "learning_rate": 0.1, "loss": 4.0 - n, "accuracy": [0.5, 0.25], "chain_length": 1.5 + n}
    for n in (1, 2, 3)
]


def test_scalars():
    assert to_scalars(LINES[0]) == {
        "learning_rate": 0.1,
        "loss": 3.0,
        "accuracy/0": 0.5,
        "accuracy/1": 0.25,
        "chain_length": 2.5,
    }


def test_nobody_watches(tmp_path: Path):
    with open_trackers((), tmp_path / "watch", "abc", 0) as tell:
        tell(LINES[0])
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_shows_a_run_that_went_on_once(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_trackers(("tensorboard",), tmp_path / "watch", "abc", 0) as tell:
        for line in LINES[:2]:
            tell(line)
    # Killed behind update 2, the run goes on from a checkpoint behind update 1.
    with open_trackers(("tensorboard",), tmp_path / "watch", "abc", 1) as tell:
        for line in LINES[1:]:
            tell(line)
    events = EventAccumulator(str(tmp_path / "watch" / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert [event.value for event in events.Scalars("accuracy/1")] == [0.25] * 3


@pytest.mark.full
def test_wandb_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with open_trackers(("wandb",), tmp_path / "watch", "0123abcd", 0) as tell:
        for line in LINES:
            tell(line)
    (stored,) = (tmp_path / "watch" / "wandb").glob("offline-run-*-0123abcd/run-0123abcd.wandb")
    # A process of its own writes, and takes its time.
    late_s = time.monotonic() + 30
    while b"chain_length" not in stored.read_bytes() and time.monotonic() < late_s:
        time.sleep(0.1)
    assert b"chain_length" in stored.read_bytes()


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def missing(name: str):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"eyas\[wandb\]"), open_trackers(("wandb",), tmp_path / "watch", "abc", 0):
        pass


def test_training_makes_the_same_head_whoever_watches(target: Target, features: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    config = TrainConfig(steps=2, updates=4, batch_tokens=60, log_every=2, draft_vocab_size=100, dtype="float32")
    loop.run(config, features, target, tmp_path / "alone" / "head", progress=False)
    watched = dataclasses.replace(config, watch=("tensorboard",))
    made = loop.run(watched, features, target, tmp_path / "run" / "head", progress=True)
    assert contents(tmp_path / "run" / "head") == contents(tmp_path / "alone" / "head")
    assert made is not None
    # Who watches decides nothing: the finished head is taken for both.
    assert loop.run(config, features, target, tmp_path / "run" / "head", progress=False) == made
    assert list((tmp_path / "run" / "watch" / "tensorboard").glob("events*"))
    assert not (tmp_path / "alone" / "watch").exists()


def test_the_progress_line_has_the_share_of_peak(
    target: Target, features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = TrainConfig(steps=2, updates=2, batch_tokens=60, draft_vocab_size=100, dtype="float32")
    loop.run(config, features, target, tmp_path / "head")
    assert re.search(r"accuracy .* chain length .*  \d+% of peak", capsys.readouterr().err)
