from itertools import pairwise, product

import pytest

from eyas.features.layout import Split
from eyas.features.shard import RowInfo
from eyas.train.batches import Update, assign_to_ranks, plan_epoch


def info(length: int, num_supervised: int, split: Split = "train") -> RowInfo:
    return RowInfo("id", "task", split, False, length, 0, num_supervised + 1, num_supervised)


def test_an_epoch_is_a_pure_function_and_reads_each_row_once() -> None:
    rows = [info(10 + i % 7, i % 5) for i in range(100)]
    indices = list(range(90))
    plan = plan_epoch(rows, indices, (3, 1), batch_tokens=20, micro_tokens=40)
    assert plan == plan_epoch(rows, indices, (3, 1), batch_tokens=20, micro_tokens=40)
    other = plan_epoch(rows, indices, (3, 2), batch_tokens=20, micro_tokens=40)
    assert plan != other
    for epoch in (plan, other):
        read = [index for update in epoch for micro in update.micro_batches for index in micro]
        assert sorted(read) == [i for i in indices if i % 5], "each row with something to supervise, once"
    for update in plan:
        members = [index for micro in update.micro_batches for index in micro]
        assert update.num_supervised == sum(rows[i].num_supervised for i in members)
        assert all(sum(rows[i].length for i in micro) <= 40 for micro in update.micro_batches)
    assert all(20 <= update.num_supervised < 24 for update in plan[:-1])


def test_a_row_longer_than_a_micro_batch_stands_alone() -> None:
    rows = [info(500, 3), info(10, 3), info(10, 3)]
    (update,) = plan_epoch(rows, [0, 1, 2], (0, 0), batch_tokens=100, micro_tokens=40)
    assert (0,) in update.micro_batches


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
def test_each_micro_batch_is_computed_once_whoever_computes_it(world: int) -> None:
    rows = [info(10 + i % 7, i % 5) for i in range(100)]
    for update in plan_epoch(rows, range(100), (0, 0), batch_tokens=60, micro_tokens=40):
        parts = assign_to_ranks(update, rows, world)
        assert len(parts) == world
        assert sorted(micro for part in parts for micro in part) == sorted(update.micro_batches)
        for part in parts:
            places = [update.micro_batches.index(micro) for micro in part]
            assert all(a < b for a, b in pairwise(places)), "in the order of the update"
        if world == 1:
            assert parts == [list(update.micro_batches)]


def test_the_busiest_process_has_little_more_than_the_best_division_gives() -> None:
    """Against every division of seven micro-batches over three processes."""
    lengths = (900, 800, 700, 500, 500, 300, 100)
    rows = [info(length, 1) for length in lengths]
    parts = assign_to_ranks(Update(tuple((i,) for i in range(7)), 7), rows, 3)
    busiest = max(sum(rows[i].length for micro in part for i in micro) for part in parts)
    best = min(
        max(sum(n for n, who in zip(lengths, way, strict=True) if who == rank) for rank in range(3))
        for way in product(range(3), repeat=7)
    )
    assert best <= busiest <= 4 / 3 * best
