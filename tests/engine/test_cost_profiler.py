"""Budgets of an engine: they start from the evaluation of the head, and a later one keeps what was learned."""

from dataclasses import replace

import pytest
from tests.engine.small import Spoken, drive, random_draft

from eyas.engine.cost_profiler import build_budget
from eyas.engine.engine import Engine
from eyas.engine.request import Request
from eyas.speculation.acceptance_model import AcceptancePrior
from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.speculation.arms import default_arms
from eyas.speculation.batch_load import BatchLoad, FixedArm, SpeculationDecision
from eyas.tree.shape import chain_shape

ARMS = tuple(arm for arm in default_arms() if arm.name in ("off", "chain1", "chain8"))


def test_a_budget_starts_from_the_evaluation_and_keeps_what_it_has_learned(llama: Spoken) -> None:
    prior = AcceptancePrior({"chain8": (0.5, 0.2)})
    draft = replace(random_draft(llama.target, chain_shape(8)), arms=ARMS, acceptance_prior=prior)
    engine = Engine(llama.target, [draft], max_running=2, max_context=128)
    first = engine.policies[0] = build_budget(engine, ARMS, None)
    assert first.acceptance_model.expected([10]).tokens[1] == pytest.approx(1.5)
    for _ in range(20):
        first.acceptance_model.observe([AcceptanceTrace(ARMS[1], 10, (), 0, 1)])
    learned = first.acceptance_model.expected([10]).tokens
    assert learned[1] < 1.2
    second = engine.policies[0] = build_budget(engine, ARMS, None)
    assert second is not first
    assert second.acceptance_model.expected([10]).tokens == learned
    assert build_budget(engine, ARMS[:2], None).acceptance_model.expected([10]).tokens != learned[:2], "other arms"


def test_the_budget_hears_of_every_prompt_once(llama: Spoken) -> None:
    """But not of prompts whose requests never draft."""
    draft = replace(random_draft(llama.target, chain_shape(8)), arms=ARMS)
    engine = Engine(llama.target, [draft], max_running=2, max_context=128)
    loads: list[BatchLoad] = []

    class Watching(FixedArm):
        def decide(self, load: BatchLoad) -> SpeculationDecision:
            loads.append(load)
            return super().decide(load)

    engine.policies[0] = Watching(ARMS[1])
    prompts = [tuple(range(first, first + length)) for first, length in ((3, 9), (70, 17), (140, 30))]
    requests = [Request(str(number), prompt, 6) for number, prompt in enumerate(prompts)]
    drive(engine, [*requests, Request("plain", tuple(range(40, 60)), 6, speculation="off")])
    assert sum(load.new_prompt_tokens for load in loads) == 9 + 17 + 30
    assert loads[0].new_prompt_tokens == 9 + 17
