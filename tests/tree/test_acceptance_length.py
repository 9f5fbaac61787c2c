"""Acceptance and intervals, by hand and by simulation."""

import numpy as np
import pytest

from eyas.tree.acceptance_length import (
    RequestRounds,
    acceptance_interval,
    acceptance_length,
    by_depth,
    join_rounds,
    summarize,
    turn_label,
)
from eyas.tree.intervals import log_scale_interval, median_interval, percentiles, ratio_interval

# Two prompts. The first: all of a chain of 2, then nothing, then 1 of 2, then cut by a stop token after 2.
# The second: one round whose tree was a lone root.
REQUESTS = [RequestRounds(accepted=(3, 1, 2, 2), offered=(2, 1, 2, 1)), RequestRounds(accepted=(1,), offered=(0,))]


def test_by_hand() -> None:
    stats = summarize(REQUESTS)
    assert acceptance_length(REQUESTS) == stats.acceptance_length == 9 / 5
    assert (stats.prompts, stats.rounds, stats.accepted) == (2, 5, 9)
    assert by_depth(REQUESTS) == stats.by_depth == (3 / 4, 1 / 2)


def test_long_answers_weigh_more() -> None:
    """A ratio of sums, not the mean of the prompts' ratios (which is 2)."""
    assert acceptance_length([RequestRounds((3,), (2,)), RequestRounds((1, 1, 1), (1, 1, 1))]) == 6 / 4


def test_a_request_without_rounds_changes_nothing() -> None:
    silent = RequestRounds((), ())
    assert acceptance_length([*REQUESTS, silent]) == 9 / 5
    assert acceptance_interval([*REQUESTS, silent], 3) == acceptance_interval(REQUESTS, 3)
    with pytest.raises(AssertionError, match="no round"):
        acceptance_length([silent])


def test_joined_rounds_count_as_one_request() -> None:
    joined = join_rounds(REQUESTS)
    assert joined == RequestRounds((3, 1, 2, 2, 1), (2, 1, 2, 1, 0))
    interval = summarize([joined]).ci95
    assert interval.low == interval.high == acceptance_length(REQUESTS)


def test_turns_are_counted_in_four_classes() -> None:
    assert [turn_label(turn) for turn in range(1, 8)] == ["1", "2", "3-5", "3-5", "3-5", "6+", "6+"]


def test_an_interval_of_a_ratio_of_ratios() -> None:
    """Items of both ratios are drawn together, so a factor that all items share has no width."""
    ones, twos = np.array([1.0, 3.0, 8.0, 2.0]), np.array([5.0, 1.0, 4.0, 7.0])
    found = ratio_interval(3 * ones, twos, 0, (ones, twos))
    assert (found.low, found.high) == pytest.approx((3, 3))
    plain = ratio_interval(ones, twos, 0)
    assert ratio_interval(ones, twos, 0, (np.ones(4), np.ones(4))) == plain


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
    assert list(found) == pytest.approx(rates, abs=0.015)


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
        interval = ratio_interval(sums, rounds, seed=0)
        covered += interval.low <= truth <= interval.high
        pooled = np.concatenate(lengths)
        half = 1.96 * pooled.std() / len(pooled) ** 0.5
        covered_by_rounds += abs(pooled.mean() - truth) <= half
    assert 0.885 < covered / 300 < 0.995
    assert covered_by_rounds / 300 < 0.8


def test_median_and_its_interval() -> None:
    middle, span = median_interval([3.0, 1.0, 2.0], seed=0)
    # With three values a resample's median is one of them; 7 of 27 resamples have the lowest as median.
    assert (middle, span.low, span.high) == (2.0, 1.0, 3.0)
    assert median_interval([1.5], seed=0)[1].low == median_interval([1.5], seed=0)[1].high == 1.5


def test_interval_is_as_wide_as_the_medians_really_scatter() -> None:
    """An independent reference: the spread of medians over fresh draws from the population."""
    rng = np.random.default_rng(5)
    fresh = [np.median(rng.normal(10, 2, size=200)) for _ in range(4000)]
    low, high = np.quantile(fresh, [0.025, 0.975])
    widths = []
    for _ in range(30):
        _, span = median_interval(rng.normal(10, 2, size=200).tolist(), seed=1)
        widths.append(span.high - span.low)
    assert np.mean(widths) == pytest.approx(high - low, rel=0.15)


def test_percentiles() -> None:
    assert percentiles([5.0, 1.0, 4.0, 2.0, 3.0]) == pytest.approx({"p50": 3.0, "p90": 4.6, "p99": 4.96})


def test_intervals_of_positive_figures_against_tables() -> None:
    """The quantiles of the normal and of Student's t (any table): 1.960, 2.576, and 2.228 at 10 degrees of freedom."""
    for level, freedom, quantile in ((0.95, np.inf, 1.960), (0.99, np.inf, 2.576), (0.95, 10, 2.228)):
        interval = log_scale_interval(2.0, 0.09, level=level, degrees_of_freedom=freedom)
        assert interval.high == pytest.approx(2 * np.exp(0.3 * quantile), rel=1e-3)
        assert interval.low * interval.high == pytest.approx(4.0)
