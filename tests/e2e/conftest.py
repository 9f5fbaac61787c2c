"""A tiny target and a run of it up to eval, made once per session. Tests that change the run take a copy."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.serving import Serving, start_server
from tests.e2e.small import run_stages, write_prompts, write_recipe
from tests.tiny import tiny_target


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory, target: Path) -> Path:
    directory = tmp_path_factory.mktemp("recipe")
    return write_recipe(directory / "small.toml", target, write_prompts(directory / "sums.jsonl"))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, recipe: Path) -> Path:
    """Not to be changed."""
    return run_stages(recipe, tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def run(tmp_path: Path, finished: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    """Start servers; they are killed at the end if they still run."""
    started: list[Serving] = []

    def run(*arguments: object, port: int | None = 0, **environment: str) -> Serving:
        chosen = [] if port is None else ["--port", str(port)]
        words = ["serve", *chosen, "--no-compile", *map(str, arguments)]
        started.append(start_server(tmp_path / f"server{len(started)}", words, environment))
        return started[-1]

    yield run
    for server in started:
        server.process.kill()
        server.process.join()
