"""The same head wherever its features lie: a path, file://, memory://, S3 and GCS (their doubles on this machine)."""

import shutil
import uuid
from pathlib import Path

import pytest
from tests.doubles.stores import gcs, s3

from eyas.base.provenance import read_provenance
from eyas.base.storage import StoragePath
from eyas.chat.conversation import read_conversations
from eyas.cli import main
from eyas.features.reader import Features


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory, finished: Path) -> Path:
    """A run whose prompts are answered, and that has no features yet."""
    out = tmp_path_factory.mktemp("answered") / "run"
    for name in ("prompts", "conversations"):
        shutil.copytree(finished / name, out / name)
    return out


def test_the_same_head_from_features_at_any_url(
    answered: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: dict[str, bytes] = {}
    with gcs(monkeypatch), s3(monkeypatch) as bucket:
        name = uuid.uuid4().hex
        urls = {
            "path": None,
            "file": f"file://{tmp_path}/elsewhere",
            "memory": f"memory://{name}",
            "s3": f"{bucket}/{name}",
            "gs": f"gs://bucket/{name}",
        }
        for kind, url in urls.items():
            out = tmp_path / kind
            shutil.copytree(answered, out)
            settings = [*([] if url is None else [f"features.url={url}"]), "--out", str(out)]
            for verb in ("capture", "train"):
                assert main([verb, str(recipe), *settings]) == 0
            assert (out / "features").exists() == (url is None)
            place = StoragePath.of(out / "features" if url is None else url)
            assert len([file for file in place.list_files() if file.endswith(".safetensors")]) > 2
            heads[kind] = (out / "head" / "model.safetensors").read_bytes()
            assert read_provenance(out / "head").parents["features"] == read_provenance(place).digest
    assert len(set(heads.values())) == 1


def test_the_doctor_and_forgetting_know_where_features_lie(
    answered: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, url = tmp_path / "run", f"memory://{uuid.uuid4().hex}/features"
    shutil.copytree(answered, out)
    settings = [str(recipe), f"features.url={url}", "--out", str(out)]
    for verb in ("capture", "train", "eval"):
        assert main([verb, *settings]) == 0
    capsys.readouterr()
    main(["doctor", str(out)])
    said = capsys.readouterr()
    assert f"shards at {url} have their recorded size" in said.out + said.err
    place = StoragePath(url)
    shard = next(name for name in place.list_files() if name.endswith("00001.safetensors"))
    whole = place.join(shard).read_bytes()
    place.join(shard).write_bytes(whole[:-1])
    assert main(["doctor", str(out)]) != 0
    said = capsys.readouterr()
    assert f"{url}/{shard} has {len(whole) - 1:,} bytes" in said.out + said.err
    place.join(shard).write_bytes(whole)
    gone = next(read_conversations(min((out / "conversations").glob("*.jsonl")))).id
    assert main(["prompts", *settings, "--forget", gone]) == 0
    features = Features(place)
    assert gone not in {row.id for row in features.manifest.rows}
    assert len(list(features.rows(range(len(features.manifest.rows))))) == 23
    assert main(["train", *settings]) == 0
