"""Medians and percentiles on known inputs, and the order of the arms."""

import numpy as np
import pytest

from eyas.bench.stats import median_interval, percentiles
from eyas.bench.workload import Prompt, interleave_tasks, run_paired


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


def test_arms_alternate() -> None:
    calls: list[str] = []

    def arm(name: str):
        def run(unit: int) -> str:
            calls.append(f"{name}{unit}")
            return f"{name}{unit}"

        return run

    results = run_paired({"a": arm("a"), "b": arm("b")}, [0, 1, 2], repeats=2)
    assert calls == ["a0", "b0", "b1", "a1", "a2", "b2", "b0", "a0", "a1", "b1", "b2", "a2"]
    assert results == {"a": [["a0"] * 2, ["a1"] * 2, ["a2"] * 2], "b": [["b0"] * 2, ["b1"] * 2, ["b2"] * 2]}


def test_tasks_in_turn() -> None:
    one, two, three = (Prompt(name, (1,)) for name in "123")
    assert interleave_tasks({"x": [one, two], "y": [three]}) == [one, three, two]
