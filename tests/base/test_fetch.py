"""What is fetched is what the store has, whole, once; and again after somebody else has uploaded."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.doubles.gcs import Fault
from tests.doubles.stores import gcs

from eyas.base import fetch as module
from eyas.base.errors import InputError
from eyas.base.fetch import fetch
from eyas.base.storage import StoragePath


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(module, "PART_BYTES", 1000)
    with gcs(monkeypatch) as running:
        yield running


def upload(url: str, **files: bytes) -> None:
    for name, data in files.items():
        StoragePath(url).join(*name.split("__")).write_bytes(data)


def test_every_byte_of_every_file_and_nothing_twice(store, tmp_path):
    data = bytes(range(256)) * 100  # many parts, more than are read at once
    upload("gs://bucket/run/target", model=data, sub__config=b"{}", empty=b"")
    upload("gs://bucket/run/target2", model=b"a neighbour's")
    directory = fetch("gs://bucket/run/target", tmp_path, progress=False)
    assert {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()} == {
        "model", "sub/config", "empty"
    }  # fmt: skip
    assert (directory / "model").read_bytes() == data
    store.requests.clear()
    assert fetch("gs://bucket/run/target", tmp_path, progress=False) == directory
    assert not [path for _, path in store.requests if "alt=media" in path], "it was read again"


def test_another_upload_is_fetched_anew(store, tmp_path):
    upload("gs://bucket/head", model=b"first")
    first = fetch("gs://bucket/head", tmp_path, progress=False)
    upload("gs://bucket/head", model=b"other")
    second = fetch("gs://bucket/head", tmp_path, progress=False)
    assert (first / "model").read_bytes() == b"first"
    assert (second / "model").read_bytes() == b"other"


@pytest.mark.parametrize("kind", ["crc32c", "md5Hash"])
def test_what_a_checksum_contradicts_is_refused_and_left_nowhere(store, tmp_path, monkeypatch, kind):
    upload("gs://bucket/head", model=b"as it was sent")
    resource = store.resource

    def wrong(name):
        told = {key: value for key, value in resource(name).items() if key not in ("crc32c", "md5Hash")}
        return {**told, kind: "AAAAAA=="}

    monkeypatch.setattr(store, "resource", wrong)
    with pytest.raises(InputError, match=f"The download of .* has {kind}"):
        fetch("gs://bucket/head", tmp_path, progress=False)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_connection_that_breaks_is_read_again(store, tmp_path):
    upload("gs://bucket/head", model=b"0123456789" * 150)
    store.faults.append(Fault("GET", "alt=media", 503))
    directory = fetch("gs://bucket/head", tmp_path, progress=False)
    assert (directory / "model").read_bytes() == b"0123456789" * 150


def test_nothing_there_and_a_name_that_leads_outside(store, tmp_path):
    with pytest.raises(InputError, match="No file below"):
        fetch("gs://bucket/none", tmp_path, progress=False)
    store.create("bucket/head/../../etc/passwd", b"x", only_new=False)
    with pytest.raises(InputError, match="whose name has a part"):
        fetch("gs://bucket/head", tmp_path, progress=False)


def test_the_program_needs_this_room_alone(tmp_path):
    """As the images of other engines have it: no torch, no package of eyas's but fsspec."""
    room = Path(module.__file__).parent
    for path in (room.parent / "__init__.py", *room.glob("*.py")):
        copy = tmp_path / "lib" / path.relative_to(room.parents[1])
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "config.json").write_bytes(b"{}")
    code = "import sys; sys.modules |= dict.fromkeys(('torch', 'transformers', 'numpy'), None); "
    code += (
        "import runpy; sys.argv = ['fetch', *sys.argv[1:]]; runpy.run_module('eyas.base.fetch', run_name='__main__')"
    )

    def run(url: str) -> subprocess.CompletedProcess[str]:
        environment = {"PYTHONPATH": str(tmp_path / "lib"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        return subprocess.run([sys.executable, "-c", code, url], env=environment, capture_output=True, text=True)

    done = run(f"file://{tmp_path}/head")
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "config.json").read_bytes() == b"{}"
    failed = run(f"file://{tmp_path}/none")
    assert failed.returncode == 2
    assert failed.stderr.startswith("eyas: error: No file below")
