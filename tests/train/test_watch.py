"""What TensorBoard and Weights & Biases are told, read back from the files that they wrote."""

import importlib
import time
from pathlib import Path

import pytest

from eyas.base.errors import InputError
from eyas.train.watch import scalars, watching

LINES = [
    {"update": n, "learning_rate": 0.1, "loss": 4.0 - n, "accuracy": [0.5, 0.25], "chain_length": 1.5 + n}
    for n in (1, 2, 3)
]


def test_scalars():
    assert scalars(LINES[0]) == {
        "learning_rate": 0.1,
        "loss": 3.0,
        "accuracy/0": 0.5,
        "accuracy/1": 0.25,
        "chain_length": 2.5,
    }


def test_nobody_watches(tmp_path: Path):
    with watching((), tmp_path / "head", "abc", 0) as tell:
        tell(LINES[0])
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_shows_a_run_that_went_on_once(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with watching(("tensorboard",), tmp_path / "head", "abc", 0) as tell:
        for line in LINES[:2]:
            tell(line)
    # Killed behind update 2, the run goes on from a checkpoint behind update 1.
    with watching(("tensorboard",), tmp_path / "head", "abc", 1) as tell:
        for line in LINES[1:]:
            tell(line)
    events = EventAccumulator(str(tmp_path / "watch" / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert [event.value for event in events.Scalars("accuracy/1")] == [0.25] * 3


@pytest.mark.full
def test_wandb_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with watching(("wandb",), tmp_path / "head", "0123abcd", 0) as tell:
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
    with pytest.raises(InputError, match=r"eyas\[wandb\]"), watching(("wandb",), tmp_path / "head", "abc", 0):
        pass
