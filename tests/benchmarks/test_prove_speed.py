"""`make prove-speed` continues after a stop: finished jobs are not measured again."""

import json
from pathlib import Path

import pytest
from prove_speed import PARTS, jobs, run_job

OPTIONS = {"target": "T", "head": "H", "prompts": "P", "env_dir": "E"}
PAIR = ("--target", "T", "--head", "H", "--prompts", "P")
# Prints a row with the number of its runs, and ends with the exit code of its argument.
JOB = """
import pathlib, sys
runs = pathlib.Path(__file__).with_suffix(".runs")
runs.write_text(runs.read_text() + "1" if runs.is_file() else "1")
print('{"name": "run %d"}' % len(runs.read_text()))
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return str(path)


def rows(captured: pytest.CaptureFixture[str]) -> list[str]:
    return [json.loads(line)["name"] for line in captured.readouterr().out.splitlines()]


@pytest.mark.parametrize("code", [0, 1])
def test_rows_of_a_finished_job_are_kept(script: str, code: int, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    kept = tmp_path / "kept.json"
    assert [run_job([script, str(code)], kept, "v") for _ in range(2)] == [code, code]
    assert rows(capfd) == ["run 1", "run 1"]


def test_another_version_or_command_is_measured_again(
    script: str, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    kept = tmp_path / "kept.json"
    for words, version in (([script, "0"], "v"), ([script, "0"], "w"), ([script, "0", "x"], "w")):
        run_job(words, kept, version)
    assert rows(capfd) == ["run 1", "run 2", "run 3"]


def test_a_job_that_failed_keeps_nothing(script: str, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    kept = tmp_path / "kept.json"
    assert run_job([script, "2"], kept, "v") == 2
    assert not kept.exists()
    assert run_job([script, "0"], None, "v") == 0
    assert rows(capfd) == ["run 1", "run 2"]


def test_every_job_has_a_script_and_its_options() -> None:
    found = dict(jobs(None, OPTIONS))
    assert len(found) == sum(len(part.values) for part in PARTS.values())
    for name, (script, *_) in found.items():
        assert (Path(__file__).parents[2] / "benchmarks" / script).is_file(), name
    assert found["budget 8"] == ["budget_speed.py", *PAIR, "--seconds", "150", "--streams", "8"]
    assert set(dict(jobs("served", OPTIONS))) == {f"served {peer}" for peer in PARTS["served"].values}
