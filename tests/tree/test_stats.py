"""Acceptance, by hand and by simulation."""

import numpy as np
import pytest

from eyas.tree.stats import (
    RequestRounds,
    acceptance_interval,
    acceptance_length,
    by_depth,
    histogram,
    ratio_interval,
    summarize,
)

# Two prompts. The first: all of a chain of 2, then nothing, then 1 of 2, then cut by a stop token after 2.
# The second: one round whose tree was a lone root.
REQUESTS = [RequestRounds(accepted=(3, 1, 2, 2), offered=(2, 1, 2, 1)), RequestRounds(accepted=(1,), offered=(0,))]


def test_by_hand() -> None:
    stats = summarize(REQUESTS)
    assert acceptance_length(REQUESTS) == stats.acceptance_length == 9 / 5
    assert (stats.prompts, stats.rounds, stats.accepted) == (2, 5, 9)
    assert stats.histogram == histogram(REQUESTS) == (0, 2, 2, 1)
    first, second = by_depth(REQUESTS)
    assert (first.depth, first.offered, first.accepted, first.rate) == (1, 4, 3, 0.75)
    assert (second.depth, second.offered, second.accepted, second.rate) == (2, 2, 1, 0.5)


def test_long_answers_weigh_more() -> None:
    """A ratio of sums, not the mean of the prompts' ratios (which is 2)."""
    assert acceptance_length([RequestRounds((3,), (2,)), RequestRounds((1, 1, 1), (1, 1, 1))]) == 6 / 4


def test_a_request_without_rounds_changes_nothing() -> None:
    silent = RequestRounds((), ())
    assert acceptance_length([*REQUESTS, silent]) == 9 / 5
    assert acceptance_interval([*REQUESTS, silent], 3) == acceptance_interval(REQUESTS, 3)
    with pytest.raises(AssertionError, match="no round"):
        acceptance_length([silent])


def test_conditional_acceptance_recovers_the_rates_of_a_simulation() -> None:
    """Depth d is accepted with rate[d] if offered; a quarter of the paths end early because nothing stands below."""
    rates, rng = [0.8, 0.6, 0.4], np.random.default_rng(0)
    accepted, offered = [], []
    for _ in range(40_000):
        taken = asked = 0
        for rate in rates:
            if rng.random() < 0.25:
                break
            asked += 1
            if rng.random() >= rate:
                break
            taken += 1
        accepted.append(taken + 1)
        offered.append(asked)
    found = by_depth([RequestRounds(tuple(accepted), tuple(offered))])
    assert [depth.rate for depth in found] == pytest.approx(rates, abs=0.015)


def test_the_same_seed_gives_the_same_interval() -> None:
    assert acceptance_interval(REQUESTS, 1) == acceptance_interval(REQUESTS, 1)
    requests = [RequestRounds((length,), (length,)) for length in range(1, 31)]
    assert acceptance_interval(requests, 1) != acceptance_interval(requests, 2)
    low, high = acceptance_interval(requests, 1).low, acceptance_interval(requests, 1).high
    assert low < 15.5 < high


def test_one_prompt_gives_an_interval_without_width() -> None:
    interval = acceptance_interval(REQUESTS[:1], 0)
    assert interval.low == interval.high == 2.0


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """300 worlds of 60 prompts each; rounds of a prompt share a rate, prompts differ in length.

    Coverage is binomial around 0.95, less the percentile bootstrap's own error at 60 prompts (about 0.01):
    0.94 +- 4 sqrt(.94 * .06 / 300) = 0.885..0.995. An interval over rounds instead of prompts covers far less.
    """
    rng = np.random.default_rng(4)
    truth, covered, covered_by_rounds = 3.0, 0, 0
    for _ in range(300):
        rounds = rng.integers(10, 40, size=60)
        means = rng.uniform(2.0, 4.0, size=60)  # independent of the number of rounds, so the truth is their mean
        lengths = [1 + rng.binomial(5, (mean - 1) / 5, size=count) for mean, count in zip(means, rounds, strict=True)]
        sums = np.array([length.sum() for length in lengths])
        interval = ratio_interval(sums, rounds, seed=0, resamples=400)
        covered += interval.low <= truth <= interval.high
        pooled = np.concatenate(lengths)
        half = 1.96 * pooled.std() / len(pooled) ** 0.5
        covered_by_rounds += abs(pooled.mean() - truth) <= half
    assert 0.885 < covered / 300 < 0.995
    assert covered_by_rounds / 300 < 0.8
