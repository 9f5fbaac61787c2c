"""What `eyas doctor` says of runs, heads and targets, whole and damaged."""

import json
import re
import shutil

import pytest
from tests.e2e.small import run_stages, write_prompts
from tests.tiny import tiny_target

from eyas import doctor
from eyas.base.config import build, load_toml, merge_tables, parse_overrides, to_toml
from eyas.base.errors import InputError
from eyas.cli import main
from eyas.doctor import examine
from eyas.kernels.cpu_attention import Unavailable
from eyas.recipe import Recipe

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def misfits(path, target=None):
    return [finding for finding in examine(str(path), target) if finding.weight == "misfit"]


def test_a_sound_run(run, capsys):
    assert main(["doctor", str(run)]) == 0
    said = capsys.readouterr().out
    for stage in ("prompts", "respond", "capture", "train", "eval"):
        assert re.search(f"ok: {stage} is finished, all (\\d+ )?files", said)
    assert "warning: Stage bench has not run" in said
    assert "ok: Every stage was made from the stages in the run now (6 parents)" in said
    for kind in ("Target", "Tokenizer", "Chat template"):
        assert f"ok: {kind}: the same in respond, capture, train, eval, target" in said
    assert "The head fits target" in said
    assert "ok: prompts, respond, capture, train, eval: made with the settings of recipe.toml" in said
    assert "Attention on this CPU" in said


def test_what_was_written_for_a_platform(run, recipe):
    deploy = ("deploy.engine=eyas", "deploy.image=example.com/eyas:1", "deploy.storage=gs://bucket/eyas")
    assert main(["deploy", "kubernetes", str(recipe), *deploy, "--out", str(run)]) == 0
    told = [finding for finding in examine(str(run), None) if "deploy" in finding.problem]
    assert [finding.weight for finding in told] == ["ok"]
    assert told[0].problem.startswith("deploy kubernetes is finished")
    manifest = run / "deploy" / "kubernetes" / "serving" / "deployment.yaml"
    manifest.write_text(manifest.read_text().replace("example.com", "example.org"))
    assert any("deployment.yaml" in finding.problem for finding in misfits(run))
    shutil.rmtree(run / "deploy")
    assert main(["deploy", "kubernetes", str(recipe), *deploy, "--out", str(run)]) == 0
    config = run / "head" / "config.json"
    config.write_text(config.read_text() + " ")
    assert any("deploy/kubernetes deploys a head with digest" in finding.problem for finding in misfits(run))


def test_a_machine_without_a_compiler(target, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "cpu_kernel", lambda: Unavailable("there is no gcc or cc on the PATH"))
    assert main(["doctor", str(target)]) == 0  # slower, not wrong
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert "the dense reference, which gives the same results but is slower (there is no gcc or cc on the PATH)" in said


def test_an_unfinished_stage(run):
    (run / "head" / "provenance.json").unlink()
    (finding,) = [each for each in examine(str(run), None) if "is unfinished" in each.problem]
    assert (finding.weight, "eyas train" in finding.fix) == ("warning", True)


@pytest.mark.parametrize("name", ["prompts/prompts.jsonl", "conversations/part-00000.jsonl", "head/model.safetensors"])
def test_a_changed_file(name, run, capsys):
    path = run / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert main(["doctor", str(run)]) == 2
    said = capsys.readouterr().err
    assert name in said
    assert len(set(DIGEST.findall(said))) >= 2


def test_a_missing_file(run):
    next((run / "features").glob("shard-*")).unlink()
    (finding,) = misfits(run)
    assert "none (no such file)" in finding.problem


def test_a_stage_made_from_other_work(run, recipe):
    """The prompts are chosen anew; the conversations still answer the old ones."""
    assert main(["prompts", str(recipe), "prompts.limit=5", "--out", str(run)]) == 0
    (finding,) = misfits(run)
    assert "conversations was made from prompts" in finding.problem
    old = json.loads((run / "conversations" / "provenance.json").read_bytes())["parents"]["prompts"]
    new = json.loads((run / "prompts" / "provenance.json").read_bytes())["digest"]
    assert f"digest {old}, but prompts has {new} now" in finding.problem


