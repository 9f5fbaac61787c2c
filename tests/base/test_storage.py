import importlib.util
import os
import uuid

import pytest
from tests.doubles.stores import gcs, s3

from eyas.base.errors import InputError, StageError, UsageError
from eyas.base.storage import StoragePath


@pytest.fixture(scope="module")
def object_stores():
    with pytest.MonkeyPatch.context() as patch, gcs(patch), s3(patch) as bucket:
        yield {"gs": "gs://bucket", "s3": bucket}


@pytest.fixture(params=["path", "file", "memory", "gs", "s3"])
def root(request, tmp_path):
    """The same contract on a path, a file URL and stores without directories."""
    if request.param in ("gs", "s3"):
        return StoragePath(f"{request.getfixturevalue('object_stores')[request.param]}/{uuid.uuid4().hex}")
    return {
        "path": StoragePath(str(tmp_path / "run")),
        "file": StoragePath(f"file://{tmp_path}/run"),
        "memory": StoragePath(f"memory://{uuid.uuid4().hex}/run"),
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
    with pytest.raises(InputError, match=r"No file .*/none"):
        root.join("none").read_bytes()


def test_a_file_is_created_only_where_none_is(root):
    file = root.join("features", "shard")
    assert file.size() is None
    assert file.create_if_absent(b"mine")
    assert file.create_if_absent(b"mine"), "an answer that was lost and asked for again"
    assert not file.create_if_absent(b"his!")
    assert not file.create_if_absent(b"longer")
    assert (file.read_bytes(), file.size()) == (b"mine", 4)
    file.remove()
    file.remove()
    assert not file.exists()
    assert file.create_if_absent(b"longer")


def test_ranges_come_in_the_order_they_were_asked_for(root):
    file = root.join("shard")
    file.write_bytes(bytes(range(200)))
    assert file.read_ranges([(150, 152), (0, 1), (7, 7), (199, 200)]) == [b"\x96\x97", b"\0", b"", b"\xc7"]
    with pytest.raises(InputError, match="shard is truncated: it ends within bytes 190 to 201"):
        file.read_ranges([(0, 3), (190, 201)])
    with pytest.raises(InputError, match=r"No file .*missing"):
        root.join("missing").read_ranges([(0, 3)])


def test_a_file_is_read_from_any_byte(root):
    root.join("file").write_bytes(bytes(range(200)))
    with root.join("file").open() as file:
        file.seek(100)
        assert file.read(3) == b"def"


def test_local_places_know_their_path(tmp_path):
    assert StoragePath(str(tmp_path)).join("a", "b").path == tmp_path / "a" / "b"
    assert StoragePath(f"file://{tmp_path}").join("a").path == tmp_path / "a"
    assert StoragePath("memory://x").is_local is False
    with pytest.raises(AssertionError, match="not on this machine"):
        _ = StoragePath("memory://x").path


def test_a_url_is_joined_with_slashes_and_keeps_its_scheme():
    assert StoragePath("gs://bucket/run/").join("a", "b").url == "gs://bucket/run/a/b"
    assert StoragePath("memory://").join("a").url == "memory://a"
    assert StoragePath("run").join("a").url == os.path.join("run", "a")


def test_a_local_write_is_atomic(tmp_path, monkeypatch):
    place = StoragePath(str(tmp_path)).join("file")
    place.write_bytes(b"old")

    def broken(source, target):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(StageError, match="Input/output error"):
        place.write_bytes(b"new")
    assert place.read_bytes() == b"old"
    assert StoragePath(str(tmp_path)).list_files() == ["file"]


@pytest.mark.parametrize(("url", "package", "extra"), [("gs://b/x", "gcsfs", "gcs"), ("s3://b/x", "s3fs", "s3")])
def test_a_missing_package_names_the_extra(url, package, extra):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed here")
    with pytest.raises(UsageError, match=rf"Run: pip install 'eyas\[{extra}\]'"):
        StoragePath(url).exists()


def test_an_unknown_protocol_is_refused():
    with pytest.raises(UsageError, match=r"nosuch://x.*Use a local path, memory://, gs:// or s3://"):
        StoragePath("nosuch://x").exists()


def test_an_archive_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        StoragePath(f"zip://q.jsonl::{tmp_path}/none.zip").exists()
