"""Tests the lock of a run directory."""

import subprocess
import sys
from pathlib import Path

import pytest

from eyas.base import storage
from eyas.base.errors import InputError
from eyas.base.storage import lock_directory

HOLD = """
import sys, time
from pathlib import Path
from eyas.base.storage import lock_directory

with lock_directory(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_directory_is_locked_against_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "LOCK_WAIT_S", 0.3)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(InputError, match="Another process writes to"), lock_directory(tmp_path):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with lock_directory(tmp_path):
        assert not list(tmp_path.iterdir())


def test_a_lock_is_released(tmp_path: Path) -> None:
    for _ in range(2):
        with lock_directory(tmp_path):
            pass


def test_a_file_system_without_locks_is_used_unlocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(storage.fcntl, "flock", refuse)
    with lock_directory(tmp_path):
        pass
