"""Content in the cache directory is built once, and again if the file is damaged."""

import pytest

from eyas.base.cached_file import load_cached


@pytest.fixture
def counted(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []

    def build():
        calls.append(1)
        return b"content"

    return calls, build, tmp_path / "eyas"


def test_lists_are_built_once(counted):
    calls, build, _ = counted
    assert load_cached("numbers", "1", build, 3) == load_cached("numbers", "1", build, 3) == b"content"
    assert len(calls) == 1


def test_a_damaged_file_is_built_again(counted):
    calls, build, directory = counted
    load_cached("numbers", "1", build, 3)
    (path,) = directory.glob("numbers-1.bin")
    path.write_bytes(path.read_bytes()[:-3])
    assert load_cached("numbers", "1", build, 3) == b"content"
    load_cached("numbers", "1", build, 3)
    assert len(calls) == 2


def test_a_directory_that_is_not_writable_costs_only_time(counted, monkeypatch, tmp_path):
    calls, build, _ = counted
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load_cached("numbers", "1", build, 3) == load_cached("numbers", "1", build, 3)
    assert len(calls) == 2
