"""Targets of fewer than 7 layers have no default layers: every verb chooses the same three that exist, and says so."""

import json
from pathlib import Path

import pytest
from tests.e2e.small import write_prompts, write_recipe
from tests.tiny import tiny_target

from eyas.cli import main
from eyas.model.layer_ids import choose_aux_layers
from eyas.plan import estimates

KEYS = ("capture_tps", "train_tps", "conversations", "prompt_tokens", "answer_tokens")
ELSEWHERE = [f"plan.{key}=10" for key in KEYS]


def write_default_recipe(directory: Path, num_layers: int) -> Path:
    """A small recipe that names no layers."""
    target = tiny_target(directory / f"tiny{num_layers}", layers=num_layers)
    recipe = write_recipe(directory / "small.toml", target, write_prompts(directory / "sums.jsonl", 6))
    recipe.write_text(recipe.read_text().replace("aux_layer_ids = [1, 2, 3]\n", ""))
    return recipe


@pytest.mark.parametrize("num_layers", [pytest.param(4, marks=pytest.mark.full), 6])
def test_the_verbs_choose_the_same_layers(num_layers, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(estimates, "MEASURED_S", 0.05)
    recipe, out = write_default_recipe(tmp_path, num_layers), tmp_path / "out"
    ids = list(map(int, choose_aux_layers(num_layers)))
    note = f"eyas: note: The head reads layers {ids}, because a target of {num_layers} layers has no default layers."
    words = [str(recipe), "--out", str(out)]
    assert main(["plan", *words]) == 0
    assert capsys.readouterr().err.count(note) == 1
    assert main(["plan", *words, "plan.hardware=other", *ELSEWHERE]) == 0
    assert capsys.readouterr().err.count(note) == 1

    assert main(["run", *words, "bench.prompts_per_task=1", "bench.lossless_prompts=1"]) == 0
    assert capsys.readouterr().err.count(note) == 1
    config = json.loads((out / "head" / "config.json").read_bytes())
    assert config["eagle_aux_hidden_state_layer_ids"] == ids
    assert json.loads((out / "features" / "manifest.json").read_bytes())["aux_layer_ids"] == ids
    assert set(json.loads((out / "export" / "parity.json").read_bytes())["engines"]) >= {"sglang", "vllm"}

    assert main(["doctor", str(out)]) == 0
    checked = capsys.readouterr()
    assert "warning" not in checked.out
    assert checked.err.count(note) == 1


def test_a_target_with_default_layers_gets_no_note(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(estimates, "MEASURED_S", 0.05)
    recipe = write_default_recipe(tmp_path, 7)
    assert main(["plan", str(recipe), "--out", str(tmp_path / "out")]) == 0
    assert "layers" not in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_two_layers_are_too_few(verb, tmp_path, capsys):
    recipe = write_default_recipe(tmp_path, 2)
    assert main([verb, str(recipe), "--out", str(tmp_path / "out")]) == 2
    assert "A target of 2 layers has no default layers to capture" in capsys.readouterr().err
