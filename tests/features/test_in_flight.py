"""Batches in flight: the order of launches and reads, their streams, and equal features for every number of devices."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.engine.test_nothing_waits import WaitsError, forbidden, permit
from tests.features.small import contents
from torch import Tensor

from eyas.features import extract
from eyas.features.capture import CaptureConfig, _launch_one_batch_ahead, run
from eyas.features.extract import ExtractedFeatures, extract_features, launch_quantization
from eyas.kernels.dispatch import pack_target
from eyas.model.target import Target
from eyas.staging import Staging

CONFIG = CaptureConfig(dtype="float32", shard_bytes=120_000, batch_tokens=300, held_out=0.2)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def spread(target: Target, monkeypatch: pytest.MonkeyPatch):
    """Makes the target say that its layers are on these devices. It computes on the CPU all the same."""
    pack_target(target)
    monkeypatch.setattr(extract, "pack_target", lambda target: None)  # it changes the weights

    def say(*names: str) -> None:
        facts = {"dtype": torch.float32, "is_floating_point": lambda: True}
        weights = [SimpleNamespace(device=torch.device(name), **facts) for name in names for _ in range(3)]
        monkeypatch.setattr(target.model, "parameters", lambda: iter(weights))

    return say


@pytest.fixture
def events(target: Target, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order of launched forwards and of batches whose features are read."""
    happened: list[str] = []
    forward, read = target.forward, extract._read_batch

    def launch(*args, **kwargs):
        happened.append("launch")
        return forward(*args, **kwargs)

    def note(*args):
        yield from (happened.append("read") or one if number == 0 else one for number, one in enumerate(read(*args)))

    monkeypatch.setattr(target, "forward", launch)
    monkeypatch.setattr(extract, "_read_batch", note)
    return happened


def texts(*lengths: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randint(0, 256, (n,), generator=generator), torch.arange(n) > n // 2) for n in lengths]


GROUPS = [texts(30, 10, 20), texts(40, 40), texts(15)]


def as_read(events: list[str]) -> str:
    return " ".join(event[0] for event in events)


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (("cpu",), "l r l r l r l r l r l r"),
        (("cpu", "meta"), "l l r l r l r l r l r r"),
        (("cpu", "meta", "xpu"), "l l l r l r l r l r r r"),
    ],
)
def test_as_many_batches_are_in_flight_as_devices(names, order, target, spread, events) -> None:
    """Batches of one text. The next group is launched before the last batch of a group is read."""
    wanted = [list(extract_features([group], target, 1)) for group in GROUPS]
    events.clear()
    spread(*names)
    found = list(extract_features(GROUPS, target, 1))
    assert as_read(events) == order
    for one, other in zip((one for group in wanted for one in group), found, strict=True):
        assert one.index == other.index
        assert torch.equal(one.aux_TL, other.aux_TL)
        assert torch.equal(one.hidden_UD, other.hidden_UD)


def test_shards_have_the_same_bytes_with_batches_in_flight(
    target: Target, conversations: Path, tmp_path: Path, spread, events
) -> None:
    run(CONFIG, conversations, target, tmp_path / "one", progress=False)
    assert len(contents(tmp_path / "one")) > 5  # several shards
    assert all(first != second for first, second in pairwise(events))
    count = len(events)
    spread("cpu", "meta")
    run(CONFIG, conversations, target, tmp_path / "two", progress=False)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert sorted(events[count:]) == sorted(events[:count])
    # One batch for the error of storing. All others are one chain across the shards, never less than two in flight.
    assert as_read(events[count + 2 :]).startswith("l l r l r")
    assert as_read(events[count + 2 :]).endswith("l r r")
    assert "r r l" not in as_read(events[count + 2 :])


def test_a_batch_has_its_own_streams_until_it_is_read(target: Target, spread, monkeypatch) -> None:
    """Stand-ins for streams: each batch runs on one of two, and the current stream waits for it before the read."""
    happened: list[tuple[str, object]] = []
    made: list[object] = []

    class Stream:
        def __init__(self, device: object) -> None:
            self.device = device
            made.append(self)

        def wait_stream(self, other: object) -> None:
            happened.append(("wait", other))

    default = Stream("default")

    @contextmanager
    def on(stream: Stream):
        happened.append(("begin", stream))
        yield
        happened.append(("end", stream))

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: default)
    monkeypatch.setattr(torch.cuda, "stream", on)
    spread("cpu", "cuda:1")  # the second device is no CPU, and nothing is computed on it
    for _ in extract_features([texts(5, 6, 7)], target, 1):
        happened.append(("read", None))
    one, two = made[1:]

    def launch(stream):
        return [("wait", default), ("begin", stream), ("end", stream)]

    def read(stream):
        return [("wait", stream), ("read", None)]

    assert happened == launch(one) + launch(two) + read(one) + launch(one) + read(two) + read(one)
    made.clear()
    spread("cuda:1")
    with pytest.raises((RuntimeError, AssertionError)):  # one device: no streams, and this one does not exist
        next(extract_features([texts(5)], target, 1))
    assert made == []


def test_a_batch_is_read_after_the_next_one_is_launched() -> None:
    log: list[str] = []

    def extracted() -> Iterator[ExtractedFeatures]:
        for batch, size in enumerate((2, 1, 3)):
            log.append(f"forward {batch}")
            for index in range(size):
                yield ExtractedFeatures(index, batch, torch.zeros(1, 3), torch.zeros(1, 1))

    def launch(features: ExtractedFeatures) -> str:
        log.append(f"copy {features.batch}.{features.index}")
        return f"{features.batch}.{features.index}"

    found = []
    for one in _launch_one_batch_ahead(extracted(), launch):
        log.append(f"read {one}")
        found.append(one)
    assert found == ["0.0", "0.1", "1.0", "2.0", "2.1", "2.2"]
    assert log.index("forward 1") < log.index("read 0.0") < log.index("read 0.1") < log.index("forward 2")
    assert log.index("forward 2") < log.index("read 1.0") < log.index("read 2.0")


@pytest.mark.parametrize("dtype", ["fp8", "bfloat16"])
def test_the_host_launches_a_capture_without_waiting(dtype, target, monkeypatch) -> None:
    """On a GPU one wait for each text would end each batch before the next one is launched."""
    permit(monkeypatch, extract, "to_host")
    copies = permit(monkeypatch, Staging, "copy")
    pack_target(target)
    with forbidden():
        launched = [launch_quantization(one, dtype) for one in extract_features(GROUPS, target, 64)]
    assert len(launched) == sum(map(len, GROUPS))
    assert len(copies) < len(launched), "one copy for each batch"
    for read in launched:
        (aux, _), (hidden, _) = read("row")
        assert aux.shape[0] > hidden.shape[0] > 0


def test_a_selection_by_mask_is_found(target, monkeypatch) -> None:
    """The positions of a mask on the device are known to the host only when the device has computed them."""
    permit(monkeypatch, Staging, "copy")
    pack_target(target)
    one = next(extract_features(GROUPS, target, 64))
    with forbidden(), pytest.raises(WaitsError, match="boolean index"):
        one.aux_TL[one.aux_TL[:, 0] > 0]
