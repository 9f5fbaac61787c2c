"""Acceptance length against data: the table's own figures at its points, between them in between, beyond them none."""

import pytest

from eyas.costs.cost_model import POINTS, expected_acceptance


def test_the_points_themselves():
    assert POINTS == ((5_000, 1.45, 1.5), (50_000, 1.9, 1.95), (500_000, 2.8, 3.0))
    for conversations, low, high in POINTS:
        found = expected_acceptance(conversations)
        assert (found.low, found.high, found.inside) == (low, high, True)


def test_halfway_on_the_logarithm_is_halfway():
    found = expected_acceptance(5_000 * 10**0.5)
    assert (found.low, found.high) == pytest.approx(((1.45 + 1.9) / 2, (1.5 + 1.95) / 2))


@pytest.mark.parametrize(("conversations", "low"), [(300, 1.45), (5_000_000, 2.8)])
def test_nothing_is_promised_beyond_what_was_measured(conversations, low):
    found = expected_acceptance(conversations)
    assert (found.low, found.inside) == (low, False)
