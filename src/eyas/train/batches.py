"""The order in which training sees rows, a pure function of (seed, epoch) and the manifest.

A resumed run continues with the very next batch, and so does one with another number of processes: they change who
computes a micro-batch, never what is in it.

    update   = rows until `batch_tokens` supervised tokens are together      one optimizer step
    micro    = its rows until `micro_tokens` tokens are together             one forward and backward, packed

    update 1    [ micro a ][ micro b ][ micro c ][ micro d ]      process 0 takes a and d, process 1 takes b and c:
                  900        800        700        500              `shares`, by tokens

What training reads next, while it computes.

jobs      1   2   3   4   5   6   7 ...
          |   '-------.-------'   '--- not begun
    in use    read ahead by threads: at most `ahead`, so memory is bounded; handed out in order
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np

from eyas.features.shard import RowInfo


@dataclass(frozen=True)
class Update:
    """One optimizer step: rows by index into the manifest, in micro-batches, and its supervised tokens."""

    micro_batches: tuple[tuple[int, ...], ...]
    num_supervised: int


def plan_epoch(
    rows: Sequence[RowInfo],
    indices: Sequence[int],
    seed_and_epoch: tuple[int, int],
    batch_tokens: int,
    micro_tokens: int,
) -> list[Update]:
    """The updates of one epoch over the rows that have anything to supervise; order = (seed, epoch).

    A row longer than micro_tokens is a micro-batch of its own. The last update may be smaller.
    """
    usable = [index for index in indices if rows[index].num_supervised > 0]
    shuffled = np.random.default_rng(seed_and_epoch).permutation(len(usable))
    updates: list[Update] = []
    micro_batches: list[list[int]] = []
    tokens = count = 0
    for index in (usable[i] for i in shuffled):
        row = rows[index]
        if not micro_batches or tokens + row.length > micro_tokens:
            micro_batches.append([])
            tokens = 0
        micro_batches[-1].append(index)
        tokens += row.length
        count += row.num_supervised
        if count >= batch_tokens:
            updates.append(_to_update(micro_batches, count))
            micro_batches, tokens, count = [], 0, 0
    if micro_batches:
        updates.append(_to_update(micro_batches, count))
    return updates


def assign_to_ranks(update: Update, rows: Sequence[RowInfo], world_size: int) -> list[list[tuple[int, ...]]]:
    """Who computes what: the micro-batches of each process, in the order of the update. Some may have none.

    The longest goes first, always to the process with the fewest tokens so far; of equal ones the earlier. No process
    gets more than 4/3 of what the best division would give the busiest (Graham, 1969).
    """
    tokens = [sum(rows[index].length for index in micro) for micro in update.micro_batches]
    load, taken = [0] * world_size, [[] for _ in range(world_size)]
    for number in sorted(range(len(tokens)), key=lambda number: -tokens[number]):  # stable
        least = min(range(world_size), key=load.__getitem__)
        load[least] += tokens[number]
        taken[least].append(number)
    return [[update.micro_batches[number] for number in sorted(numbers)] for numbers in taken]


def _to_update(micro_batches: list[list[int]], count: int) -> Update:
    return Update(tuple(tuple(micro) for micro in micro_batches), count)


Job = TypeVar("Job")
Item = TypeVar("Item")

AHEAD = 4  # micro-batches; a few hide one slow read among quick ones
THREADS = 2  # one can wait for a store while the other unpacks


@contextmanager
def prefetch(
    read: Callable[[Job], Item], jobs: Iterable[Job], ahead: int = AHEAD, threads: int = THREADS
) -> Generator[Iterator[Item], None, None]:
    """`map(read, jobs)`, read in threads: the same items in the same order.

    What `read` raises is raised where its item would have come. Leaving the block waits for reads that have begun and
    begins no other.
    """
    with ThreadPoolExecutor(threads, "eyas-feed") as pool:
        try:
            yield _iterate(pool, read, jobs, ahead)
        finally:
            pool.shutdown(cancel_futures=True)


def _iterate(
    pool: ThreadPoolExecutor, read: Callable[[Job], Item], jobs: Iterable[Job], ahead: int
) -> Generator[Item, None, None]:
    left = iter(jobs)
    reading: deque[Future[Item]] = deque(pool.submit(read, job) for job in islice(left, ahead))
    while reading:
        item = reading.popleft().result()
        reading.extend(pool.submit(read, job) for job in islice(left, 1))
        yield item
        del item  # else it would be kept beside the next one
