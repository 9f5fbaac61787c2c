import pickle
import random

import numpy as np
import pytest
from tests.data.select.mixture import POOL, PRODUCTION, draw, tv_of_tasks

from eyas.data.select.traffic import (
    MIN_PROMPTS,
    NUM_FEATURES,
    TrafficModel,
    TrafficSelection,
    _apportion,
    _features,
    sample_texts,
)


def lengths_of(texts):
    return np.array([len(text) for text in texts], dtype=np.int64)


def ks_of(one, other):
    """By the definition, over every length that occurs."""
    steps = np.union1d(one, other)
    return max(abs((one <= step).mean() - (other <= step).mean()) for step in steps)


@pytest.fixture(scope="module")
def fitted():
    rng = random.Random(7)
    production, _ = draw(rng, 200, PRODUCTION)
    pool, tasks = draw(rng, 1500, POOL)
    return production, pool, tasks, TrafficModel.fit(production, pool[:800], seed=7)


@pytest.mark.parametrize(
    ("seed", "num_production", "num_pool", "limit"),
    [(0, 160, 1000, 120), (1, 160, 1000, 120), (2, 200, 1000, 200), (3, 200, 5000, 600), (4, 200, 5000, 2000)],
)
def test_a_choice_matches_the_tasks_and_lengths_of_production(seed, num_production, num_pool, limit):
    rng = random.Random(seed)
    production, wanted = draw(rng, num_production, PRODUCTION)
    pool, tasks = draw(rng, num_pool, POOL)
    traffic = TrafficModel.fit(production, pool[:1000], seed)
    lengths = lengths_of(pool)
    selection = traffic.select(traffic.assign_cells(pool), lengths, limit, seed)
    assert len(set(selection.indices.tolist())) == limit
    uniform = rng.sample(range(num_pool), limit)
    assert tv_of_tasks([tasks[place] for place in uniform], wanted) > 0.25
    assert ks_of(lengths[uniform], lengths_of(production)) > 0.12
    assert tv_of_tasks([tasks[place] for place in selection.indices], wanted) <= 0.1
    assert ks_of(lengths[selection.indices], lengths_of(production)) <= 0.1


