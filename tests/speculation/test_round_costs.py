"""The cost table: what is measured, what is concluded from it, and when a cached one is used."""

import dataclasses
import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.speculation.simulation import ARMS, Machine

from eyas.speculation.arms import Arm
from eyas.speculation.batch_load import BatchLoad
from eyas.speculation.round_costs import (
    MAX_ROUNDS,
    TIME_LIMIT_S,
    CostKey,
    CostTable,
    Measure,
    batch_sizes,
    isotonic,
    load_or_measure,
    measure_cost_table,
)

MACHINE = Machine()


class Watch:
    """Measures a machine and remembers what it was asked for."""

    def __init__(self, machine: Machine = MACHINE) -> None:
        self.machine = machine
        self.calls: list[tuple[str, int, int]] = []
        self.spent_s = 0.0

    def __call__(self, arm: Arm, batch: int, context: int) -> float:
        self.calls.append((arm.name, batch, context))
        seconds = self.machine.seconds(arm, [context] * batch)
        self.spent_s += seconds
        return seconds


def load(*contexts: int, fixed: tuple[int, ...] = ()) -> BatchLoad:
    return BatchLoad(contexts, (0,) * len(contexts), fixed)


# --- measuring -------------------------------------------------------------------------------------------------------


def test_batch_sizes() -> None:
    assert batch_sizes(1) == (1,)
    assert batch_sizes(2) == (1, 2)
    assert batch_sizes(6) == (1, 2, 4, 6)
    assert batch_sizes(8) == (1, 2, 4, 8)


def test_a_table_says_what_was_measured() -> None:
    """And what was not: batch sizes between the measured ones, shorter and longer contexts, several at once."""
    table = measure_cost_table(ARMS, 8, 4096, Watch())
    contexts = [(512,), (100,), (4000,), (700,) * 3, (300, 2000, 900, 40, 512), (512,) * 8]
    for (number, arm), some in itertools.product(enumerate(ARMS), contexts):
        assert table.seconds_for(number, load(*some)) == pytest.approx(MACHINE.seconds(arm, some), rel=0.03), (
            arm,
            some,
        )


def test_requests_that_do_not_draft_add_a_row() -> None:
    table = measure_cost_table(ARMS, 8, 4096, Watch())
    for number, arm in enumerate(ARMS):
        truth = MACHINE.mixed_seconds([arm] * 3 + [ARMS[0]] * 4, (600,) * 7)
        assert table.seconds_for(number, load(600, 600, 600, fixed=(600,) * 4)) == pytest.approx(truth, rel=0.03), arm


def test_measuring_takes_a_few_seconds_at_most() -> None:
    """A target of 7 ms a step and 150 ms for a thousand rows, as the embedded one on two cores."""
    watch = Watch()
    assert watch.machine.seconds(ARMS[-1], [512] * 32) > 0.15
    measure_cost_table(ARMS, 32, 4096, watch)
    assert watch.spent_s < 1.2 * TIME_LIMIT_S
    slow = Watch(Machine(step_s=0.07, row_s=0.0014, level_s=0.007))
    table = measure_cost_table(ARMS, 32, 4096, slow)
    assert slow.spent_s < 1.5 * TIME_LIMIT_S, "ten times slower: the large rounds are not run"
    assert ("tree32", 32, 512) not in slow.calls
    # They are concluded from the small ones.
    assert table.seconds_for(len(ARMS) - 1, load(*(512,) * 32)) == pytest.approx(
        slow.machine.seconds(ARMS[-1], [512] * 32), rel=0.15
    )


def test_every_arm_is_measured_somewhere_however_slow() -> None:
    glacial = Watch(Machine(step_s=5.0))
    measure_cost_table(ARMS, 32, 4096, glacial)
    seen = {(name, batch) for name, batch, _ in glacial.calls}
    assert seen >= {(arm.name, batch) for arm in ARMS for batch in (1, 2)}
    assert max(batch for _, batch in seen) == 2


def test_the_first_slow_round_of_a_kind_is_outvoted() -> None:
    seen: Counter[tuple[str, int, int]] = Counter()

    def measure(arm: Arm, batch: int, context: int) -> float:
        seen[arm.name, batch, context] += 1
        return MACHINE.seconds(arm, [context] * batch) * (5 if seen[arm.name, batch, context] == 1 else 1)

    table = measure_cost_table(ARMS, 4, 4096, measure)
    assert table.seconds_for(0, load(512)) == pytest.approx(MACHINE.seconds(ARMS[0], [512]))
    assert min(seen.values()) >= 3


def test_the_time_that_is_left_is_used() -> None:
    """Sweeps over everything, one after the other, and no more of them than say something."""
    fast = Watch(Machine(step_s=1e-3, row_s=1e-6, level_s=1e-5))
    measure_cost_table(ARMS, 4, 4096, fast)
    assert set(Counter(fast.calls).values()) == {MAX_ROUNDS}
    cells = len(set(fast.calls))
    assert len(set(fast.calls[-cells:])) == cells
    middling = Watch(Machine(step_s=4e-3))
    measure_cost_table(ARMS, 32, 4096, middling)
    assert 2 < min(Counter(middling.calls).values()) < MAX_ROUNDS
    assert middling.spent_s <= TIME_LIMIT_S


