"""The budget against worlds whose truth is known: it learns, loses to no fixed arm, and says what it gained."""

import dataclasses
import json
from pathlib import Path

import pytest
from tests.speculation.simulation import ARMS, Head, Machine, Outcome, Scene, Weather, hazards, head, run

from eyas.speculation.acceptance_model import DEFAULT_PRIOR, AcceptanceModel, AcceptancePrior
from eyas.speculation.arms import Arm
from eyas.speculation.batch_load import BatchLoad
from eyas.speculation.budget import Budget
from eyas.speculation.round_costs import CostKey, CostTable, isotonic, load_or_measure, measure_cost_table

ROUNDS = 3000
MACHINE = Machine()
FAIR = Weather()


@pytest.fixture(scope="module")
def good() -> Head:
    return head(0.75, 0.95, seed=1)


@pytest.fixture(scope="module")
def useless() -> Head:
    return head(0.5, 0.02, seed=2)


def play(
    one: Head,
    batch: int,
    weather: Weather = FAIR,
    errors: dict[str, float] | None = None,
    later: Head | None = None,
    rounds: int = ROUNDS,
) -> tuple[Budget, Outcome]:
    """The same head and batch in every round; `later` takes over half-way."""
    budget = Budget(ARMS, MACHINE.table(32, errors), MACHINE.warm_cost, seed=3)
    scenes = [Scene((300,) * batch, (each,) * batch) for each in (one, later or one)]
    return budget, run(budget, MACHINE, lambda number: scenes[2 * number // rounds], rounds, weather, seed=4)


@pytest.mark.parametrize("batch", [1, 4, 16, 32])
def test_it_is_as_fast_as_the_best_arm(good: Head, batch: int) -> None:
    """Learning and exploring included."""
    _, outcome = play(good, batch, rounds=ROUNDS if batch < 16 else ROUNDS // 3)
    assert outcome.share >= 0.97, (outcome.best, outcome.by_arm)


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("name", ["good", "useless"])
def test_with_an_evaluation_the_first_rounds_lose_little(name: str, batch: int, request: pytest.FixtureRequest) -> None:
    one: Head = request.getfixturevalue(name)

    def mean_share(prior: AcceptancePrior) -> float:
        shares = []
        for seed in range(8):
            model = AcceptanceModel(ARMS, prior)
            budget = Budget(ARMS, MACHINE.table(32), MACHINE.warm_cost, seed, model)
            outcome = run(budget, MACHINE, lambda _: Scene((300,) * batch, (one,) * batch), 200, FAIR, seed=10 + seed)
            shares.append(outcome.share)
        return sum(shares) / len(shares)

    assert mean_share(AcceptancePrior(hazards(one))) >= 0.97
    assert mean_share(DEFAULT_PRIOR) >= 0.94


def test_reading_long_prompts_for_short_answers_does_not_pay(good: Head) -> None:
    """A head that reads a prompt as slowly as a quarter of the target."""
    machine = dataclasses.replace(MACHINE, head_row_s=MACHINE.row_s / 4)

    def outcome_of(ends: float) -> Outcome:
        budget = Budget(ARMS, machine.table(32), machine.warm_cost, seed=3)
        scene = Scene((300,) * 16, (good,) * 16)
        return run(budget, machine, lambda _: scene, 1000, Weather(ends=ends), seed=4)

    long, short = outcome_of(0.002), outcome_of(0.05)
    assert long.best != "off"
    assert long.share >= 0.97, (long.best, long.by_arm)
    assert short.best == "off"
    assert short.share >= 0.97, (short.best, short.by_arm)


def first_arm(gain: float, num_new: int = 0) -> str:
    """The arm of the first round, if a chain of one gives `gain` times the tokens per second of plain decoding."""
    arms, prior = ARMS[:2], AcceptancePrior({"chain1": (0.5,)})
    tokens = AcceptanceModel(arms, prior).expected((300,)).tokens[1]
    table = CostTable(("off", "chain1"), (1, 2), 300, ((0.01, 0.01), (0.01 * tokens / gain,) * 2), (0.0, 0.0))
    budget = Budget(arms, table, lambda lag: 0.0, acceptance_model=AcceptanceModel(arms, prior))
    return budget.decide(BatchLoad((300,), (0,), num_new=num_new)).best_arm.name


def test_a_gain_smaller_than_the_costs_that_no_round_shows_is_none() -> None:
    assert (first_arm(1.01), first_arm(1.05)) == ("off", "chain1")
    assert first_arm(1.05, num_new=10) == "off", "2.5 forwards more in 128 tokens"


def test_a_useless_head_costs_two_per_cent_at_most(useless: Head) -> None:
    _, outcome = play(useless, 1)
    assert outcome.best == "off"
    assert outcome.share >= 0.98, outcome.by_arm
    assert outcome.names[-100:].count("off") > 90


def test_it_notices_that_acceptance_has_changed(good: Head, useless: Head) -> None:
    _, outcome = play(good, 1, later=useless)
    assert set(outcome.names[-200:]) >= {"off"}
    assert outcome.names[-200:].count("off") > 180
    _, outcome = play(useless, 1, later=good, rounds=2 * ROUNDS)
    assert outcome.names[-200:].count("off") < 40, "exploring finds that drafting pays again"


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_size_that_returns_does_not_draft_as_before(good: Head, useless: Head, seed: int) -> None:
    """The last requests of a queue run for a few rounds: fewer than the budget otherwise takes to change the arm."""
    scenes = [Scene((300,) * 4, (good,) * 4), Scene((300,), (useless,)), Scene((300,) * 4, (useless,) * 4)]
    budget = Budget(ARMS, MACHINE.table(32), MACHINE.warm_cost, seed)
    outcome = run(budget, MACHINE, lambda number: scenes[(number >= 300) + (number >= 1500)], 1506, FAIR, seed=seed + 1)
    assert outcome.names[290:300].count("off") <= 1
    assert outcome.names[1480:1500].count("off") >= 18
    assert outcome.names[1500:].count("off") >= 5


def test_wrong_costs_are_corrected(good: Head) -> None:
    """A table that flatters off and slanders the trees by a third."""
    errors = {arm.name: 1.3 if arm.nodes > 6 else 0.7 for arm in ARMS}
    _, outcome = play(good, 4, errors=errors)
    assert outcome.share >= 0.95, (outcome.best, outcome.by_arm)


def test_what_happens_is_what_was_expected(good: Head) -> None:
    """After it has learned; a machine that has just become slower, or a head that has just become worse, shows."""
    budget, _ = play(good, 4)
    before = budget.forecast_check.ratios()
    assert before == pytest.approx({"tokens": 1.0, "seconds": 1.0}, abs=0.03)
    scene = Scene((300,) * 4, (head(0.5, 0.02, seed=2),) * 4)
    run(budget, dataclasses.replace(MACHINE, head_row_s=MACHINE.head_row_s), lambda _: scene, 8, FAIR, seed=5)
    assert budget.forecast_check.ratios()["tokens"] < before["tokens"]


def test_hiccups_of_the_machine_do_not_mislead(good: Head) -> None:
    _, outcome = play(good, 1, Weather(noise=0.05, outliers=0.01))
    assert outcome.share >= 0.96, (outcome.best, outcome.by_arm)


def test_it_does_not_flap(good: Head) -> None:
    budget, _ = play(good, 4, Weather(noise=0.1))
    assert budget.num_switches < ROUNDS / 100


def test_it_explores_about_one_round_in_a_hundred(good: Head) -> None:
    """Once the costs are known."""
    budget, _ = play(good, 1)
    load = BatchLoad((300,), (0,))
    explored = sum(budget.decide(load).is_exploration for _ in range(10_000))
    assert 10 <= explored <= 150


def test_it_says_how_much_faster_the_server_is(good: Head) -> None:
    """speed_up covers the truth, and there is none before off has run."""
    budget, outcome = play(good, 1, rounds=8000)
    found = budget.speedup()
    assert found is not None
    assert found.low < found.value < found.high
    assert found.low <= outcome.speed_up * 1.02
    assert found.high >= outcome.speed_up * 0.98
    assert (found.high - found.low) / found.value < 0.5
    assert Budget(ARMS, MACHINE.table(4), MACHINE.warm_cost).speedup() is None


def test_it_does_not_draft_beside_the_last_chunk_of_a_prompt(good: Head) -> None:
    budget, _ = play(good, 1)
    load = BatchLoad((300,), (0,))
    for _ in range(20):
        decision = budget.decide(dataclasses.replace(load, completes_prompt=True))
        assert (decision.arm, decision.drafts, decision.is_exploration) == (ARMS[0], (False,), False)
    assert sum(budget.decide(load).arm.nodes > 0 for _ in range(20)) > 15


def test_beyond_the_trained_context_the_bucket_decides(good: Head, useless: Head) -> None:
    budget = Budget(ARMS, MACHINE.table(4), MACHINE.warm_cost, seed=6)
    scenes = (Scene((300,), (good,)), Scene((9000,), (useless,)))
    outcome = run(budget, MACHINE, lambda number: scenes[number // 500 % 2], 2 * ROUNDS, seed=7)
    assert outcome.names[-900:-500].count("off") < 40, "short texts draft"
    assert outcome.names[-400:].count("off") > 360, "long ones do not"


# --- costs -----------------------------------------------------------------------------------------------------------


def key(**changes: str | int) -> CostKey:
    return dataclasses.replace(CostKey("machine", "target", "head", "bfloat16", 2, False, "1"), **changes)


def test_costs_are_measured_once(tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []

    def measure(arm: Arm, batch: int, context: int) -> float:
        calls.append((arm.name, batch, context))
        return MACHINE.seconds(arm, [context] * batch)

    first = load_or_measure(key(), ARMS, 4, 4096, measure, tmp_path)
    number = len(calls)
    assert number >= 2 * 2 * len(ARMS)
    assert load_or_measure(key(), ARMS, 4, 4096, measure, tmp_path) == first
    assert len(calls) == number, "read from the cache"
    load_or_measure(key(threads=1), ARMS, 4, 4096, measure, tmp_path)
    assert len(calls) == 2 * number, "another key, another table"
    for path in tmp_path.iterdir():
        path.write_text("{")
    assert load_or_measure(key(), ARMS, 4, 4096, measure, tmp_path) == first
    assert len(calls) == 3 * number, "a damaged file is measured again"


def test_a_foreign_table_is_refused(tmp_path: Path) -> None:
    def measure(arm: Arm, batch: int, context: int) -> float:
        return MACHINE.seconds(arm, [context] * batch)

    first = load_or_measure(key(), ARMS, 4, 4096, measure, tmp_path)
    (path,) = tmp_path.iterdir()
    content = json.loads(path.read_text())
    content["key"]["machine"] = "another"
    content["seconds"] = [[1.0 for _ in row] for row in content["seconds"]]
    path.write_text(json.dumps(content))
    assert load_or_measure(key(), ARMS, 4, 4096, measure, tmp_path) == first


def test_a_table_says_what_was_measured() -> None:
    table = measure_cost_table(ARMS, 8, 4096, lambda arm, batch, context: MACHINE.seconds(arm, [context] * batch))
    for number, arm in enumerate(ARMS):
        for batch in (1, 3, 8):
            contexts = (700,) * batch
            found = table.seconds_for(number, BatchLoad(contexts, (0,) * batch))
            assert found == pytest.approx(MACHINE.seconds(arm, contexts), rel=0.1)


def test_rising() -> None:
    assert isotonic([1, 3, 2, 4]) == [1, 2.5, 2.5, 4]
    assert isotonic([3, 2, 1]) == [2, 2, 2]
    assert isotonic([1, 2, 3]) == [1, 2, 3]
