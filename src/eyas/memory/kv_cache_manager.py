"""Allocates request slots and KV slots to requests and to the prefix cache. The scheduler calls it, on the host.

                  columns of a request's row of req_to_token
0 .. num_shared - 1                  slots of the prefix cache, below `node`; the request does not write them, except
                                     for the drafter's rows, which are the same for all requests that share them
num_shared .. allocated - 1          slots of its own: text, then slots for rounds in flight
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from eyas.memory.kv_pool import KVPool, Slots
from eyas.memory.prefix_cache import PrefixCache, PrefixMatch, RadixNode

NO_SLOTS = np.empty(0, np.int32)
EVICT_DIVISOR = 64  # this fraction of the pool is evicted at a time


@dataclass(frozen=True, eq=False)
class TableWrite:
    """KV slots for a row of req_to_token, from a column on; the device writes them before its next work."""

    req_slot: int
    column: int
    slots: Slots


@dataclass(eq=False)
class KVAllocation:
    """The memory of one request: its request slot and, by column, its KV slots.

    node: where the cached prefix ends. num_shared: leading slots that belong to the prefix cache. draft_lag_tokens: of
    the shared columns, how many at the end the drafter has not read. drafter: index of the request's drafter.
    """

    req_slot: int
    node: RadixNode
    slots: Slots
    num_shared: int
    draft_lag_tokens: int
    drafter: int = 0

    @property
    def own_slots(self) -> Slots:
        """KV slots that belong to this request alone."""
        return self.slots[self.num_shared :]


class KVCacheManager:
    """Owner of the KV pool, the prefix cache and the request slots."""

    def __init__(self, pool: KVPool, num_drafters: int = 1) -> None:
        self.pool = pool
        self.prefix_cache = PrefixCache()
        self._free_req_slots = list(range(len(pool.req_to_token_RC) - 1))[::-1]  # the last one is for padding
        # By drafter: cached slots that hold its rows as well.
        self._read = np.zeros((num_drafters, pool.num_slots + 1), dtype=np.bool_)
        self._writes: list[TableWrite] = []

    @property
    def has_free_req_slot(self) -> bool:
        """True if a request slot is free."""
        return bool(self._free_req_slots)

    def allocate(
        self, token_ids: Sequence[int], lookahead_slots: int, reserved_slots: int, drafter: int = 0
    ) -> KVAllocation | None:
        """Allocates a request slot, the cached prefix of a text, and slots for the rest and `lookahead_slots` more.

        Returns:
            The allocation; None if slots are short, or if fewer than `reserved_slots` would be left for others.
        """
        hit = self.prefix_cache.match(token_ids)
        self.prefix_cache.lock(hit.node)
        count = len(token_ids) + lookahead_slots - len(hit.slots)
        own = self._take(count) if self._is_available(count + reserved_slots) else None
        if own is None:
            self.prefix_cache.unlock(hit.node)
            return None
        shared = len(hit.slots)
        slots = np.concatenate((hit.slots, own))
        allocation = KVAllocation(
            self._free_req_slots.pop(), hit.node, slots, shared, self._num_unread(hit.slots, drafter), drafter
        )
        self._write(allocation.req_slot, 0, allocation.slots)
        return allocation

    def grow(self, allocation: KVAllocation, num_columns: int, min_slots: int) -> bool:
        """Extends an allocation to `num_columns` columns, by at least `min_slots`. Returns False if memory is short."""
        missing = num_columns - len(allocation.slots)
        if missing <= 0:
            return True
        own = self._take(max(missing, min_slots)) if self._is_available(max(missing, min_slots)) else None
        if own is None and (own := self._take(missing)) is None:
            return False
        self._write(allocation.req_slot, len(allocation.slots), own)
        allocation.slots = np.concatenate((allocation.slots, own))
        return True

    def cache_prefix(self, allocation: KVAllocation, token_ids: Sequence[int]) -> None:
        """Adds the text to the prefix cache. Its keys and values are in memory, or will be before any later work."""
        hit, count = self._insert(allocation, token_ids, 0), max(len(token_ids) - 1, 0)
        # Where another request cached the same text first, this one uses those slots from now on.
        if not np.array_equal(hit.slots, allocation.slots[:count]):
            self._write(allocation.req_slot, 0, hit.slots)
            allocation.slots[:count] = hit.slots
        self.prefix_cache.lock(hit.node)
        self.prefix_cache.unlock(allocation.node)
        allocation.node, allocation.num_shared, allocation.draft_lag_tokens = (
            hit.node,
            count,
            self._num_unread(hit.slots, allocation.drafter),
        )

    def mark_read(self, allocation: KVAllocation) -> None:
        """Marks all shared columns as read: the drafter reads them before any later work."""
        self._read[allocation.drafter, allocation.slots[: allocation.num_shared]] = True
        allocation.draft_lag_tokens = 0

    def free(self, allocation: KVAllocation, token_ids: Sequence[int], num_read: int) -> None:
        """Frees an allocation; its text stays in the prefix cache. num_read: columns that the drafter has read."""
        self._insert(allocation, token_ids, num_read)
        self.pool.free(allocation.slots[max(len(token_ids) - 1, 0) :])
        self.prefix_cache.unlock(allocation.node)
        self._free_req_slots.append(allocation.req_slot)

    def clear_prefix_cache(self) -> None:
        """Evicts everything from the prefix cache that no request reads."""
        self.pool.free(self.prefix_cache.evict(self.prefix_cache.num_evictable))

    def take_table_writes(self) -> list[TableWrite]:
        """Returns the writes to req_to_token since the last call. The device makes them before its next work."""
        writes, self._writes = self._writes, []
        return writes

    def check(self, allocations: Iterable[KVAllocation]) -> None:
        """Asserts free + cached + running == pool, and the invariants of the prefix cache."""
        own = [allocation.own_slots for allocation in allocations]
        self.pool.check(self.prefix_cache.slots(), np.concatenate(own) if own else NO_SLOTS)
        self.prefix_cache.check()

    def _insert(self, allocation: KVAllocation, text: Sequence[int], num_read: int) -> PrefixMatch:
        """Moves the slots of a text to the prefix cache, and frees those of parts that the cache already has."""
        shared, count = allocation.num_shared, max(len(text) - 1, 0)
        assert shared <= count <= len(allocation.slots), (shared, count, len(allocation.slots))
        num_known = len(self.prefix_cache.match(text).slots)
        assert num_known >= shared, "a prefix in use is not evicted"
        hit = self.prefix_cache.insert(text, allocation.slots[:count])
        self.pool.free(allocation.slots[shared:num_known])
        self._read[:, hit.slots[num_known:]] = False
        self._read[allocation.drafter, hit.slots[num_known:]] = np.arange(num_known, count) < num_read
        return hit

    def _num_unread(self, slots: Slots, drafter: int) -> int:
        """Returns the number of cached slots from the first one that the drafter has not read to the last one."""
        read = self._read[drafter, slots]
        return 0 if read.all() else len(slots) - int(read.argmin())

    def _is_available(self, count: int) -> bool:
        return self.pool.num_free + self.prefix_cache.num_evictable >= count

    def _take(self, count: int) -> Slots | None:
        if self.pool.num_free < count:
            # Some more than needed, because eviction walks the whole tree.
            self.pool.free(self.prefix_cache.evict(count - self.pool.num_free + self.pool.num_slots // EVICT_DIVISOR))
        return self.pool.allocate(count) if self.pool.num_free >= count else None

    def _write(self, req_slot: int, column: int, slots: Slots) -> None:
        self._writes.append(TableWrite(req_slot, column, slots))
