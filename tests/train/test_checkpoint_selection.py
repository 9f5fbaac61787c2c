import dataclasses
import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.features.small import contents
from tests.train.test_train import CONFIG, Stopped, stop_at

from eyas.base.config import build
from eyas.base.errors import UsageError
from eyas.evaluation.evaluate import EvalConfig, evaluate
from eyas.features.reader import Features
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.train.checkpoint_selection import Candidate, evaluation_updates
from eyas.train.config import TrainConfig
from eyas.train.train import run
from eyas.train.trainer import Trainer
from eyas.tree.shape import TreeShape

TREE = TreeShape(3, 2, 6)
LOOKING = dataclasses.replace(
    CONFIG, updates=12, log_every=5, evaluate_every=4, evaluate_tree=TREE, stored_dtype="float32", ema=0.7
)


def lines(place: Path) -> list[dict]:
    return [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]


def test_the_later_is_taken_unless_it_is_worse_by_more_than_noise() -> None:
    best = Candidate(4, False, (10, 20, 30, 40))
    assert not Candidate(8, False, (10, 20, 30, 40)).is_worse(best), "the same"
    assert not Candidate(8, False, (9, 20, 30, 40)).is_worse(best), "better"
    # One answer says more, the others nothing: the difference is 3, its standard error 2 * 1.5.
    assert not Candidate(8, False, (13, 20, 30, 40)).is_worse(best)
    # Each a little: the difference is 6, its error 2 * 0.58.
    assert Candidate(8, False, (11, 21, 32, 42)).is_worse(best)
    assert Candidate(8, False, (11,)).is_worse(Candidate(4, False, (10,)))
    assert not Candidate(8, False, (10,)).is_worse(Candidate(4, False, (10,)))


def test_when_it_looks() -> None:
    assert evaluation_updates([5, 5, 4], None) == {5, 10, 14}
    assert evaluation_updates([5, 5, 4], 4) == {4, 8, 12, 14}
    assert evaluation_updates([3], 100) == {3}


def test_the_lines_say_what_eval_says_and_the_best_is_the_head(target: Target, features: Path, tmp_path: Path) -> None:
    """Weights and mean followed by hand, update by update; `eyas eval` measures both; the head is one of them."""
    stored = Features(features)
    trainer = Trainer(LOOKING, Features(features, torch.float32), target)
    step, mean, wanted = trainer._step, {}, {}
    mean |= {name: weight.detach().clone() for name, weight in trainer.optimizer.weights.items()}

    def followed(learning_rate: float, number: int) -> None:
        step(learning_rate, number)
        keep = min(0.7, (1 + number) / (10 + number))
        for name, weight in trainer.optimizer.weights.items():
            mean[name] = keep * mean[name] + (1 - keep) * weight.detach()
        if number % 4 == 0:
            wanted[number, False] = {
                name: weight.detach().clone() for name, weight in trainer.optimizer.weights.items()
            }
            wanted[number, True] = dict(mean)

    trainer._step = followed
    trainer.train(tmp_path / "by hand", "by hand", progress=False)
    run(LOOKING, features, target, tmp_path / "head", progress=False)
    told = lines(tmp_path / "head")
    assert [line["update"] for line in told] == [4, 5, 8, 10, 12]
    head = read_head(tmp_path / "head", torch.float32)
    measured = {}
    for (number, is_mean), weights in wanted.items():
        head.head.load_state_dict(weights)
        found = evaluate(EvalConfig(3, 2, 6), head, (stored, stored), target, progress=False)["all"]
        measured[number, is_mean] = found["acceptance_length"]
    for line in told:
        for is_mean, name in ((False, "acceptance_length"), (True, "acceptance_length_of_mean")):
            if line["update"] % 4 == 0:
                assert line[name] == pytest.approx(measured[line["update"], is_mean], abs=1e-5)
            else:
                assert name not in line
    kept = load_file(tmp_path / "head" / "model.safetensors")
    same = [
        key for key, weights in wanted.items() if torch.allclose(kept["fc.weight"], weights["fc.weight"], atol=1e-6)
    ]
    assert len(same) == 1, "the head is one of the candidates"
    assert measured[same[0]] >= max(measured.values()) * 0.97
    card = (tmp_path / "head" / "README.md").read_text()
    number, is_mean = same[0]
    assert (f"update {number} of 12" in card) == (is_mean or number < 12)


def test_interrupted_runs_choose_the_same(
    target: Target, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(10, monkeypatch)  # two looks are behind it
    with pytest.raises(Stopped):
        run(LOOKING, features, target, tmp_path / "stopped", progress=False)
    monkeypatch.undo()
    run(LOOKING, features, target, tmp_path / "stopped", progress=False)
    run(dataclasses.replace(LOOKING, checkpoint_every_s=1e9), features, target, tmp_path / "whole", progress=False)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def test_training_ends_when_nothing_gains(target: Target, features: Path, tmp_path: Path) -> None:
    """At a rate of next to nothing no look gains, so the third is the last."""
    config = dataclasses.replace(LOOKING, updates=9, evaluate_every=2, learning_rate=1e-12, patience=2, ema=0.0)
    run(config, features, target, tmp_path, progress=False)
    assert [line["update"] for line in lines(tmp_path)] == [2, 4, 5, 6]


def test_without_answers_to_look_at_the_last_weights_or_their_mean_are_the_head(
    target: Target, features: Path, tmp_path: Path
) -> None:
    found = {}
    for ema, answers in itertools.product((0.0, 0.7), (0, 8)):
        config = dataclasses.replace(LOOKING, updates=4, ema=ema, evaluate_answers=answers)
        run(config, features, target, tmp_path / f"{ema} {answers}", progress=False)
        found[ema, answers] = load_file(tmp_path / f"{ema} {answers}" / "model.safetensors")["fc.weight"]
        assert ("acceptance_length" in lines(tmp_path / f"{ema} {answers}")[-1]) == (answers > 0)
    assert torch.equal(found[0.0, 0], found[0.0, 8]), "one look takes what it sees"
    assert not torch.equal(found[0.0, 0], found[0.7, 0])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"ema": 1.0}, r"train\.ema"),
        ({"patience": 0}, r"train\.patience"),
        ({"evaluate_every": 0}, r"train\.evaluate_every"),
        ({"patience": 2, "evaluate_answers": 0}, r"train\.patience needs"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        build(TrainConfig, wrong, "train")
