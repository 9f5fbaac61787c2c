"""Work is done in the order in which it is launched; on a stream with a device of its own the host does not wait."""

import threading
from collections.abc import Iterator

import pytest
import torch
from worker_stream import TimedStream, WorkerStream

from eyas.engine.device_stream import DeviceStream, InlineStream, stream_for

PATIENCE_S = 30.0


@pytest.fixture(
    params=[InlineStream, WorkerStream, lambda: TimedStream(InlineStream())], ids=["inline", "worker", "timed"]
)
def stream(request: pytest.FixtureRequest) -> Iterator[DeviceStream]:
    stream = request.param()
    yield stream
    stream.close()


@pytest.fixture
def worker() -> Iterator[DeviceStream]:
    stream = WorkerStream()
    yield stream
    stream.close()


def test_results_come_in_order_whenever_they_are_waited_for(stream: DeviceStream) -> None:
    done: list[int] = []

    def work(number: int) -> int:
        done.append(number)
        return number * number

    events = [stream.launch(lambda number=number: work(number)) for number in range(20)]
    assert [event.wait().out for event in reversed(events)] == [number * number for number in range(19, -1, -1)]
    assert [event.wait().out for event in events[:2]] == [0, 1], "an event may be asked again"
    assert done == list(range(20))


def test_work_keeps_no_gradients(stream: DeviceStream) -> None:
    weight = torch.ones(3, requires_grad=True)
    assert not stream.launch(lambda: weight * 2).wait().out.requires_grad
    assert torch.is_grad_enabled()


def test_seconds_are_those_of_the_work(stream: DeviceStream) -> None:
    waits = [stream.launch(lambda: threading.Event().wait(0.05)), stream.launch(lambda: None)]
    long, short = (event.wait().seconds for event in waits)
    assert long >= 0.05 > 0.0 <= short


def test_an_error_comes_out_and_the_next_work_is_done(stream: DeviceStream) -> None:
    def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        stream.launch(fail).wait()
    assert stream.launch(lambda: 5).wait().out == 5


def test_the_host_goes_on_while_the_device_works(worker: DeviceStream) -> None:
    """Two pieces are queued while the first one cannot end: a stream that made the host wait would never come back."""
    may_end, order = threading.Event(), []

    def first() -> str:
        assert may_end.wait(PATIENCE_S), "the host did not come back"
        order.append("first")
        return threading.current_thread().name

    events = [worker.launch(first), worker.launch(lambda: order.append("second"))]
    assert order == []
    may_end.set()
    name = events[0].wait().out
    assert name != threading.current_thread().name
    events[1].wait()
    assert order == ["first", "second"]


def test_closing_finishes_what_is_queued() -> None:
    stream, done = WorkerStream(), []
    for number in range(5):
        stream.launch(lambda number=number: done.append(number))
    stream.close()
    assert done == list(range(5))


def test_a_cpu_works_itself() -> None:
    assert isinstance(stream_for(torch.device("cpu")), InlineStream)
