"""`eyas tune` on a small run: what it writes, that it is skipped, and what it refuses."""

import json
import shutil

import pytest
from tests.e2e.small import ERROR

from eyas.cli import main
from eyas.doctor import examine

KEYS = ["tune.streams=[1,2]", "tune.depth=3", "tune.top_k=[1,2]", "tune.nodes=[5,6]", "tune.allowance_s=0.2"]


def test_trees_streams_and_flags(run, recipe, capsys):
    command = ["tune", str(recipe), "--out", str(run), *KEYS]
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((run / "tune" / "tune.json").read_text())
    assert [point["n"] for point in told["streams"]] == [1, 2]
    shapes = [(tree["depth"], tree["top_k"], tree["nodes"]) for tree in told["trees"]]
    assert shapes == [(1, 1, 2), (2, 1, 3), (3, 1, 4), (2, 2, 5), (2, 2, 6), (3, 2, 5), (3, 2, 6)]
    # The tree of the recipe's evaluation, on the same answers.
    evaluated = json.loads((run / "eval" / "acceptance.json").read_text())
    assert evaluated["tree"] == {"depth": 3, "top_k": 2, "nodes": 6}
    assert told["trees"][-1]["acceptance_length"] == pytest.approx(evaluated["all"]["acceptance_length"])
    for point in told["streams"]:
        assert point["off_tps"] > 0
        assert point["best"]["tps"] >= 0.99 * max(point["off_tps"], *(t["tps"][str(point["n"])] for t in told["trees"]))
    written = (run / "tune" / "tune.json").stat().st_mtime_ns
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "best tree" in said
    assert "the fastest draft of all heads and of copies of earlier text, by streams" in said
    assert (run / "tune" / "tune.json").stat().st_mtime_ns == written, "measured again"
    findings = [str(finding) for finding in examine(str(run), None)]
    assert any(finding.startswith("ok: tune is finished") for finding in findings), findings
    assert not any(finding.startswith("misfit") for finding in findings), findings


def test_a_further_head_of_another_target(run, recipe, capsys):
    assert main(["tune", str(recipe), "--out", str(run), *KEYS, 'tune.heads=["embedded"]']) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("eyas:")]
    assert ERROR.fullmatch(said)
    assert "does not fit" in said
    assert not (run / "tune").exists()


def test_without_a_head(run, recipe, capsys, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "head")
    assert main(["tune", str(recipe), "--out", str(copy), *KEYS]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("eyas:")]
    assert ERROR.fullmatch(said)
    assert "no head in" in said
    assert "eyas train" in said
    assert not (copy / "tune").exists()
