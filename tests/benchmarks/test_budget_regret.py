"""The simulated server of the benchmark of regret: a policy pays for rounds and reads, and the oracle is a bound."""

import pytest
from budget_regret import ARMS, Answer, Costs, Oracle, simulate

from eyas.speculation.acceptance_model import AcceptanceModel
from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.speculation.arms import Arm
from eyas.speculation.batch_load import FixedArm
from eyas.speculation.budget import Budget
from eyas.speculation.round_costs import CostTable

PROMPT, LENGTH = 30, 41


def trace(arm: Arm, place: int) -> AcceptanceTrace:
    """The head is right for seven tokens, then wrong once."""
    right = min(7 - place % 8, arm.depth)
    return AcceptanceTrace(arm, PROMPT + place, tuple(range(2, right + 2)), right, arm.depth)


ANSWER = Answer(PROMPT, [{arm.name: trace(arm, place) for arm in ARMS[1:]} for place in range(LENGTH)])


def costs(read_s: float = 0.0) -> Costs:
    seconds = tuple((1.0 + 0.1 * arm.depth + 0.02 * arm.nodes,) * 2 for arm in ARMS)
    table = CostTable(tuple(arm.name for arm in ARMS), (1, 8), 512, seconds, (0.0,) * len(ARMS))
    return Costs(table, lambda count: read_s * count)


def test_a_round_takes_what_the_table_says_and_reads_what_the_head_has_not_read() -> None:
    off = simulate(FixedArm(ARMS[0]), [ANSWER], costs(), 1, seed=0)
    assert off == [pytest.approx(1.02), pytest.approx(1.02)]
    chain = next(arm for arm in ARMS if arm.name == "chain1")
    free, dear = (simulate(FixedArm(chain), [ANSWER], costs(read_s), 1, seed=0)[1] for read_s in (0.0, 0.5))
    assert free == pytest.approx(1.14 * 21 / 41, rel=0.02), "41 tokens in 21 rounds"
    assert dear - free == pytest.approx(0.5 * PROMPT / 41, rel=0.02), "each prompt once, nothing twice"


@pytest.mark.parametrize("streams", [1, 4])
def test_the_oracle_is_a_bound_and_the_budget_comes_near(streams: int) -> None:
    fixed = [simulate(FixedArm(arm), [ANSWER], costs(0.001), streams, seed=1)[1] for arm in ARMS]
    oracle = simulate(Oracle(costs(0.001)), [ANSWER], costs(0.001), streams, seed=1)[1]
    budget = Budget(ARMS, costs().table, costs(0.001).read_s, 1, AcceptanceModel(ARMS))
    auto = simulate(budget, [ANSWER], costs(0.001), streams, seed=1)[1]
    assert oracle <= min(fixed)
    assert min(fixed) / auto > 0.93
