"""Comparison with other engines: the messages to a driver and the rows, with drivers that run no model."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from compare_peers import (
    EYAS,
    Arm,
    Driver,
    EyasRun,
    NotInstalledError,
    PeerFailedError,
    Setup,
    compare_with_peer,
    vllm_arms,
)
from peer_drivers.protocol import LoadResult, LoadTask, Options, run_closed_loop
from tests.bench.tiny_pair import TinyPair

from eyas.bench.workload import interleave_tasks
from eyas.engine.engine import Engine

DRIVERS = Path(__file__).parents[2] / "benchmarks" / "peer_drivers"
OPTIONS = Options("target", None, threads=1, streams=2, context=64)
# Takes as many seconds for an answer as its target says; a chain makes it say what was accepted.
FAKE = """
import sys
sys.path.insert(0, {drivers!r})
from protocol import LoadResult, Options, ProtocolServer, LoadTask

server, options = ProtocolServer(), Options.read()
print("a library prints what it likes")

def run(work: LoadTask) -> LoadResult:
    assert work.streams <= options.streams, "too many streams"
    rounds = None if options.head is None else 10
    answers = [[0] * length for length in work.lengths]
    return LoadResult(answers, float(options.target), rounds and 2 * rounds, rounds)

server.serve("fake", run)
"""


@pytest.fixture
def fake(tmp_path: Path) -> list[str | Path]:
    script = tmp_path / "fake.py"
    script.write_text(FAKE.format(drivers=str(DRIVERS)))
    return [sys.executable, "-S", script]


@pytest.fixture
def driver(fake: list[str | Path], tmp_path: Path) -> Iterator[Driver]:
    with Driver(Arm(fake, replace(OPTIONS, target="4", head="head")), tmp_path / "log") as driver:
        yield driver


def is_stopped(pid: int) -> bool:
    """A signal arrives when it does: within a second, here."""
    for _ in range(100):
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return True
        time.sleep(0.01)
    return False


def test_a_driver_is_stopped_between_its_measurements(driver: Driver) -> None:
    assert driver.load() == "fake"
    assert is_stopped(driver.process.pid)
    for _ in range(2):
        done = driver.measure(LoadTask(2, [[1, 2], [3]], [5, 7]))
        assert done == LoadResult([[0] * 5, [0] * 7], 4.0, 20, 10)
        assert is_stopped(driver.process.pid)


def test_a_stopped_driver_ends_with_the_benchmark(driver: Driver) -> None:
    driver.load()
    driver.__exit__(None)
    assert driver.process.returncode == -signal.SIGKILL


def test_the_error_of_a_driver_is_shown(driver: Driver) -> None:
    driver.load()
    with pytest.raises(PeerFailedError, match="too many streams"):
        driver.measure(LoadTask(3, [[1]], [1]))


def test_a_closed_loop_never_has_more_under_way_than_streams() -> None:
    under_way: list[int] = []
    seen = []

    def step() -> dict[int, list[int]]:
        seen.append(list(under_way))
        last = under_way.pop()
        return {last: [last]}

    done = run_closed_loop(LoadTask(2, [[1]] * 4, [1] * 4), under_way.append, step)
    assert seen == [[0, 1], [0, 2], [0, 3], [0]]
    assert done.answers == [[0], [1], [2], [3]]


def test_a_row_is_eyas_over_the_better_arm(
    pair: TinyPair, fake: list[str | Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = interleave_tasks(pair.prompts)[:2]
    work = LoadTask(2, [list(prompt.ids) for prompt in some], [4] * len(some))
    ours = EyasRun(Engine(pair.target, [pair.draft], 2, 128), some, work, [[0, 0, 7, 0], [7, 0, 0, 0]])
    arms = {
        "slow": Arm(fake, replace(OPTIONS, target="1e9")),
        "fast": Arm(fake, replace(OPTIONS, target="1e6", head="h")),
    }
    with Driver(arms["slow"], tmp_path / "slow") as slow, Driver(arms["fast"], tmp_path / "fast") as fast:
        slow.load()
        fast.load()
        row = compare_with_peer("vllm", {"slow": slow, "fast": fast}, ours, 1)
    told = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert "(fast)" in row.name
    assert row.ok
    assert row.figure is not None
    assert row.figure > 1
    assert told["arms"]["fast"]["acceptance_length"] == 3.0
    assert told["arms"]["fast"]["same_tokens"] == 2 / 8
    assert told["arms"]["slow"]["acceptance_length"] is None
    assert told["arms"][EYAS]["acceptance_length"] >= 1


def test_a_missing_peer_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotInstalledError, match="make peers"):
        vllm_arms(Setup(tmp_path, tmp_path, tmp_path, tmp_path, OPTIONS))
