"""Ctrl-C and kill -9 in every stage: the same command then ends with the bytes of an undisturbed run."""

import json
import shutil
import signal
from pathlib import Path

import pytest
from tests.e2e import processes
from tests.e2e.processes import Moment
from tests.e2e.small import DIRECTORIES, STAGES, contents, write_prompts, write_recipe
from tests.tiny import tiny_target

from eyas.recipe import Run, load_recipe

# Enough of everything for a moment in the middle: small parts, small shards, a checkpoint after each update.
SLOW = (
    "prompts.limit=24",
    "respond.max_tokens=32",
    "respond.batch_size=2",
    "capture.shard_bytes=60000",
    "prompts.workers=1",
    "capture.batch_tokens=64",
    "train.batch_tokens=24",
    "train.checkpoint_every_s=0",
    "train.log_every=3",
    "eval.batch_tokens=100",
)


MOMENTS = {
    "prompts": {
        "reading": Moment(1),
        "a piece half written": Moment(2, "prompts.work/*.npz"),
        "prompts written": Moment(1, "prompts/prompts.jsonl"),
    },
    "respond": {
        "third answer": Moment(3),
        "first part": Moment(1, "conversations/part-*.jsonl"),
        "third part": Moment(3, "conversations/part-*.jsonl"),
    },
    "capture": {
        "first shard": Moment(1, "features/shard-*.safetensors"),
        "fourth shard": Moment(4, "features/shard-*.safetensors"),
    },
    "train": {
        "first checkpoint": Moment(1, "head/checkpoint.json"),
        "fifth checkpoint": Moment(5, "head/checkpoint.json"),
    },
    "eval": {"first text": Moment(1), "walking": Moment(2)},
}
QUICK = [
    ("prompts", "reading"),
    ("prompts", "a piece half written"),
    ("respond", "third answer"),
    ("respond", "first part"),
    ("capture", "first shard"),
]
QUICK += [("train", "fifth checkpoint"), ("eval", "walking")]
EVERY = [(stage, moment) for stage in STAGES for moment in MOMENTS[stage]]
CASES = [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.full) for case in EVERY]
SIGNALS = {"Ctrl-C": signal.SIGINT, "kill -9": signal.SIGKILL}


@pytest.fixture(scope="module")
def slow_recipe(tmp_path_factory):
    directory = tmp_path_factory.mktemp("slow")
    target = tiny_target(directory / "target")
    return write_recipe(directory / "slow.toml", target, write_prompts(directory / "sums.jsonl", 3000))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, slow_recipe):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    for stage in STAGES:
        ended = processes.run([stage, str(slow_recipe), *SLOW, "--out", str(out)], out.parent / "err")
        assert ended.code == 0, ended.err
    return out


def before(stage: str, undisturbed: Path, out: Path) -> None:
    """A run directory in which all stages before this one are finished, and no recipe is written yet."""
    for earlier in STAGES[: STAGES.index(stage)]:
        shutil.copytree(undisturbed / DIRECTORIES[earlier], out / DIRECTORIES[earlier])


@pytest.mark.parametrize("how", SIGNALS)
@pytest.mark.parametrize(("stage", "moment"), CASES)
def test_a_stopped_stage_ends_with_the_same_bytes(stage, moment, how, undisturbed, slow_recipe, tmp_path):
    out, err = tmp_path / "run", tmp_path / "err"
    before(stage, undisturbed, out)
    command = [stage, str(slow_recipe), *SLOW, "--out", str(out)]
    ended = processes.run(command, err, MOMENTS[stage][moment], SIGNALS[how])
    if how == "kill -9":
        assert ended.code == -signal.SIGKILL, "it ended before it was killed"
    else:
        assert ended.code == 1, "it ended before it was stopped"
        (message,) = [line for line in ended.err.splitlines() if line.startswith("eyas:")]
        assert "Run the same command again" in message
        assert "Traceback" not in ended.err
    assert not (out / DIRECTORIES[stage] / "provenance.json").exists()
    again = processes.run(command, err)
    assert again.code == 0, again.err
    assert contents(out / DIRECTORIES[stage]) == contents(undisturbed / DIRECTORIES[stage])


@pytest.mark.parametrize("how", SIGNALS)
def test_a_stopped_measurement_is_made_again(how, undisturbed, slow_recipe, tmp_path):
    """Its figures are times, so only what they were made from is equal."""
    out, err = tmp_path / "run", tmp_path / "err"
    for stage in STAGES:
        shutil.copytree(undisturbed / DIRECTORIES[stage], out / DIRECTORIES[stage])
    command = ["bench", str(slow_recipe), *SLOW, "bench.repeats=2", "--out", str(out)]
    ended = processes.run(command, err, Moment(10), SIGNALS[how])
    assert ended.code == (-signal.SIGKILL if how == "kill -9" else 1), ended.err
    assert not (out / "report" / "provenance.json").exists()
    again = processes.run(command, err)
    assert again.code == 0, again.err
    assert set(contents(out / "report")) == {"results.json", "report.html", "provenance.json"}
    results = json.loads((out / "report" / "results.json").read_bytes())
    assert results["lossless"]["identical"] == results["lossless"]["prompts"] == 2


@pytest.mark.full
def test_a_run_that_is_killed_again_and_again(undisturbed, slow_recipe, tmp_path):
    """Whatever the moment: each process is killed after a little longer, until one gets through."""
    out, err = tmp_path / "run", tmp_path / "err"
    for stage in STAGES:
        for tenths in range(1, 1000):
            command = [stage, str(slow_recipe), *SLOW, "--out", str(out)]
            ended = processes.run(command, err, kill_after_s=0.1 * tenths)
            if ended.code == 0:
                break
            assert ended.code == -signal.SIGKILL, ended.err
    assert contents(out) == contents(undisturbed)


def test_answers_survive_a_kill(undisturbed, slow_recipe, tmp_path):
    """What was answered before the kill is not asked again."""
    out, err = tmp_path / "run", tmp_path / "err"
    before("respond", undisturbed, out)
    command = ["respond", str(slow_recipe), *SLOW, "--out", str(out)]
    assert processes.run(command, err, Moment(3)).code == -signal.SIGKILL
    (journal,) = (out / "conversations").glob("*.journal")
    kept = [json.loads(line) for line in journal.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    assert len(kept) >= 3
    assert processes.run(command, err).code == 0
    (total, answered) = (24, {one["id"] for one in kept})
    parts = sorted((out / "conversations").glob("part-*.jsonl"))
    finished = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert len({one["id"] for one in finished}) == len(finished) == total
    assert answered <= {one["id"] for one in finished}


def test_machines_that_share_the_prompts_leave_each_others_writes_alone(tmp_path, monkeypatch):
    """One that begins later sweeps nothing: a file that looks left behind is being written."""
    monkeypatch.setattr(Run, "_execute", lambda self, stage: None)
    half = tmp_path / "prompts.work" / ".00001.npz.0123456789ab.eyas-tmp"
    half.parent.mkdir()
    for world, stands in ((2, True), (1, False)):
        half.write_bytes(b"half")
        recipe = write_recipe(tmp_path / "small.toml", tmp_path, write_prompts(tmp_path / "sums.jsonl"))
        Run(load_recipe(recipe, {"prompts": {"world": world}}), tmp_path).run_stage("prompts")
        assert half.exists() == stands
