"""What training reads next, while it computes.

jobs      1   2   3   4   5   6   7 ...
          |   '-------.-------'   '--- not begun
    in use    read ahead by threads: at most `ahead`, so memory is bounded; handed out in order
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

Job = TypeVar("Job")
Item = TypeVar("Item")

AHEAD = 4  # micro-batches; a few hide one slow read among quick ones
THREADS = 2  # one can wait for a store while the other unpacks


@contextmanager
def feed(
    read: Callable[[Job], Item], jobs: Iterable[Job], ahead: int = AHEAD, threads: int = THREADS
) -> Generator[Iterator[Item], None, None]:
    """`map(read, jobs)`, read in threads: the same items in the same order.

    What `read` raises is raised where its item would have come. Leaving the block waits for reads that have begun and
    begins no other.
    """
    with ThreadPoolExecutor(threads, "eyas-feed") as pool:
        try:
            yield _items(pool, read, jobs, ahead)
        finally:
            pool.shutdown(cancel_futures=True)


def _items(
    pool: ThreadPoolExecutor, read: Callable[[Job], Item], jobs: Iterable[Job], ahead: int
) -> Generator[Item, None, None]:
    left = iter(jobs)
    reading: deque[Future[Item]] = deque(pool.submit(read, job) for job in islice(left, ahead))
    while reading:
        item = reading.popleft().result()
        reading.extend(pool.submit(read, job) for job in islice(left, 1))
        yield item
        del item  # else it would be kept beside the next one
