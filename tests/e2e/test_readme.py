"""What the README names exists and runs."""

import re
import shlex
from pathlib import Path

import pytest

from eyas import cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line.split(" #")[0].strip() for line in README.splitlines() if line.startswith("    eyas ")]


def test_there_are_commands():
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_parse(command):
    words = shlex.split(command)[1:]
    assert cli._parse(words).verb == words[0]


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.startswith("eyas generate")])
def test_its_generate_commands_run(command, capsys):
    assert cli.main([*shlex.split(command)[1:], "--max-tokens", "8"]) == 0
    assert capsys.readouterr().out.strip()


def test_its_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_links_and_rooms_exist():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
    map_of_the_house = README.split("## The map of the house")[1].split("```")[1]
    rooms = re.findall(r"^  ([a-z]+)/ ", map_of_the_house, re.MULTILINE)
    assert set(rooms) == {path.name for path in (ROOT / "src" / "eyas").iterdir() if path.is_dir()} - {
        "__pycache__",
        "cli",
    }
    for name in re.findall(r"^([a-z]+)/ ", map_of_the_house, re.MULTILINE):
        assert (ROOT / name).is_dir(), name
