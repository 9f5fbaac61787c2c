"""Allocates request slots and KV slots to requests and to the prefix cache. The scheduler calls it, on the host.

The columns of a request (its row of req_to_token) hold two kinds of KV slots:

    columns                       owner of the KV slots   content
    0 .. num_shared - 1           prefix cache            the cached prefix of the text
    num_shared .. allocated - 1   the request             the rest of the text, then slots for launched rounds

A request does not write keys and values of the target into shared slots. Its drafter may write its own keys and values
there: they are equal for all requests that share the slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eyas.memory.kv_pool import KVPool, Slots
from eyas.memory.prefix_cache import PrefixCache, PrefixMatch, RadixNode

EVICT_DIVISOR = 64  # this fraction of the pool is evicted at a time


class TableWrite(NamedTuple):
    """A write to req_to_token: `slots` go to the row `req_slot`, from `column` on."""

    req_slot: int
    column: int
    slots: Slots


def merge_writes(writes: Sequence[TableWrite], num_columns: int) -> tuple[NDArray[np.int64], Slots]:
    """Returns the cells of all writes, as indices into the flat req_to_token, and their slots.

    The device makes the writes in any order. So of several writes to one cell only the last one is returned.

    Args:
        writes: one or more writes, in order.
        num_columns: the columns of req_to_token.
    """
    begins = [write.req_slot * num_columns + write.column for write in writes]
    cells = np.concatenate([np.arange(x, x + len(w.slots)) for x, w in zip(begins, writes, strict=True)])
    slots = np.concatenate([write.slots for write in writes])
    if len({write.req_slot for write in writes}) < len(writes):
        cells, first = np.unique(cells[::-1], return_index=True)
        slots = slots[::-1][first]
    return cells, slots


@dataclass(eq=False, slots=True)
class KVAllocation:
    """The memory of one request.

    Attributes:
        req_slot: The request slot.
        node: The node of the prefix cache at which the shared prefix ends.
        row: The KV slots of all columns that a request may have; only the first num_columns are allocated.
        num_columns: The number of allocated columns.
        num_shared: The number of leading columns whose KV slots belong to the prefix cache.
        draft_lag_tokens: The number of shared columns, at their end, that the drafter has not read.
        drafter: The index of the request's drafter.
    """

    req_slot: int
    node: RadixNode
    row: Slots
    num_columns: int
    num_shared: int
    draft_lag_tokens: int
    drafter: int = 0

    @property
    def slots(self) -> Slots:
        """The KV slot of each allocated column."""
        return self.row[: self.num_columns]


class KVCacheManager:
    """Allocator of request slots and KV slots. It owns the KV pool and the prefix cache."""

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
        """Allocates a request slot and the KV slots of a text. Requirement: a request slot is free.

        The longest cached prefix of the text is shared, not allocated.

        Args:
            token_ids: the text.
            lookahead_slots: KV slots to allocate beyond the text, for the first round.
            reserved_slots: KV slots that must stay free or evictable for other requests.
            drafter: index of the request's drafter.

        Returns:
            The allocation; None if there are too few KV slots.
        """
        hit = self.prefix_cache.match(token_ids)
        self.prefix_cache.lock(hit.node)
        count = len(token_ids) + lookahead_slots - len(hit.slots)
        own = self._take(count) if self._is_available(count + reserved_slots) else None
        if own is None:
            self.prefix_cache.unlock(hit.node)
            return None
        shared, unread = len(hit.slots), self._num_unread(hit.slots, drafter)
        row, num_columns = np.empty(self.pool.req_to_token_RC.shape[1], np.int32), shared + len(own)
        row[:shared], row[shared:num_columns] = hit.slots, own
        allocation = KVAllocation(self._free_req_slots.pop(), hit.node, row, num_columns, shared, unread, drafter)
        self._write(allocation.req_slot, 0, allocation.slots)
        return allocation

    def grow(self, allocation: KVAllocation, num_columns: int, min_slots: int) -> bool:
        """Extends an allocation to at least `num_columns` columns.

        Args:
            allocation: changed in place.
            num_columns: the number of columns that the request needs.
            min_slots: the number of KV slots to add at least, if that many are available.

        Returns:
            False if there are too few KV slots; the allocation is then unchanged.
        """
        begin, missing = allocation.num_columns, num_columns - allocation.num_columns
        if missing <= 0:
            return True
        count = max(missing, min_slots)
        own = self._take(count if self._is_available(count) else missing)
        if own is None:
            return False
        allocation.num_columns += len(own)
        allocation.row[begin : allocation.num_columns] = own
        self._write(allocation.req_slot, begin, own)
        return True

    def cache_prefix(self, allocation: KVAllocation, token_ids: Sequence[int]) -> None:
        """Adds the text of a running request to the prefix cache, so that other requests can share it.

        Requirement: the work that writes the keys and values of the text is launched before any work that reads them.
        """
        hit, count = self._insert(allocation, token_ids, 0), max(len(token_ids) - 1, 0)
        # Where another request cached the same text first, this one uses those slots from now on.
        if not np.array_equal(hit.slots, allocation.slots[:count]):
            self._write(allocation.req_slot, 0, hit.slots)
            allocation.slots[:count] = hit.slots
        self.prefix_cache.lock(hit.node)
        self.prefix_cache.unlock(allocation.node)
        allocation.node, allocation.num_shared = hit.node, count
        allocation.draft_lag_tokens = self._num_unread(hit.slots, allocation.drafter)

    def mark_read(self, allocation: KVAllocation) -> None:
        """Marks all shared columns as read by the drafter. The caller must launch that read before later work."""
        self._read[allocation.drafter, allocation.slots[: allocation.num_shared]] = True
        allocation.draft_lag_tokens = 0

    def free(self, allocation: KVAllocation, token_ids: Sequence[int], num_read: int) -> None:
        """Frees an allocation. The text stays in the prefix cache until it is evicted.

        Args:
            allocation: must not be used afterwards.
            token_ids: the text to keep in the prefix cache.
            num_read: the number of leading columns that the drafter has read.
        """
        self._insert(allocation, token_ids, num_read)
        self.pool.free(allocation.slots[max(len(token_ids) - 1, 0) :])
        self.prefix_cache.unlock(allocation.node)
        self._free_req_slots.append(allocation.req_slot)

    def clear_prefix_cache(self) -> None:
        """Evicts from the prefix cache every prefix that no running request shares."""
        self.pool.free(self.prefix_cache.evict(self.prefix_cache.num_evictable))

    def take_table_writes(self) -> list[TableWrite]:
        """Returns and forgets the writes to req_to_token since the last call.

        The caller must make them on the device before the next work.
        """
        writes, self._writes = self._writes, []
        return writes

    def _insert(self, allocation: KVAllocation, text: Sequence[int], num_read: int) -> PrefixMatch:
        """Moves the KV slots of a text to the prefix cache.

        Where the cache already holds a part of the text, the allocation's slots of that part are freed.
        """
        shared, count = allocation.num_shared, max(len(text) - 1, 0)
        assert shared <= count <= allocation.num_columns, (shared, count, allocation.num_columns)
        num_known = len(self.prefix_cache.match(text).slots)
        assert num_known >= shared, "a prefix in use is not evicted"
        hit = self.prefix_cache.insert(text, allocation.slots[:count])
        self.pool.free(allocation.slots[shared:num_known])
        self._read[:, hit.slots[num_known:]] = False
        self._read[allocation.drafter, hit.slots[num_known:]] = np.arange(num_known, count) < num_read
        return hit

    def _num_unread(self, slots: Slots, drafter: int) -> int:
        """Returns how many cached slots there are from the first one that the drafter has not read to the last one."""
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