def older(run):
    """The stages that are older than their part of the recipe, by the verb that makes each anew."""
    found = [finding for finding in examine(str(run), None) if "made with settings" in finding.problem]
    assert all(finding.weight == "warning" for finding in found)
    return [verb for finding in found for verb in re.findall(r"`eyas (\w+)` again", finding.fix)]


def lay_over(run, changes):
    path = run / "recipe.toml"
    path.write_text(to_toml(build(Recipe, merge_tables(load_toml(path), parse_overrides(changes)))))


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ("prompts.seed=7", ["prompts"]),
        ("respond.max_tokens=25", ["respond"]),
        ("capture.held_out=0.4", ["capture"]),
        ("capture.aux_layer_ids=[1,2,4]", ["capture"]),
        ("train.steps=4", ["train"]),
        ("train.checkpoint_every_s=7", []),  # changes no byte of the head
        ("eval.nodes=7", ["eval"]),
        ("bench.repeats=2", []),  # not made yet
        ("target.dtype=bfloat16", ["respond", "capture", "train", "eval"]),
    ],
)
def test_a_recipe_that_was_changed(change, stages, run):
    lay_over(run, [change])
    assert older(run) == stages
    assert misfits(run) == []


def test_a_stage_older_than_the_recipe_is_named_with_both_digests(run, capsys):
    lay_over(run, ["train.steps=4"])
    assert main(["doctor", str(run)]) == 0
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "made with settings" in line]
    recorded = json.loads((run / "head" / "provenance.json").read_bytes())["recipe"]
    assert recorded in said
    assert len(set(DIGEST.findall(said))) == 2
    assert "but [train] and target.dtype in" in said


def test_another_source(run, tmp_path):
    lay_over(run, [f"prompts.source={write_prompts(tmp_path / 'others.jsonl')}"])
    assert older(run) == ["prompts"]
    lay_over(run, [f"prompts.source={write_prompts(tmp_path / 'sums.jsonl')}"])  # the same records, elsewhere
    assert older(run) == []


def test_a_verb_run_with_an_option_that_the_next_one_had_not(run, recipe):
    assert main(["eval", str(recipe), "eval.nodes=7", "--out", str(run)]) == 0
    assert older(run) == []
    assert main(["train", str(recipe), "--out", str(run)]) == 0  # nothing to do, but recipe.toml is written anew
    assert older(run) == ["eval"]


def test_another_target(run, tmp_path):
    other = tiny_target(tmp_path / "other", seed=1)
    settings = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    found = misfits(run, str(other))
    assert [kind for kind in ("target", "tokenizer") if any(f"a {kind} with digest" in f.problem for f in found)] == [
        "target",
        "tokenizer",
    ]


def test_a_wrong_key_and_a_missing_target(run):
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(text.replace("max_tokens", "max_tokns", 1))
    assert any("Unknown key" in finding.problem for finding in misfits(run))
    (run / "recipe.toml").write_text(re.sub(r'model = ".*"', 'model = "/no/such/target"', text))
    assert any("/no/such/target" in finding.problem for finding in misfits(run))


def test_a_head_alone(run, target, tmp_path):
    head = run / "head"
    assert [finding.weight for finding in examine(str(head), None)] == ["ok", "ok", "warning"]
    assert [finding.weight for finding in examine(str(head), str(target))] == ["ok", "ok", "ok"]
    weights = (head / "model.safetensors").read_bytes()
    (head / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert all("model.safetensors" in finding.problem for finding in misfits(head))
    copied = shutil.copytree(head, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("provenance.json"))
    (copied / "config.json").write_text("{")
    (finding,) = misfits(copied)
    assert "not valid JSON" in finding.problem


def test_a_target_alone(target):
    assert [finding.weight for finding in examine(str(target), None)] == ["ok", "ok"]


def test_nothing_there(tmp_path, recipe, target):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match="Name a run directory, a head directory or a target"):
            examine(str(path), None)
    run_stages(recipe, tmp_path / "run", ("prompts",))
    with pytest.raises(InputError, match="nowhere"):
        examine(str(tmp_path / "run"), str(tmp_path / "nowhere"))
