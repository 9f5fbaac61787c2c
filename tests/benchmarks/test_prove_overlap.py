"""The rows of `make prove-overlap` in a small size, and the parts that they stand on."""

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from mixed_requests import HostReads
from prove_overlap import Effort, forbidden_operations_row, gain, idle_share, launch_time
from simulated_device import HostClock, SimulatedDevice, WallClock, load_tiny_target

from eyas.model.target import Target

SMALL = Effort(pairs=3, steps=50)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("overlap")


@pytest.fixture(scope="module")
def target(directory: Path) -> Target:
    return load_tiny_target(directory)


@pytest.mark.parametrize("clock", [HostClock(), WallClock()])
def test_pieces_of_work_follow_each_other_on_the_device(clock: HostClock | WallClock) -> None:
    device = SimulatedDevice(0.02, clock)
    began_s = clock.now_s()
    first, second = device.launch(lambda: 1), device.launch(lambda: 2)
    assert clock.now_s() - began_s < 0.02, "a launch does not wait"
    assert first.wait().out == 1
    assert clock.now_s() - began_s >= 0.02
    assert (second.wait().out, second.wait().seconds) == (2, 0.02)
    assert clock.now_s() - began_s >= 0.04
    assert device.idle_s == 0
    clock.wait_until(began_s + 0.1)
    device.launch(lambda: 3)
    assert device.idle_s == pytest.approx(0.06, abs=0.02)


def test_the_overlap_loop_hides_the_host(target: Target) -> None:
    overlap, plain = idle_share(target, SMALL)
    assert overlap.figure is not None
    assert plain.figure is not None
    assert overlap.figure < plain.figure / 2
    share, ratio = gain(target, SMALL)
    assert share.figure is not None
    assert ratio.figure is not None
    assert 1 + share.figure / 2 < ratio.figure < 1 + share.figure * 2


def test_launches_are_timed_at_each_size(target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    middle, ratio, slope = launch_time(target, SMALL)
    assert all(row.figure is not None and row.figure > 0 for row in (middle, ratio, slope))
    assert "launch by running requests: 8: " in capsys.readouterr().err


class Launches:
    """Counts each piece of launched work as a forbidden operation."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def watch(self) -> AbstractContextManager[object]:
        self.counts["launch"] += 1
        return nullcontext()


def test_the_row_counts_what_the_detector_counts(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    detector = Launches()
    row = forbidden_operations_row(directory, 60, detector)
    assert row.figure == detector.counts["launch"] > 60
    assert not row.ok
    assert row.name.startswith("forbidden operations over 60 mixed requests")
    told = capsys.readouterr().err
    assert "drafters=2" in told
    assert "cancelled=0" not in told


def test_the_detector_counts_host_reads_and_lists() -> None:
    detector = HostReads()
    with torch.inference_mode():
        values = torch.arange(4.0)
        with detector.watch():
            values[1] = 5  # a fill
            values[values.argmax()[None]] = 2.0  # an index on the device
            assert not detector.counts.total()
            read = values[0].item(), values.tolist(), values[values > 1], torch.tensor([1, 2])
    assert detector.counts == {"item": 1, "tolist": 1, "boolean index": 1, "list to tensor": 1}
    assert read[0] == 0