def test_distances_are_those_of_the_definition(fitted):
    production, pool, _, traffic = fitted
    cells, lengths = traffic.assign_cells(pool), lengths_of(pool)
    bins = len(traffic.edges) + 1
    ours, theirs = np.zeros((2, len(traffic.nearness)))
    np.add.at(ours, traffic.assign_cells(production) // bins, 1 / len(production))
    np.add.at(theirs, cells // bins, 1 / len(pool))
    found = traffic.measure_distance(cells, lengths)
    assert found.tv == pytest.approx(np.maximum(ours - theirs, 0).sum())
    assert found.ks == pytest.approx(ks_of(lengths, lengths_of(production)), abs=0.03)  # steps of 2%
    same = traffic.measure_distance(traffic.assign_cells(production), lengths_of(production))
    assert (same.tv, same.ks) == (0, 0)
    nothing = traffic.measure_distance(cells[:0], lengths[:0])
    assert (nothing.tv, nothing.ks) == (1, 1)


def test_the_same_bytes_every_time_and_whatever_the_pieces(fitted):
    production, pool, _, traffic = fitted
    assert pickle.dumps(TrafficModel.fit(production, pool[:800], seed=7)) == pickle.dumps(traffic)
    whole = traffic.assign_cells(pool)
    pieces = [
        pickle.loads(pickle.dumps(traffic)).assign_cells(pool[start : start + 37]) for start in range(0, len(pool), 37)
    ]
    assert whole.dtype == np.uint16
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    first, second, other = (traffic.select(whole, lengths_of(pool), 300, seed).indices for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert first.tolist() != other.tolist()


def test_no_word_of_production_is_kept(fitted):
    production, pool, _, _ = fitted
    secret = "Zyxwvut Qponmlk, account 4711-0815"
    traffic = TrafficModel.fit([*production, *[secret] * (MIN_PROMPTS - 1)], pool[:800], seed=7)
    data = pickle.dumps(traffic)
    for text in (secret, "Zyxwvut", "zyxwvut", "4711", *production):
        assert text.encode() not in data
    # Hashed words that fewer than MIN_PROMPTS prompts have weigh nothing.
    others = np.asarray(_features([*production, *pool[:800]]).sum(axis=0)).ravel()
    rare = np.setdiff1d(_features([secret]).indices, np.flatnonzero(others))
    assert len(rare) >= 2
    assert not traffic.weights[rare].any()
    assert traffic.weights.shape[0] == NUM_FEATURES
    assert len(data) < 2**21


def test_what_cannot_be_filled_is_reported_and_comes_from_the_same_topic_first(fitted):
    _, pool, tasks, traffic = fitted
    # A pool whose translations are all gone but three, whichever length they have.
    few = [place for place, task in enumerate(tasks) if task == "translation"][3:]
    kept = [place for place in range(len(pool)) if place not in set(few)]
    cells, lengths = traffic.assign_cells([pool[place] for place in kept]), lengths_of(pool)[kept]
    selection = traffic.select(cells, lengths, 300, seed=0)
    assert len(selection.indices) == 300
    short_by = sum(cell["wanted"] - cell["got"] for cell in selection.shortfalls)
    assert 40 <= short_by <= 80  # a fifth of 300, and some cells of other tasks
    assert selection.after.tv == pytest.approx(0.2, abs=0.07)
    # Three cells that the pool has, two of one topic: the quota of the short one goes to its own topic.
    bins = len(traffic.edges) + 1
    made = TrafficModel(
        traffic.weights,
        traffic.nearness,
        traffic.edges,
        np.bincount([0, 0, 0, bins], minlength=len(traffic.production)),
        traffic.lengths,
    )
    cells = np.array([0] * 2 + [1] * 30 + [bins] * 30, dtype=np.uint16)
    selection = made.select(cells, np.full(len(cells), 10), 40, seed=0)
    assert np.bincount(cells[selection.indices])[[0, 1, bins]].tolist() == [2, 28, 10]
    (shortfall,) = selection.shortfalls
    assert shortfall["cell"].startswith("topic 1, 0 to ")
    assert (shortfall["wanted"], shortfall["got"]) == (30, 2)


def test_without_a_limit_the_choice_is_as_large_as_the_mix_allows(fitted):
    _, pool, _, traffic = fitted
    cells, lengths = traffic.assign_cells(pool), lengths_of(pool)
    selection = traffic.select(cells, lengths, None, seed=0)
    assert 400 < len(selection.indices) < 1200
    assert selection.after.tv <= 0.1
    assert selection.after.ks <= 0.1
    larger = traffic.select(cells, lengths, 2 * len(selection.indices), seed=0)
    assert larger.after.tv > 0.2
    everything = traffic.select(cells, lengths, 10**6, seed=0)
    assert len(everything.indices) == len(pool)


def test_odd_sizes():
    for production, pool in ((["one"], []), ([""], [""]), (["same text"] * 40, ["same text"] * 3), (["a", "b"], ["c"])):
        traffic = TrafficModel.fit(production, pool, seed=0)
        texts = [*production, *pool, "x" * 100_000]
        selection = traffic.select(traffic.assign_cells(texts), lengths_of(texts), 1, seed=0)
        assert isinstance(selection, TrafficSelection)
        assert len(selection.indices) == 1
        assert len(traffic.select(np.zeros(0, np.uint16), lengths_of([]), None, seed=0).indices) == 0


def test_quotas_are_whole_and_sum_up():
    rng = np.random.default_rng(0)
    for total in (0, 1, 7, 100):
        exact = rng.dirichlet(np.full(9, 0.3)) * total
        found = _apportion(exact, total)
        assert found.sum() == total
        assert (np.abs(found - exact) < 1).all()
    assert _apportion(np.array([0.5, 0.5, 0.0]), 1).tolist() == [1, 0, 0]
    owed = np.array([0.1, 0.9, 5.0])
    assert _apportion(np.array([0.5, 0.5, 0.0]), 1, owed).tolist() == [0, 1, 0]


def test_a_sample_is_the_same_whatever_the_order():
    texts = {f"source:{number}": f"text {number}" for number in range(500)}
    one = sample_texts(texts.items(), 40, seed=3)
    assert sample_texts(sorted(texts.items(), reverse=True), 40, seed=3) == one
    assert len(set(one)) == 40
    assert sample_texts(texts.items(), 40, seed=4) != one
    assert len(sample_texts([("source:0", "long " * 1000)], 40, seed=3)[0]) < 2100
