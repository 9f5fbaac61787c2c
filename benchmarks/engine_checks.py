"""Checks the invariants of the engine, its KV memory and draft trees, for tests and benchmarks."""

from collections.abc import Iterable

import numpy as np
import torch

from eyas.engine.engine import Engine
from eyas.engine.request_state import RunningRequest
from eyas.memory.kv_cache_manager import KVAllocation, KVCacheManager
from eyas.memory.kv_pool import KVPool, Slots
from eyas.memory.prefix_cache import PrefixCache
from eyas.tree.tree import Tree

NO_SLOTS = np.empty(0, np.int32)


def check_engine(engine: Engine) -> None:
    """Asserts the invariants of the engine's state on the host. Call it between steps."""
    running = engine.scheduler.running
    check_kv_cache(engine.kv_cache, [request.kv for request in running])
    for request in running:
        num_slots = request.kv.num_columns
        assert request.num_committed <= request.max_committed <= num_slots, (request.num_committed, num_slots)
        if request.is_prefilled and not awaits_result(request):
            # All but the root is committed.
            assert request.num_committed == request.max_committed == len(request.state.token_ids) - 1


def awaits_result(request: RunningRequest) -> bool:
    """Returns True if launched work gives the request tokens that were not read."""
    return request.max_missing + len(request.state.output.token_ids) < request.state.max_new_tokens


def check_kv_cache(kv_cache: KVCacheManager, allocations: Iterable[KVAllocation]) -> None:
    """Asserts that each KV slot is either free, cached or owned by one allocation, and that the cache is valid."""
    own = [allocation.slots[allocation.num_shared :] for allocation in allocations]
    check_kv_pool(kv_cache.pool, cached_slots(kv_cache.prefix_cache), np.concatenate(own) if own else NO_SLOTS)
    check_prefix_cache(kv_cache.prefix_cache)


def check_kv_pool(pool: KVPool, cached: Slots, running: Slots) -> None:
    """Asserts that every slot has exactly one owner: the free list, the prefix cache or a running request."""
    owned = np.concatenate((pool._free[: pool.num_free], cached, running))
    assert len(owned) == pool.num_slots, (pool.num_free, len(cached), len(running), pool.num_slots)
    assert np.array_equal(np.sort(owned), np.arange(1, pool.num_slots + 1)), "a slot has two owners or none"


def check_prefix_cache(cache: PrefixCache) -> None:
    """Asserts the invariants of the radix tree.

    The slot counts are right, each node has text and is listed under its first pair, and a node has at least as
    many readers as its children together.
    """
    assert cache.num_slots == len(cached_slots(cache)), (cache.num_slots, len(cached_slots(cache)))
    assert cache.num_evictable == sum(len(node.slots) for node in cache._nodes() if node.num_readers == 0)
    for node in cache._nodes():
        assert len(node.pairs) == len(node.slots) > 0, "a node has text"
        assert node.parent is not None, "only the root has no parent"
        assert node.parent.children[int(node.pairs[0])] is node, "the parent names the node"
        assert node.num_readers >= sum(child.num_readers for child in node.children.values()), (
            "a reader of a child reads its parent"
        )


def cached_slots(cache: PrefixCache) -> Slots:
    """Returns all KV slots of the radix tree."""
    return np.concatenate([NO_SLOTS, *(node.slots for node in cache._nodes())])


def check_tree(tree: Tree) -> None:
    """Asserts the invariants of the tensors of draft trees. It copies them to the host, so it is slow."""
    num_requests, num_nodes = tree.tokens_BM.shape
    for tensor in (tree.parents_BM, tree.depths_BM, tree.scores_BM, tree.valid_BM):
        assert tensor.shape == (num_requests, num_nodes), "all tensors are [B, M]"
    parents, depths, scores = tree.parents_BM.cpu(), tree.depths_BM.cpu(), tree.scores_BM.cpu()
    tokens, valid = tree.tokens_BM.cpu(), tree.valid_BM.cpu()
    assert bool(valid[:, 0].all()), "the root is valid"
    assert not bool((parents[:, 0] + depths[:, 0] + scores[:, 0]).any()), "the root: its own parent, depth 0, score 0"
    assert not bool(scores.isnan().any()), "scores are numbers"
    nodes_M = torch.arange(num_nodes)
    assert bool((parents >= 0).all()), "every node has a parent"
    assert bool((parents[:, 1:] < nodes_M[1:]).all()), "parents precede children"
    assert bool((depths[:, 1:] == depths.gather(1, parents)[:, 1:] + 1).all()), "a child is one deeper"
    assert int(depths.max()) <= tree.depth, "no node below the deepest level"
    assert bool((scores <= scores.gather(1, parents)).all()), "a child is no likelier than its parent"
    assert not bool((valid & ~valid.gather(1, parents)).any()), "the valid nodes are closed under parents"
    for row in range(num_requests):
        pairs = [(int(parents[row, i]), int(tokens[row, i])) for i in range(1, num_nodes) if valid[row, i]]
        assert len(pairs) == len(set(pairs)), "siblings are distinct"
