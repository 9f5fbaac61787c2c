"""`make pin` as a process, against a registry on loopback."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.deploy.container import ROOT
from tests.doubles.registry import FakeRegistry

ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def pin(path: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "tools" / "pin_images.py"), str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def registry():
    with FakeRegistry({"a/one:v1": ONE, "two:v2": TWO}) as running:
        yield running


def test_each_tag_gets_its_digest_and_later_the_new_one(registry, tmp_path):
    path = tmp_path / "images.env"
    path.write_text(f"# why\nA_IMAGE={registry.host}/a/one:v1\nB_IMAGE={registry.host}/two:v2@{ONE}\n")
    done = pin(path)
    assert done.returncode == 0, done.stderr
    wanted = f"# why\nA_IMAGE={registry.host}/a/one:v1@{ONE}\nB_IMAGE={registry.host}/two:v2@{TWO}\n"
    assert path.read_text() == done.stdout == wanted
    assert registry.scopes == ["repository:x:pull"] * 2
    registry.tags["two:v2"] = ONE
    assert pin(path).returncode == 0
    assert path.read_text() == wanted.replace(TWO, ONE)


@pytest.mark.parametrize(
    ("line", "said"),
    [("X_IMAGE={host}/a/one:v9", "answers 404 for a/one:v9"), ("X_IMAGE=127.0.0.1:9/a/one:v1", "cannot be reached"),
     ("X_IMAGE=latest", "Write it as NAME_IMAGE=REGISTRY/NAME:TAG")],
)  # fmt: skip
def test_without_a_digest_the_file_stays_as_it_was(registry, tmp_path, line, said):
    path = tmp_path / "images.env"
    text = f"A_IMAGE={registry.host}/a/one:v1\n{line.format(host=registry.host)}\n"
    path.write_text(text)
    done = pin(path)
    assert done.returncode == 1
    assert said in done.stderr
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_registry_is_reported(registry, tmp_path):
    path = tmp_path / "images.env"
    path.write_text(f"A_IMAGE={registry.host}/a/one:v1\n")
    registry.faults.append(500)
    assert "answers 500" in pin(path).stderr
