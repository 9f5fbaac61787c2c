from pathlib import Path

import pytest
import torch
from tests.features.small import mask, random_row, stored_row

from eyas.base.errors import InputError
from eyas.features import capture, store
from eyas.features.capture import CaptureConfig, run
from eyas.features.quantise import StoredDtype
from eyas.features.reader import Features
from eyas.features.store import (
    Manifest,
    ShardFile,
    check_shard,
    finished_shard,
    read_manifest,
    without_rows,
    write_shard,
)
from eyas.model.target import Target


def test_a_damaged_shard_is_named_with_both_digests(target: Target, conversations: Path, tmp_path: Path) -> None:
    run(CaptureConfig(), conversations, target, tmp_path, progress=False)
    path = tmp_path / "shard-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-7] ^= 1
    path.write_bytes(data)
    features = Features(tmp_path)
    digest = features.manifest.shards[0].digest
    with pytest.raises(InputError, match=f"damaged shard .*shard-00000.* digest sha256:.*; expected digest {digest}"):
        features.row(0)
    # What the message advises is enough.
    path.unlink()
    (tmp_path / "provenance.json").unlink()
    run(CaptureConfig(), conversations, target, tmp_path, progress=False)
    assert Features(tmp_path).manifest.shards[0].digest == digest
    Features(tmp_path).row(0)


def test_unfinished_features_and_those_of_another_target_are_refused(
    target: Target, conversations: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="run `eyas capture` first"):
        Features(tmp_path)
    run(CaptureConfig(), conversations, target, tmp_path, progress=False)
    with pytest.raises(InputError, match=f"digest {target.digest}; expected .*digest sha256:0"):
        Features(tmp_path).check_target("sha256:0")


def test_features_of_an_older_schema_are_refused_and_captured_again(
    target: Target, conversations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in (store, capture):
        monkeypatch.setattr(room, "SCHEMA", 1)
    run(CaptureConfig(), conversations, target, tmp_path, progress=False)
    monkeypatch.undo()
    found = r"found .*manifest\.json of schema 1 .*; expected schema 2 .*; do run `eyas capture` again"
    with pytest.raises(InputError, match=found):
        Features(tmp_path)
    # What the message advises is enough, although the old features are finished.
    run(CaptureConfig(), conversations, target, tmp_path, progress=False)
    assert Features(tmp_path).manifest.schema == 2


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_what_is_left_of_a_shard_keeps_its_codes(
    dtype: StoredDtype, target: Target, conversations: Path, tmp_path: Path
) -> None:
    run(CaptureConfig(dtype=dtype, shard_bytes=30_000), conversations, target, tmp_path, progress=False)
    manifest = read_manifest(tmp_path)
    assert len(manifest.shards) > 2

    def codes(manifest: Manifest) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {}
        for row in manifest.rows:
            stored = ShardFile(tmp_path / manifest.shards[row.shard].name).stored(row)
            tensors = (stored.ids_T, stored.loss_mask_T, *stored.aux, *stored.hidden)
            found[row.id] = [tensor.view(torch.uint8).numpy().tobytes() for tensor in tensors]
        return found

    before = codes(manifest)
    whole = {row.id for row in manifest.rows if row.shard == 1}
    first = next(row.id for row in manifest.rows if row.shard == 0)
    left = without_rows(tmp_path, without_rows(tmp_path, manifest, 1, whole), 0, {first})
    assert codes(left) == {name: kept for name, kept in before.items() if name not in whole | {first}}
    assert len(left.shards) == len(manifest.shards) - 1
    for shard in left.shards:
        check_shard(tmp_path, shard)


def test_counts_are_of_generated_tokens_only(target: Target, conversations: Path, tmp_path: Path) -> None:
    run(CaptureConfig(), conversations, target, tmp_path, progress=False)
    features = Features(tmp_path)
    counts_W = features.generated_counts([0, 1])
    expected_W = torch.zeros_like(counts_W)
    for row in features.rows([0, 1]):
        for token, generated in zip(row.ids_T.tolist(), row.loss_mask_T.tolist(), strict=True):
            expected_W[token] += generated
    assert torch.equal(counts_W, expected_W)


def test_a_shard_is_the_same_bytes_and_knows_its_plan(tmp_path: Path) -> None:
    rows = [stored_row(random_row(picture, 4, 9), "fp8") for picture in ("..xxx", ".x.x")]
    digest = write_shard(tmp_path / "a", rows, "plan")
    assert digest == write_shard(tmp_path / "b", rows, "plan") == finished_shard(tmp_path / "a", "plan")
    assert finished_shard(tmp_path / "a", "another plan") is None
    assert finished_shard(tmp_path / "missing", "plan") is None
    assert torch.equal(rows[1].loss_mask_T, mask(".x.x"))
