"""Ctrl-C and kill -9 in every stage: the same command then ends with the bytes of an undisturbed run."""

import contextlib
import itertools
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e import processes
from tests.e2e.small import DIRECTORIES, STAGES, contents, write_prompts, write_recipe
from tests.tiny import tiny_target

# Long enough to be hit in the middle: many records, small parts, small shards, a checkpoint after every update.
SLOW = (
    "prompts.limit=24",
    "respond.max_tokens=32",
    "respond.batch_size=2",
    "capture.shard_bytes=60000",
    "capture.batch_tokens=64",
    "train.batch_tokens=24",
    "train.checkpoint_every_s=0",
    "train.log_every=3",
    "eval.batch_tokens=100",
)


def found(pattern: str, count: int = 1) -> Callable[[Path], bool]:
    """The moment when so many files of this name stand in the run directory."""
    return lambda out: sum(1 for _ in out.glob(pattern)) >= count


def begun(out: Path) -> bool:
    """The moment right after the run's recipe is written, before the stage does anything."""
    return (out / "recipe.toml").exists()


def later(moment: Callable[[Path], bool], looks: int) -> Callable[[Path], bool]:
    """So many looks (half milliseconds and more) after another moment."""
    counter = itertools.count()
    return lambda out: moment(out) and next(counter) >= looks


def lines(pattern: str, count: int) -> Callable[[Path], bool]:
    """The moment when a file has so many lines."""
    return lambda out: any(path.read_bytes().count(b"\n") >= count for path in out.glob(pattern))


def updates(count: int) -> Callable[[Path], bool]:
    """The moment when the checkpoint has been written so many times."""
    seen: set[int] = set()

    def moment(out: Path) -> bool:
        path = out / "head" / "checkpoint.safetensors"
        with contextlib.suppress(FileNotFoundError):
            seen.add(path.stat().st_mtime_ns)
        return len(seen) >= count

    return moment


MOMENTS: dict[str, dict[str, Callable[[], Callable[[Path], bool]]]] = {
    "prompts": {
        "reading": lambda: later(begun, 20),
        "prompts written": lambda: found("prompts/prompts.jsonl"),
    },
    "respond": {
        "third answer": lambda: lines("conversations/*.journal", 3),
        "first part": lambda: found("conversations/part-00000.jsonl"),
        "third part": lambda: found("conversations/part-00002.jsonl"),
    },
    "capture": {
        "first shard": lambda: found("features/shard-*.safetensors"),
        "fourth shard": lambda: found("features/shard-*.safetensors", 4),
    },
    "train": {
        "first checkpoint": lambda: updates(1),
        "fifth checkpoint": lambda: updates(5),
    },
    "eval": {
        "begun": lambda: begun,
        "walking": lambda: later(begun, 60),
    },
}
QUICK = [("prompts", "reading"), ("respond", "third answer"), ("respond", "first part"), ("capture", "first shard")]
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
    when = MOMENTS[stage][moment]()
    ended = processes.run(command, err, lambda: when(out), SIGNALS[how])
    if how == "kill -9":
        assert ended.code == -signal.SIGKILL, "it ended before it was killed"
    else:
        assert ended.code == 1, "it ended before it was stopped"
        (message,) = [line for line in ended.err.splitlines() if line.startswith("eyas:")]
        assert "run the same command again" in message
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
    when = later(begun, 300)
    ended = processes.run(command, err, lambda: when(out), SIGNALS[how])
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
        for looks in range(20, 100_000, 45):
            when = later(begun, looks)
            (out / "recipe.toml").unlink(missing_ok=True)
            ended = processes.run([stage, str(slow_recipe), *SLOW, "--out", str(out)], err, lambda: when(out))  # noqa: B023
            if ended.code == 0:
                break
            assert ended.code == -signal.SIGKILL, ended.err
    assert contents(out) == contents(undisturbed)


def test_answers_survive_a_kill(undisturbed, slow_recipe, tmp_path):
    """What was answered before the kill is not asked again."""
    out, err = tmp_path / "run", tmp_path / "err"
    before("respond", undisturbed, out)
    command = ["respond", str(slow_recipe), *SLOW, "--out", str(out)]
    enough = lines("conversations/*.journal", 3)
    assert processes.run(command, err, lambda: enough(out)).code == -signal.SIGKILL
    (journal,) = (out / "conversations").glob("*.journal")
    kept = [json.loads(line) for line in journal.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    assert len(kept) >= 3
    assert processes.run(command, err).code == 0
    (total, answered) = (24, {one["id"] for one in kept})
    parts = sorted((out / "conversations").glob("part-*.jsonl"))
    finished = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert len({one["id"] for one in finished}) == len(finished) == total
    assert answered <= {one["id"] for one in finished}
