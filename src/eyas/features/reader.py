"""Reading features: rows of a split, and the order in which training sees them.

The order is a pure function of (seed, epoch) and the manifest, so a resumed run continues with the very next batch:

    update   = rows until `batch_tokens` supervised tokens are together      one optimizer step
    micro    = its rows until `micro_tokens` tokens are together             one forward and backward, packed
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eyas.base.errors import InputError
from eyas.base.provenance import require
from eyas.features.layout import Row, Split
from eyas.features.store import Manifest, RowInfo, ShardFile, check_shard, read_manifest


@dataclass(frozen=True)
class Update:
    """One optimizer step: rows by index into the manifest, in micro-batches, and its supervised tokens."""

    micro_batches: tuple[tuple[int, ...], ...]
    num_supervised: int


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


def plan_epoch(
    rows: Sequence[RowInfo], indices: Sequence[int], order: tuple[int, int], batch_tokens: int, micro_tokens: int
) -> list[Update]:
    """The updates of one epoch over the rows that have anything to supervise; order = (seed, epoch).

    A row longer than micro_tokens is a micro-batch of its own. The last update may be smaller.
    """
    usable = [index for index in indices if rows[index].num_supervised > 0]
    shuffled = np.random.default_rng(order).permutation(len(usable))
    updates: list[Update] = []
    micro_batches: list[list[int]] = []
    tokens = count = 0
    for index in (usable[i] for i in shuffled):
        row = rows[index]
        if not micro_batches or tokens + row.length > micro_tokens:
            micro_batches.append([])
            tokens = 0
        micro_batches[-1].append(index)
        tokens += row.length
        count += row.num_supervised
        if count >= batch_tokens:
            updates.append(_update(micro_batches, count))
            micro_batches, tokens, count = [], 0, 0
    if micro_batches:
        updates.append(_update(micro_batches, count))
    return updates


def _update(micro_batches: list[list[int]], count: int) -> Update:
    return Update(tuple(tuple(micro) for micro in micro_batches), count)
