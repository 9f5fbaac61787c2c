"""Prefix cache: a radix tree over texts whose keys and values are still in KV memory.

The tree is searched by pairs: a token *and its successor*. The row of an EAGLE-3 head at position i reads the features
of token i and the embedding of token i + 1. So its keys and values are valid for a new text only if both tokens are
equal. A prefix that matches by pairs is valid for target and head.

    text             tokens    pairs       cached slots
    first request    a b c d   ab bc cd    of a, b, c
    second request   a b c x   ab bc cx    of a, b (shared with the first request), and its own of c

A text of n tokens has n - 1 pairs, so its last token is always computed again: its logits are needed anyway.
Source: SGLang's radix cache with bigram keys (facts: sections A7 and C1 of the serving notes).
"""

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from eyas.memory.kv_pool import Slots

Pairs = NDArray[np.int64]


@dataclass(eq=False)
class RadixNode:
    """A node of the radix tree: the part of a text that follows its parent's part.

    Attributes:
        pairs: The pairs of the part, see `bigram_keys`.
        slots: The KV slot of the first token of each pair.
        parent: The node above; None for the root.
        children: The nodes below, by their first pair.
        num_readers: The number of running requests that use this node or a node below it.
        last_used: The number of the last match that used the node.
    """

    pairs: Pairs
    slots: Slots
    parent: "RadixNode | None"
    children: "dict[int, RadixNode]" = field(default_factory=dict)
    num_readers: int = 0
    last_used: int = 0


@dataclass(frozen=True, eq=False)
class PrefixMatch:
    """The longest cached prefix of a text: the KV slots of its tokens, and the node at which it ends."""

    slots: Slots
    node: RadixNode


def bigram_keys(ids: Sequence[int]) -> Pairs:
    """Returns the n - 1 pairs of a text with n tokens. A pair is a token and its successor, packed into one int64."""
    tokens = np.asarray(ids, dtype=np.int64)
    return (tokens[:-1] << 32) | tokens[1:]


class PrefixCache:
    """The radix tree. It owns the KV slots of its nodes. `lock` protects a branch from eviction while it is in use.

    Attributes:
        num_slots: The number of KV slots in the tree.
        num_evictable: The number of KV slots in nodes that no running request uses.
    """

    def __init__(self) -> None:
        self._root = RadixNode(np.empty(0, np.int64), np.empty(0, np.int32), None, num_readers=1)
        self._ticks = itertools.count(1)
        self.num_slots = 0
        self.num_evictable = 0  # slots of branches without readers

    def match(self, ids: Sequence[int]) -> PrefixMatch:
        """Returns the longest cached prefix of the text; if there is none, no slots and the root."""
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
        """Adds a text of n tokens.

        Args:
            ids: the n tokens.
            slots: the KV slots of the first n - 1 tokens.

        Returns:
            The text's KV slots in the tree and its last node. Where the tree already had a prefix of the text, it keeps
            its own slots. The caller must free those of `slots` that are not in the result.
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
        """Protects the node and all nodes above it from eviction, until `unlock` is called with the same node."""
        for above in _upwards(node):
            self.num_evictable -= len(above.slots) if above.num_readers == 0 else 0
            above.num_readers += 1

    def unlock(self, node: RadixNode) -> None:
        """Ends the protection of one `lock` call with the same node."""
        for above in _upwards(node):
            above.num_readers -= 1
            self.num_evictable += len(above.slots) if above.num_readers == 0 else 0
            assert above.num_readers >= 0, "unlocked more often than locked"

    def evict(self, count: int) -> Slots:
        """Removes the least recently used leaves that no request uses, until `count` slots are free or none is left.

        Returns:
            The KV slots of the removed leaves. The caller must free them in the pool.
        """
        unused = (node for node in self._nodes() if not node.children and node.num_readers == 0)
        leaves = [(node.last_used, id(node), node) for node in unused]
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

    def _split(self, node: RadixNode, length: int) -> RadixNode:
        """Splits a node after `length` pairs. Returns the new node above, which has the same number of readers."""
        upper = replace(node, pairs=node.pairs[:length], slots=node.slots[:length], children={})
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
    """Returns the number of leading pairs that both keys share."""
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length


def _upwards(node: RadixNode) -> Iterator[RadixNode]:
    above: RadixNode | None = node
    while above is not None:
        yield above
        above = above.parent
