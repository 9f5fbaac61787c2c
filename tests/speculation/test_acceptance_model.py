"""Acceptance by arm, learnt from the rounds of one arm, against the truth of all arms."""

from collections.abc import Iterable

import numpy as np
import pytest
from tests.speculation.simulation import ARMS, Head, head

from eyas.base.errors import InputError
from eyas.speculation.acceptance_model import (
    FIRST_BUCKET,
    HALF_LIFE,
    MIN_WEIGHT,
    PRIOR_WEIGHT,
    AcceptanceModel,
    AcceptancePrior,
)
from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.speculation.arms import Arm
from eyas.tree.acceptance_length import context_bucket

BY_NAME = {arm.name: arm for arm in ARMS}


@pytest.fixture(scope="module")
def good() -> Head:
    return head(0.75, 0.95, seed=1)


@pytest.fixture(scope="module")
def poor() -> Head:
    return head(0.4, 0.5, seed=2)


def evidence(one: Head, arm: Arm, rounds: int, seed: int = 0) -> Iterable[AcceptanceTrace]:
    """Of one request in so many rounds of this arm."""
    for place in np.random.default_rng(seed).integers(len(one.samples), size=rounds).tolist():
        yield AcceptanceTrace(arm, 300, *one.samples[place].evidence[arm.name])


def learn(acceptance: AcceptanceModel, one: Head, name: str, rounds: int, seed: int = 0) -> None:
    for item in evidence(one, BY_NAME[name], rounds, seed):
        acceptance.observe([item])


def tokens(acceptance: AcceptanceModel, context: int = 300) -> dict[str, float]:
    return dict(zip(BY_NAME, acceptance.expected([context]).tokens, strict=True))


@pytest.mark.parametrize("name", ["good", "poor"])
def test_the_largest_tree_tells_about_every_arm(name: str, request: pytest.FixtureRequest) -> None:
    one: Head = request.getfixturevalue(name)
    acceptance = AcceptanceModel(ARMS)
    learn(acceptance, one, "tree32", 4000)
    for arm, found in tokens(acceptance).items():
        assert found == pytest.approx(one.tokens(BY_NAME[arm]), rel=0.08), arm
    assert tokens(acceptance)["off"] == 1.0


def test_a_chain_tells_about_shorter_chains(good: Head) -> None:
    acceptance = AcceptanceModel(ARMS)
    learn(acceptance, good, "chain3", 4000)
    for arm in ("chain1", "chain2", "chain3"):
        assert tokens(acceptance)[arm] == pytest.approx(good.tokens(BY_NAME[arm]), rel=0.05)


def test_what_did_not_run_moves_with_what_did(good: Head, poor: Head) -> None:
    """Larger trees and longer chains, in both directions, and back to where they were."""
    acceptance = AcceptanceModel(ARMS)
    learn(acceptance, good, "tree32", 2000)
    before = tokens(acceptance)
    learn(acceptance, poor, "chain1", 2000)
    lower = tokens(acceptance)
    assert lower["chain1"] == pytest.approx(poor.tokens(BY_NAME["chain1"]), rel=0.05)
    for arm in ("chain2", "chain5", "tree8", "tree16", "tree32"):
        assert 1 < lower[arm] < 0.75 * before[arm], arm
    learn(acceptance, good, "chain1", 2000)
    for arm, found in tokens(acceptance).items():
        assert found == pytest.approx(before[arm], rel=0.1), arm


def test_a_direct_look_overrules_the_shift(good: Head) -> None:
    """Chains say that the tree is poor; its own rounds say otherwise."""
    acceptance = AcceptanceModel(ARMS)
    learn(acceptance, good, "chain1", 500)
    learn(acceptance, good, "tree16", 300)
    assert tokens(acceptance)["tree16"] == pytest.approx(good.tokens(BY_NAME["tree16"]), rel=0.1)


def test_it_does_not_return_to_the_prior() -> None:
    """Rounds without drafting take away certainty, not knowledge."""
    acceptance, nothing = AcceptanceModel(ARMS), AcceptanceTrace(BY_NAME["tree8"], 300, (), 0, 4)
    assert tokens(acceptance)["tree8"] > 2, "the prior is that of a head that is not useless"
    for _ in range(200):
        acceptance.observe([nothing])
    surely = acceptance.expected([300])
    assert dict(zip(BY_NAME, surely.tokens, strict=True))["tree8"] < 1.1
    for _ in range(20 * HALF_LIFE):
        acceptance.observe([])
    assert tokens(acceptance)["tree8"] < 1.1
    hit = AcceptanceTrace(BY_NAME["chain1"], 300, (2,), 1, 1)
    acceptance.observe([hit])
    # One hit among MIN_WEIGHT rounds' worth of misses, not among two hundred.
    assert tokens(acceptance)["chain1"] == pytest.approx(1 + 1 / (MIN_WEIGHT + 1), abs=0.02)


