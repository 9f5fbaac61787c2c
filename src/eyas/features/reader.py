"""Reading features: rows of a split. In which order training sees them is told in order.py."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from eyas.base.errors import InputError
from eyas.base.provenance import require
from eyas.features.layout import Row, Split
from eyas.features.store import Manifest, RowInfo, ShardFile, check_shard, read_manifest


class Features:
    """A finished features directory. Shards are opened, and compared with their digests, when first read."""

    def __init__(self, directory: Path, dtype: torch.dtype = torch.float32) -> None:
        """dtype: of the rows' features, whatever they are stored in. `InputError` if unfinished or damaged."""
        self.directory = directory
        self.dtype = dtype
        self.digest = require(directory, "capture").digest
        self.manifest: Manifest = read_manifest(directory)
        self._shards: dict[int, ShardFile] = {}

    def indices(self, split: Split) -> list[int]:
        """Rows of the split, as indices into manifest.rows, in the order they were captured."""
        return [i for i, row in enumerate(self.manifest.rows) if row.split == split]

    def row(self, index: int) -> Row:
        """`InputError` if its shard is damaged."""
        info = self.manifest.rows[index]
        return self._shard(info).row(info, self.dtype)

    def rows(self, indices: Sequence[int]) -> Iterator[Row]:
        return (self.row(index) for index in indices)

    def texts(self, indices: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """ids_T and loss_mask_T of these rows, without reading their features."""
        infos = (self.manifest.rows[index] for index in indices)
        return (self._shard(info).ids(info) for info in infos)

    def generated_counts(self, indices: Sequence[int]) -> Tensor:
        """int64 [W]: how often each target token was generated in these rows."""
        counts_W = torch.zeros(self.manifest.vocab_size, dtype=torch.int64)
        for ids_T, loss_mask_T in self.texts(indices):
            counts_W += torch.bincount(ids_T[loss_mask_T], minlength=counts_W.shape[0])
        return counts_W

    def check_target(self, target_digest: str) -> None:
        """`InputError` naming both digests if the features are those of another target."""
        if target_digest != self.manifest.target_digest:
            raise InputError(
                f"features in {self.directory} of a target with digest {self.manifest.target_digest}",
                f"features of this target, digest {target_digest}",
                "capture again with this target, or name the target that they were captured from",
            )

    def _shard(self, info: RowInfo) -> ShardFile:
        if info.shard not in self._shards:
            shard = self.manifest.shards[info.shard]
            check_shard(self.directory, shard)
            self._shards[info.shard] = ShardFile(self.directory / shard.name)
        return self._shards[info.shard]
