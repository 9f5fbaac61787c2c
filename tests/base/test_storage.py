import importlib.util
import os
import uuid

import pytest

from eyas.base.errors import InputError, StageError, UsageError
from eyas.base.storage import Place


@pytest.fixture(params=["path", "file", "memory"])
def root(request, tmp_path):
    """The same contract on a path, a file URL and a store without directories."""
    return {
        "path": Place(str(tmp_path / "run")),
        "file": Place(f"file://{tmp_path}/run"),
        "memory": Place(f"memory://{uuid.uuid4().hex}/run"),
    }[request.param]


def test_files_come_back_as_they_were_written(root):
    file = root.join("head", "config.json")
    assert not file.exists()
    file.write_bytes(b"old")
    file.write_bytes(bytes(range(256)))
    assert file.exists()
    assert file.read_bytes() == bytes(range(256))
    assert root.exists()


def test_listing_is_relative_sorted_and_deep(root):
    assert root.list_files() == []
    for name in ("b", "a/z/1", "a/0", ".a.0123.eyas-tmp"):
        root.join(*name.split("/")).write_bytes(b"x")
    assert root.list_files() == ["a/0", "a/z/1", "b"]
    assert root.join("a").list_files() == ["0", "z/1"]


def test_a_missing_file_is_an_input_error(root):
    with pytest.raises(InputError, match=r"found no file .*run/none"):
        root.join("none").read_bytes()


def test_ensure_dir_may_be_called_twice(root):
    root.join("x", "y").ensure_dir()
    root.join("x", "y").ensure_dir()
    assert root.join("x", "y").exists()


def test_local_places_know_their_path(tmp_path):
    assert Place(str(tmp_path)).join("a", "b").path == tmp_path / "a" / "b"
    assert Place(f"file://{tmp_path}").join("a").path == tmp_path / "a"
    assert Place("memory://x").is_local is False
    with pytest.raises(AssertionError, match="not on this machine"):
        _ = Place("memory://x").path


def test_a_url_is_joined_with_slashes_and_keeps_its_scheme():
    assert Place("gs://bucket/run/").join("a", "b").url == "gs://bucket/run/a/b"
    assert Place("memory://").join("a").url == "memory://a"
    assert Place("run").join("a").url == os.path.join("run", "a")


def test_a_local_write_is_atomic(tmp_path, monkeypatch):
    place = Place(str(tmp_path)).join("file")
    place.write_bytes(b"old")

    def broken(source, target):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(StageError, match="Input/output error"):
        place.write_bytes(b"new")
    assert place.read_bytes() == b"old"
    assert Place(str(tmp_path)).list_files() == ["file"]


@pytest.mark.parametrize(("url", "package", "extra"), [("gs://b/x", "gcsfs", "gcs"), ("s3://b/x", "s3fs", "s3")])
def test_a_missing_package_names_the_extra(url, package, extra):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed here")
    with pytest.raises(UsageError, match=rf"do pip install 'eyas\[{extra}\]'"):
        Place(url).exists()


def test_an_unknown_protocol_is_refused():
    with pytest.raises(UsageError, match=r"nosuch://x.*expected a local path, memory://, gs:// or s3://"):
        Place("nosuch://x").exists()


def test_an_archive_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        Place(f"zip://q.jsonl::{tmp_path}/none.zip").exists()
