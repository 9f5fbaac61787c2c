"""Features made when they are read: the numbers that would have been stored."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.features.small import contents
from tests.features.test_capture import CONFIG

from eyas.features.capture import run
from eyas.features.quantize import StoredDtype
from eyas.features.reader import Features
from eyas.model.target import Target


@pytest.mark.parametrize("dtype", ["float32", "fp8"])
def test_the_same_rows_as_stored_ones(dtype: StoredDtype, target: Target, conversations: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, dtype=dtype)
    run(config, conversations, target, tmp_path / "stored", progress=False)
    run(replace(config, online=True), conversations, target, tmp_path / "online", progress=False)
    stored = Features(tmp_path / "stored")
    online = Features(tmp_path / "online", target=target)
    assert sum(shard.num_bytes for shard in online.manifest.shards) < 5 * 12 * 100 + 1000
    assert [(row.id, row.split, row.num_supervised) for row in online.manifest.rows] == [
        (row.id, row.split, row.num_supervised) for row in stored.manifest.rows
    ]
    indices = torch.randperm(12).tolist()
    for mine, other in zip(online.rows(indices), stored.rows(indices), strict=True):
        assert mine.id == other.id
        assert torch.equal(mine.ids_T, other.ids_T)
        # What rounding in another batch changes may tip a code: one in hundreds, by one step of it.
        for a, b in ((mine.aux_TL, other.aux_TL), (mine.hidden_UD, other.hidden_UD)):
            close = torch.isclose(a, b, rtol=1e-5, atol=1e-5)
            assert close.float().mean() > (0.99 if dtype == "fp8" else 0.999999)
            torch.testing.assert_close(a, b, rtol=0.13, atol=1e-2)
    assert torch.equal(online.generated_counts(indices), stored.generated_counts(indices))
    torch.testing.assert_close(next(online.rows([3])).aux_TL, next(iter(online.rows([3]))).aux_TL)


def test_a_run_that_stores_nothing_is_the_same_bytes_again(target: Target, conversations: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(replace(CONFIG, online=True), conversations, target, tmp_path / name, progress=False)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    with pytest.raises(AssertionError, match="computed when they are read"):
        next(Features(tmp_path / "a").rows([0]))
