"""`benchmarks.gpu`: rows are kept whatever happens to a part, finished parts are skipped, nothing unmeasured passes."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gpu_page import COMPLETE

import gpu
from gpu import Part

MACHINE = {"device": "a GPU <1>", "torch": "2.11.0", "commit": "abc", "source": "1"}
SCRIPT = """
import json, sys, time
part = sys.argv[1]
def say(name, figure, ok):
    print(json.dumps({"name": name, "figure": figure, "target": "at least 1", "ok": ok}), flush=True)
say("first", 2, True)
if part == "crashes":
    sys.exit("no memory <left>")
if part == "hangs":
    time.sleep(100)
print("a library prints something")
say("second", 0.5 if part == "misses" else 1.5, part != "misses")
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The machine that the script finds; its parts are those of SCRIPT."""
    script, found = tmp_path / "parts.py", dict(MACHINE)
    script.write_text(SCRIPT)
    monkeypatch.setattr(gpu, "PARTS_SCRIPT", script)
    monkeypatch.setattr(gpu, "read_machine", lambda: found)
    return found


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *parts: Part, minutes: float = 1) -> int:
    monkeypatch.setattr(gpu, "PARTS", parts)
    return gpu.main(["--out", str(out), "--minutes", str(minutes)])


def read(out: Path) -> dict[tuple[str, str], Any]:
    lines = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    return {(row["part"], row["name"]): row["ok"] for row in lines if "part" in row}


def test_parts_lose_nothing_of_each_other(machine, monkeypatch, tmp_path):
    out = tmp_path / "out"
    parts = [Part(name, 0, 20) for name in ("crashes", "misses", "works")]
    assert run(monkeypatch, out, Part("hangs", 0, 1.5), *parts) == 1
    assert read(out) == {
        ("hangs", "first"): True,
        ("hangs", COMPLETE): None,
        ("crashes", "first"): True,
        ("crashes", COMPLETE): False,
        ("misses", "first"): True,
        ("misses", "second"): False,
        ("misses", COMPLETE): True,
        ("works", "first"): True,
        ("works", "second"): True,
        ("works", COMPLETE): True,
    }
    page = (out / "index.html").read_text()
    assert "misses: second is 0.5; the target is at least 1." in page
    assert "exit code 1: no memory &lt;left&gt;" in page
    assert "a GPU &lt;1&gt;" in page
    assert "<script" not in page
    assert "http" not in page
    assert len(list(out.iterdir())) <= 8


def test_complete_parts_are_skipped(machine, monkeypatch, tmp_path, capsys):
    out, works = tmp_path / "out", Part("works", 0, 20)
    assert run(monkeypatch, out, works) == 0
    with (out / "rows.jsonl").open("a") as file:
        file.write('{"part": "wor')  # a process that was killed while it wrote
        file.write("\n")
    capsys.readouterr()
    assert run(monkeypatch, out, works, Part("misses", 0, 20)) == 1
    assert "works: complete" in capsys.readouterr().err
    machine["source"] = "2"  # the source has changed
    assert run(monkeypatch, out, works) == 0
    assert "works: complete" not in capsys.readouterr().err


def test_no_part_starts_that_cannot_finish(machine, monkeypatch, tmp_path):
    out, began_s = tmp_path / "out", time.monotonic()
    assert run(monkeypatch, out, Part("works", 30, 60), Part("hangs", 2, 60), minutes=0.1) == 1
    assert time.monotonic() - began_s < 20
    assert read(out) == {("works", COMPLETE): None, ("hangs", "first"): True, ("hangs", COMPLETE): None}


def test_nothing_passes_without_a_gpu(machine, monkeypatch, tmp_path):
    out, machine["device"] = tmp_path / "out", "cpu"
    assert run(monkeypatch, out, Part("works", 0, 20)) == 1
    assert read(out) == {("works", COMPLETE): None}
    assert "not measured: no CUDA device" in (out / "index.html").read_text()


def test_small_shapes_of_all_parts(tmp_path):
    """From a command without any package on the path."""
    rows = run_tiny(tmp_path / "out", *(part.name for part in gpu.PARTS))
    assert {part for part, _ in rows} == {part.name for part in gpu.PARTS}
    assert rows["equality", "equal answers: tree16, overlap loop"] is True
    assert rows["bandwidth", "best read bandwidth over the data sheet's"] is None


def run_tiny(out: Path, *parts: str) -> dict[tuple[str, str], Any]:
    """Runs parts with small shapes and checks that each one finishes and no row misses its target."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--out", str(out), "--only", *parts]
    done = subprocess.run(command, cwd=gpu.ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode in (0, 1), done.stderr
    rows = read(out)
    assert all(rows[part, COMPLETE] for part in parts), (out / "log.txt").read_text()
    assert False not in rows.values(), rows
    return rows
