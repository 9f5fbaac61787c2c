"""Features that lie elsewhere: the same bytes, whatever the store does in between."""

import dataclasses
import json
import time
import uuid
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from tests.doubles.gcs import FakeGcs, Fault
from tests.doubles.stores import gcs
from tests.e2e.processes import context
from tests.features.small import capture_rank, contents
from tests.features.test_capture import CONFIG

from eyas.base.errors import InputError, StageError, StorageError
from eyas.base.provenance import read_provenance
from eyas.base.storage import StoragePath
from eyas.features import capture
from eyas.features.capture import run
from eyas.features.reader import Features
from eyas.model.target import Target


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory, target: Target, conversations: Path) -> Path:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("captured") / "features"
    run(CONFIG, conversations, target, out, progress=False)
    return out


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    monkeypatch.setattr("random.random", lambda: -0.9)  # what gcsfs adds to the second that it waits for
    with gcs(monkeypatch) as fake:
        yield fake


def at(place: StoragePath) -> dict[str, bytes]:
    names = [name for name in place.list_files() if name != "provenance.json"]
    return {name: place.join(name).read_bytes() for name in names}


def uploads(store: FakeGcs) -> list[str]:
    return [path for method, path in store.requests if method == "POST"]


def test_a_shard_is_not_sent_twice(store: FakeGcs, captured: Path, target: Target, conversations: Path) -> None:
    place = StoragePath("gs://bucket/features")
    # The third shard cannot be sent: the run ends there, as one that was killed.
    fault = Fault("POST", "/upload/", 403, times=100, body=rb'features/shard-00002\.safetensors"')
    store.faults = [fault]
    with pytest.raises(StorageError, match=r"features/shard-00002.* cannot be written"):
        run(CONFIG, conversations, target, place, progress=False)
    with pytest.raises(InputError, match="Run `eyas capture` first"):
        Features(place)
    done = dict(store.objects)
    assert 4 <= len(done) <= 6, "two shards and their records, and those of a shard that was stored at the same time"
    assert not any("shard-00002" in name for name in done)
    fault.times = 0
    store.requests.clear()
    run(CONFIG, conversations, target, place, progress=False)
    assert at(place) == contents(captured)
    assert read_provenance(place).digest == read_provenance(captured).digest
    assert len(uploads(store)) == len(store.objects) - len(done)
    assert all(store.generations[name] == 1 for name in done)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("POST", "/upload/", 503),
        Fault("POST", "/upload/", 429),
        Fault("POST", "/upload/", "lost"),
        Fault("GET", "/o/", 503),
        Fault("GET", "shard-00001.safetensors.*alt=media", 429),
        Fault("GET", "shard-00001.safetensors.*alt=media", "half"),
        Fault("GET", "manifest.json.*alt=media", "half"),
    ],
    ids=lambda fault: f"{fault.method}-{fault.what}-{fault.path[:10]}",
)
def test_a_store_that_stumbles(
    fault: Fault, store: FakeGcs, captured: Path, target: Target, conversations: Path
) -> None:
    place = StoragePath("gs://bucket/features")
    store.faults = [fault]
    run(CONFIG, conversations, target, place, progress=False)
    here, there = Features(captured), Features(place)
    indices = range(len(here.manifest.rows))
    for mine, other in zip(here.rows(indices), there.rows(indices), strict=True):
        assert dataclasses.asdict(here.manifest) == dataclasses.asdict(there.manifest)
        assert (mine.id, mine.task) == (other.id, other.task)
        assert torch.equal(mine.ids_T, other.ids_T)
        assert torch.equal(mine.loss_mask_T, other.loss_mask_T)
        assert torch.equal(mine.aux_TL, other.aux_TL)
        assert torch.equal(mine.hidden_UD, other.hidden_UD)
    assert torch.equal(here.generated_counts(indices), there.generated_counts(indices))
    assert fault.times == 0, "the store never stumbled"
    assert at(place) == contents(captured)


def test_two_runs_at_one_place_do_not_mix(target: Target, conversations: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run ends while this one is at work: this one stops, and what the other wrote can be read."""
    place = StoragePath(f"memory://{uuid.uuid4().hex}/features")
    other = dataclasses.replace(CONFIG, dtype="bfloat16")
    shards_of_others = capture._wait_for_other_ranks

    def meanwhile(*arguments: object) -> object:
        monkeypatch.undo()
        run(other, conversations, target, place, progress=False)
        return shards_of_others(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(capture, "_wait_for_other_ranks", meanwhile)
    with pytest.raises(StageError, match=r"Another run has written .*manifest\.json"):
        run(CONFIG, conversations, target, place, progress=False)
    features = Features(place)
    assert features.manifest.dtype == "bfloat16"
    assert len(list(features.rows(range(12)))) == 12


def test_machines_share_the_shards(captured: Path, target: Target, conversations: Path, tmp_path: Path) -> None:
    """Those that are first wait for the one that is late; all make the same bytes as one alone."""
    out = tmp_path / "features"
    config = dataclasses.replace(CONFIG, world=3)

    def start(rank: int) -> BaseProcess:
        process = context().Process(
            target=capture_rank, args=(config, target.directory, conversations, out, rank), daemon=True
        )
        process.start()
        return process

    ranks = [start(2), start(0)]
    count = len(json.loads(contents(captured)["manifest.json"])["shards"])
    mine = {f"shard-{number:05}.json" for number in range(count) if number % 3 != 1}
    deadline = time.monotonic() + 60
    while {path.name for path in out.glob("shard-*.json")} != mine and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {path.name for path in out.glob("shard-*.json")} == mine
    assert [rank.exitcode for rank in ranks] == [None, None]
    ranks.append(start(1))
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0, 0]
    assert contents(out) == contents(captured)


def test_a_store_that_is_not_there(target: Target, conversations: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(StorageError, match=r"s3://nowhere/features/provenance\.json cannot be read"):
        run(CONFIG, conversations, target, StoragePath("s3://nowhere/features"), progress=False)
