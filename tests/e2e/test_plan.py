"""What `eyas plan` says, and that it touches nothing."""

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.e2e.small import run_stages, write_prompts

from eyas.cli import main
from eyas.costs.cost_model import Amounts, Rates
from eyas.formats.head_dir import read_head
from eyas.plan import estimates as measure
from eyas.plan import plan as describe


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """A rate of these tiny targets needs no second."""
    monkeypatch.setattr(measure, "MEASURED_S", 0.05)


def listing(directory):
    return {path: path.stat().st_mtime_ns for path in [directory, *directory.rglob("*")]} if directory.exists() else {}


def states(text):
    stages = "prompts|respond|capture|train|eval|export|bench"
    return dict(re.findall(rf"^({stages}) +(finished|would run)", text, re.MULTILINE))


def planned(capsys, *arguments):
    assert main(["plan", *(str(argument) for argument in arguments)]) == 0
    return capsys.readouterr().out


def test_a_run_that_has_not_begun(recipe, tmp_path, capsys):
    text = planned(capsys, recipe, "--out", tmp_path / "out")
    assert set(states(text).values()) == {"would run"}
    assert len(states(text)) == 7
    assert not (tmp_path / "out").exists()
    assert "at most 24 prompts" in text
    assert "at most 24 answers, at most 576 answer tokens" in text
    for word in (
        "Measured on this machine",
        "Estimated:",
        "Not in the total, because their time is unknown: eval, bench",
    ):
        assert word in text


def test_amounts_are_those_of_the_run_itself(finished, recipe, tmp_path, capsys):
    """With prompts and answers finished the plan of capture and train is exact."""
    half = tmp_path / "half"
    for name in ("prompts", "conversations"):
        shutil.copytree(finished / name, half / name)
    before = listing(half)
    text = planned(capsys, recipe, "--out", half)
    assert listing(half) == before
    assert states(text) == dict.fromkeys(("prompts", "respond"), "finished") | dict.fromkeys(
        ("capture", "train", "eval", "export", "bench"), "would run"
    )
    rows = json.loads((finished / "features" / "manifest.json").read_bytes())["rows"]
    num_tokens = int(re.findall(r"capture .* ([\d,]+) tokens,", text)[0].replace(",", ""))
    assert num_tokens == sum(row["length"] for row in rows)
    stored = sum(path.stat().st_size for path in (finished / "features").glob("shard-*"))
    size = float(re.findall(r"([\d.]+) kB of features", text)[0]) * 1000
    assert size == pytest.approx(stored, rel=0.02)  # the rest is the files' headers
    assert f"{read_head(finished / 'head').head.num_parameters:,} parameters" in text


def test_a_finished_run(run, recipe, capsys):
    before = listing(run)
    text = planned(capsys, recipe, "--out", run)
    assert listing(run) == before
    assert [stage for stage, state in states(text).items() if state == "would run"] == ["export", "bench"]
    assert "Measured" not in text


@pytest.mark.parametrize(
    ("override", "first"),
    [
        ("prompts.limit=5", "prompts"),
        ("respond.max_tokens=25", "respond"),
        ("capture.held_out=0.4", "capture"),
        ("train.steps=2", "train"),
        ("train.draft_vocab_size=100", "train"),  # the features hold for any draft vocabulary
        ("plan.conversations=7", "export"),  # decides nothing
        ("train.checkpoint_every_s=1", "export"),  # changes no byte
        ("eval.depth=2", "eval"),
    ],
)
def test_what_a_changed_key_runs_again(override, first, finished, recipe, capsys):
    found = states(planned(capsys, recipe, override, "--out", finished))
    assert next(stage for stage, state in found.items() if state == "would run") == first
    assert found["bench"] == "would run"


def test_money(recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(describe, "measure_rates", lambda *_: Rates(read=1.0, write=0.1, learn=2.0))
    text = planned(capsys, recipe, "--out", tmp_path / "out", "--price", "10")
    hours, price = re.findall(r"total +([\d.]+) h +([\d.]+) at 10.00 an hour", text)[0]
    tokens = [int(count.replace(",", "")) for count in re.findall(r"at most ([\d,]+) (?:answer )?tokens", text)]
    prompt_tokens = tokens[1] - tokens[0]
    seconds = prompt_tokens / 1.0 + tokens[0] / 0.1 + tokens[1] / 1.0 + tokens[2] / 2.0
    assert float(hours) == pytest.approx(seconds / 3600, abs=0.01)
    assert float(price) == pytest.approx(10 * seconds / 3600, abs=0.01)


def test_a_head_that_exists(finished, recipe, tmp_path, capsys):
    text = planned(capsys, recipe, f"target.head={finished / 'head'}", "--out", tmp_path / "out")
    assert f"nothing: target.head is {finished / 'head'}" in text


def test_rates_are_above_nothing(finished, recipe, tmp_path):
    from eyas.recipe import STAGES, Run, load_recipe

    work = Run(load_recipe(Path(recipe), {}), tmp_path / "out")
    rates = measure.measure_rates(work, Amounts(24, 24, 500, 576, False, False), set(STAGES))
    assert all(rate is not None and rate > 0 for rate in (rates.read, rates.write, rates.learn))
    assert measure.measure_rates(work, Amounts(24, 24, 500, 576, True, True), {"eval"}) == Rates(None, None, None)


def test_nothing_is_planned_for_a_source_that_is_not_there(recipe, tmp_path, capsys):
    out = tmp_path / "out"
    for override in (f"prompts.source={tmp_path / 'none.jsonl'}", f"target.model={tmp_path / 'none'}"):
        assert main(["plan", str(recipe), override, "--out", str(out)]) == 2
        assert re.fullmatch(r"eyas: error: .*none.*\n", capsys.readouterr().err)
    odd = write_prompts(tmp_path / "odd.jsonl", 0)
    odd.write_text('{"words": "no known shape"}\n')
    assert main(["plan", str(recipe), f"prompts.source={odd}", "--out", str(out)]) == 2
    assert main(["plan", str(recipe), "--out", str(out), "--price", "-1"]) == 2
    assert not out.exists()


def test_prompts_of_a_finished_stage_are_counted(recipe, tmp_path, capsys):
    run_stages(recipe, tmp_path / "out", ("prompts",))
    text = planned(capsys, recipe, "--out", tmp_path / "out")
    assert re.search(r"prompts +finished +24 prompts", text)
    assert re.search(r"respond +would run +24 answers, at most 576 answer tokens", text)
