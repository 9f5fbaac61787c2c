"""Who owns which slots, played out on a device that remembers of every slot which text was written there.

target   the slot of column i holds x_0 .. x_i            head   the slot of column i holds x_0 .. x_(i + 1)
"""

import random
from dataclasses import dataclass, field

import numpy as np
import torch
from engine_checks import check_kv_cache

from eyas.memory.kv_cache_manager import KVAllocation, KVCacheManager
from eyas.memory.kv_pool import KVPool

Text = tuple[int, ...]
LINES, WIDTH, SLOTS = 5, 60, 90
ROOM, BLOCK = 6, 4


def make_memory(num_slots: int = SLOTS) -> KVCacheManager:
    return KVCacheManager(KVPool((1, 1, 2), num_slots, (LINES, WIDTH), torch.empty(0), torch.float32))


@dataclass
class Device:
    """The table as the writes have told it, and what was written where."""

    table: np.ndarray = field(default_factory=lambda: np.zeros((LINES, WIDTH), np.int32))
    target: dict[int, Text] = field(default_factory=dict)
    head: dict[int, Text] = field(default_factory=dict)

    def obey(self, memory: KVCacheManager) -> None:
        for write in memory.take_table_writes():
            self.table[write.req_slot, write.column : write.column + len(write.slots)] = write.slots
        assert memory.take_table_writes() == [], "each is handed out once"

    def write(self, line: int, text: list[int], begin: int, end: int) -> None:
        for column in range(begin, end):
            self.target[int(self.table[line, column])] = tuple(text[: column + 1])

    def read(self, line: int, text: list[int], begin: int, end: int) -> None:
        for column in range(begin, end):
            assert self.target[int(self.table[line, column])] == tuple(text[: column + 1]), "features of another text"
            self.head[int(self.table[line, column])] = tuple(text[: column + 2])

    def check(self, line: int, text: list[int], committed: int, num_read: int) -> None:
        slots = self.table[line].tolist()
        assert [self.target.get(slot) for slot in slots[:committed]] == [tuple(text[: n + 1]) for n in range(committed)]
        assert [self.head.get(slot) for slot in slots[:num_read]] == [tuple(text[: n + 2]) for n in range(num_read)]


@dataclass(eq=False)
class User:
    """A request. committed: columns that the target has written; num_read: columns that the head has."""

    holding: KVAllocation
    text: list[int]
    committed: int
    num_read: int
    shared: bool = False


class Play:
    """Random requests over one memory; the order of what happens on the device is that of the calls."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        self.memory, self.device = make_memory(), Device()
        self.users: list[User] = []
        self.texts: list[list[int]] = [[1, 2, 1]]
        self.happened: set[str] = set()

    def begin(self) -> None:
        if not self.memory.has_free_req_slot:
            return
        old = self.pick.choice(self.texts)
        text = old[: self.pick.randint(0, len(old))] + [self.pick.randint(0, 1) for _ in range(self.pick.randint(1, 5))]
        text = text[: WIDTH - ROOM - 20]
        spare = self.pick.choice((0, ROOM))
        fits = self.would_fit(text, ROOM + spare)
        holding = self.memory.allocate(text, ROOM, spare)
        self.texts.append(text)
        assert (holding is not None) == fits
        if holding is None:
            self.happened.add("refused")
            return
        assert len(holding.slots) == len(text) + ROOM
        self.device.obey(self.memory)
        self.users.append(User(holding, text, holding.num_shared, holding.num_shared - holding.draft_lag_tokens))
        self.happened |= {"hit"} if holding.num_shared else set()
        self.happened |= {"unread"} if holding.draft_lag_tokens else set()

    def would_fit(self, text: list[int], columns: int) -> bool:
        """Whether the slots that are free, or that nobody would read, are enough for what is not known of a text."""
        cache = self.memory.prefix_cache
        hit = cache.match(text)
        cache.lock(hit.node)
        have = self.memory.pool.num_free + cache.num_evictable
        cache.unlock(hit.node)
        return len(text) + columns - len(hit.slots) <= have

    def fill(self, user: User) -> None:
        """Prefill, and others may read the text from here on."""
        line, own = user.holding.req_slot, user.holding.slots.copy()
        self.device.write(line, user.text, user.committed, len(user.text))
        user.committed, user.shared = len(user.text), True
        self.memory.cache_prefix(user.holding, user.text)
        self.device.obey(self.memory)
        assert user.holding.num_shared == len(user.text) - 1
        self.happened |= {"twice"} if not np.array_equal(own, user.holding.slots) else set()
        lag = user.committed - user.num_read
        assert user.holding.draft_lag_tokens < lag or not user.holding.draft_lag_tokens, (
            "what is unread is behind the head's last row"
        )

    def round(self, user: User, drafts: bool) -> None:
        """Up to three tokens with the head reading behind, or one without it. The first has its row by now."""
        if user.committed == len(user.text):
            user.text.append(self.pick.randint(0, 1))  # the root, decided by prefill
        if len(user.text) > WIDTH - ROOM - 3 or not self.memory.grow(user.holding, user.committed + ROOM, BLOCK):
            self.happened.add("short")
            return
        self.device.obey(self.memory)
        line, before = user.holding.req_slot, user.committed
        count = self.pick.randint(1, 3) if drafts else 1
        if drafts:
            self.device.read(line, user.text, user.num_read, before)
            self.memory.mark_read(user.holding)
        user.text += [self.pick.randint(0, 1) for _ in range(count)]
        self.device.write(line, user.text, before, before + count)
        user.committed += count
        if drafts:
            self.device.read(line, user.text, before, user.committed)
            user.num_read = user.committed

    def end(self, user: User) -> None:
        """Finished, cut, cancelled or preempted: only what is committed may stay, and at times less of it."""
        self.users.remove(user)
        kept = min(user.committed, len(user.text) - 1) + 1
        kept = self.pick.randint(user.holding.num_shared + 1, kept) if self.pick.random() < 0.3 else kept
        self.memory.free(user.holding, user.text[:kept], user.num_read)
        self.texts.append(user.text[:kept])

    def step(self) -> None:
        doing = self.pick.choice(("begin", "begin", "fill", "fill", "drafts", "drafts", "plain", "end"))
        some = [user for user in self.users if user.shared == (doing != "fill") or doing == "end"]
        if doing == "begin":
            self.begin()
        elif some and doing == "fill":
            self.fill(self.pick.choice(some))
        elif some and doing == "end":
            self.end(self.pick.choice(some))
        elif some:
            self.round(self.pick.choice(some), doing == "drafts")

    def check(self) -> None:
        check_kv_cache(self.memory, [user.holding for user in self.users])
        for user in self.users:
            count = len(user.holding.slots)
            assert np.array_equal(self.device.table[user.holding.req_slot, :count], user.holding.slots)
            self.device.check(user.holding.req_slot, user.text, user.committed, user.num_read)


def test_nobody_reads_what_another_text_wrote() -> None:
    happened: set[str] = set()
    for seed in range(12):
        play = Play(seed)
        for _ in range(400):
            play.step()
            play.check()
        happened |= play.happened
        for user in list(play.users):
            play.end(user)
        play.check()
        pool, cache = play.memory.pool, play.memory.prefix_cache
        assert pool.num_free + cache.num_slots == pool.num_slots, f"seed {seed}"
        assert cache.num_evictable == cache.num_slots, f"seed {seed}"
    assert happened == {"hit", "unread", "twice", "refused", "short"}


def test_the_second_of_two_alike_gives_its_slots_back() -> None:
    """Both were begun before either was known: what the first has shared is the second's, too, from then on."""
    memory = make_memory()
    text = [5, 6, 7, 8, 9]
    first, second = memory.allocate(text, ROOM, 0), memory.allocate(text, ROOM, 0)
    assert first is not None
    assert second is not None
    own = second.slots.copy()
    memory.cache_prefix(first, text)
    free = memory.pool.num_free
    memory.cache_prefix(second, text)
    assert memory.pool.num_free == free + 4
    assert second.slots.tolist() == [*first.slots[:4], *own[4:]], "the row of the last token stays its own"
    check_kv_cache(memory, [first, second])
    memory.free(first, [*text, 1], 5)
    memory.free(second, [*text, 2], 5)
    check_kv_cache(memory, [])
    assert memory.prefix_cache.num_slots == 6, "5 6 7 8 once, and a row of 9 for each of its successors"


