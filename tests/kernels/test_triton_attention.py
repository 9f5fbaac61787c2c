"""Attention for CUDA, tested without CUDA: interpreted on the CPU, compiled for devices that are not here."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALLEST_SHARED_BYTES = 99 * 1024  # of compute capability 8.6, 8.9 and 12.0; others have more

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=known | environment, capture_output=True, text=True, check=False
    )


@needs_triton
@pytest.mark.parametrize("module", ["triton_attention", "triton_linear"])
def test_interpreted(module: str, pytestconfig: pytest.Config):
    cases = f"tests/kernels/interpreted_{module}.py"
    options = ["-q", "--noconftest", "-p", "no:cacheprovider"]
    if not pytestconfig.getoption("--full"):
        options += ["-m", "not full"]
    done = python("-m", "pytest", *options, cases, TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@needs_triton
@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.full), 90])
def test_compiles_for_cuda(capability: int, tmp_path: Path):
    """What the interpreter cannot see: types, layouts, shared memory. The compiler needs no device."""
    script = "tests/kernels/compile_triton_attention.py"
    done = python(script, str(capability), PYTHONPATH=".", TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["kernel"] for row in rows} == {"_write", "_parts", "_merge", "_one_row"}
    assert max(row["shared_bytes"] for row in rows) <= SMALLEST_SHARED_BYTES
    plain = [row for row in rows if row["case"] in ("verify", "verify, memory of fp8", "decode, float32", "")]
    assert [row for row in plain if row["spills_in_loops"]] == []


def test_without_triton_the_error_says_what_to_do():
    code = "import sys; sys.modules['triton'] = None; import eyas.kernels.triton_attention"
    done = python("-c", code)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "InputError: The package triton" in last
    assert "Install the CUDA build of torch" in last
