"""The prefix cache against a dictionary of everything that it should know, one entry a pair of tokens."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from engine_checks import cached_slots, check_prefix_cache

from eyas.memory.kv_pool import Slots
from eyas.memory.prefix_cache import PrefixCache, PrefixMatch, bigram_keys

Prefix = tuple[int, ...]


@dataclass
class Entry:
    """A token and its successor behind one certain text. used: when it was last part of a match or an insertion."""

    slot: int
    used: int
    holders: int = 0


@dataclass
class Model:
    """The whole content: for every known text of n + 1 tokens the slot of token n - 1, by the text itself."""

    known: dict[Prefix, Entry] = field(default_factory=dict)
    clock: int = 0

    def match(self, text: Sequence[int]) -> list[int]:
        self.clock += 1
        slots = []
        for end in range(2, len(text) + 1):
            entry = self.known.get(tuple(text[:end]))
            if entry is None:
                break
            entry.used = self.clock
            slots.append(entry.slot)
        return slots

    def insert(self, text: Sequence[int], slots: Sequence[int]) -> list[int]:
        done = len(self.match(text))
        for place in range(done, len(text) - 1):
            self.known[tuple(text[: place + 2])] = Entry(slots[place], self.clock)
        return [self.known[tuple(text[: place + 2])].slot for place in range(len(text) - 1)]

    def hold(self, text: Sequence[int], count: int, by: int) -> None:
        for end in range(2, count + 2):
            self.known[tuple(text[:end])].holders += by

    def free(self) -> int:
        """How many entries nobody holds."""
        return sum(entry.holders == 0 for entry in self.known.values())

    def forget(self, slots: Sequence[int]) -> None:
        """Check what an eviction gave up, and do the same."""
        gone = {text for text, entry in self.known.items() if entry.slot in set(slots)}
        assert len(gone) == len(slots) == len(set(slots)), "every slot was somebody's, once"
        assert all(self.known[text].holders == 0 for text in gone), "what is read stays"
        left = {text: entry for text, entry in self.known.items() if text not in gone}
        parents = {text[:-1] for text in left}
        assert all(len(text) == 2 or text[:-1] in left for text in left), "no text without its beginning"
        leaves = [entry.used for text, entry in left.items() if text not in parents and entry.holders == 0]
        if gone and leaves:
            assert max(self.known[text].used for text in gone) <= min(leaves), "what was needed longest ago goes first"
        self.known = left


def slots_of(text: Sequence[int], start: int) -> Slots:
    """New slots for all but the last token."""
    return np.arange(start, start + max(len(text) - 1, 0), dtype=np.int32)


def random_text(pick: random.Random, texts: list[list[int]]) -> list[int]:
    """Few letters, often the beginning of an earlier text: many branches, at every depth."""
    base = pick.choice(texts)[: pick.randint(0, 14)] if texts and pick.random() < 0.7 else []
    text = base + [pick.randint(0, 2) for _ in range(pick.randint(0, 6))]
    texts.append(text)
    return text


@pytest.mark.parametrize("seed", range(20))
def test_the_tree_knows_what_a_dictionary_knows(seed: int) -> None:
    pick = random.Random(seed)
    cache, model = PrefixCache(), Model()
    texts: list[list[int]] = []
    held: list[tuple[PrefixMatch, list[int]]] = []
    for step in range(300):
        text = random_text(pick, texts)
        doing = pick.choice(("match", "match", "insert", "insert", "insert", "hold", "release", "evict"))
        if doing == "match":
            assert cache.match(text).slots.tolist() == model.match(text)
        elif doing == "insert":
            slots = slots_of(text, 1000 * (step + 1))
            assert cache.insert(text, slots).slots.tolist() == model.insert(text, slots.tolist())
        elif doing == "hold":
            hit = cache.match(text)
            cache.lock(hit.node)
            model.match(text)
            model.hold(text, len(hit.slots), 1)
            held.append((hit, text))
        elif doing == "release" and held:
            hit, text = held.pop(pick.randrange(len(held)))
            cache.unlock(hit.node)
            model.hold(text, len(hit.slots), -1)
        elif doing == "evict":
            count, before = pick.randint(0, 12), model.free()
            gone = cache.evict(count).tolist()
            assert len(gone) >= min(count, before), "enough if there is enough"
            model.forget(gone)
        check_prefix_cache(cache)
        assert sorted(cached_slots(cache).tolist()) == sorted(entry.slot for entry in model.known.values())
        assert (cache.num_slots, cache.num_evictable) == (len(model.known), model.free())
    for text in texts:
        assert cache.match(text).slots.tolist() == model.match(text)
    for hit, _ in held:
        cache.unlock(hit.node)
    assert cache.num_evictable == cache.num_slots
    assert len(cache.evict(cache.num_slots)) == len(model.known)
    assert (cache.num_slots, cache.match(texts[0]).slots.tolist()) == (0, [])


def test_a_hit_ends_before_the_token_whose_successor_differs() -> None:
    """text a b c d, then a b c x: the head's row of c has read d, so c is not shared."""
    cache = PrefixCache()
    cache.insert([1, 2, 3, 4], np.array([11, 12, 13], np.int32))
    assert cache.match([1, 2, 3, 9]).slots.tolist() == [11, 12]
    assert cache.match([1, 2, 3, 4]).slots.tolist() == [11, 12, 13]
    assert cache.match([1, 2, 3, 4, 5]).slots.tolist() == [11, 12, 13], "the row of 4 is not there"
    assert cache.match([1, 2, 3]).slots.tolist() == [11, 12], "its last token is computed anew"
    assert cache.match([1]).slots.tolist() == cache.match([]).slots.tolist() == []
    assert cache.insert([1, 2, 3, 9], np.array([21, 22, 23], np.int32)).slots.tolist() == [11, 12, 23]
    assert sorted(cached_slots(cache).tolist()) == [11, 12, 13, 23]