def test_the_head_reads_a_prompt_once() -> None:
    """What one request shares is unread until a round drafts for it; those that come later find it read."""
    memory = make_memory()
    text = [5, 6, 7, 8, 9]
    first = memory.allocate(text, ROOM, 0)
    assert first is not None
    assert first.draft_lag_tokens == 0
    memory.cache_prefix(first, text)
    early = memory.allocate([*text, 1], ROOM, 0)
    assert early is not None
    assert (early.num_shared, early.draft_lag_tokens) == (4, 4)
    assert first.draft_lag_tokens == 4
    memory.mark_read(first)
    late = memory.allocate([*text, 2], ROOM, 0)
    assert late is not None
    assert (late.num_shared, late.draft_lag_tokens, first.draft_lag_tokens) == (4, 0, 0)
    memory.free(first, [*text, 3, 3], 4)
    again = memory.allocate([*text, 3, 3, 3], ROOM, 0)
    assert again is not None
    assert (again.num_shared, again.draft_lag_tokens) == (6, 2), "of the answer the head had read nothing"


def test_slots_that_are_used_again_are_not_taken_for_read() -> None:
    memory = make_memory(num_slots=8)
    read = memory.allocate([1, 2, 3, 4, 5], 3, 0)
    assert read is not None
    memory.free(read, [1, 2, 3, 4, 5], 5)
    unread = memory.allocate([6, 7, 8, 9, 0], 3, 0)
    assert unread is not None
    assert {1, 2, 3, 4} & set(unread.slots.tolist()), "slots of the text before"
    memory.free(unread, [6, 7, 8, 9, 0], 0)
    again = memory.allocate([6, 7, 8, 9, 0], 3, 0)
    assert again is not None
    assert (again.num_shared, again.draft_lag_tokens) == (4, 4)


def test_memory_that_is_short_changes_nothing() -> None:
    memory = make_memory(num_slots=30)
    first = memory.allocate([1] * 10, 5, 0)
    assert first is not None
    memory.take_table_writes()
    assert memory.allocate([2] * 10, 5, 1) is None, "1 slot would be missing for those that run"
    assert not memory.grow(first, 31, 1)
    assert (memory.take_table_writes(), len(first.slots), memory.pool.num_free) == ([], 15, 15)
    check_kv_cache(memory, [first])
    second = memory.allocate([2] * 10, 5, 0)
    assert second is not None
    assert not memory.grow(first, 16, 1)
    memory.free(second, [2] * 10, 0)
    assert memory.grow(first, 16, 8), "what is cached makes room"
    assert len(first.slots) == 23
    assert memory.grow(first, 30, 8), "a block would be too much, the columns asked for are not"
    assert len(first.slots) == 30
    check_kv_cache(memory, [first])
