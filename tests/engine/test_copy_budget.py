"""The budget decides about copies: in simulated rounds, and in an engine whose target repeats its prompt."""

from collections.abc import Sequence

import pytest
from tests.engine.small import CONTEXT, Spoken, drive, random_draft, tokens

from eyas.engine.cost_profiler import build_budget
from eyas.engine.engine import Engine
from eyas.engine.request import Request, StopCriteria
from eyas.engine.scheduler import COPY_EVERY, COPY_IDLE
from eyas.speculation.arms import OFF, Arm
from eyas.speculation.batch_load import BatchLoad, RoundReport
from eyas.speculation.copy_budget import CopyBudget
from eyas.speculation.copy_index import COPY, Copy, CopyFinder, CopyIndex
from eyas.speculation.round_costs import CostTable
from eyas.tree.shape import TreeShape, chain_shape

ARMS = (OFF, Arm("chain1", chain_shape(1)), Arm("chain2", chain_shape(2)))
SECONDS = {"off": 1.0, "chain1": 1.5, "chain2": 1.4, "copy": 1.6}  # of a round, for any number of requests


def table(*names: str) -> CostTable:
    return CostTable(names, (1, 8), 512, tuple((SECONDS[name],) * 2 for name in names), (0.0,) * len(names))


def budget(*arms: Arm) -> CopyBudget:
    return CopyBudget(arms, table(*(arm.name for arm in arms)), lambda lag: 0.0, table("off", "copy"))


def decided(one: CopyBudget, copies: tuple[float, ...], seconds: float | None = None) -> tuple[str, str]:
    """The decision of most rounds, each of which takes the predicted time, or `seconds`."""
    found = []
    for _ in range(200):
        load = BatchLoad((100,) * len(copies), (0,) * len(copies), copies=copies)
        decision = one.decide(load)
        found.append((decision.arm.name, decision.copies))
        spent = (
            seconds if seconds is not None and decision.copies else decision.predicted_s or SECONDS[decision.arm.name]
        )
        one.observe(RoundReport(decision, spent, len(copies), ()))
    return max(found[100:], key=found[100:].count)


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        ((0.0,), ("chain2", "")),
        ((0.2,), ("chain2", "")),  # more rows than they bring
        ((12.0,), ("copy", "alone")),
        ((12.0, 12.0), ("copy", "alone")),
        ((4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), ("chain2", "beside")),  # the others need the head
    ],
)
def test_copies_run_where_they_bring_more_tokens_a_second(copies: tuple[float, ...], expected: tuple[str, str]) -> None:
    assert decided(budget(*ARMS), copies) == expected


def test_nothing_is_copied_beside_the_last_chunk_of_a_prompt() -> None:
    for one in (budget(*ARMS), budget(OFF)):
        assert one.decide(BatchLoad((100,), (0,), copies=(12.0,), completes_prompt=True)).arm == OFF


def test_without_a_head_copies_stand_against_plain_decoding() -> None:
    assert decided(budget(OFF), (6.0,)) == ("copy", "alone")
    assert decided(budget(OFF), (0.5,)) == ("off", "")


def test_rounds_that_take_longer_than_predicted_end_it() -> None:
    """1 + 1.5 tokens in 1.6 s would be better than plain decoding; in 4 s they are not."""
    assert decided(budget(OFF), (1.5,)) == ("copy", "alone")
    assert decided(budget(OFF), (1.5,), seconds=4.0) == ("off", "")


def test_other_rounds_teach_the_head_nothing_about_copies() -> None:
    one = budget(*ARMS)
    load = BatchLoad((100,), (0,), copies=(12.0,))
    for _ in range(50):
        decision = one.decide(load)
        one.observe(RoundReport(decision, 9.0, 1, ()))
    fresh = budget(*ARMS)
    assert one.acceptance_model.expected((100,)).tokens == fresh.acceptance_model.expected((100,)).tokens


def test_rounds_of_copies_do_not_make_prompts_look_dear() -> None:
    """A head is as good after thousands of rounds of copies as before, although it reads prompts between them."""
    one = CopyBudget(ARMS, table("off", "chain1", "chain2"), lambda lag: lag * 0.01, table("off", "copy"))
    for number in range(2000):
        load = BatchLoad((100,), (0,), new_prompt_tokens=300 * (number % 20 == 0), copies=(12.0,))
        decision = one.decide(load)
        one.observe(RoundReport(decision, SECONDS[decision.arm.name], 12, ()))
    assert decided(one, (0.0,)) == ("chain2", "")


@pytest.mark.parametrize("with_head", [True, False])
def test_an_engine_measures_copies_and_gives_the_same_words(llama: Spoken, with_head: bool) -> None:
    drafters = [random_draft(llama.target, TreeShape(4, 3, 12))] if with_head else []
    engine = Engine(llama.target, drafters, 3, CONTEXT, copies=CopyFinder(1000))
    arms = ARMS if with_head else (OFF,)
    policy = engine.policies[0] = build_budget(engine, arms, None)
    assert isinstance(policy, CopyBudget)
    assert policy._copy_table.arms == ("off", COPY.name)
    assert all(seconds > 0 for row in policy._copy_table.seconds for seconds in row)
    assert tokens(drive(engine, llama.requests)) == llama.answers


class CountingFinder(CopyFinder):
    """Counts the searches."""

    num_searches = 0

    def propose(self, index: CopyIndex, text: Sequence[int], tenant: str, num_unread: int) -> Copy | None:
        self.num_searches += 1
        return super().propose(index, text, tenant, num_unread)


def test_rounds_that_never_use_copies_seldom_search_for_them(llama: Spoken) -> None:
    finder, length = CountingFinder(0), COPY_IDLE + 10 * COPY_EVERY
    engine = Engine(llama.target, [], 1, CONTEXT, copies=finder)
    request = Request("long", llama.requests[0].prompt_ids, length + 1, stop=StopCriteria(ignore_eos=True))
    assert len(drive(engine, [request])["long"].token_ids) == length + 1
    assert COPY_IDLE <= finder.num_searches <= COPY_IDLE + 12
