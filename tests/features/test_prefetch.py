import threading
from collections.abc import Callable

import pytest

from eyas.features.reader import prefetch


class Reader:
    """Squares numbers, and remembers which it was asked for; `wait` is called before each answer."""

    def __init__(self, wait: Callable[[int], object] = lambda number: None) -> None:
        self.begun: list[int] = []
        self.done: list[int] = []
        self.wait = wait

    def __call__(self, number: int) -> int:
        self.begun.append(number)
        self.wait(number)
        self.done.append(number)
        return number * number


def num_threads() -> int:
    return sum(thread.name.startswith("eyas-prefetch") for thread in threading.enumerate())


@pytest.mark.parametrize(("ahead", "threads"), [(1, 1), (4, 2), (100, 8)])
def test_the_items_of_a_plain_loop_in_its_order(ahead: int, threads: int) -> None:
    # Even numbers are slower, so that threads finish in another order than they began.
    done = threading.Event()
    with prefetch(Reader(lambda number: number % 2 or done.wait(0.002)), range(30), ahead, threads) as items:
        assert list(items) == [number * number for number in range(30)]
    assert num_threads() == 0


def test_a_slow_reader_works_while_an_item_is_in_use() -> None:
    """Three are read without being asked for; a fourth, which would be memory without bound, is not begun."""
    read, may_read = threading.Semaphore(0), threading.Semaphore(0)
    reader = Reader(lambda number: (may_read.acquire(timeout=60), read.release()))
    with prefetch(reader, range(10), ahead=3, threads=2) as items:
        may_read.release()
        assert next(items) == 0
        for _ in range(3):  # nobody asks for them: the consumer is here, with item 0
            may_read.release()
            read.acquire(timeout=60)
        read.acquire(timeout=60)
        assert sorted(reader.done) == [0, 1, 2, 3]
        assert reader.begun == [0, 1, 2, 3]
        for _ in range(6):
            may_read.release()
        assert list(items) == [1, 4, 9, 16, 25, 36, 49, 64, 81]


def test_an_error_comes_where_its_item_would_have_been() -> None:
    def read(number: int) -> int:
        return 12 // (3 - number)

    with prefetch(read, range(6), ahead=4, threads=2) as items:
        assert [next(items), next(items), next(items)] == [4, 6, 12]
        with pytest.raises(ZeroDivisionError):
            next(items)
    assert num_threads() == 0


def test_leaving_early_reads_no_more() -> None:
    reader = Reader()
    with prefetch(reader, range(1000), ahead=4, threads=2) as items:
        next(items)
    assert num_threads() == 0
    assert len(reader.begun) <= 5
