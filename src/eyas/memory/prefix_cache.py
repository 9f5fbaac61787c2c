"""Prefix cache: a radix tree over texts whose keys and values are still in memory.

A key is a token *and its successor*. The head's row at position i reads the features of token i and the embedding of
token i + 1, so its keys and values are right for a new text only if both tokens are the same. With pairs as keys a hit
is right for target and head alike, and a server without a head hits just as often:

    text      a b c d            pairs   ab bc cd        slots of a, b, c
    next      a b c x            pairs   ab bc cx        hit: a and b; c has slots of its own in each branch

A text of n tokens has n - 1 pairs, so at least its last token is always computed anew: its logits are needed anyway.
Source: SGLang's radix cache with bigram keys (facts: sections A7 and C1 of the serving notes).
"""

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eyas.memory.kv_pool import Slots

Pairs = NDArray[np.int64]


@dataclass(eq=False)
class RadixNode:
    """A piece of text below its parent. users: running requests that read it or something below it."""

    pairs: Pairs
    slots: Slots
    parent: "RadixNode | None"
    children: "dict[int, RadixNode]" = field(default_factory=dict)
    num_readers: int = 0
    last_used: int = 0  # a counter, not a clock: which nodes were needed last


@dataclass(frozen=True, eq=False)
class PrefixMatch:
    """The longest known prefix: the slots of its tokens, and the node where it ends."""

    slots: Slots
    node: RadixNode


def bigram_keys(ids: Sequence[int]) -> Pairs:
    """Each token joined with its successor, n - 1 of them."""
    tokens = np.asarray(ids, dtype=np.int64)
    return (tokens[:-1] << 32) | tokens[1:]


class PrefixCache:
    """The tree. It owns the slots of its nodes; `hold` keeps a branch from being evicted while a request reads it."""

    def __init__(self) -> None:
        self._root = RadixNode(np.empty(0, np.int64), np.empty(0, np.int32), None, num_readers=1)
        self._ticks = itertools.count(1)
        self.num_slots = 0
        self.num_evictable = 0  # slots of branches that nobody reads

    def match(self, ids: Sequence[int]) -> PrefixMatch:
        """The longest prefix of the text that is known."""
        node, found, rest = self._root, [], bigram_keys(ids)
        tick = next(self._ticks)
        while len(rest) and (child := node.children.get(int(rest[0]))) is not None:
            shared = _shared(child.pairs, rest)
            if shared < len(child.pairs):
                child = self._split(child, shared)
            child.last_used = tick
            found.append(child.slots)
            node, rest = child, rest[shared:]
        return PrefixMatch(np.concatenate(found) if found else np.empty(0, np.int32), node)

    def insert(self, ids: Sequence[int], slots: Slots) -> PrefixMatch:
        """Add a text whose first n - 1 tokens are in these slots; the slots that the tree has for it afterwards.

        Where it already knew a part, it keeps its own slots there: the caller frees those of its own that are not in
        the answer.
        """
        assert len(slots) == max(len(ids) - 1, 0), (len(slots), len(ids))
        known = self.match(ids)
        done = len(known.slots)
        if done == len(slots):
            return known
        pairs = bigram_keys(ids)[done:]
        leaf = RadixNode(pairs, slots[done:].copy(), known.node, last_used=next(self._ticks))
        known.node.children[int(pairs[0])] = leaf
        self.num_slots += len(pairs)
        self.num_evictable += len(pairs)
        return PrefixMatch(np.concatenate((known.slots, leaf.slots)), leaf)

    def lock(self, node: RadixNode) -> None:
        """A request reads this branch."""
        for above in _upwards(node):
            self.num_evictable -= len(above.slots) if above.num_readers == 0 else 0
            above.num_readers += 1

    def unlock(self, node: RadixNode) -> None:
        """It does no longer."""
        for above in _upwards(node):
            above.num_readers -= 1
            self.num_evictable += len(above.slots) if above.num_readers == 0 else 0
            assert above.num_readers >= 0, "released more often than held"

    def evict(self, count: int) -> Slots:
        """Forget what was needed longest ago, at least `count` slots if so many are evictable; the freed slots."""
        leaves = [
            (node.last_used, id(node), node) for node in self._nodes() if not node.children and node.num_readers == 0
        ]
        heapq.heapify(leaves)
        freed: list[Slots] = []
        missing = count
        while missing > 0 and leaves:
            _, _, node = heapq.heappop(leaves)
            parent = node.parent
            assert parent is not None, "the root is in use"
            del parent.children[int(node.pairs[0])]
            freed.append(node.slots)
            missing -= len(node.slots)
            if not parent.children and parent.num_readers == 0:
                heapq.heappush(leaves, (parent.last_used, id(parent), parent))
        slots = np.concatenate(freed) if freed else np.empty(0, np.int32)
        self.num_slots -= len(slots)
        self.num_evictable -= len(slots)
        return slots

    def slots(self) -> Slots:
        """All slots of the tree, for checks."""
        held = [node.slots for node in self._nodes()]
        return np.concatenate(held) if held else np.empty(0, np.int32)

    def check(self) -> None:
        """Assert that the tree is one: children under their first pair, users counted upwards, every node with text."""
        assert self.num_slots == len(self.slots()), (self.num_slots, len(self.slots()))
        assert self.num_evictable == sum(len(node.slots) for node in self._nodes() if node.num_readers == 0)
        for node in self._nodes():
            assert len(node.pairs) == len(node.slots) > 0, "a node has text"
            assert node.parent is not None, "only the root has no parent"
            assert node.parent.children[int(node.pairs[0])] is node, "it hangs in the tree"
            assert node.num_readers >= sum(child.num_readers for child in node.children.values()), (
                "who reads below reads here"
            )

    def _split(self, node: RadixNode, length: int) -> RadixNode:
        """Cut a node in two; the upper part, to which all who read the node belong as well."""
        upper = RadixNode(
            node.pairs[:length],
            node.slots[:length],
            node.parent,
            num_readers=node.num_readers,
            last_used=node.last_used,
        )
        assert node.parent is not None, "the root has no text to cut"
        node.parent.children[int(upper.pairs[0])] = upper
        node.pairs, node.slots, node.parent = node.pairs[length:], node.slots[length:], upper
        upper.children[int(node.pairs[0])] = node
        return upper

    def _nodes(self) -> Iterator[RadixNode]:
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node


def _shared(one: Pairs, other: Pairs) -> int:
    """How many pairs both have in common from the start."""
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length


def _upwards(node: RadixNode) -> Iterator[RadixNode]:
    above: RadixNode | None = node
    while above is not None:
        yield above
        above = above.parent
