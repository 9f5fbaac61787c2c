import os
import signal
import subprocess
import sys
from itertools import product

import pytest
import torch

from eyas import __version__
from eyas.base.errors import UsageError
from eyas.cli import main
from eyas.train.distributed import SINGLE_PROCESS, catch_sigterm, join_process_group, shard_rows


def test_rows_are_divided_as_torch_divides_them() -> None:
    for world, count in product((1, 2, 3, 4, 7), (1, 2, 5, 7, 8, 48, 151)):
        whole = torch.arange(count)
        parts = [whole[shard_rows(rank, world, count)] for rank in range(world)]
        chunks = whole.chunk(world)
        assert [part.tolist() for part in parts if len(part)] == [chunk.tolist() for chunk in chunks]


def test_without_a_launcher_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with join_process_group() as ranks:
        assert ranks == SINGLE_PROCESS
        assert ranks.is_main
        assert ranks.all_reduce_sum(torch.tensor([2, 3])).tolist() == [2, 3]
        assert (ranks.any_rank(False), ranks.any_rank(True), ranks.all_gather("a")) == (False, True, ["a"])
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', not a whole number"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK is not set"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE is 2, but MASTER_ADDR is not set"),
    ],
)
def test_a_launcher_that_says_half_is_refused(environment, message, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message), join_process_group():
        raise AssertionError("it met nobody")


def test_only_train_is_shared(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "small.toml").touch()
    for command in (["eval", str(tmp_path / "small.toml")], ["run", str(tmp_path / "small.toml")], ["quickstart"]):
        assert main(command) == 2
        assert f"`eyas {command[0]}` runs in one process, but WORLD_SIZE is 2" in capsys.readouterr().err


def test_a_notice_is_taken_and_the_former_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with catch_sigterm() as leaving:
        assert not leaving.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        signal.sigtimedwait([], 0.01)  # a moment in which it is delivered
        assert leaving.is_set()
    assert signal.getsignal(signal.SIGTERM) == before


def test_launchers_start_the_package_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "eyas", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, f"eyas {__version__}")
