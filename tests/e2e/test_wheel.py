"""The wheel: built from this tree, installed by itself, run from elsewhere. The sdist: all that its tests read."""

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = (
    "quickstart.toml",
    "bench/report.css",
    "server/ui/index.html",
    "embedded/target/config.json",
    "embedded/head/acceptance.json",
    "embedded/head/config.json",
)

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("build", "hatchling")),
    reason="needs build and hatchling, which pip install 'eyas[dev]' brings",
)


def called(*command: object, cwd: Path, path: str | None = None) -> "subprocess.CompletedProcess[str]":
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = path
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    done = called(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("eyas-*.whl")
    return built


@pytest.fixture(scope="module")
def binaries(wheel, tmp_path_factory):
    """Of an empty environment with the wheel alone; what it depends on is lent by the environment of the tests."""
    place = tmp_path_factory.mktemp("empty") / "venv"
    assert called(sys.executable, "-m", "venv", "--without-pip", place, cwd=place.parent).returncode == 0
    python = place / "bin" / "python"
    install = ("-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel)
    done = called(sys.executable, *install, cwd=place.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    # A directory named in a .pth file is searched, but the .pth files in it are not read: src/ stays out of sight.
    (packages,) = place.glob("lib/python*/site-packages")
    lent = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "lent.pth").write_text("\n".join(lent) + "\n")
    return place / "bin"


def test_every_file_of_the_package_is_inside(wheel):
    source = ROOT / "src" / "eyas"
    here = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    here = {name for name in here if "__pycache__" not in name}
    inside = {name.removeprefix("eyas/") for name in zipfile.ZipFile(wheel).namelist() if name.startswith("eyas/")}
    assert inside == here
    assert [name for name in DATA if name not in inside] == []


def test_the_source_distribution_holds_what_its_tests_read(tmp_path):
    done = called(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = tmp_path.glob("eyas-*.tar.gz")
    with tarfile.open(built) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    inside = {part for name in names for part in (name, name.partition("/")[0])}
    tests = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    assert {path.relative_to(ROOT).as_posix() for path in tests} <= inside
    # What they name below the root: ROOT / "docs", Path(__file__).parents[2] / "notebooks" / ...
    named = re.compile(r'(?:\bROOT|__file__\)\.parents\[2\]\)?) / f?"([^"{]+)')
    read = {name.partition("/")[0] for text in tests.values() for name in named.findall(text)}
    assert read >= {"docs", "notebooks", "pyproject.toml", "src"}
    assert sorted(read - inside) == []


def test_the_license_is_inside(wheel):
    assert any(name.endswith("licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())


def test_it_is_the_installed_package_that_runs(binaries, tmp_path):
    done = called(binaries / "python", "-c", "import eyas; print(eyas.__file__)", cwd=tmp_path)
    assert Path(done.stdout.strip()).is_relative_to(binaries.parent), done.stdout + done.stderr


def test_it_runs_from_another_directory(binaries, tmp_path):
    done = called(binaries / "eyas", "--help", cwd=tmp_path)
    assert (done.returncode, "quickstart" in done.stdout) == (0, True), done.stderr
    (tmp_path / "few.toml").write_text('[prompts]\nsource = "builtin:quickstart"\nlimit = 14\n')
    done = called(binaries / "eyas", "prompts", "few.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "few" / "prompts" / "prompts.jsonl").read_bytes().count(b"\n") == 14


def test_the_embedded_pair_is_found(binaries, tmp_path):
    done = called(binaries / "eyas", "doctor", "embedded", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The head fits target embedded" in done.stdout
