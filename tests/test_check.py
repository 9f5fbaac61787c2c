"""`make check` runs every static check, shows the output of the failing ones, and fails with them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_checks import ROOT, commands, run_checks

PROGRAMS = ("pyright", "lint-imports", "ruff", "python")


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """Programs that print their name and pass; `python` runs the script of the checks and skips all others."""
    for name in PROGRAMS[:-1]:
        _write_program(tmp_path / name, f"echo output of {name} $1")
    _write_program(tmp_path / "python", f'case $1 in *run_checks.py) exec "{sys.executable}" "$@" ;; esac')
    return tmp_path


def _write_program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def make_check(bin_dir: Path) -> subprocess.CompletedProcess[str]:
    """Runs `make check` without its installation, with these programs."""
    command = ["make", "--no-print-directory", "check", "EYAS=", "DEV=", f"BIN={bin_dir}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)


def test_every_check_is_named_once_it_passes(bin_dir: Path) -> None:
    done = make_check(bin_dir)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line.split()[1] for line in done.stdout.splitlines()) == sorted(commands(bin_dir))
    assert "output of" not in done.stdout


@pytest.mark.parametrize(("program", "failing"), [("pyright", "types"), ("lint-imports", "imports")])
def test_one_failing_check_fails_the_target(bin_dir: Path, program: str, failing: str) -> None:
    _write_program(bin_dir / program, "echo this line is wrong; exit 3")
    done = make_check(bin_dir)
    assert done.returncode != 0
    assert f"--- {failing}: {bin_dir / program} (exit code 3)\nthis line is wrong\n" in done.stdout
    assert f"1 of 5 checks failed: {failing}" in done.stdout
    assert done.stdout.count("passed") == 4


def test_a_failing_style_check_fails_the_target(bin_dir: Path) -> None:
    _write_program(bin_dir / "python", f'case $1 in *run_checks.py) exec "{sys.executable}" "$@" ;; *) exit 1 ;; esac')
    done = make_check(bin_dir)
    assert done.returncode != 0
    assert "1 of 5 checks failed: style" in done.stdout


def test_a_missing_program_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_checks({"lint": ["/nowhere/ruff", "check"], "style": [sys.executable, "-c", "pass"]}) == 1
    assert "/nowhere/ruff is not installed" in capsys.readouterr().out


def test_make_help_names_every_target() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    targets = next(line for line in lines if line.startswith(".PHONY:")).split()[1:]
    assert [target for target in targets if target not in done.stdout] == []
