"""Real rounds correct the table: drift for all arms, offsets for one, hiccups for none."""

import numpy as np
import pytest
from tests.speculation.simulation import ARMS, Machine

from eyas.speculation.batch_load import BatchLoad
from eyas.speculation.latency_model import LatencyModel

MACHINE = Machine()
NUMBER = {arm.name: number for number, arm in enumerate(ARMS)}


def load(batch: int) -> BatchLoad:
    return BatchLoad((512,) * batch, (0,) * batch)


class Clock:
    """Rounds of a machine that is `slower` than its table, with noise."""

    def __init__(self, pace: LatencyModel, noise: float = 0.03, seed: int = 0) -> None:
        self.pace = pace
        self.noise = noise
        self.rng = np.random.default_rng(seed)

    def run(self, name: str, rounds: int, batch: int = 4, slower: float = 1.0, hiccups: int = 0) -> None:
        """hiccups: every so many rounds, one takes ten times as long."""
        for place in range(rounds):
            seconds = slower * MACHINE.seconds(ARMS[NUMBER[name]], [512] * batch)
            seconds *= float(np.exp(self.noise * self.rng.standard_normal()))
            if hiccups and place % hiccups == hiccups - 1:
                seconds *= 10
            self.pace.observe(NUMBER[name], load(batch), seconds)

    def ratio(self, name: str, batch: int = 4) -> float:
        """What is believed over what the table would say if it were right."""
        return self.pace.seconds(load(batch))[NUMBER[name]] / MACHINE.seconds(ARMS[NUMBER[name]], [512] * batch)


def test_without_rounds_it_is_the_table() -> None:
    clock = Clock(LatencyModel(MACHINE.table(8)))
    for arm in ARMS:
        assert clock.ratio(arm.name, 8) == pytest.approx(1.0)
    assert [clock.pace.bucket(batch) for batch in (1, 2, 3, 5, 6, 8)] == [1, 2, 4, 4, 8, 8]


def test_a_slower_machine_is_slower_for_all_arms() -> None:
    clock = Clock(LatencyModel(MACHINE.table(8)))
    for name in ("off", "tree8", "tree16"):
        clock.run(name, 20)
    clock.run("tree16", 300, slower=2.0)
    for name in ("off", "chain2", "tree8", "tree16"):
        assert clock.ratio(name) == pytest.approx(2.0, rel=0.1), name
    assert clock.ratio("tree16") == pytest.approx(2.0, rel=0.03)
    assert clock.ratio("tree16", 8) == pytest.approx(2.0, rel=0.1), "a batch size that never ran takes its neighbour's"


def test_a_wrong_cell_is_corrected_and_stays_so() -> None:
    """The table flatters off by 30%. Once both ran, the ratio is right, however long only one of them runs."""
    clock = Clock(LatencyModel(MACHINE.table(8, {"off": 0.7})))
    for _ in range(8):
        clock.run("off", 1)
        clock.run("chain3", 1)
    for rounds in (1, 1000):
        clock.run("chain3", rounds)
        assert clock.ratio("off") / clock.ratio("chain3") == pytest.approx(1.0, abs=0.06)
    assert clock.pace.seconds_of(0, load(4)) == clock.pace.seconds(load(4))[0]


def test_the_first_round_is_split_between_machine_and_arm() -> None:
    """Nobody knows which it is: the others move, but less."""
    clock = Clock(LatencyModel(MACHINE.table(8)), noise=0.0)
    clock.run("tree8", 1, slower=1.3)
    assert 1.05 < clock.ratio("off") < clock.ratio("tree8") < 1.3


def test_hiccups_are_not_the_machine() -> None:
    clock = Clock(LatencyModel(MACHINE.table(8)))
    clock.run("tree8", 500, hiccups=10)
    assert clock.ratio("tree8") == pytest.approx(1.0, abs=0.04)
    clock = Clock(LatencyModel(MACHINE.table(8)))
    clock.run("tree8", 1, hiccups=1)
    assert clock.ratio("tree8") == pytest.approx(1.0), "not even the very first"


def test_two_in_a_row_are_a_change() -> None:
    clock = Clock(LatencyModel(MACHINE.table(8)))
    clock.run("tree8", 200)
    clock.run("tree8", 200, slower=2.0)
    assert clock.ratio("tree8") == pytest.approx(2.0, rel=0.1)


def test_doubt_falls_with_the_rounds_of_both() -> None:
    clock = Clock(LatencyModel(MACHINE.table(8)))

    def doubt() -> float:
        return clock.pace.ratio_sds(4, NUMBER["off"])[NUMBER["chain1"]]

    unseen = doubt()
    assert unseen == pytest.approx(0.2 * 2**0.5)
    clock.run("off", 30)
    assert 0.5 * unseen < doubt() < unseen, "one of two"
    clock.run("chain1", 1)
    once = doubt()
    clock.run("chain1", 30)
    assert doubt() < 0.6 * once
    assert clock.pace.ratio_sds(4, 0)[0] == 0.0
    sure, shaken = doubt(), Clock(LatencyModel(MACHINE.table(8)), noise=0.3)
    shaken.run("off", 30)
    shaken.run("chain1", 31)
    assert shaken.pace.ratio_sds(4, NUMBER["off"])[NUMBER["chain1"]] > 1.5 * sure, "a noisy machine says less"


def test_batch_buckets_are_apart() -> None:
    clock = Clock(LatencyModel(MACHINE.table(8)))
    clock.run("off", 50, batch=1)
    clock.run("off", 50, batch=8, slower=1.5)
    assert clock.ratio("off", 1) == pytest.approx(1.0, abs=0.06)
    assert clock.ratio("off", 8) == pytest.approx(1.5, rel=0.06)
    assert clock.pace.seconds_without_offset(0, load(8)) < clock.pace.seconds_of(0, load(8)), (
        "part of it is the arm's own"
    )