def test_pairs_tell_large_ids_apart() -> None:
    ids = [0, 1, 262_143, 2**31 - 1, 0, 2**31 - 1]
    assert [(int(pair) >> 32, int(pair) & 0xFFFFFFFF) for pair in bigram_keys(ids)] == list(pairwise(ids))


def test_a_branch_is_cut_below_those_who_read_it() -> None:
    """a b c d e is read while a b x comes: the reader belongs to both parts, the new branch to nobody.

    ab bc cd de          ab ─┬─ bc cd de     held
        ^ held               └─ bx           free
    """
    cache = PrefixCache()
    long = cache.insert([1, 2, 3, 4, 5], np.array([11, 12, 13, 14], np.int32))
    cache.lock(long.node)
    short = cache.insert([1, 2, 9], np.array([21, 22], np.int32))
    check_prefix_cache(cache)
    assert (short.slots.tolist(), cache.num_evictable) == ([11, 22], 1)
    upper = cache.match([1, 2])
    cache.lock(upper.node)
    assert cache.evict(10).tolist() == [22]
    cache.unlock(long.node)
    check_prefix_cache(cache)
    assert cache.num_evictable == 3, "the first pair is read by the second reader"
    assert sorted(cache.evict(10).tolist()) == [12, 13, 14]
    cache.unlock(upper.node)
    assert cache.evict(10).tolist() == [11]


def test_a_leaf_goes_before_what_it_hangs_from_and_the_oldest_first() -> None:
    cache = PrefixCache()
    for name, text in enumerate(([1, 2, 3], [1, 2, 4], [5, 6], [1, 2, 3, 7])):
        cache.insert(text, slots_of(text, 10 * (name + 1)))
    cache.match([1, 2, 4])
    assert cache.evict(1).tolist() == [30], "5 6 was needed longest ago"
    assert cache.evict(1).tolist() == [42], "1 2 3 7; the two above it are older than 1 2 4, but it hangs from them"
    assert cache.evict(1).tolist() == [11]
    assert cache.evict(1).tolist() == [21]
    assert cache.evict(1).tolist() == [10]


def test_releasing_twice_is_caught() -> None:
    cache = PrefixCache()
    hit = cache.insert([1, 2, 3], slots_of([1, 2, 3], 1))
    cache.lock(hit.node)
    cache.unlock(hit.node)
    with pytest.raises(AssertionError, match="more often than locked"):
        cache.unlock(hit.node)
