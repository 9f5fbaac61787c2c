"""The reported speed-up covers the truth, as often as it says."""

import numpy as np
import pytest

from eyas.speculation.speedup import HALF_LIFE, SpeedupEstimate, SpeedupEstimator, Stratum

ONE = Stratum(1, False)


def play(seed: int, rounds: int, truth: float, model: float = 1.0, noise: float = 0.1) -> SpeedupEstimate | None:
    """Off would take `model` times what is foreseen; every 50th round runs it. Tokens vary from round to round."""
    rng = np.random.default_rng(seed)
    found = SpeedupEstimator()
    for number in range(rounds):
        shake = float(np.exp(noise * rng.standard_normal() - noise**2 / 2))
        if number % 50 == 0:
            found.observe(ONE, True, 0.01 * model * shake, 0.01)
            continue
        tokens = int(rng.integers(1, 8))  # 4 on average
        found.observe(ONE, False, 0.04 * model / truth * shake, 0.01 * tokens)
    return found.overall()


def test_the_interval_covers_the_truth() -> None:
    """Of 200 runs about 190. The rounds of off count as well: they pull the server's own figure down."""
    truth, hits, widths = 2.0, 0, []
    tokens = 49 * 4 + 1
    of_all = tokens * 0.01 / (49 * 0.02 + 0.01)
    for seed in range(200):
        found = play(seed, 1000, truth)
        assert found is not None
        hits += found.low <= of_all <= found.high
        widths.append((found.high - found.low) / found.value)
    assert 180 <= hits <= 199
    assert max(widths) < 0.25


@pytest.mark.parametrize("model", [0.5, 3.0])
def test_a_wrong_model_is_calibrated_away(model: float) -> None:
    right, wrong = play(0, 4000, 1.5), play(0, 4000, 1.5, model)
    assert right is not None
    assert wrong is not None
    assert wrong.value == pytest.approx(right.value)
    assert (wrong.low, wrong.high) == (pytest.approx(right.low), pytest.approx(right.high))


def test_there_is_none_without_a_baseline() -> None:
    assert play(0, 150, 2.0) is None, "three rounds of off are too few"
    assert play(0, 300, 2.0) is not None
    assert SpeedupEstimator().overall() is None


def test_few_rounds_of_off_make_a_wide_interval() -> None:
    few, many = play(1, 300, 2.0), play(1, 5000, 2.0)
    assert few is not None
    assert many is not None
    assert few.high / few.low > many.high / many.low
    assert few.baseline_rounds == pytest.approx(6, rel=0.05)


def test_strata_are_weighed_by_their_rounds() -> None:
    """Short texts run twice as fast as off, long ones run off: rounds of off are mostly of long ones, and slow."""
    found = SpeedupEstimator()
    for number in range(2000):
        found.observe(Stratum(4, False), number % 100 == 0, 0.01, 0.01 if number % 100 == 0 else 0.02)
        found.observe(Stratum(4, True), True, 0.10, 0.05)
    overall = found.overall()
    assert overall is not None
    # Off takes 20 ms for the tokens of a short round, and the 100 ms for a long one that it takes.
    assert overall.value == pytest.approx((0.99 * 0.02 + 0.01 * 0.01 + 0.10) / (0.01 + 0.10), rel=0.01)
    assert overall.low < overall.value < overall.high or overall.high == pytest.approx(overall.low)


def test_a_bucket_without_rounds_of_off_takes_the_baseline_of_all() -> None:
    found = SpeedupEstimator()
    for number in range(1000):
        found.observe(Stratum(1, False), number % 20 == 0, 0.01, 0.01 if number % 20 == 0 else 0.03)
        found.observe(Stratum(8, True), True, 0.02, 0.02)
        found.observe(Stratum(16, False), False, 0.02, 0.03)
    overall = found.overall()
    assert overall is not None
    assert overall.value == pytest.approx((0.029 + 0.02 + 0.03) / 0.05, rel=0.01)


def test_it_is_about_now() -> None:
    found = SpeedupEstimator()
    for speed in (3.0, 1.0):
        for number in range(4 * HALF_LIFE):
            found.observe(ONE, number % 100 == 0, 0.01, 0.01 * (speed if number % 100 else 1.0))
    overall = found.overall()
    assert overall is not None
    assert overall.value == pytest.approx(1 + 2 / 17, rel=0.02), "four half-lives later a sixteenth is left"
