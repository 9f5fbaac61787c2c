"""Several processes train one head: the losses and weights of one process, whoever stops in between."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.features.small import contents
from tests.train.together import Blow, Poison, new_run, train, weights, write_recipe

from eyas.features.reader import Features
from eyas.model.target import Target
from eyas.train.batches import assign_to_ranks
from eyas.train.config import TrainConfig
from eyas.train.trainer import Trainer

SHARD = ("train.shard=true",)
SELDOM = ("train.checkpoint_every_s=1e9",)
HEAD = {"README.md", "config.json", "metrics.jsonl", "model.safetensors"}


@pytest.fixture(scope="module")
def recipe(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe") / "small.toml", target)


def undisturbed(world: int, recipe: Path, out: Path, features: Path, overrides: tuple[str, ...] = ()) -> Path:
    for ended in train(recipe, new_run(out, features), world, overrides):
        assert ended.code == 0, ended.err
    return out


@pytest.fixture(scope="module")
def alone(recipe: Path, features: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(1, recipe, tmp_path_factory.mktemp("alone") / "run", features)


@pytest.fixture(scope="module")
def pair(recipe: Path, features: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(2, recipe, tmp_path_factory.mktemp("pair") / "run", features)


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "head" / "metrics.jsonl").read_text().splitlines()]


def assert_same_training(out: Path, other: Path) -> None:
    for found, wanted in zip(lines(out), lines(other), strict=True):
        assert found["update"] == wanted["update"]
        assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
        assert found["acceptance"] == pytest.approx(wanted["acceptance"], abs=1e-5)
    torch.testing.assert_close(weights(out), weights(other), atol=1e-5, rtol=0)


def checkpoint(place: Path) -> dict[str, Any]:
    return json.loads((place / "checkpoint.json").read_bytes())


def test_two_processes_give_the_losses_and_weights_of_one(alone: Path, pair: Path) -> None:
    assert_same_training(pair, alone)
    assert set(contents(pair / "head")) == HEAD
    assert (pair / "recipe.toml").is_file()


@pytest.mark.parametrize(("world", "overrides"), [(4, ()), (2, SHARD)])
def test_so_do_four_and_so_do_two_that_divide_weights_and_moments(
    world: int, overrides: tuple[str, ...], recipe: Path, alone: Path, features: Path, tmp_path: Path
) -> None:
    assert_same_training(undisturbed(world, recipe, tmp_path / "run", features, overrides), alone)


def test_two_that_divide_the_weights_and_their_mean_choose_as_one_does(
    recipe: Path, features: Path, tmp_path: Path
) -> None:
    """Each drafts on some of the answers; what is seen is the sum."""
    looking = ("train.ema=0.7", "train.evaluate_every=4", "train.updates=8", *SELDOM)
    alone = undisturbed(1, recipe, tmp_path / "alone", features, looking)
    divided = undisturbed(2, recipe, tmp_path / "divided", features, (*looking, *SHARD))
    assert_same_training(divided, alone)
    for found, wanted in zip(lines(divided), lines(alone), strict=True):
        for name in ("acceptance_length", "acceptance_length_of_mean"):
            assert (name in found) == (found["update"] % 4 == 0)
            assert found.get(name) == wanted.get(name)


def test_a_notice_to_one_process_stops_all_behind_a_checkpoint_that_any_number_continues(
    recipe: Path, alone: Path, features: Path, tmp_path: Path
) -> None:
    """SIGTERM to one of two; three that divide weights and moments go on, then one of them is told to go as well."""
    out, place = new_run(tmp_path / "run", features), tmp_path / "elsewhere"
    options = (*SELDOM, f"train.checkpoint_url={place.as_uri()}")
    for ended in train(recipe, out, 2, options, {1: Blow(4, signal.SIGTERM)}):
        assert ended.code == 1, ended.err
        (message,) = [line for line in ended.err.splitlines() if line.startswith("eyas: error: ")]
        assert "SIGTERM" in message
        assert "during update 4 of 10" in message
        assert "run the same command again" in message
        assert "Traceback" not in ended.err
    assert checkpoint(place)["update"] == 4
    assert {path.name for path in place.iterdir()} == {"checkpoint.json", *checkpoint(place)["parts"]}
    assert not any((out / "head").glob("*"))
    for ended in train(recipe, out, 3, (*options, *SHARD), {0: Blow(3, signal.SIGTERM)}):
        assert ended.code == 1, ended.err
    assert (checkpoint(place)["update"], len(checkpoint(place)["parts"])) == (7, 3)
    # Four updates more would kill it, so it makes the last three alone.
    (ended,) = train(recipe, out, 1, options, {0: Blow(4)})
    assert ended.code == 0, ended.err
    assert_same_training(out, alone)
    assert not any(place.iterdir())


def test_damage_that_one_process_sees_is_told_to_all(recipe: Path, alone: Path, features: Path, tmp_path: Path) -> None:
    """Where weights are divided, each of two reads only the part that it wrote itself."""
    out = new_run(tmp_path / "run", features)
    train(recipe, out, 2, (*SELDOM, *SHARD), {0: Blow(4, signal.SIGTERM)})
    part = out / "head" / "checkpoint-000004-1-of-2.safetensors"
    data = bytearray(part.read_bytes())
    data[-3] ^= 1
    part.write_bytes(data)
    first, second = train(recipe, out, 2, SHARD)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert f"the checkpoint is not usable: {part} has digest sha256:" in first.err
    assert_same_training(out, alone)


def test_a_killed_process_stops_the_others_and_all_go_on_with_the_same_bytes(
    recipe: Path, pair: Path, features: Path, tmp_path: Path
) -> None:
    out = new_run(tmp_path / "run", features)
    left, killed = train(recipe, out, 2, (), {1: Blow(6)})
    assert killed.code == -signal.SIGKILL
    assert left.code == 1
    assert "Rank 0 of 2 lost the connection" in left.err
    assert "run the same command again" in left.err
    assert "Traceback" not in left.err
    assert checkpoint(out / "head")["update"] in (5, 6)
    for ended in train(recipe, out, 2, (), {0: Blow(6)}):
        assert ended.code == 0, ended.err
    assert contents(out / "head") == contents(pair / "head")


def test_a_loss_that_is_no_number_names_update_and_conversations_and_spares_the_checkpoint(
    recipe: Path, target: Target, pair: Path, features: Path, tmp_path: Path
) -> None:
    """Features that one process reads wrongly in the middle of the run, once."""
    settings = TrainConfig(steps=3, updates=10, batch_tokens=80, micro_tokens=100, draft_vocab_size=151)
    trainer = Trainer(settings, Features(features), target)
    rows, updates = trainer.features.manifest.rows, [update for epoch in trainer._plan_epochs() for update in epoch]
    sixth = assign_to_ranks(updates[5], rows, 2)[1][0]
    id = rows[sixth[0]].id
    reads = sum(sixth[0] in micro for update in updates[:6] for micro in assign_to_ranks(update, rows, 2)[1])
    out = new_run(tmp_path / "run", features)
    other, poisoned = train(recipe, out, 2, (), {1: Poison(id, reads)})
    assert (other.code, poisoned.code) == (1, 1), other.err + poisoned.err
    assert f"The loss of update 6 is NaN or infinite, in conversations {id}" in poisoned.err
    assert "The loss of update 6 is NaN or infinite, in another process" in other.err
    assert checkpoint(out / "head")["update"] == 5
    for ended in train(recipe, out, 2, (), {0: Blow(6)}):
        assert ended.code == 0, ended.err
    assert contents(out / "head") == contents(pair / "head")


def kill_again_and_again(recipe: Path, out: Path, overrides: tuple[str, ...], kills: int) -> None:
    """At random moments: one to three updates after a start, and up to as long as one takes behind that."""
    moments = random.Random(kills)
    for _ in range(kills):
        blow = Blow(moments.randint(1, 3), delay_s=moments.uniform(1e-4, 0.05))
        (ended,) = train(recipe, out, 1, overrides, {0: blow})
        assert ended.code == -signal.SIGKILL, ended.err
    (ended,) = train(recipe, out, 1, overrides)
    assert ended.code == 0, ended.err


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.full)])
def test_killed_at_random_moments_it_ends_with_the_same_bytes(
    dtype: str, recipe: Path, features: Path, tmp_path: Path
) -> None:
    overrides, kills = (f"train.dtype={dtype}",), 2 if dtype == "float32" else 1
    whole = undisturbed(1, recipe, tmp_path / "whole", features, (*overrides, *SELDOM))
    kill_again_and_again(recipe, new_run(tmp_path / "run", features), overrides, kills)
    assert contents(tmp_path / "run" / "head") == contents(whole / "head")
    assert set(contents(whole / "head")) == HEAD


@pytest.mark.full
def test_killed_twenty_times(recipe: Path, features: Path, tmp_path: Path) -> None:
    overrides = ("train.updates=120",)
    whole = undisturbed(1, recipe, tmp_path / "whole", features, (*overrides, *SELDOM))
    kill_again_and_again(recipe, new_run(tmp_path / "run", features), overrides, 20)
    assert contents(tmp_path / "run" / "head") == contents(whole / "head")


DYING = """
import os, sys
from tests.train.together import Blow
from eyas.cli import main
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    Blow(4)()
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.full
@pytest.mark.parametrize("dies", [False, True])
def test_torchrun_starts_them_and_starts_them_again(
    dies: bool, recipe: Path, pair: Path, features: Path, tmp_path: Path
) -> None:
    out, script = new_run(tmp_path / "run", features), tmp_path / "dying.py"
    script.write_text(DYING)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    program = [str(script)] if dies else ["-m", "eyas"]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [*launcher, *program, "train", str(recipe), "--out", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert ("lost the connection" in done.stderr) == dies
    assert contents(out / "head") == contents(pair / "head")
