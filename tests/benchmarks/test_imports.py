"""Every script of benchmarks/ and tools/ can be imported, so that a stale name is noticed before a long run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for name in ("benchmarks", "tools") for path in (ROOT / name).glob("*.py"))
# Imports all in one process, because most of the time is the import of torch and transformers.
IMPORT_ALL = """
import contextlib, importlib, io, json, sys, traceback
failed = {}
for name in json.loads(sys.argv[1]):
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module(name)
    except Exception:
        failed[name] = traceback.format_exc(limit=-3)
print(json.dumps(failed))
"""


@pytest.fixture(scope="module")
def failed() -> dict[str, str]:
    """Module -> traceback of its import."""
    names = json.dumps([path.stem for path in SCRIPTS])
    code = "import sys\nsys.path[:0] = ['benchmarks', 'tools']\n" + IMPORT_ALL
    done = subprocess.run([sys.executable, "-c", code, names], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [path.stem for path in SCRIPTS])
def test_it_imports(name: str, failed: dict[str, str]) -> None:
    assert name not in failed, failed[name]


def test_no_two_scripts_have_the_same_name() -> None:
    assert len({path.stem for path in SCRIPTS}) == len(SCRIPTS)
