"""`eyas export` at the end of a run, and the commands that read its directories."""

import json
import shutil

import pytest
import yaml
from tests.e2e.small import contents, run_stages
from tests.tiny import tiny_target

from eyas.cli import main
from eyas.formats import parity
from eyas.formats.head_dir import digest_head


@pytest.fixture(scope="module")
def exported(finished, recipe, tmp_path_factory):
    """Returns a run that tests must not change."""
    run = shutil.copytree(finished, tmp_path_factory.mktemp("exported") / "run")
    return run_stages(recipe, run, ["export"])


def test_a_directory_for_each_engine_that_can_load_the_head(exported):
    """The small recipe captures layers 1, 2, 3, which SGLang's format cannot express."""
    found = json.loads((exported / "export" / "parity.json").read_bytes())
    assert list(found["engines"]) == ["vllm", "vllm-speculators"]
    assert all(one["ok"] for one in found["engines"].values())
    assert "begins with layer 1" in found["left_out"]["sglang"]
    assert not (exported / "export" / "sglang").exists()
    for name in found["engines"]:
        files = {path.name for path in (exported / "export" / name).iterdir()}
        assert files == {"config.json", "model.safetensors", "README.md"}


def test_what_is_left_out_is_said_and_no_path_is_published(finished, recipe, target, tmp_path, capsys):
    run = run_stages(recipe, shutil.copytree(finished, tmp_path / "run"), ["export"])
    assert "eyas: note: No directory for sglang is exported: " in capsys.readouterr().err
    for path in [*run.joinpath("export").rglob("*"), *run.joinpath("head").iterdir()]:
        if path.suffix in (".json", ".md", ".jsonl"):
            assert str(target.parent) not in path.read_text(), path
            assert str(tmp_path) not in path.read_text(), path


def test_the_readme(exported, target):
    text = (exported / "export" / "vllm" / "README.md").read_text()
    front, body = text.split("---\n", 2)[1:]
    told = yaml.safe_load(front)
    assert told["license"] == "apache-2.0"
    assert told["tags"][0] == "eagle3"
    (result,) = told["model-index"]
    accepted = json.loads((exported / "eval" / "acceptance.json").read_bytes())["tasks"]
    values = [each["metrics"][0]["value"] for each in result["results"]]
    assert values == [round(entry["acceptance_length"], 3) for entry in accepted.values()]
    assert """"method": "eagle3", "model": "THIS_DIRECTORY", "num_speculative_tokens": 3}'""" in body
    assert digest_head(exported / "head") in body
    assert "## Data and licenses" in body
    assert "MIT" in body
    assert str(exported) not in text
    assert str(target.parent) not in text


