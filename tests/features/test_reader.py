import json
from pathlib import Path

import pytest
import torch
from tests.features.small import contents, info_of, mask, random_row, stored_row

from eyas.base.errors import InputError
from eyas.base.provenance import digest_file
from eyas.base.storage import StoragePath
from eyas.features import store
from eyas.features.capture import CaptureConfig, run
from eyas.features.quantize import StoredDtype
from eyas.features.reader import Features
from eyas.features.shard import ShardReader
from eyas.features.store import Manifest, find_finished_shard, publish_shard, read_manifest, remove_rows
from eyas.model.target import Target


@pytest.mark.parametrize("column", ["ids_N", "aux_AL", "aux_scales_AP", "hidden_MD", "hidden_scales_M1"])
def test_a_damaged_row_is_named_with_both_checksums(
    column: str, target: Target, conversations: Path, tmp_path: Path
) -> None:
    run(CaptureConfig(), conversations, target, tmp_path, progress=False)
    path = tmp_path / "shard-00000.safetensors"
    whole = path.read_bytes()
    header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    last = 8 + int.from_bytes(whole[:8], "little") + header[column]["data_offsets"][1] - 1
    path.write_bytes(whole[:last] + bytes([whole[last] ^ 1]) + whole[last + 1 :])
    features = Features(tmp_path)
    next(features.rows([0]))
    index = len(features.manifest.rows) - 1
    found = (
        rf"shard-00000\.safetensors is damaged: row {features.manifest.rows[index].id} has checksum \w+ instead of \w+"
    )
    with pytest.raises(InputError, match=found):
        next(features.rows([index]))
    if column == "ids_N":
        with pytest.raises(InputError, match=found):
            features.generated_counts([0, index])
    # What the message advises is enough.
    for name in ("shard-00000.safetensors", "shard-00000.json", "provenance.json"):
        (tmp_path / name).unlink()
    run(CaptureConfig(), conversations, target, tmp_path, progress=False)
    assert path.read_bytes() == whole
    next(Features(tmp_path).rows([index]))


@pytest.mark.parametrize("left", [0, 5, 100, -1])
def test_a_shard_that_is_cut_off_or_missing_is_named(
    left: int, target: Target, conversations: Path, tmp_path: Path
) -> None:
    run(CaptureConfig(), conversations, target, tmp_path, progress=False)
    path = tmp_path / "shard-00000.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(InputError, match=r"shard-00000.*ends within bytes"):
        list(Features(tmp_path).rows(range(12)))
    path.unlink()
    with pytest.raises(InputError, match=r"No file .*shard-00000"):
        next(Features(tmp_path).rows([0]))


def test_a_shard_of_another_run_is_refused(target: Target, conversations: Path, tmp_path: Path) -> None:
    for name, cut in (("ours", 40), ("others", 41)):
        run(CaptureConfig(max_length=cut), conversations, target, tmp_path / name, progress=False)
    others = (tmp_path / "others" / "shard-00000.safetensors").read_bytes()
    (tmp_path / "ours" / "shard-00000.safetensors").write_bytes(others)
    with pytest.raises(InputError, match=r"is damaged: row .* has checksum"):
        list(Features(tmp_path / "ours").rows(range(12)))


def test_unfinished_features_and_those_of_another_target_are_refused(
    target: Target, conversations: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="Run `eyas capture` first"):
        Features(tmp_path)
    run(CaptureConfig(), conversations, target, tmp_path, progress=False)
    with pytest.raises(InputError, match=f"digest {target.digest}, but this target has digest sha256:0"):
        Features(tmp_path).check_target("sha256:0")


def test_features_of_an_older_schema_are_refused_and_captured_again(
    target: Target, conversations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SCHEMA", 1)
    run(CaptureConfig(), conversations, target, tmp_path, progress=False)
    monkeypatch.undo()
    found = r"manifest\.json has schema 1, and this version of eyas reads schema 3\. Run `eyas capture` again"
    with pytest.raises(InputError, match=found):
        Features(tmp_path)
    # What the message advises is enough, although the old features are finished.
    run(CaptureConfig(), conversations, target, tmp_path, progress=False)
    assert Features(tmp_path).manifest.schema == 3


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_what_is_left_of_a_shard_keeps_its_codes(
    dtype: StoredDtype, target: Target, conversations: Path, tmp_path: Path
) -> None:
    run(CaptureConfig(dtype=dtype, shard_bytes=30_000), conversations, target, tmp_path, progress=False)
    place = StoragePath.of(tmp_path)
    manifest = read_manifest(place)
    assert len(manifest.shards) > 2

    def codes(manifest: Manifest) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {}
        for row in manifest.rows:
            stored = ShardReader(place.join(manifest.shards[row.shard].name)).read_row(row)
            tensors = (stored.ids_T, stored.loss_mask_T, *stored.aux, *stored.hidden)
            found[row.id] = [tensor.view(torch.uint8).numpy().tobytes() for tensor in tensors]
        return found

    before = codes(manifest)
    whole = {row.id for row in manifest.rows if row.shard == 1}
    first = next(row.id for row in manifest.rows if row.shard == 0)
    left = remove_rows(place, remove_rows(place, manifest, 1, whole), 0, {first})
    assert codes(left) == {name: kept for name, kept in before.items() if name not in whole | {first}}
    assert len(left.shards) == len(manifest.shards) - 1
    for shard in left.shards:
        assert digest_file(place.join(shard.name)) == shard.digest


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
    random_rows = [random_row(picture, 4, 9) for picture in ("..xxx", ".x.x")]
    rows, infos = [stored_row(row, "fp8") for row in random_rows], [info_of(row) for row in random_rows]
    one, two = StoragePath.of(tmp_path / "one"), StoragePath.of(tmp_path / "two")
    note = publish_shard(one, 3, infos, rows, "plan")
    assert note == publish_shard(two, 3, infos, rows, "plan") == find_finished_shard(one, 3, "plan")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert find_finished_shard(one, 3, "another plan") is None
    assert find_finished_shard(one, 4, "plan") is None
    assert torch.equal(rows[1].loss_mask_T, mask(".x.x"))
    # A shard of another plan makes room.
    other = publish_shard(one, 3, infos[:1], rows[:1], "another plan")
    assert other == find_finished_shard(one, 3, "another plan") != note
