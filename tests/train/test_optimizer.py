import math

import pytest
import torch
from tests.train.test_reference import CONFIG

from eyas.model.head import Head
from eyas.train.optimizer import Masters, Schedule


def test_schedule_warms_up_then_falls_to_nothing() -> None:
    schedule = Schedule(peak=2.0, warmup=4, total=12)
    assert [schedule.at(i) for i in range(4)] == [0.5, 1.0, 1.5, 2.0]
    assert schedule.at(4) == 2.0
    assert schedule.at(8) == pytest.approx(1.0)
    assert schedule.at(11) == pytest.approx(1 + math.cos(math.pi * 7 / 8))
    rates = [schedule.at(i) for i in range(4, 12)]
    assert rates == sorted(rates, reverse=True)


def test_small_updates_are_not_lost_in_bfloat16() -> None:
    """1 + 1e-4 is 1 in bfloat16: forty such updates move the head only because the masters remember them."""
    head = Head.init(CONFIG, 0)
    masters = Masters(head, weight_decay=0.0, clip=1e9)
    head.to(torch.bfloat16)
    before = head.norm.weight.detach().clone()
    for _ in range(40):
        head.norm.weight.grad = torch.ones_like(head.norm.weight)
        masters.collect()
        masters.update(1e-4)
    torch.testing.assert_close(masters.weights["norm.weight"], torch.full((12,), 1 - 40e-4), atol=1e-6, rtol=0)
    assert (head.norm.weight < before).all()


def test_the_gradient_is_clipped_as_a_whole() -> None:
    head = Head.init(CONFIG, 0)
    masters = Masters(head, weight_decay=0.0, clip=0.5)
    for weight in head.parameters():
        weight.grad = torch.full_like(weight, 3.0)
    masters.collect()
    assert masters.update(0.0) == pytest.approx(3.0 * math.sqrt(head.num_parameters), rel=1e-5)
    # Adam's first moment is a tenth of what it was given.
    moments = [value for name, value in masters.state().here.items() if name.startswith("exp_avg.")]
    assert torch.cat([moment.flatten() for moment in moments]).norm() == pytest.approx(0.05, rel=1e-4)


def test_norms_do_not_decay_and_a_loaded_state_goes_on_alike() -> None:
    head = Head.init(CONFIG, 0)
    masters = Masters(head, weight_decay=0.5, clip=0.5)
    before = {name: weight.clone() for name, weight in masters.weights.items()}
    masters.update(0.1)  # no gradient: nothing but decay
    for name, weight in masters.weights.items():
        torch.testing.assert_close(weight, before[name] * (0.95 if weight.ndim == 2 else 1.0))
    for weight in head.parameters():
        weight.grad = torch.randn_like(weight)
    masters.collect()
    masters.update(0.1)
    other = Masters(Head.init(CONFIG, 1), weight_decay=0.5, clip=0.5)
    other.load_state(masters.state())
    masters.update(0.1)
    other.update(0.1)
    assert all(torch.equal(weight, other.weights[name]) for name, weight in masters.weights.items())
