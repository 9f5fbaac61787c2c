"""Copies of numbers: equal values on each path, and no buffer is written while a copy from it is in flight."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

import eyas.staging
from eyas.staging import ALIGNMENT, MIN_BUFFER_BYTES, Staging, to_host

CPU = torch.device("cpu")


class Event:
    """A CUDA event that occurs when the test says so."""

    def __init__(self) -> None:
        self.is_recorded, self.has_occurred = False, True

    def record(self) -> None:
        self.is_recorded, self.has_occurred = True, False

    def query(self) -> bool:
        return self.has_occurred


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Staging:
    """The path of a GPU on a CPU. A copy to a CPU shares memory with its buffer: a buffer written too early shows."""
    monkeypatch.setattr(eyas.staging, "_pinned", lambda num_bytes: torch.zeros(num_bytes, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    staging = Staging(CPU)
    staging._is_pinned = True
    return staging


def parts_of(seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    floats = random.normal(size=(int(random.integers(4)), 4))
    words = random.integers(0, 9, int(random.integers(9))).astype(np.int32)
    return [
        tuple(random.integers(-9, 9, 5).tolist()),
        floats,
        [],
        words,
        random.random((3, 5)) < 0.5,
        np.float32(floats),
        [2**40, -1],
        floats.T,
    ]


def check(tensors: Sequence[Tensor], parts: Sequence[Any]) -> None:
    for tensor, part in zip(tensors, parts, strict=True):
        expected = torch.from_numpy(part.copy()) if isinstance(part, np.ndarray) else torch.tensor(part).long()
        assert tensor.dtype == expected.dtype
        assert tensor.shape == expected.shape
        assert tensor.equal(expected)
        assert tensor.numel() == 0 or tensor.data_ptr() % tensor.element_size() == 0


def events_of(ring: Staging) -> list[Event]:
    return [cast(Event, buffer.copied) for buffer in ring._ring]


@pytest.mark.parametrize("seed", range(5))
def test_values_and_dtypes_are_kept(ring: Staging, seed: int) -> None:
    parts = parts_of(seed)
    check(Staging(CPU).copy(*parts), parts)
    check(ring.copy(*parts), parts)


def test_a_buffer_waits_for_its_copy(ring: Staging) -> None:
    """Copies in flight keep their buffers, however many there are; those that are done are used again, oldest first."""
    all_parts = [parts_of(seed) for seed in range(6)]
    in_flight = [ring.copy(*parts) for parts in all_parts]
    assert len(ring._ring) == 6
    for tensors, parts in zip(in_flight, all_parts, strict=True):
        check(tensors, parts)
    buffers, events = list(ring._ring), events_of(ring)
    assert all(event.is_recorded for event in events)
    events[0].has_occurred = True
    ring.copy([1])
    assert list(ring._ring) == [*buffers[1:], buffers[0]], "the first buffer again"
    ring.copy([1])
    assert len(ring._ring) == 7, "the second one is not free"
    for tensors, parts in zip(in_flight[1:], all_parts[1:], strict=True):
        check(tensors, parts)


def test_the_ring_does_not_grow_where_copies_end(ring: Staging) -> None:
    for number in range(50):
        (tensor_X,) = ring.copy(range(number))
        assert tensor_X.tolist() == list(range(number))
        for event in events_of(ring):
            event.has_occurred = True
    assert len(ring._ring) == 1


def test_a_buffer_grows_to_what_is_copied(ring: Staging) -> None:
    count = MIN_BUFFER_BYTES // 8 + 3
    (tensor_X,) = ring.copy(range(count))
    assert tensor_X.tolist() == list(range(count))
    assert [len(buffer.bytes_X) for buffer in ring._ring] == [2 * MIN_BUFFER_BYTES]
    assert MIN_BUFFER_BYTES % ALIGNMENT == 0


def test_reads_are_counted() -> None:
    staging = Staging(CPU)
    numbers, is_valid, nothing = torch.arange(6).view(2, 3), torch.tensor([True, False]), torch.empty(0).long()
    assert staging.read_now(numbers, is_valid, nothing) == [[[0, 1, 2], [3, 4, 5]], [1, 0], []]
    assert staging.read_now(numbers[:, 1:]) == [[[1, 2], [4, 5]]]
    assert staging.num_reads == 2


def test_a_result_does_not_change() -> None:
    tensor = torch.arange(3)
    told = to_host(tensor)
    tensor.zero_()  # as a recorded round does with what it told before
    assert told.tolist() == [0, 1, 2]
