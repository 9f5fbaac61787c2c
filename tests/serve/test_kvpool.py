"""Where rows go when a round is committed, drawn; and attention over the pool against the dense reference."""

import pytest
import torch

from eyas.model.attention import Rule, causal_visible, dense_attention
from eyas.serve.kvpool import KVPool, PoolAttend
from eyas.tree.verify import Accepted


def letters(pool: KVPool, slot: int) -> str:
    """A slot's rows as letters, the same in every layer, head and component."""
    rows = pool.kv[:, :, slot].amax(dim=(0, 1, 2, 4)).tolist()
    assert rows == pool.kv[:, :, slot].amin(dim=(0, 1, 2, 4)).tolist(), "all layers, keys and values move alike"
    return "".join(chr(int(row)) for row in rows)


def fill(pool: KVPool, *pictures: str) -> None:
    for slot, picture in enumerate(pictures):
        row_values = torch.tensor([float(ord(letter)) for letter in picture])
        pool.kv[:, :, slot] = row_values[:, None].expand(-1, pool.kv.shape[-1])


def accepted(nodes: list[list[int]], lengths: list[int]) -> Accepted:
    nodes_BS = torch.tensor(nodes)
    return Accepted(torch.zeros_like(nodes_BS), nodes_BS, torch.tensor(lengths))


@pytest.fixture
def pool() -> KVPool:
    pool = KVPool(2, 3, 2, 10, 4, torch.empty(0))
    pool.lengths = [2, 4, 3]
    #            committed | tree
    fill(pool, "abxxPQRS..", "cdefTUVW..", "ghiyKLMN..")
    return pool


def test_accepted_nodes_move_behind_their_own_slot(pool: KVPool) -> None:
    pool.commit(3, accepted([[0, 2, 3], [0, 3, 0], [0, 0, 0]], [3, 2, 1]), [3, 2, 1], start=4)
    assert pool.lengths == [5, 6, 4]
    assert [letters(pool, slot)[: pool.lengths[slot]] for slot in range(3)] == ["abPRS", "cdefTW", "ghiK"]


def test_one_slot_alone(pool: KVPool) -> None:
    fill(pool, "abPQRS....", "cdefTUVW..", "ghiyKLMN..")
    pool.commit(1, accepted([[0, 1, 3]], [3]), [3], start=2)
    assert letters(pool, 0)[:5] == "abPQS"
    assert [letters(pool, 1), letters(pool, 2)] == ["cdefTUVW..", "ghiyKLMN.."]
    assert pool.lengths == [5, 4, 3]


def test_first_rows_move_where_slots_are_shorter(pool: KVPool) -> None:
    pool.commit(2, None, [3, 1], start=4)
    assert [letters(pool, 0)[:5], letters(pool, 1)[:5]] == ["abPQR", "cdefT"]
    assert pool.lengths == [5, 5, 3]
    assert letters(pool, 2) == "ghiyKLMN..", "a slot that is not in the batch stays"


def test_the_last_request_moves_into_a_free_slot(pool: KVPool) -> None:
    pool.replace(0, 2)
    assert letters(pool, 0)[:3] == "ghi"
    assert pool.lengths == [3, 4, 0]
    pool.replace(1, 1)
    assert pool.lengths == [3, 0, 0]


def test_a_slot_that_runs_over_is_caught(pool: KVPool) -> None:
    pool.lengths = [9, 9, 9]
    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        pool.commit(3, None, [2, 2, 2], start=9)


@pytest.mark.parametrize("groups", [1, 3])
def test_attention_over_the_pool_is_the_dense_one(groups: int) -> None:
    generator = torch.Generator().manual_seed(0)
    num_new, start, size, num_kv = 4, 6, 12, 2
    q = torch.randn(2, num_kv * groups, num_new, 8, generator=generator)
    k, v = torch.randn(2, 2, num_kv, num_new, 8, generator=generator).unbind(0)
    pool = KVPool(1, 3, num_kv, size, 8, torch.empty(0))
    pool.kv.normal_(generator=generator)
    prefix = torch.arange(start) < torch.tensor([[6], [3]])
    own = causal_visible(num_new, num_new).expand(2, -1, -1)
    visible = torch.cat((prefix[:, None].expand(-1, num_new, -1), own), 2)
    keys = torch.cat((pool.kv[0, 0, :2, :, :start], k), 2).clone()
    values = torch.cat((pool.kv[0, 1, :2, :, :start], v), 2).clone()
    out = PoolAttend(pool, slice(0, 2), start, num_new, visible, groups)(0, q, k, v, Rule(0.3))
    torch.testing.assert_close(out, dense_attention(q, keys, values, visible, 0.3))
    torch.testing.assert_close(pool.kv[0, 0, :2, :, start : start + num_new], k)
