import dataclasses
import errno
import hashlib
import json
import os
import subprocess
import sys
import time

import pytest

from eyas.base.errors import InputError, StorageError
from eyas.base.provenance import (
    StageInputs,
    describe_command,
    digest_bytes,
    digest_directory,
    digest_file,
    digest_json,
    finish_stage,
    is_finished,
    mark_unfinished,
    read_provenance,
    remove_temp_files,
    require_finished,
    verify_contents,
)
from eyas.base.storage import convert_write_errors, write_atomic, write_json_atomic

ORIGIN = StageInputs("capture", digest_json({"steps": 7}), {"target": "sha256:aa"}, undigested=("log.jsonl",))
# The published digest of "abc" (FIPS 180-2, appendix B.1).
ABC = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture
def stage(tmp_path):
    """An unfinished stage directory with two content files and one that carries times."""
    directory = tmp_path / "features"
    write_atomic(directory / "shard-0.bin", b"\x00\x01\x02")
    write_json_atomic(directory / "sub" / "manifest.json", {"rows": 3})
    write_atomic(directory / "log.jsonl", '{"seconds": 1.5}\n')
    return directory


def names(directory):
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def test_digests_are_those_of_the_standard(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    assert digest_bytes(b"abc") == digest_file(tmp_path / "abc") == ABC


def test_digest_json_sees_values_and_not_spelling():
    assert digest_json({"b": [1, 2], "a": "é"}) == digest_json(json.loads('{"a":"\\u00e9",  "b":[1,2]}'))
    assert digest_json({"a": 1}) != digest_json({"a": 2})
    assert digest_json([1, 2]) != digest_json([2, 1])
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest_json(float("nan"))


def test_digest_tree_sees_names_and_contents_only(stage, tmp_path):
    before = digest_directory(stage)
    other = tmp_path / "elsewhere"
    # The other order of writing, other times: the same tree.
    for name in reversed(names(stage)):
        write_atomic(other / name, (stage / name).read_bytes())
        os.utime(other / name, (0, 0))
    assert digest_directory(other) == before
    (other / "shard-0.bin").rename(other / "shard-1.bin")
    assert digest_directory(other) != before
    (other / "shard-1.bin").rename(other / "shard-0.bin")
    (other / "shard-0.bin").write_bytes(b"\x00\x01\x03")
    assert digest_directory(other) != before
    assert digest_directory(stage, exclude=("log.jsonl",)) != before


def test_write_atomic_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "new" / "file"
    write_atomic(path, "old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["new/file"]
    # As open() would make it: readable by whom the umask lets, unlike a mkstemp file.
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_kill_in_the_middle_of_a_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, "old")
    code = (
        "import os, pathlib, signal, sys\n"
        "from eyas.base import storage\n"
        "os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)\n"  # the new bytes are written, not yet in place
        "storage.write_atomic(pathlib.Path(sys.argv[1]), 'new' * 10000)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    assert path.read_text() == "old"
    assert len(names(tmp_path)) == 2, "the kill came before anything was written: the test shows nothing"
    assert digest_directory(tmp_path) == digest_json({"file": digest_bytes(b"old")})
    remove_temp_files(tmp_path)
    assert names(tmp_path) == ["file"]


@pytest.fixture
def tiny_disk(tmp_path):
    """A real disk of 64 KiB where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a file system; the simulated full disk below still runs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_leaves_the_old_file(tiny_disk):
    path = tiny_disk / "file"
    write_atomic(path, "old")
    with pytest.raises(StorageError, match=r"No space left on the disk while writing .*file\. Free space"):
        write_atomic(path, b"x" * 1_000_000)
    assert path.read_text() == "old"
    assert names(tiny_disk) == ["file"]
    write_atomic(path, b"x" * 10_000)  # the space of the failed write is free again


def test_a_disk_that_is_full_at_the_last_moment_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomic(path, "old")

    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_other_faults_of_a_write_name_the_file(tmp_path):
    (tmp_path / "directory").mkdir()
    with pytest.raises(StorageError, match=r"directory cannot be written \(Is a directory\)"):
        write_atomic(tmp_path / "directory", "x")
    assert names(tmp_path) == []
    with (
        pytest.raises(StorageError, match="No space left"),
        convert_write_errors(tmp_path / "log"),
        open("/dev/full", "w") as file,
    ):
        file.write("x")


def test_finish_writes_every_key_of_the_design(stage, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["eyas", "capture", "my recipe.toml"])
    written = finish_stage(stage, ORIGIN, started_s=time.time() - 2)
    keys = json.loads((stage / "provenance.json").read_text())
    design = {"stage", "digest", "parents", "tokenizer", "template", "recipe", "versions", "command", "started"}
    assert design | {"seconds"} <= set(keys)
    assert keys["command"] == "eyas capture 'my recipe.toml'"
    assert 2 <= keys["seconds"] < 60
    assert keys["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert keys["digest"] == digest_directory(stage, exclude=("log.jsonl",))
    assert read_provenance(stage) == written


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["/home/me/.venv/bin/eyas", "run", "recipes/tiny.toml"], "eyas run recipes/tiny.toml"),
        (["/opt/eyas/__main__.py", "run", "/home/me/a.toml", "--out=/data/b/"], "eyas run a.toml --out=b/"),
        (
            ["eyas", "target.model=/models/own", "respond.url=http://h:1/v1"],
            "eyas target.model=own respond.url=http://h:1/v1",
        ),
        (
            ["eyas", "deploy.storage=gs://b/c", "a=['/x/y', \"/z\"]"],
            """eyas deploy.storage=gs://b/c 'a=['"'"'y'"'"', "z"]'""",
        ),
    ],
)
def test_commands_name_no_directory_of_the_machine(words, text):
    assert describe_command(words) == text


