"""The server under mixed and rude traffic; `make soak` runs the ten thousand."""

import dataclasses
import os
from pathlib import Path

import pytest
from engine_checks import check_engine
from tests.engine.small import random_draft
from tests.server.server import SHAPE, serving, wait_until
from tests.server.soak import soak, solo_cases
from worker_stream import WorkerStream

from eyas.engine.async_engine import AsyncEngine
from eyas.engine.cost_profiler import build_budget
from eyas.engine.engine import Engine
from eyas.engine.loops import overlap_loop
from eyas.model.target import Target
from eyas.speculation.arms import Arm
from eyas.tree.shape import chain_shape

ARMS = (Arm("off", None), Arm("chain2", chain_shape(2)), Arm("tree6", SHAPE))


@pytest.mark.parametrize(
    ("num_requests", "num_cases"), [(150, 24), pytest.param(10_000, 200, marks=pytest.mark.full)], ids=["small", "soak"]
)
def test_a_soak_leaves_nothing_behind(shallow_target: Target, num_requests: int, num_cases: int) -> None:
    """Every answer is its solo answer, nobody is stuck, every slot is free or cached, and memory does not grow."""
    cases = solo_cases(shallow_target, num_cases, seed=1)
    draft = dataclasses.replace(random_draft(shallow_target, SHAPE), arms=ARMS)
    # Less memory than the requests want at once: some wait, some are preempted.
    engine = Engine(shallow_target, [draft], 8, 256, memory_tokens=420, stream=WorkerStream())
    engine.policies[0] = build_budget(engine, ARMS, None)
    async_engine = AsyncEngine(engine, max_waiting=12, loop=overlap_loop)
    async_engine.start()
    with serving(async_engine) as server:
        soak(server.url, cases, 50, seed=0)
        before = resident_bytes()
        report = soak(server.url, cases, num_requests, seed=2)
        wait_until(lambda: async_engine.stats().running == async_engine.stats().waiting == 0)
        grown = resident_bytes() / before - 1
    assert async_engine.drain(10)
    assert async_engine.failure is None
    check_engine(engine)
    assert engine.kv_cache.pool.num_free + engine.kv_cache.prefix_cache.num_slots == engine.kv_cache.pool.num_slots
    assert report.wrong == []
    stats = async_engine.stats()
    assert report.outcomes["left"] > 0
    assert report.outcomes["plain 200"] > num_requests / 20
    assert stats.counters.preemptions > 0, "memory was short"
    assert stats.counters.drafts > 0
    assert stats.counters.finished["cancelled"] > 0
    if num_requests > 1000:
        assert grown < 0.05, f"memory grew by {grown:.1%}"


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
