"""Copies of earlier text: the index against a plain search, pools that keep tenants apart, and an honest model."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from eyas.speculation.copy_index import (
    GRAM,
    MAX_COPY,
    MAX_MATCH,
    MAX_PLACES,
    MIN_PROBABILITY,
    OUTPUT_TOKENS,
    PRIORS,
    SEPARATOR,
    CopyFinder,
    CopyIndex,
    CopyModel,
    CopyPools,
)


def search(indexed: Sequence[int], text: Sequence[int], own: bool) -> tuple[int, int]:
    """The same by comparing every place."""
    best, places = (0, 0), 0
    for end in range(len(indexed) - own, 0, -1):
        length = 0
        while length < min(end, len(text), MAX_MATCH) and indexed[end - 1 - length] == text[-1 - length]:
            if text[-1 - length] == SEPARATOR:
                break
            length += 1
        if length >= GRAM:
            places += 1
            best = (end, length) if length > best[1] else best
        if places == MAX_PLACES:
            break
    return best


@pytest.mark.parametrize("seed", range(30))
def test_it_finds_the_longest_of_the_newest_matches(seed: int) -> None:
    pick = random.Random(seed)
    text = [pick.randrange(1 + seed % 4) for _ in range(pick.randint(0, 120))]
    index = CopyIndex()
    for begin in range(0, len(text), 7):
        index.extend(text[begin : begin + 7])
        assert index.find(index.tokens) == search(index.tokens, index.tokens, own=True)
    other = [pick.randrange(1 + seed % 4) for _ in range(20)]
    assert index.find(other) == search(index.tokens, other, own=False)


def test_a_copy_continues_the_match_and_ends_with_the_text() -> None:
    finder, index = CopyFinder(0), CopyIndex()
    copy = finder.propose(index, [1, 2, 3, 4, 5, 6, 9, 1, 2, 3], "", 0)
    assert copy is not None
    assert (copy.begin, copy.match, copy.is_shared) == (10, 3, False)
    assert copy.tokens == (4, 5, 6, 9, 1, 2, 3)[: len(copy.tokens)]
    assert finder.propose(CopyIndex(), [1, 2, 3, 4], "", 0) is None


def test_a_copy_ends_where_it_becomes_unlikely() -> None:
    model, index = CopyModel(), CopyIndex()
    index.extend([*range(200), *range(60)])
    copy = model.propose(index, index.tokens, False, 4)
    assert copy is not None
    assert copy.match == MAX_MATCH
    assert len(copy.tokens) == MAX_COPY + 4
    assert copy.expected == pytest.approx(sum(PRIORS[-1] ** k for k in range(1, MAX_COPY + 1)))
    for _ in range(112):  # the estimates are used after every 16 observations
        model.observe(copy, 0, 0, was_refused=True)
    copy = model.propose(index, index.tokens, False, 4)
    assert copy is not None
    assert len(copy.tokens) == 1, "one token is proposed and graded for ever, or no later round could show more"
    assert copy.expected < MIN_PROBABILITY
    for _ in range(1600):
        model.observe(copy, 0, 1, was_refused=False)
    copy = model.propose(index, index.tokens, False, 4)
    assert copy is not None
    assert len(copy.tokens) > 10


def test_it_learns_how_often_copies_are_right() -> None:
    """The estimates of each match length come near the true share, whatever the prior."""
    pick, model = random.Random(0), CopyModel()
    index = CopyIndex()
    index.extend([*range(50), *range(3)])
    copy = model.propose(index, index.tokens, False, 0)
    assert copy is not None
    assert copy.match == 3
    for _ in range(3000):
        hits = next((k for k in range(5) if pick.random() > 0.9), 5)
        model.observe(copy, 0, hits, hits < 5)
    curve = [1.0, *model.curve(GRAM + 1, False)]
    for before, after in pairwise(curve[:3]):
        assert after / before == pytest.approx(0.9, abs=0.05)
    assert model.curve(GRAM, True)[0] == PRIORS[0], "what pools show is another table"


def test_a_round_is_graded_from_where_it_began() -> None:
    """The host proposed 44, 45, ...; a round that it had not read gave 44 and 45, the next one gave 46, 47 and 0."""
    finder, index = CopyFinder(0), CopyIndex()
    copy = finder.propose(index, [*range(20, 52), *range(20, 44)], "", 2)
    assert copy is not None
    assert copy.tokens[:5] == (44, 45, 46, 47, 48)
    text = [*index.tokens, 44, 45]
    assert finder.grade(copy, text, [46, 47, 0]) == 2
    assert finder.grade(copy, [*index.tokens, 44, 0], [46, 47, 0]) == 0, "the text went another way"
    assert finder.grade(copy, [*index.tokens, *copy.tokens, 1], [1]) == 0


def test_tenants_never_share() -> None:
    finder = CopyFinder(1000)
    finder.store("a", "r1", list(range(20)))
    for tenant, found in (("a", True), ("b", False), ("", False)):
        copy = finder.propose(CopyIndex(), [50, 3, 4, 5], tenant, 0)
        assert (copy is not None) is found
        assert copy is None or (copy.tokens[0] == 6 and copy.is_shared)
    finder.store("", "r2", list(range(20)))
    assert finder.pools.num_tokens == 21 + OUTPUT_TOKENS


def test_a_match_does_not_cross_two_outputs() -> None:
    pools = CopyPools(1000)
    pools.add("a", "r1", [1, 2])
    pools.add("a", "r2", [3, 4, 5, 6])
    index = pools.indexes.get("a")
    assert index is not None
    assert index.find([1, 2, 3]) == (0, 0)
    assert index.find([1, 2, 3, 4, 5])[1] == 3


def test_pools_are_bounded() -> None:
    pools = CopyPools(100)
    for number in range(50):
        pools.add("ab"[number % 2], f"r{number}", [1000 * number + step for step in range(9)])
        assert pools.num_tokens <= 100
    index = pools.indexes.get("b")
    assert index is not None
    assert index.find([49_000, 49_001, 49_002])[1] == 3
    assert index.find([1_000, 1_001, 1_002]) == (0, 0), "the oldest are dropped"
    texts = [index.tokens for index in pools.indexes.values()]
    assert pools.num_tokens == sum(len(text) + OUTPUT_TOKENS * text.count(SEPARATOR) for text in texts)
