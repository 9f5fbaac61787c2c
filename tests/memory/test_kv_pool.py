"""Slots are handed out once and come back; where rows go when a round is committed, drawn."""

import numpy as np
import pytest
import torch
from engine_checks import check_kv_pool

from eyas.memory.kv_pool import KVPool

EMPTY = np.empty(0, np.int32)


@pytest.fixture
def pool() -> KVPool:
    """Two layers, ten slots, each with a letter in every layer, head and component; slot 0 has the dot."""
    pool = KVPool((2, 3, 4), 10, (2, 16), torch.empty(0), torch.float32)
    write(pool, ".abcdefghij")
    return pool


def write(pool: KVPool, picture: str) -> None:
    letters_Z = torch.tensor([float(ord(letter)) for letter in picture])
    pool.kv[:] = letters_Z[:, None, None].expand(-1, 3, 4)


def picture(pool: KVPool) -> str:
    """The slots as letters, which all layers, heads, keys and values have alike."""
    low_Z, high_Z = pool.kv.amin(dim=(0, 1, 3, 4)), pool.kv.amax(dim=(0, 1, 3, 4))
    assert torch.equal(low_Z, high_Z), "all layers, keys and values move alike"
    return "".join(chr(int(letter)) for letter in low_Z)


def move(pool: KVPool, source: list[int], goal: list[int]) -> None:
    pool.move(torch.tensor(source), torch.tensor(goal))


def test_accepted_rows_move_to_the_front_of_their_block(pool: KVPool) -> None:
    """Two trees in slots 1-5 and 8, 6, 10, 9; nodes 0, 2, 3 of one are kept, nodes 0, 3 of the other."""
    move(pool, [1, 3, 4, 8, 9], [1, 2, 3, 8, 6])
    assert picture(pool)[1:] == "acddeighij"
    #                            a c d d e . g h i j     2 <- c, 3 <- d; 6 <- i


def test_sources_are_read_before_goals_change(pool: KVPool) -> None:
    move(pool, [2, 3, 1], [1, 2, 3])
    assert picture(pool)[1:] == "bcadefghij"


def test_what_means_nothing_goes_to_slot_0(pool: KVPool) -> None:
    move(pool, [4, 5, 6], [3, 0, 0])
    assert picture(pool)[1:] == "abddefghij"
    assert picture(pool)[0] in "ef"


def test_slots_are_handed_out_once(pool: KVPool) -> None:
    first, second = pool.allocate(4), pool.allocate(6)
    assert sorted([*first, *second]) == list(range(1, 11)), "all of them, and never slot 0"
    assert (pool.num_free, len(pool.allocate(0))) == (0, 0)
    check_kv_pool(pool, first, second)
    before = second.tolist()
    pool.free(first[:3])
    assert second.tolist() == before, "what was taken stays as it is"
    check_kv_pool(pool, first[3:], second)
    assert sorted(pool.allocate(3)) == sorted(first[:3])
    with pytest.raises(AssertionError):
        pool.allocate(1)


def test_slots_of_two_owners_or_of_none_are_found(pool: KVPool) -> None:
    first, second = pool.allocate(4), pool.allocate(3)
    check_kv_pool(pool, first, second)
    with pytest.raises(AssertionError):
        check_kv_pool(pool, first, EMPTY)
    with pytest.raises(AssertionError):
        check_kv_pool(pool, first, np.concatenate((second[:2], first[:1])))
    with pytest.raises(AssertionError):
        check_kv_pool(pool, np.concatenate((first, second)), second)
    pool.free(first)
    with pytest.raises(AssertionError, match="more slots freed than there are"):
        pool.free(np.concatenate((first, second)))
