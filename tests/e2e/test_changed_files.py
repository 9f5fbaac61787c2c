"""Heads and targets whose files are not those that provenance.json or config.json of the head records."""

import json
import shutil
from pathlib import Path

import pytest

from eyas.cli import main


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


def generate(head: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    words = ["generate", "--target", str(target), "--head", str(head), "--max-tokens", "2", "hello"]
    code = main(words)
    return code, capsys.readouterr().err


def test_unchanged_files(pair, capsys):
    head, target = pair
    code, err = generate(head, target, capsys)
    assert code == 0
    assert "its files are those that `eyas train` wrote at 20" in err


def test_a_changed_byte_of_a_head(pair, capsys):
    head, target = pair
    flip_byte(head / "model.safetensors")
    code, err = generate(head, target, capsys)
    assert code == 2
    assert f"{head / 'model.safetensors'} has digest sha256:" in err
    assert main(["serve", "--port", "0", "--target", str(target), "--head", str(head), "--no-compile"]) == 2


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
    code, err = generate(head, target, capsys)
    assert code == 2
    assert "was trained for a target of the same name with digest sha256:" in err
    tuned = target.rename(tmp_path / "tuned")  # a changed target under another name: a warning
    code, err = generate(head, tuned, capsys)
    assert code == 0
    assert "warning: The head was trained for a target with digest" in err


def test_limits_that_the_target_cannot_hold(target, capsys):
    words = ["serve", "--port", "0", "--target", str(target), "--no-head", "--no-compile"]
    assert main([*words, "--context", "100000"]) == 2
    assert "--context 100000 exceeds the target's limit of " in capsys.readouterr().err
    assert main([*words, "--context", "200", "--memory-tokens", "100"]) == 2
    assert "--memory-tokens 100 is less than one request of 200 tokens" in capsys.readouterr().err
