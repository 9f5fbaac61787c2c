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
from eyas.memory.prefix_cache import Hit, Node, PrefixCache

NOTHING = np.empty(0, np.int32)
EVICT_SHARE = 64  # of the pool is evicted at a time


@dataclass(frozen=True, eq=False)
class TableWrite:
    """Slots that a line of the table gets, from a column on."""

    line: int
    column: int
    slots: Slots


@dataclass(eq=False)
class Holding:
    """What one request holds: a line of the table, and by column the slots, the first `shared` of the prefix cache.

    unread: how many of the last shared columns the request's head has not read. head: its number.
    """

    line: int
    node: Node
    slots: Slots
    shared: int
    unread: int
    head: int = 0

    @property
    def own(self) -> Slots:
        """Slots that belong to this request alone."""
        return self.slots[self.shared :]


class Memory:
    """The pool, the prefix cache, the lines of the table."""

    def __init__(self, pool: KVPool, num_heads: int = 1) -> None:
        self.pool = pool
        self.cache = PrefixCache()
        self._lines = list(range(len(pool.table_RC) - 1))[::-1]  # the last one belongs to nobody
        # By head: cached slots that hold its rows, too.
        self._read = np.zeros((num_heads, pool.num_slots + 1), dtype=np.bool_)
        self._writes: list[TableWrite] = []

    @property
    def has_line(self) -> bool:
        """Whether a line is free."""
        return bool(self._lines)

    def begin(self, text: Sequence[int], room: int, spare: int, head: int = 0) -> Holding | None:
        """A line, the known prefix of this text, and slots for the rest and `room` columns more.

        None if there are no such slots, or if fewer than `spare` would be left for others to grow.
        """
        hit = self.cache.match(text)
        self.cache.hold(hit.node)
        count = len(text) + room - len(hit.slots)
        own = self._take(count) if self._can_have(count + spare) else None
        if own is None:
            self.cache.release(hit.node)
            return None
        shared = len(hit.slots)
        slots = np.concatenate((hit.slots, own))
        holding = Holding(self._lines.pop(), hit.node, slots, shared, self._unread(hit.slots, head), head)
        self._write(holding.line, 0, holding.slots)
        return holding

    def grow(self, holding: Holding, columns: int, block: int) -> bool:
        """See to it that so many columns have a slot, `block` or more at a time; False if memory is short."""
        missing = columns - len(holding.slots)
        if missing <= 0:
            return True
        own = self._take(max(missing, block)) if self._can_have(max(missing, block)) else None
        if own is None and (own := self._take(missing)) is None:
            return False
        self._write(holding.line, len(holding.slots), own)
        holding.slots = np.concatenate((holding.slots, own))
        return True

    def share(self, holding: Holding, text: Sequence[int]) -> None:
        """Its text so far is in memory, or will be before anything else happens: others may read it."""
        hit, count = self._insert(holding, text, 0), max(len(text) - 1, 0)
        # What another request brought into the cache first is read from there from here on.
        if not np.array_equal(hit.slots, holding.slots[:count]):
            self._write(holding.line, 0, hit.slots)
            holding.slots[:count] = hit.slots
        self.cache.hold(hit.node)
        self.cache.release(holding.node)
        holding.node, holding.shared, holding.unread = hit.node, count, self._unread(hit.slots, holding.head)

    def mark_read(self, holding: Holding) -> None:
        """Its head reads all that this request shares before anything else happens."""
        self._read[holding.head, holding.slots[: holding.shared]] = True
        holding.unread = 0

    def end(self, holding: Holding, text: Sequence[int], num_read: int) -> None:
        """Give everything back; the text stays in the prefix cache. num_read: columns that the head has read."""
        self._insert(holding, text, num_read)
        self.pool.give(holding.slots[max(len(text) - 1, 0) :])
        self.cache.release(holding.node)
        self._lines.append(holding.line)

    def forget(self) -> None:
        """Empty the prefix cache, as far as nobody reads it."""
        self.pool.give(self.cache.evict(self.cache.num_evictable))

    def writes(self) -> list[TableWrite]:
        """What the device's table must be told before the next work; each is handed out once."""
        writes, self._writes = self._writes, []
        return writes

    def check(self, holdings: Iterable[Holding]) -> None:
        """Assert free + cached + running == pool, and that the tree is one."""
        own = [holding.own for holding in holdings]
        self.pool.check(self.cache.slots(), np.concatenate(own) if own else NOTHING)
        self.cache.check()

    def _insert(self, holding: Holding, text: Sequence[int], num_read: int) -> Hit:
        """Add a text to the cache; slots that it knows already elsewhere are freed, the others are the cache's."""
        shared, count = holding.shared, max(len(text) - 1, 0)
        assert shared <= count <= len(holding.slots), (shared, count, len(holding.slots))
        num_known = len(self.cache.match(text).slots)
        assert num_known >= shared, "what a request holds is not evicted"
        hit = self.cache.insert(text, holding.slots[:count])
        self.pool.give(holding.slots[shared:num_known])
        self._read[:, hit.slots[num_known:]] = False
        self._read[holding.head, hit.slots[num_known:]] = np.arange(num_known, count) < num_read
        return hit

    def _unread(self, slots: Slots, head: int) -> int:
        """How many of these cached slots there are from the first one on that this head has not read."""
        read = self._read[head, slots]
        return 0 if read.all() else len(slots) - int(read.argmin())

    def _can_have(self, count: int) -> bool:
        return self.pool.num_free + self.cache.num_evictable >= count

    def _take(self, count: int) -> Slots | None:
        if self.pool.num_free < count:
            # Some more than needed: looking for what was used longest ago walks the whole tree.
            self.pool.give(self.cache.evict(count - self.pool.num_free + self.pool.num_slots // EVICT_SHARE))
        return self.pool.take(count) if self.pool.num_free >= count else None

    def _write(self, line: int, column: int, slots: Slots) -> None:
        self._writes.append(TableWrite(line, column, slots))
