"""Tests the costs of reads: the measured ones, their correction by rounds, and their share of a generated token."""

import pytest

from eyas.speculation.batch_load import BatchLoad
from eyas.speculation.read_costs import PREFILL_SHARE, REMAINING_TOKENS, ReadCosts


def costs() -> ReadCosts:
    return ReadCosts(lambda count: 1e-3 * count, forward_s=0.02)


def test_a_measurement_at_a_bad_moment_is_corrected() -> None:
    """The head reads in a tenth of the time that was measured."""
    found = costs()
    assert found.seconds(0) == 0
    assert found.seconds(100) == pytest.approx(0.1)
    for _ in range(100):
        found.learn(found.seconds(100), 0.01)
    assert found.seconds(100) == pytest.approx(0.01, rel=0.01)
    for _ in range(100):
        found.learn(found.seconds(100), 0.2)
    assert found.seconds(100) == pytest.approx(0.2, rel=0.01)


def test_one_read_in_a_hiccup_changes_little() -> None:
    found = costs()
    found.learn(found.seconds(100), 60.0)
    assert found.seconds(100) < 0.11
    found.learn(found.seconds(100), -0.01)
    assert found.seconds(100) > 0.08


def test_new_prompts_are_paid_by_the_tokens_that_follow() -> None:
    found, load = costs(), BatchLoad((300, 300), (300, 0), new_prompt_tokens=300, num_new=1)
    found.count_prompts(load)
    read_s = 0.3 + PREFILL_SHARE * 0.02
    assert found.of(load) == pytest.approx((0.3, read_s / (2 * REMAINING_TOKENS)))
    for _ in range(1500):  # many new prompts, one in a hundred tokens
        found.count_prompts(load)
        found.count_tokens(100)
    assert found.of(load)[1] == pytest.approx(read_s / 100, rel=0.01)
