"""A process of two is killed, hangs, or does not come: the other one ends in time and says why.

All start again, and the bytes are those of a run that nothing disturbed.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from tests.e2e.processes import Moment
from tests.features.small import contents
from tests.train.together import Blow, free_port, new_run, train, write_recipe

from eyas.base.provenance import digest_bytes
from eyas.cli import main
from eyas.model.target import Target
from eyas.train import distributed

SHARD = ("train.shard=true",)
CLOSED = r"\((Connection closed by peer|Read error) \[[^]]+\]:\d+(: Connection reset by peer)?\)\. Read the error of"
LONGEST_S = 60.0


@dataclass(frozen=True)
class KilledAtWrite:
    """Kills this very process right after it has written a file of that name."""

    file: str

    def __call__(self) -> None:
        Moment(1, self.file).watch(lambda: os.kill(os.getpid(), signal.SIGKILL))


@dataclass(frozen=True)
class Impatient:
    """A process that waits less long for the others, and that something else may befall."""

    timeout_s: float
    fault: Callable[[], None] | None = None

    def __call__(self) -> None:
        distributed.COLLECTIVE_TIMEOUT = timedelta(seconds=self.timeout_s)
        if self.fault is not None:
            self.fault()


@dataclass(frozen=True)
class StuckGoodbye:
    """A fault in which `destroy_process_group` never returns, as it may with NCCL."""

    def __call__(self) -> None:
        distributed.DESTROY_TIMEOUT_S = 0.5
        dist.destroy_process_group = lambda: time.sleep(3600)


@pytest.fixture(scope="module")
def recipe(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe") / "small.toml", target)


@pytest.fixture(scope="module")
def undisturbed(recipe: Path, features: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    made: dict[Sequence[str], Path] = {}

    def make(overrides: Sequence[str]) -> Path:
        if overrides not in made:
            made[overrides] = new_run(tmp_path_factory.mktemp("whole") / "run", features)
            for ended in train(recipe, made[overrides], 2, overrides):
                assert ended.code == 0, ended.err
        return made[overrides]

    return make


def whole_checkpoint(head: Path) -> int:
    """The update of the checkpoint, each part of which has the bytes that it names."""
    content = json.loads((head / "checkpoint.json").read_bytes())
    assert len(content["parts"]) == 2
    for name, digest in content["parts"].items():
        assert digest_bytes((head / name).read_bytes()) == digest
    return content["update"]


@pytest.mark.parametrize(
    ("lost", "fault", "overrides", "update"),
    [
        pytest.param(0, Blow(6), (), 5, id="the first, which has the store, before a save"),
        pytest.param(1, Blow(6), SHARD, 5, id="with divided weights"),
        pytest.param(1, KilledAtWrite("checkpoint-000006-1-of-2.safetensors"), (), 5, id="behind its part of a save"),
        pytest.param(0, KilledAtWrite("checkpoint.json"), (), 1, id="behind a save, before the old parts are removed"),
        pytest.param(0, KilledAtWrite("checkpoint-000006-0-of-2.safetensors"), SHARD, 5, id="in a save, divided"),
        pytest.param(0, KilledAtWrite("model.safetensors"), (), 9, id="while the head is written"),
    ],
)
def test_a_killed_process_ends_the_other_with_a_reason_and_all_continue(
    lost: int,
    fault: Callable[[], None],
    overrides: tuple[str, ...],
    update: int,
    recipe: Path,
    undisturbed: Callable[..., Path],
    features: Path,
    tmp_path: Path,
) -> None:
    whole, out, started_s = undisturbed(overrides), new_run(tmp_path / "run", features), time.monotonic()
    ended = train(recipe, out, 2, overrides, {lost: fault})
    assert time.monotonic() - started_s < LONGEST_S
    assert ended[lost].code == -signal.SIGKILL
    left = ended[1 - lost]
    if update < 9:  # else it has nothing left to do
        assert left.code == 1
        assert f"Rank {1 - lost} of 2 lost the connection to the other processes of this training (" in left.err
        assert re.search(CLOSED, left.err), left.err
        assert "Traceback" not in left.err
    assert whole_checkpoint(out / "head") == update
    for again in train(recipe, out, 2, overrides):
        assert again.code == 0, again.err
    assert contents(out / "head") == contents(whole / "head")


@pytest.mark.parametrize("overrides", [(), pytest.param(SHARD, marks=pytest.mark.full)])
def test_a_process_that_hangs_ends_the_other_when_its_patience_ends(
    overrides: tuple[str, ...], recipe: Path, undisturbed: Callable[..., Path], features: Path, tmp_path: Path
) -> None:
    whole, out, started_s = undisturbed(overrides), new_run(tmp_path / "run", features), time.monotonic()
    faults = {0: Impatient(10.0), 1: Impatient(10.0, Blow(6, signal.SIGSTOP))}
    left, _ = train(recipe, out, 2, overrides, faults, leave=[1])
    assert time.monotonic() - started_s < LONGEST_S
    assert left.code == 1
    assert re.search(r"\(Timed out waiting \d+ms for \w+ operation to complete\)\. Read the error of", left.err), (
        left.err
    )
    assert whole_checkpoint(out / "head") == 5
    for again in train(recipe, out, 2, overrides):
        assert again.code == 0, again.err
    assert contents(out / "head") == contents(whole / "head")


def test_a_group_that_does_not_end_holds_nobody_up(recipe: Path, features: Path, tmp_path: Path) -> None:
    out, started_s = new_run(tmp_path / "run", features), time.monotonic()
    left, _ = train(recipe, out, 2, (), {0: StuckGoodbye(), 1: Blow(2)})
    assert time.monotonic() - started_s < LONGEST_S
    assert left.code == 1
    assert re.search(CLOSED, left.err), left.err


def test_a_process_that_never_comes_ends_the_first(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "COLLECTIVE_TIMEOUT", timedelta(seconds=1))
    assert main(["train", str(recipe), "--out", str(tmp_path / "run")]) == 1
    assert "waiting for clients. 1/2 clients joined). Read the error of" in capsys.readouterr().err


@pytest.mark.parametrize("own", ["train.learning_rate=1e-3", "train.batch_tokens=30", "train.shard=true"])
def test_processes_with_different_settings_are_refused(own: str, recipe: Path, features: Path, tmp_path: Path) -> None:
    for ended in train(recipe, new_run(tmp_path / "run", features), 2, own={1: (own,)}):
        assert ended.code == 2, ended.err
        assert "The process of rank 1 has another value of `settings` than that of rank 0." in ended.err
    assert not (tmp_path / "run" / "head").exists()
