"""Budgets of an engine: they start from the evaluation of the head, and a later one keeps what was learned."""

from dataclasses import replace

import pytest
from tests.engine.small import Spoken, random_draft

from eyas.engine.cost_profiler import build_budget
from eyas.engine.engine import Engine
from eyas.speculation.acceptance_model import AcceptancePrior
from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.speculation.arms import default_arms
from eyas.tree.shape import chain_shape

ARMS = tuple(arm for arm in default_arms() if arm.name in ("off", "chain1", "chain8"))


def test_a_budget_starts_from_the_evaluation_and_keeps_what_it_has_learned(llama: Spoken) -> None:
    prior = AcceptancePrior({"chain8": (0.5, 0.2)})
    draft = replace(random_draft(llama.target, chain_shape(8)), arms=ARMS, acceptance_prior=prior)
    engine = Engine(llama.target, [draft], max_running=2, max_context=128)
    first = engine.policies[0] = build_budget(engine, ARMS, None)
    assert first.acceptance_model.expected(10).tokens[1] == pytest.approx(1.5)
    for _ in range(20):
        first.acceptance_model.observe([AcceptanceTrace(ARMS[1], 10, (), 0, 1)])
    learned = first.acceptance_model.expected(10).tokens
    assert learned[1] < 1.2
    second = engine.policies[0] = build_budget(engine, ARMS, None)
    assert second is not first
    assert second.acceptance_model.expected(10).tokens == learned
    assert build_budget(engine, ARMS[:2], None).acceptance_model.expected(10).tokens != learned[:2], "other arms"
