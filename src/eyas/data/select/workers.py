"""Who screens which piece: processes of this machine, a Ray cluster, or one of several machines that share the work.

The same files come out of all of them: a piece is screened alike whoever does it, and is done or is not.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, cast

from eyas.base.environment import count_cpus, read_rank
from eyas.base.errors import InputError, StageError
from eyas.data.select.screen import Screener, ScreeningJob

MIN_RECORDS_PER_WORKER = 2000
"""For fewer a further process is not worth the seconds that it takes to start."""
POLL_S = 2.0
PARENT_POLL_S = 1.0
_worker_screener: list[Screener] = []
"""Of a worker process: its screen, made once."""


def screen_shards(job: ScreeningJob) -> Iterator[int]:
    """Screens this rank's pieces that are not done; yields how many records each finished piece had."""
    config = job.config
    rank = read_rank("prompts.world", config.world)
    numbers = [number for number in range(len(job.shards)) if number % config.world == rank]
    yield from (job.shards[number].num_records for number in numbers if job.is_done(number))
    numbers = [number for number in numbers if not job.is_done(number)]
    if config.executor == "ray":
        yield from _screen_with_ray(job, numbers)
        return
    total = sum(job.shards[number].num_records for number in numbers)
    workers = min(config.workers or count_cpus(), len(numbers), 1 + total // MIN_RECORDS_PER_WORKER)
    if workers <= 1:
        screen = Screener(job)
        yield from (screen(number) for number in numbers)
    else:
        yield from _screen_with_processes(job, numbers, workers)


def wait_for_other_ranks(job: ScreeningJob) -> Iterator[int]:
    """Until every piece is done, whoever does it; yields how many records came to be done."""
    left = {number for number in range(len(job.shards)) if not job.is_done(number)}
    while left:
        done = {number for number in left if job.is_done(number)}
        left -= done
        yield sum(job.shards[number].num_records for number in done)
        if left:
            time.sleep(POLL_S)


def _screen_with_processes(work: ScreeningJob, numbers: Sequence[int], workers: int) -> Iterator[int]:
    context = multiprocessing.get_context("spawn")  # threads of this process must not be copied
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(work, os.getpid()))
    try:
        waiting: set[Future[int]] = set()
        rest = iter(numbers)
        while True:
            for number in rest:
                waiting.add(pool.submit(_screen_one, number))
                if len(waiting) >= 2 * workers:
                    break
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    except BrokenProcessPool as error:
        raise StageError(
            "a worker process that ended in the middle of its work",
            "one that lives; this machine may be short of memory",
            "run the same command again, with a smaller prompts.workers",
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(work: ScreeningJob, parent: int) -> None:
    """In a worker. It ends when the process that asked for it has gone, however that ended."""
    os.environ["OMP_NUM_THREADS"] = "1"

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    _worker_screener.append(Screener(work))


def _screen_one(number: int) -> int:
    return _worker_screener[0](number)


def _screen_with_ray(work: ScreeningJob, numbers: Sequence[int]) -> Iterator[int]:
    """A Ray Data job over the pieces; the directory must be one that all machines of the cluster see."""
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError(
            "prompts.executor=ray, but no package ray", "that package", "pip install 'eyas[ray]'"
        ) from None

    class Worker:
        def __init__(self) -> None:
            self.screen = Screener(work)

        def __call__(self, row: dict[str, int]) -> dict[str, int]:
            return {"count": self.screen(row["number"])}

    if not numbers:
        return
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(log_to_driver=False)
    try:
        items = ray.data.from_items([{"number": number} for number in numbers], override_num_blocks=len(numbers))
        size = min(work.config.workers or len(numbers), len(numbers))
        done = items.map(cast("Any", Worker), concurrency=size)  # its type knows functions only
        yield from (int(row["count"]) for row in done.iter_rows())
    finally:
        if started_here:
            ray.shutdown()