def test_a_rough_table_runs_each_arm_twice_and_is_not_cached(tmp_path: Path) -> None:
    """Larger batch sizes follow from two, so the order of the arms is that of a whole measurement."""
    watch = Watch()
    table = load_or_measure(key(), ARMS, 8, 4096, watch, tmp_path, 0.0)
    assert sorted(watch.calls) == sorted((arm.name, batch, table.context) for arm in ARMS for batch in (1, 2))
    assert not list(tmp_path.iterdir())
    whole = measure_cost_table(ARMS, 8, 4096, Watch())
    assert table.batches == whole.batches
    for rough, exact in zip(table.seconds, whole.seconds, strict=True):
        assert rough[:2] == exact[:2]
        assert rough == tuple(sorted(rough))


def test_short_engines_are_measured_within_their_limit() -> None:
    watch = Watch()
    table = measure_cost_table(ARMS, 1, 200, watch)
    assert {context for _, _, context in watch.calls} == {200}
    assert table.seconds_for(1, load(150)) == pytest.approx(MACHINE.seconds(ARMS[1], [150]), rel=0.02)


def test_no_cost_falls_to_nothing() -> None:
    """A slope that was measured too steep must not make short contexts free."""
    steep = CostTable(("off",), (1,), 512, ((0.01,),), (1.0,))
    assert steep.seconds_for(0, load(1)) == pytest.approx(0.0025)


def test_a_padded_round_costs_as_much_as_the_size_it_runs_at() -> None:
    table = CostTable(("off",), (8, 16), 512, ((0.008, 0.016),), (0.0,))
    padded = replace(table, pad=lambda batch: -(-batch // 2) * 2)
    assert table.seconds_at(0, 9) == pytest.approx(0.009)
    assert padded.seconds_at(0, 9) == padded.seconds_at(0, 10) == pytest.approx(0.010)
    assert padded.seconds_at(0, 16) == pytest.approx(0.016)


def test_rising() -> None:
    assert isotonic([1, 3, 2, 4]) == [1, 2.5, 2.5, 4]
    assert isotonic([3, 2, 1]) == [2, 2, 2]
    assert isotonic([1, 2, 3]) == [1, 2, 3]

    def noisy(arm: Arm, batch: int, context: int) -> float:
        return 0.01 if batch != 4 else 0.008

    table = measure_cost_table(ARMS, 8, 512, noisy)
    for row in table.seconds:
        assert list(row) == sorted(row)


# --- the cache -------------------------------------------------------------------------------------------------------


def key(**changes: str | int) -> CostKey:
    return dataclasses.replace(CostKey("machine", "target", "head", "bfloat16", 2, False, "1"), **changes)


def cached(directory: Path | None, measure: Measure, one: CostKey | None = None, slots: int = 4) -> CostTable:
    return load_or_measure(one or key(), ARMS, slots, 4096, measure, directory)


def test_costs_are_measured_once(tmp_path: Path) -> None:
    watch = Watch()
    first = cached(tmp_path, watch)
    number = len(watch.calls)
    assert number >= 2 * 2 * len(ARMS)
    assert cached(tmp_path, watch) == first
    assert len(watch.calls) == number
    cached(None, watch)
    assert len(watch.calls) == 2 * number, "without a cache"


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(CostKey)])
def test_another_key_is_another_table(tmp_path: Path, name: str) -> None:
    watch = Watch()
    cached(tmp_path, watch)
    number = len(watch.calls)
    cached(tmp_path, watch, key(**{name: 3 if name == "threads" else "other"}))
    assert len(watch.calls) == 2 * number


def test_other_slots_or_arms_are_another_table(tmp_path: Path) -> None:
    watch = Watch()
    cached(tmp_path, watch)
    number = len(watch.calls)
    cached(tmp_path, watch, slots=2)
    assert len(watch.calls) > number
    number = len(watch.calls)
    load_or_measure(key(), ARMS[:3], 4, 4096, watch, tmp_path)
    assert len(watch.calls) > number


def damage(content: dict, name: str) -> str:
    """The text of a damaged file."""
    if name == "cut":
        return json.dumps(content)[:-20]
    if name == "a list":
        return "[]"
    if name == "foreign":
        content["key"]["machine"] = "another"
        content["seconds"] = [[1.0 for _ in row] for row in content["seconds"]]
    elif name == "short":
        content["seconds"] = [row[:-1] for row in content["seconds"]]
    elif name == "too few arms":
        content["seconds"] = content["seconds"][:-1]
    elif name == "zero":
        content["seconds"][2][1] = 0.0
    elif name == "words":
        content["seconds"][2][1] = "fast"
    elif name == "infinite":
        content["per_token"][0] = float("inf")
    elif name == "falling":
        content["per_token"][0] = -1.0
    elif name == "older":
        content["schema"] = 0
    elif name == "lacking":
        del content["per_token"]
    return json.dumps(content)


@pytest.mark.parametrize(
    "name",
    ["cut", "a list", "foreign", "short", "too few arms", "zero", "words", "infinite", "falling", "older", "lacking"],
)
def test_a_damaged_file_is_measured_again(tmp_path: Path, name: str) -> None:
    watch = Watch()
    first = cached(tmp_path, watch)
    number = len(watch.calls)
    (path,) = tmp_path.iterdir()
    path.write_text(damage(json.loads(path.read_text()), name))
    assert cached(tmp_path, watch) == first
    assert len(watch.calls) == 2 * number
    assert cached(tmp_path, watch) == first
    assert len(watch.calls) == 2 * number, "and mended"


def test_a_closed_cache_does_not_stop_the_server(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    watch = Watch()
    assert cached(blocked, watch) == cached(None, Watch())