def test_the_digest_of_a_stage_ignores_times_and_commands(stage, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["a"])
    first = finish_stage(stage, ORIGIN, started_s=0.0)
    write_atomic(stage / "log.jsonl", '{"seconds": 99}\n')
    monkeypatch.setattr(sys, "argv", ["b"])
    second = finish_stage(stage, ORIGIN, started_s=1e9)
    assert first.started != second.started
    assert first.digest == second.digest
    # By hand: the digest of the sorted names and sha256 sums.
    sums = {name: f"sha256:{hashlib.sha256((stage / name).read_bytes()).hexdigest()}" for name in second.files}
    assert sorted(sums) == ["shard-0.bin", "sub/manifest.json"]
    text = json.dumps(dict(sorted(sums.items())), separators=(",", ":"))
    assert second.digest == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def test_finish_sweeps_what_a_kill_left(stage):
    (stage / ".shard-0.bin.0123456789ab.eyas-tmp").write_bytes(b"half")
    finish_stage(stage, ORIGIN, started_s=0.0)
    assert names(stage) == ["log.jsonl", "provenance.json", "shard-0.bin", "sub/manifest.json"]


def test_a_stage_is_finished_for_its_own_origin_only(stage):
    assert not is_finished(stage, ORIGIN)
    finish_stage(stage, ORIGIN, started_s=0.0)
    assert is_finished(stage, ORIGIN)
    assert not is_finished(stage, dataclasses.replace(ORIGIN, parents={"target": "sha256:bb"}))
    assert not is_finished(stage, dataclasses.replace(ORIGIN, recipe=digest_json({"steps": 8})))
    assert not is_finished(stage, dataclasses.replace(ORIGIN, template="sha256:cc"))
    (stage / "provenance.json").write_text("{")
    assert not is_finished(stage, ORIGIN)


def test_require_names_what_to_run(stage, tmp_path):
    with pytest.raises(InputError, match=r"No directory .*\. Run `eyas capture` first\."):
        require_finished(tmp_path / "none", "capture")
    with pytest.raises(InputError, match=r"is unfinished.*Run `eyas capture` first"):
        require_finished(stage, "capture")
    finish_stage(stage, ORIGIN, started_s=0.0)
    assert require_finished(stage, "capture").stage == "capture"
    with pytest.raises(InputError, match=r"was written by stage capture, not train"):
        require_finished(stage, "train")


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"stage": "capture"}', "\ufffd{"])
def test_a_damaged_provenance_is_an_input_error(stage, text):
    (stage / "provenance.json").write_text(text)
    with pytest.raises(InputError, match=r"provenance\.json is damaged"):
        read_provenance(stage)


def test_damage_names_the_file_and_both_digests(stage):
    written = finish_stage(stage, ORIGIN, started_s=0.0)
    assert verify_contents(stage) == written
    good, bad = written.files["shard-0.bin"], digest_bytes(b"\x00\x01\x03")
    (stage / "shard-0.bin").write_bytes(b"\x00\x01\x03")
    with pytest.raises(InputError, match=rf"shard-0\.bin has digest {bad}, but {good} is recorded"):
        verify_contents(stage)
    (stage / "shard-0.bin").unlink()
    with pytest.raises(InputError, match=r"shard-0\.bin has digest none \(no such file\)"):
        verify_contents(stage)


def test_a_foreign_file_and_an_edited_provenance_are_found(stage):
    written = finish_stage(stage, ORIGIN, started_s=0.0)
    (stage / "stray.jsonl").write_text("{}")
    with pytest.raises(InputError, match=r"stray\.jsonl has digest .*, but none \(no such file\) is recorded"):
        verify_contents(stage)
    (stage / "stray.jsonl").unlink()
    edited = json.loads((stage / "provenance.json").read_text()) | {"digest": ABC}
    write_json_atomic(stage / "provenance.json", edited)
    with pytest.raises(InputError, match=rf"records digest {ABC}, but its files have {written.digest}"):
        verify_contents(stage)


def test_a_reopened_directory_is_unfinished(tmp_path):
    origin = StageInputs("prompts", "sha256:r", {})
    write_atomic(tmp_path / "prompts.jsonl", "{}\n")
    finish_stage(tmp_path, origin, 0.0)
    (tmp_path / ".beside.0.eyas-tmp").write_text("of a machine that shares the stage")
    mark_unfinished(tmp_path)
    assert names(tmp_path) == [".beside.0.eyas-tmp", "prompts.jsonl"]
    assert not is_finished(tmp_path, origin)
    mark_unfinished(tmp_path / "nothing")  # no directory: nothing to reopen, and none is made
    assert not (tmp_path / "nothing").exists()