def test_a_finished_export_is_skipped_and_equal_runs_write_equal_bytes(exported, recipe, tmp_path, capsys):
    before = (exported / "export" / "provenance.json").read_bytes()
    assert main(["export", str(recipe), "--out", str(exported), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 1
    assert (exported / "export" / "provenance.json").read_bytes() == before
    other = shutil.copytree(exported, tmp_path / "run")
    shutil.rmtree(other / "export")
    run_stages(recipe, other, ["export"])
    assert contents(other / "export") == contents(exported / "export")


def test_another_head_is_exported_again(exported, recipe, tmp_path):
    run = shutil.copytree(exported, tmp_path / "run")
    run_stages(recipe, run, ["train", "eval"])  # finished
    for stage in ("train", "eval", "export"):
        assert main([stage, str(recipe), "train.epochs=1", "--out", str(run)]) == 0
    parents = json.loads((run / "export" / "provenance.json").read_bytes())["parents"]
    assert parents["head"] == digest_head(run / "head")
    assert parents["head"] != digest_head(exported / "head")


def test_doctor_reads_the_run_and_each_directory(exported, target, capsys):
    assert main(["doctor", str(exported)]) == 0
    assert "ok: export is finished, all " in capsys.readouterr().out
    for name, is_ours in (("vllm", True), ("vllm-speculators", False)):
        assert main(["doctor", str(exported / "export" / name), "--target", str(target)]) == 0
        said = capsys.readouterr().out
        assert ("has the layout of speculators" not in said) == is_ours
        assert "The head fits target" in said


def test_a_damaged_export_is_named(exported, tmp_path, capsys):
    run = shutil.copytree(exported, tmp_path / "run")
    (run / "export" / "vllm" / "config.json").write_text("{}")
    assert main(["doctor", str(run)]) == 2
    assert "vllm/config.json" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["vllm", "vllm-speculators"])
def test_generate_loads_an_exported_directory(name, exported, target, capsys):
    answers = []
    for head in (exported / "head", exported / "export" / name):
        words = ["generate", "--target", str(target), "--head", str(head), "what is 3 plus 4?", "--json"]
        assert main([*words, "--max-tokens", "12", "--tree", "3,2,6", "--device", "cpu"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert [answers[0][key] for key in ("token_ids", "rounds")] == [answers[1][key] for key in ("token_ids", "rounds")]


def test_training_may_start_from_an_exported_directory(exported, recipe, tmp_path):
    run = shutil.copytree(exported, tmp_path / "run")
    start = exported / "export" / "vllm-speculators"
    assert main(["train", str(recipe), f"train.init={start}", "train.epochs=1", "--out", str(run)]) == 0
    assert json.loads((run / "head" / "provenance.json").read_bytes())["parents"]["init"] == digest_head(start)


def test_an_external_head_is_exported_without_data_of_this_run(exported, recipe, tmp_path):
    run = tmp_path / "run"
    head = exported / "export" / "vllm-speculators"
    assert main(["export", str(recipe), f"target.head={head}", "--out", str(run)]) == 0
    text = (run / "export" / "vllm" / "README.md").read_text()
    assert "Nothing is known of the data that trained this head" in text
    assert "Not measured yet" in text
    assert 'license: "other"' in text


def test_the_readme_has_the_flags_of_tune(exported, recipe, tmp_path):
    run = shutil.copytree(exported, tmp_path / "run")
    tree, chain = ({"depth": 2, "top_k": k, "nodes": 3} for k in (2, 1))
    streams = [{"n": 1, "best": {"tree": tree}, "best_chain": {"tree": chain}}]
    streams.append({"n": 8, "best": {"tree": None}, "best_chain": {"tree": None}})
    (run / "tune").mkdir()
    (run / "tune" / "tune.json").write_text(json.dumps({"streams": streams}))
    shutil.copy(run / "eval" / "provenance.json", run / "tune")  # finished, whatever it says
    run_stages(recipe, run, ["export"])
    text = (run / "export" / "vllm" / "README.md").read_text()
    assert '"num_speculative_tokens": 2}' in text
    assert "| 8 | no speculation |" in text


def test_a_failed_parity_fails_the_export(exported, recipe, tmp_path, capsys, monkeypatch):
    run = shutil.copytree(exported, tmp_path / "run")
    shutil.rmtree(run / "export")
    monkeypatch.setattr(parity, "TOLERANCE", 0.0)
    assert main(["export", str(recipe), "--out", str(run)]) == 1
    assert "Do not serve this export" in capsys.readouterr().err
    assert not (run / "export" / "provenance.json").exists()
    assert not json.loads((run / "export" / "parity.json").read_bytes())["engines"]["vllm"]["ok"]


def test_doctor_on_a_head_for_another_target_and_template(exported, target, tmp_path, capsys):
    other = shutil.copytree(target, tmp_path / "other")
    name = other / "chat_template.jinja"
    name.write_text(name.read_text() + "{# changed #}")
    assert main(["doctor", str(exported / "head"), "--target", str(other)]) == 0
    said = capsys.readouterr().out
    assert "warning: The head was trained for a chat template with digest" in said
    deeper = tiny_target(tmp_path / "deeper", layers=2)
    assert main(["doctor", str(exported / "head"), "--target", str(deeper)]) == 2
    assert "reads layers [1, 2, 3]" in capsys.readouterr().err
