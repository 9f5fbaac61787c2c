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

RECIPE = str(Path(__file__).parents[2] / "recipes" / "tiny.toml")
SMALL = [
    "prompts.limit=8",
    "respond.max_tokens=24",
    "capture.shard_bytes=60000",
    "capture.held_out=0.2",
    "train.steps=2",
    "train.updates=2",
]


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose prompts are answered."""
    out = tmp_path_factory.mktemp("answered") / "run"
    for verb in ("prompts", "respond"):
        assert main([verb, RECIPE, *SMALL, "--out", str(out)]) == 0
    return out


def test_the_same_head_from_features_at_any_url(
    answered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
            settings = [*SMALL, *([] if url is None else [f"features.url={url}"]), "--out", str(out)]
            for verb in ("capture", "train"):
                assert main([verb, RECIPE, *settings]) == 0
            assert (out / "features").exists() == (url is None)
            place = StoragePath.of(out / "features" if url is None else url)
            assert len([file for file in place.list_files() if file.endswith(".safetensors")]) > 2
            heads[kind] = (out / "head" / "model.safetensors").read_bytes()
            assert read_provenance(out / "head").parents["features"] == read_provenance(place).digest
    assert len(set(heads.values())) == 1


def test_the_doctor_and_forgetting_know_where_features_lie(
    answered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, url = tmp_path / "run", f"memory://{uuid.uuid4().hex}/features"
    shutil.copytree(answered, out)
    settings = [RECIPE, *SMALL, f"features.url={url}", "--out", str(out)]
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
    assert len(list(features.rows(range(len(features.manifest.rows))))) == 7
    assert main(["train", *settings]) == 0
