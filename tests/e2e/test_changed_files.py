"""Heads and targets whose files are not those that provenance.json or config.json of the head records."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.doubles.gcs import FakeGcs
from tests.doubles.stores import gcs

from eyas.base.provenance import StageInputs, finish_stage
from eyas.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def pair(finished: Path, target: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the trained head and of its target, with the same names."""
    head = shutil.copytree(finished / "head", tmp_path / "run" / "head")
    return Path(head), Path(shutil.copytree(target, tmp_path / target.name))


def flip_byte(path: Path) -> None:
    """Changes the lowest bit of the byte in the middle of a file: of a weight, in a safetensors file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def run_pair(verb: str, head: object, target: object, words: Sequence[str], capsys: Capture) -> tuple[int, str]:
    code = main([verb, "--target", str(target), "--head", str(head), *words])
    return code, capsys.readouterr().err


def generate(head: object, target: object, capsys: Capture) -> tuple[int, str]:
    return run_pair("generate", head, target, ["--max-tokens", "2", "hello"], capsys)


def serve(head: object, target: object, capsys: Capture) -> tuple[int, str]:
    """For pairs that are refused: another one would be served for ever."""
    return run_pair("serve", head, target, ["--port", "0", "--no-compile"], capsys)


def bench(head: object, target: object, capsys: Capture) -> tuple[int, str]:
    return run_pair("bench", head, target, ["--prompts", "builtin:eval"], capsys)


def test_unchanged_files(pair, capsys):
    head, target = pair
    code, err = generate(head, target, capsys)
    assert code == 0
    assert "its files are those that `eyas train` wrote at 20" in err


def test_a_changed_byte_of_a_head(pair, capsys):
    head, target = pair
    flip_byte(head / "model.safetensors")
    for verb in (generate, serve, bench):
        code, err = verb(head, target, capsys)
        assert code == 2
        assert f"{head / 'model.safetensors'} has digest sha256:" in err


def test_a_head_without_a_record(pair, capsys):
    head, target = pair
    (head / "provenance.json").unlink()
    flip_byte(head / "model.safetensors")
    code, err = generate(head, target, capsys)
    assert code == 0
    assert "no provenance.json records its files" in err


def test_a_changed_byte_of_an_exported_head(pair, capsys):
    """export/provenance.json records the files of export/sglang."""
    head, target = pair
    record = json.loads((head / "provenance.json").read_bytes())
    export = head.parent / "export"
    shutil.copytree(head, export / "sglang", ignore=shutil.ignore_patterns("provenance.json"))
    record["files"] = {f"sglang/{name}": digest for name, digest in record["files"].items()}
    (export / "provenance.json").write_text(json.dumps(record))
    assert generate(export / "sglang", target, capsys)[0] == 0
    flip_byte(export / "sglang" / "model.safetensors")
    code, err = generate(export / "sglang", target, capsys)
    assert code == 2
    assert "sglang/model.safetensors has digest" in err


def test_a_changed_target(pair, tmp_path, capsys):
    head, target = pair
    flip_byte(next(target.glob("*.safetensors")))
    for verb in (generate, serve, bench):
        code, err = verb(head, target, capsys)
        assert code == 2
        assert "The head was trained for a target with digest sha256:" in err
        assert "give a changed target another directory name" in err
    tuned = target.rename(tmp_path / "tuned")  # a changed target under another name: a warning
    code, err = generate(head, tuned, capsys)
    assert code == 0
    assert "warning: The head was trained for a target with digest" in err


def test_an_equal_target_of_another_name(pair, tmp_path, capsys):
    head, target = pair
    code, err = generate(head, target.rename(tmp_path / "copy"), capsys)
    assert code == 0
    assert "warning" not in err


@pytest.mark.parametrize(
    ("file", "kind"), [("tokenizer_config.json", "tokenizer"), ("chat_template.jinja", "chat template")]
)
def test_a_changed_text_file_of_a_target(pair, file, kind, tmp_path, capsys):
    head, target = pair
    (target / file).write_text((target / file).read_text() + ("{# changed #}" if kind == "chat template" else "\n"))
    code, err = generate(head, target, capsys)
    assert code == 2
    assert f"The head was trained for a {kind} with digest sha256:" in err
    code, err = generate(head, target.rename(tmp_path / "tuned"), capsys)
    assert code == 0
    assert f"warning: The head was trained for a {kind} with digest" in err


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "chat_template.jinja"])
def test_a_target_with_a_record_and_no_head(target, file, tmp_path, capsys):
    """A provenance.json beside a target is compared without a head, too."""
    copy = Path(shutil.copytree(target, tmp_path / "copy"))
    finish_stage(copy, StageInputs("publish", "none", {}), 0.0)
    words = ["--target", str(copy), "--no-head"]
    assert main(["generate", *words, "--max-tokens", "2", "hello"]) == 0
    assert "its files are those that `eyas publish` wrote at 1970" in capsys.readouterr().err
    if file == "model.safetensors":
        flip_byte(copy / file)
    else:
        (copy / file).write_bytes((copy / file).read_bytes() + b" ")
    for command in (["generate", *words, "hello"], ["serve", *words, "--port", "0", "--no-compile"]):
        assert main(command) == 2
        assert f"{copy / file} has digest sha256:" in capsys.readouterr().err


def test_a_target_without_a_record_and_no_head(target, capsys):
    assert main(["generate", "--target", str(target), "--no-head", "--max-tokens", "2", "hello"]) == 0
    assert "no provenance.json records its files" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tiny", "target"])
def test_a_changed_target_at_a_url(pair, name, tmp_path, monkeypatch, capsys):
    """The name is that of the URL, not that of the download; `target` is the name of an uploaded target."""
    head, target = pair
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with gcs(monkeypatch) as store:
        upload(store, head, "bucket/model/head")
        upload(store, target, f"bucket/model/{name}")
        head_url, target_url = "gs://bucket/model/head", f"gs://bucket/model/{name}"
        code, err = generate(head_url, target_url, capsys)
        assert code == 0
        assert f"eyas: target {target_url} (sha256:" in err
        flip_byte(next(target.glob("*.safetensors")))
        upload(store, target, f"bucket/model/{name}")
        for verb in (generate, serve, bench):
            code, err = verb(head_url, target_url, capsys)
            assert code == 2
            assert f"but target {target_url} has sha256:" in err
        monkeypatch.setenv("AIP_STORAGE_URI", "gs://bucket/model")
        if name == "target":
            assert main(["serve", "--port", "0", "--no-compile"]) == 2
            assert f"but target {target_url} has sha256:" in capsys.readouterr().err


def upload(store: FakeGcs, directory: Path, prefix: str) -> None:
    for path in directory.iterdir():
        store.create(f"{prefix}/{path.name}", path.read_bytes(), only_new=False)


def test_limits_that_the_target_cannot_hold(target, capsys):
    words = ["serve", "--port", "0", "--target", str(target), "--no-head", "--no-compile"]
    assert main([*words, "--context", "100000"]) == 2
    assert "--context 100000 exceeds the target's limit of " in capsys.readouterr().err
    assert main([*words, "--context", "200", "--memory-tokens", "100"]) == 2
    assert "--memory-tokens 100 is less than one request of 200 tokens" in capsys.readouterr().err
