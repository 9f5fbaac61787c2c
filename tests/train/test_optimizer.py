import math
import os
from pathlib import Path

import pytest
import torch
from tests.e2e.processes import context
from tests.train.test_reference import CONFIG
from tests.train.together import free_port

from eyas.model.head import Head
from eyas.train.distributed import join_process_group, local_rows
from eyas.train.optimizer import MasterWeightOptimizer, cosine_learning_rate


def test_schedule_warms_up_then_falls_to_nothing() -> None:
    def rate(update: int) -> float:
        return cosine_learning_rate(2.0, 4, 12, update)

    assert [rate(i) for i in range(4)] == [0.5, 1.0, 1.5, 2.0]
    assert rate(4) == 2.0
    assert rate(8) == pytest.approx(1.0)
    assert rate(11) == pytest.approx(1 + math.cos(math.pi * 7 / 8))
    rates = [rate(i) for i in range(4, 12)]
    assert rates == sorted(rates, reverse=True)


def test_small_updates_are_not_lost_in_bfloat16() -> None:
    """1 + 1e-4 is 1 in bfloat16: forty such updates move the head only because the optimizer remember them."""
    head = Head.init(CONFIG, 0)
    optimizer = MasterWeightOptimizer(head, weight_decay=0.0, clip=1e9)
    head.to(torch.bfloat16)
    before = head.norm.weight.detach().clone()
    for _ in range(40):
        head.norm.weight.grad = torch.ones_like(head.norm.weight)
        optimizer.accumulate_gradients()
        optimizer.step(1e-4)
    torch.testing.assert_close(optimizer.weights["norm.weight"], torch.full((12,), 1 - 40e-4), atol=1e-6, rtol=0)
    assert (head.norm.weight < before).all()


def test_the_gradient_is_clipped_as_a_whole() -> None:
    head = Head.init(CONFIG, 0)
    optimizer = MasterWeightOptimizer(head, weight_decay=0.0, clip=0.5)
    for weight in head.parameters():
        weight.grad = torch.full_like(weight, 3.0)
    optimizer.accumulate_gradients()
    assert optimizer.step(0.0) == pytest.approx(3.0 * math.sqrt(head.num_parameters), rel=1e-5)
    # Adam's first moment is a tenth of what it was given.
    moments = [value for name, value in optimizer.state().items() if name.startswith("exp_avg.")]
    assert torch.cat([moment.flatten() for moment in moments]).norm() == pytest.approx(0.05, rel=1e-4)


def test_norms_do_not_decay_and_a_loaded_state_goes_on_alike() -> None:
    head = Head.init(CONFIG, 0)
    optimizer = MasterWeightOptimizer(head, weight_decay=0.5, clip=0.5)
    before = {name: weight.clone() for name, weight in optimizer.weights.items()}
    optimizer.step(0.1)  # no gradient: nothing but decay
    for name, weight in optimizer.weights.items():
        torch.testing.assert_close(weight, before[name] * (0.95 if weight.ndim == 2 else 1.0))
    for weight in head.parameters():
        weight.grad = torch.randn_like(weight)
    optimizer.accumulate_gradients()
    optimizer.step(0.1)
    other = MasterWeightOptimizer(Head.init(CONFIG, 1), weight_decay=0.5, clip=0.5)
    other.load_state(optimizer.state())
    optimizer.step(0.1)
    other.step(0.1)
    assert all(torch.equal(weight, other.weights[name]) for name, weight in optimizer.weights.items())


def test_a_gradient_that_is_no_number_changes_nothing() -> None:
    head = Head.init(CONFIG, 0)
    optimizer = MasterWeightOptimizer(head, weight_decay=0.5, clip=0.5)
    before = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    head.norm.weight.grad = torch.full_like(head.norm.weight, math.inf)
    optimizer.accumulate_gradients()
    assert not math.isfinite(optimizer.step(0.1))
    assert all(torch.equal(tensor, before[name]) for name, tensor in optimizer.state().items())
    # Nor does anything of it stay for the next update.
    head.norm.weight.grad = torch.ones_like(head.norm.weight)
    optimizer.accumulate_gradients()
    assert optimizer.step(0.1) == pytest.approx(math.sqrt(12))


def _hold(rank: int, port: int, out: Path) -> None:
    """Bytes of the storages behind weights and moments, in one of three processes."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with join_process_group() as group:
        optimizer = MasterWeightOptimizer(Head.init(CONFIG, 0), 0.0, 1.0, group, shard=True)
        optimizer.step(0.1)
        held = {local_rows(tensor).untyped_storage() for tensor in optimizer.state().values()}
        out.write_text(str(sum(storage.nbytes() for storage in held)))


def test_divided_each_process_holds_a_third_of_weights_and_moments(tmp_path: Path) -> None:
    port, places = free_port(), [tmp_path / str(rank) for rank in range(3)]
    processes = [context().Process(target=_hold, args=(rank, port, place)) for rank, place in enumerate(places)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    whole = 12 * Head.init(CONFIG, 0).num_parameters
    held = [int(place.read_text()) for place in places]
    assert whole < sum(held) < 1.01 * whole, "a step count of each tensor beside it"
    assert max(held) < 0.36 * whole
