"""Every command of docs/deploy.md parses, or says what it needs that is not here; what it names is there."""

import re
import shlex
from pathlib import Path

import pytest

from eyas import cli
from eyas.base.config import build
from eyas.deploy.config import DeployConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text()
UNFENCED = re.sub(r"```.+?```", "", PAGE, flags=re.DOTALL)
COMMANDS = [line.strip() for line in UNFENCED.splitlines() if line.startswith("    ")]
NEEDS = re.compile(r"# needs: (a registry|docker|gcp|gpu)(, (docker|gcp|gpu))*(;|$)")


def test_there_are_commands():
    assert len([line for line in COMMANDS if line.startswith("eyas deploy")]) >= 4


@pytest.mark.parametrize("line", COMMANDS)
def test_each_parses_or_says_what_it_needs(line):
    words = shlex.split(line, comments=True)
    words = [word for number, word in enumerate(words) if not (number < 3 and word.startswith("AIP_"))]
    if words[0] == "eyas":
        assert cli._parse(words[1:]).verb == words[1]
        assert ("--apply" in words) <= bool(NEEDS.search(line))
    elif words[0] == "make":
        assert re.search(rf"^[a-z- ]*\b{words[1]}\b.*:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert NEEDS.search(line)
    elif words[0] in ("docker", "gcloud", "kubectl") or "gcloud" in line:
        assert NEEDS.search(line), line
    else:
        assert words[0] in ("pip", "curl"), line


def test_its_recipe_is_one():
    import tomllib

    (text,) = re.findall(r"```toml\n(.+?)```", PAGE, re.DOTALL)
    config = build(DeployConfig, tomllib.loads(text)["deploy"])
    assert config.vertex.replicas == (1, 4)


def test_what_it_names_is_there():
    variables = set(re.findall(r"`((?:AIP|EYAS)_[A-Z_]+[A-Z])`", PAGE))
    read = "".join((ROOT / "deploy" / name).read_text() for name in ("entrypoint.sh", "gate.py"))
    assert {name for name in variables if name not in read} == set()
    assert set(re.findall(r"\b(?:AIP|EYAS)_[A-Z_]+[A-Z]\b", read)) - variables <= {"EYAS_LIB", "EYAS_INNER_PORT"}
    for path in re.findall(r"`(deploy/[a-z/.A-Z]+)`", PAGE):
        assert (ROOT / path).exists(), path
