"""The lines that start several processes: those of the docs are those of the code, and they start what they say."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.test_docs import PAGES, commands
from tests.features.small import contents
from tests.train.together import free_port, new_run, train, write_recipe

from eyas.deploy.stage_jobs import launch_line, stage_command
from eyas.model.target import Target

ROOT = Path(__file__).parents[2]
LINES = [(page, line) for page in PAGES for line in commands(page) if line.startswith("torchrun ")]
SHOW = '#!/bin/sh\necho "$RANK of $WORLD_SIZE, $LOCAL_RANK here: $*"\n'


def run_on(machines: int, line: str, environment: dict[str, str]) -> list[str]:
    """Runs a line of a shell on so many machines, which are all this one. Returns what each of them prints."""
    port, started = str(free_port()), []
    for number in range(machines):
        own = {"RANK": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = ["sh", "-c", line]
        variables, pipe = {**os.environ, **environment, **own}, subprocess.PIPE
        started.append(subprocess.Popen(command, env=variables, stdout=pipe, stderr=subprocess.STDOUT, text=True))
    printed = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0] * machines, printed
    return printed


def programs(directory: Path, eyas: str) -> dict[str, str]:
    """Returns an environment whose PATH begins with `torchrun` of this Python, and with that `eyas`."""
    directory.mkdir()
    torchrun = f'#!/bin/sh\nexec {sys.executable} -W ignore -m torch.distributed.run "$@"\n'
    for name, text in {"torchrun": torchrun, "eyas": eyas}.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    return {"PATH": f"{directory}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def test_the_docs_have_the_lines_of_the_jobs() -> None:
    of_training = [(page, line.partition(" train ")[0]) for page, line in LINES if " train " in line]
    assert {line for _, line in of_training} == {launch_line(8), launch_line(8, 4)}
    assert {page for page, _ in of_training} == {"training.md", "guide-training.md"}
    of_capture = {line.partition(" capture ")[0] for _, line in LINES if " train " not in line}
    assert of_capture == {launch_line(8), launch_line(4)}
    assert " ".join(stage_command("train", "R", "O", 8)["command"]) == launch_line(8)
    assert stage_command("train", "R", "O", 8, 4)["command"][2] == f'exec {launch_line(8, 4)} "$@"'


@pytest.mark.parametrize(("machines", "gpus"), [(1, 2), (2, 1), pytest.param(2, 2, marks=pytest.mark.full)])
def test_a_line_starts_each_rank_once(machines: int, gpus: int, tmp_path: Path) -> None:
    printed = run_on(machines, f"{launch_line(gpus, machines)} train a.toml", programs(tmp_path / "bin", SHOW))
    world = machines * gpus
    for number, text in enumerate(printed):
        ranks = [f"{number * gpus + local} of {world}, {local} here: train a.toml" for local in range(gpus)]
        assert sorted(line for line in text.splitlines() if " here: " in line) == ranks


@pytest.mark.full
def test_two_machines_train_as_two_processes_do(target: Target, features: Path, tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path / "small.toml", target), new_run(tmp_path / "run", features)
    eyas = f'#!/bin/sh\nPYTHONPATH={ROOT / "src"} exec {sys.executable} -m eyas "$@"\n'
    run_on(
        2,
        f"{launch_line(1, 2)} {shlex.join(['train', str(recipe), '--out', str(out)])}",
        programs(tmp_path / "b", eyas),
    )
    pair = new_run(tmp_path / "pair", features)
    for ended in train(recipe, pair, 2):
        assert ended.code == 0, ended.err
    assert contents(out / "head") == contents(pair / "head")
