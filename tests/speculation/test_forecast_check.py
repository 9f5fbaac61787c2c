import pytest

from eyas.speculation.forecast_check import HALF_LIFE, MIN_ROUNDS, ForecastCheck


def test_it_says_nothing_before_it_has_seen_some_rounds():
    check = ForecastCheck()
    check.observe(int(MIN_ROUNDS) - 1, 10, 10, 1.0, 1.0)
    assert check.ratios() == {}
    check.observe(2, 1, 1, 0.1, 0.1)
    assert check.ratios() == pytest.approx({"tokens": 1.0, "seconds": 1.0})


def test_recent_rounds_count_more():
    check = ForecastCheck()
    for _ in range(10 * HALF_LIFE):
        check.observe(1, 2, 1, 3.0, 1.0)
    assert check.ratios() == pytest.approx({"tokens": 2.0, "seconds": 3.0})
    for _ in range(HALF_LIFE):
        check.observe(1, 1, 1, 1.0, 1.0)
    assert check.ratios() == pytest.approx({"tokens": 1.5, "seconds": 2.0}, abs=0.01)
    check.observe(HALF_LIFE, HALF_LIFE, HALF_LIFE, HALF_LIFE, HALF_LIFE)
    assert check.ratios()["tokens"] < 1.3, "rounds that are added together fade the old ones alike"
