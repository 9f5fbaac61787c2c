"""docs/deploy.md, images.md and deploy-jobs.md name only what exists. tests/e2e/test_docs.py runs its commands."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from eyas.base.config import build
from eyas.base.google_auth import SECRETS_VARIABLE
from eyas.cli import main
from eyas.deploy.config import DeployConfig
from eyas.kernels.cpu_attention import PREBUILT_VARIABLE
from eyas.privacy.surrogates import KEY_VARIABLE

ROOT = Path(__file__).parents[2]
PAGE = "".join((ROOT / "docs" / name).read_text() for name in ("deploy.md", "images.md", "deploy-jobs.md"))


def test_its_recipe_is_valid():
    import tomllib

    serving, eyas, jobs = (
        build(DeployConfig, tomllib.loads(text)["deploy"]) for text in re.findall(r"```toml\n(.+?)```", PAGE, re.DOTALL)
    )
    assert serving.vertex.replicas == (1, 4)
    assert (eyas.engine, eyas.vertex.accelerator_count) == ("eyas", 1)
    assert jobs.vertex.jobs.train_machines == 2


def test_it_names_only_what_exists():
    variables = set(re.findall(r"`((?:AIP|EYAS)_[A-Z_]+[A-Z])`", PAGE))
    read = "".join((ROOT / "deploy" / name).read_text() for name in ("entrypoint.sh", "gate.py"))
    read += " ".join((KEY_VARIABLE, SECRETS_VARIABLE, PREBUILT_VARIABLE))
    assert {name for name in variables if name not in read} == set()
    assert set(re.findall(r"\b(?:AIP|EYAS)_[A-Z_]+[A-Z]\b", read)) - variables <= {"EYAS_LIB", "EYAS_INNER_PORT"}
    for path in re.findall(r"`(deploy/[a-z/.A-Z]+)`", PAGE):
        assert (ROOT / path).exists(), path


COMMANDS = [
    shlex.split(line, comments=True)
    for name in ("deploy.md", "deploy-jobs.md")
    for line in re.findall(r"^    (eyas deploy .+)$", (ROOT / "docs" / name).read_text(), re.MULTILINE)
]
FAR = {"--apply", "--status", "--delete", "--upload"}
WRITING = sorted({tuple(word for word in words[1:] if word not in FAR) for words in COMMANDS})


@pytest.mark.parametrize("words", WRITING, ids=lambda words: " ".join(words)[:80])
def test_its_commands_write_files(words, tmp_path, monkeypatch, capsys):
    """Runs each command without what calls a cloud. Without a head it writes jobs, or says what is missing."""
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    code, said = main(list(words)), capsys.readouterr().err
    needs_head = "--jobs" not in words and not any(word.startswith("deploy.jobs_image") for word in words)
    if needs_head and "deploy.speculation=off" not in words:
        assert (code, "has no head yet" in said) == (2, True), said
    else:
        assert (code, "is written" in said) == (0, True), said


def test_all_commands_of_jobs_have_the_same_overrides():
    jobs = [words for words in COMMANDS if "--jobs" in words]
    assert len(jobs) == 4
    assert len({tuple(word for word in words if "=" in word) for words in jobs}) == 1