def test_old_rounds_fade(good: Head, poor: Head) -> None:
    acceptance = AcceptanceModel(ARMS)
    learn(acceptance, good, "tree16", 5 * HALF_LIFE)
    learn(acceptance, poor, "tree16", HALF_LIFE)
    before, after = good.tokens(BY_NAME["chain1"]), poor.tokens(BY_NAME["chain1"])
    assert tokens(acceptance)["chain1"] == pytest.approx((before + after) / 2, abs=0.1), "half-way after a half-life"
    learn(acceptance, poor, "tree16", 4 * HALF_LIFE)
    assert tokens(acceptance)["tree16"] == pytest.approx(poor.tokens(BY_NAME["tree16"]), rel=0.1)


def test_few_rounds_leave_hope(good: Head) -> None:
    acceptance = AcceptanceModel(ARMS)

    def hope() -> float:
        found = acceptance.expected([300])
        return found.optimistic[-1] / found.tokens[-1]

    learn(acceptance, good, "tree32", 20)
    soon = hope()
    learn(acceptance, good, "tree32", 500)
    assert 1.0 < hope() < soon
    assert acceptance.expected([300]).optimistic[0] == 1.0, "off is certain"


def test_contexts_are_apart() -> None:
    contexts = (0, 511, 512, 1023, 1024, 2047, 8000)
    assert [context_bucket(context, FIRST_BUCKET) for context in contexts] == [0, 0, 1, 1, 2, 2, 4]
    acceptance = AcceptanceModel(ARMS)
    chain1 = BY_NAME["chain1"]
    for _ in range(300):
        acceptance.observe([AcceptanceTrace(chain1, 300, (2,), 1, 1)])
    assert tokens(acceptance, 9000) == tokens(acceptance, 300), "the neighbour's until there is data"
    for _ in range(60):
        acceptance.observe([AcceptanceTrace(chain1, 9000, (), 0, 1), AcceptanceTrace(chain1, 300, (2,), 1, 1)])
    assert tokens(acceptance, 300)["chain1"] > 1.9
    assert tokens(acceptance, 9000)["chain1"] < 1.2
    assert tokens(acceptance, 30000) == tokens(acceptance, 9000), "the nearest bucket"
    assert tokens(acceptance, 1000) == tokens(acceptance, 300)


def test_the_estimates_start_from_the_evaluation() -> None:
    """Depths beyond the evaluated ones are as the last; arms that were not evaluated start from the general prior."""
    content = {"arms": {"chain8": {"by_depth": [0.5, 0.4]}, "tree8": {"by_depth": [0.6]}, "tree16": {"by_depth": []}}}
    prior = AcceptancePrior.from_json(content)
    started, without = tokens(AcceptanceModel(ARMS, prior)), tokens(AcceptanceModel(ARMS))
    assert started["chain1"] == pytest.approx(1.5)
    assert started["chain3"] == pytest.approx(1 + 0.5 + 0.5 * 0.4 + 0.5 * 0.4 * 0.4)
    assert started["tree8"] == pytest.approx(1 + 0.6 + 0.6**2 + 0.6**3 + 0.6**4)
    assert [started[name] for name in ("off", "tree16", "tree32")] == [
        without[name] for name in ("off", "tree16", "tree32")
    ]
    for nothing in (None, {}, {"schema": 1, "tasks": {}}):
        assert tokens(AcceptanceModel(ARMS, AcceptancePrior.from_json(nothing))) == without


@pytest.mark.parametrize(
    "arms", [["tree8"], {"tree8": 3}, {"tree8": {}}, {"tree8": {"by_depth": ["high"]}}, {"tree8": {"by_depth": [1.2]}}]
)
def test_a_damaged_evaluation_is_refused(arms: object) -> None:
    with pytest.raises(InputError, match="acceptance"):
        AcceptancePrior.from_json({"arms": arms})


def test_other_texts_overrule_the_evaluation(poor: Head) -> None:
    prior = AcceptancePrior(dict.fromkeys(("chain8", "tree8", "tree16", "tree32"), (0.9,)))
    acceptance = AcceptanceModel(ARMS, prior)
    learn(acceptance, poor, "tree16", 150)
    assert tokens(acceptance)["tree16"] == pytest.approx(poor.tokens(BY_NAME["tree16"]), rel=0.15)


def test_several_requests_of_a_round_count_each() -> None:
    acceptance, chain1 = AcceptanceModel(ARMS), BY_NAME["chain1"]
    prior = tokens(acceptance)["chain1"] - 1
    acceptance.observe([AcceptanceTrace(chain1, 300, (), 0, 1)] * 6)
    assert tokens(acceptance)["chain1"] - 1 == pytest.approx(prior * PRIOR_WEIGHT / (PRIOR_WEIGHT + 6))


def test_requests_add_up(good: Head) -> None:
    acceptance = AcceptanceModel(ARMS)
    learn(acceptance, good, "tree16", 100)
    contexts = [300, 9000, 300, 20]
    together, apart = acceptance.expected(contexts), [acceptance.expected([context]) for context in contexts]
    for name in ("tokens", "optimistic"):
        sums = [sum(values) for values in zip(*(getattr(one, name) for one in apart), strict=True)]
        assert getattr(together, name) == pytest.approx(sums)
    assert acceptance.expected([]).tokens == [0.0] * len(ARMS)
