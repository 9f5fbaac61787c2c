"""Who owns which slots: requests, the prefix cache, nobody. All on the host; the device is told by table writes.

                  columns of a request's line
0 .. shared - 1                      slots of the prefix cache, below `node`; never written by this request,
                                     but for the head's rows, which are the same for all who share them
shared .. allocated - 1              slots of its own: text, and behind it room for rounds in flight
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from eyas.memory.kv_pool import KVPool, Slots
from eyas.memory.prefix_cache import PrefixCache, PrefixMatch, RadixNode

NOTHING = np.empty(0, np.int32)
EVICT_SHARE = 64  # of the pool is evicted at a time


@dataclass(frozen=True, eq=False)
class TableWrite:
    """Slots that a line of the table gets, from a column on."""

    req_slot: int
    column: int
    slots: Slots


@dataclass(eq=False)
class KVAllocation:
    """What one request holds: a line of the table, and by column the slots, the first `shared` of the prefix cache.

    unread: how many of the last shared columns the request's head has not read. head: its number.
    """

    req_slot: int
    node: RadixNode
    slots: Slots
    num_shared: int
    draft_lag_tokens: int
    drafter: int = 0

    @property
    def own_slots(self) -> Slots:
        """Slots that belong to this request alone."""
        return self.slots[self.num_shared :]


class KVCacheManager:
    """The pool, the prefix cache, the lines of the table."""

    def __init__(self, pool: KVPool, num_drafters: int = 1) -> None:
        self.pool = pool
        self.prefix_cache = PrefixCache()
        self._free_req_slots = list(range(len(pool.req_to_token_RC) - 1))[::-1]  # the last one belongs to nobody
        # By head: cached slots that hold its rows, too.
        self._read = np.zeros((num_drafters, pool.num_slots + 1), dtype=np.bool_)
        self._writes: list[TableWrite] = []

    @property
    def has_free_req_slot(self) -> bool:
        """Whether a line is free."""
        return bool(self._free_req_slots)

    def allocate(
        self, token_ids: Sequence[int], lookahead_slots: int, reserved_slots: int, drafter: int = 0
    ) -> KVAllocation | None:
        """A line, the known prefix of this text, and slots for the rest and `room` columns more.

        None if there are no such slots, or if fewer than `spare` would be left for others to grow.
        """
        hit = self.prefix_cache.match(token_ids)
        self.prefix_cache.lock(hit.node)
        count = len(token_ids) + lookahead_slots - len(hit.slots)
        own = self._take(count) if self._can_have(count + reserved_slots) else None
        if own is None:
            self.prefix_cache.unlock(hit.node)
            return None
        shared = len(hit.slots)
        slots = np.concatenate((hit.slots, own))
        holding = KVAllocation(
            self._free_req_slots.pop(), hit.node, slots, shared, self._unread(hit.slots, drafter), drafter
        )
        self._write(holding.req_slot, 0, holding.slots)
        return holding

    def grow(self, allocation: KVAllocation, num_columns: int, min_slots: int) -> bool:
        """See to it that so many columns have a slot, `block` or more at a time; False if memory is short."""
        missing = num_columns - len(allocation.slots)
        if missing <= 0:
            return True
        own = self._take(max(missing, min_slots)) if self._can_have(max(missing, min_slots)) else None
        if own is None and (own := self._take(missing)) is None:
            return False
        self._write(allocation.req_slot, len(allocation.slots), own)
        allocation.slots = np.concatenate((allocation.slots, own))
        return True

    def cache_prefix(self, allocation: KVAllocation, token_ids: Sequence[int]) -> None:
        """Its text so far is in memory, or will be before anything else happens: others may read it."""
        hit, count = self._insert(allocation, token_ids, 0), max(len(token_ids) - 1, 0)
        # What another request brought into the cache first is read from there from here on.
        if not np.array_equal(hit.slots, allocation.slots[:count]):
            self._write(allocation.req_slot, 0, hit.slots)
            allocation.slots[:count] = hit.slots
        self.prefix_cache.lock(hit.node)
        self.prefix_cache.unlock(allocation.node)
        allocation.node, allocation.num_shared, allocation.draft_lag_tokens = (
            hit.node,
            count,
            self._unread(hit.slots, allocation.drafter),
        )

    def mark_read(self, allocation: KVAllocation) -> None:
        """Its head reads all that this request shares before anything else happens."""
        self._read[allocation.drafter, allocation.slots[: allocation.num_shared]] = True
        allocation.draft_lag_tokens = 0

    def free(self, allocation: KVAllocation, token_ids: Sequence[int], num_read: int) -> None:
        """Give everything back; the text stays in the prefix cache. num_read: columns that the head has read."""
        self._insert(allocation, token_ids, num_read)
        self.pool.free(allocation.slots[max(len(token_ids) - 1, 0) :])
        self.prefix_cache.unlock(allocation.node)
        self._free_req_slots.append(allocation.req_slot)

    def clear_prefix_cache(self) -> None:
        """Empty the prefix cache, as far as nobody reads it."""
        self.pool.free(self.prefix_cache.evict(self.prefix_cache.num_evictable))

    def take_table_writes(self) -> list[TableWrite]:
        """What the device's table must be told before the next work; each is handed out once."""
        writes, self._writes = self._writes, []
        return writes

    def check(self, allocations: Iterable[KVAllocation]) -> None:
        """Assert free + cached + running == pool, and that the tree is one."""
        own = [holding.own_slots for holding in allocations]
        self.pool.check(self.prefix_cache.slots(), np.concatenate(own) if own else NOTHING)
        self.prefix_cache.check()

    def _insert(self, allocation: KVAllocation, text: Sequence[int], num_read: int) -> PrefixMatch:
        """Add a text to the cache; slots that it knows already elsewhere are freed, the others are the cache's."""
        shared, count = allocation.num_shared, max(len(text) - 1, 0)
        assert shared <= count <= len(allocation.slots), (shared, count, len(allocation.slots))
        num_known = len(self.prefix_cache.match(text).slots)
        assert num_known >= shared, "what a request holds is not evicted"
        hit = self.prefix_cache.insert(text, allocation.slots[:count])
        self.pool.free(allocation.slots[shared:num_known])
        self._read[:, hit.slots[num_known:]] = False
        self._read[allocation.drafter, hit.slots[num_known:]] = np.arange(num_known, count) < num_read
        return hit

    def _unread(self, slots: Slots, head: int) -> int:
        """How many of these cached slots there are from the first one on that this head has not read."""
        read = self._read[head, slots]
        return 0 if read.all() else len(slots) - int(read.argmin())

    def _can_have(self, count: int) -> bool:
        return self.pool.num_free + self.prefix_cache.num_evictable >= count

    def _take(self, count: int) -> Slots | None:
        if self.pool.num_free < count:
            # Some more than needed: looking for what was used longest ago walks the whole tree.
            self.pool.free(self.prefix_cache.evict(count - self.pool.num_free + self.pool.num_slots // EVICT_SHARE))
        return self.pool.allocate(count) if self.pool.num_free >= count else None

    def _write(self, line: int, column: int, slots: Slots) -> None:
        self._writes.append(TableWrite(line, column, slots))
