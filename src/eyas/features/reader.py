"""Reading features: rows of a split, and the order in which training sees them.

The order is a pure function of (seed, epoch) and the manifest, so a resumed run continues with the very next batch:

    update   = rows until `batch_tokens` supervised tokens are together      one optimizer step
    micro    = its rows until `micro_tokens` tokens are together             one forward and backward, packed
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eyas.base.errors import InputError
from eyas.base.provenance import require
from eyas.base.storage import Place
from eyas.features.layout import Row, Split
from eyas.features.quantise import restore
from eyas.features.shard import Pair, RowInfo, ShardFile
from eyas.features.store import Manifest, read_manifest

READERS = 8  # rows that are on the way at once


@dataclass(frozen=True)
class Update:
    """One optimizer step: rows by index into the manifest, in micro-batches, and its supervised tokens."""

    micro_batches: tuple[tuple[int, ...], ...]
    num_supervised: int


class Features:
    """A finished features directory, at a path or any URL. Rows are compared with their checksums as they are read."""

    def __init__(self, directory: Path | Place, dtype: torch.dtype = torch.float32) -> None:
        """dtype: of the rows' features, whatever they are stored in. `InputError` if unfinished or damaged."""
        self.directory = Place.of(directory)
        self.dtype = dtype
        self.digest = require(self.directory, "capture").digest
        self.manifest: Manifest = read_manifest(self.directory)
        self._shards: dict[int, ShardFile] = {}

    def indices(self, split: Split) -> list[int]:
        """Rows of the split, as indices into manifest.rows, in the order they were captured."""
        return [i for i, row in enumerate(self.manifest.rows) if row.split == split]

    def row(self, index: int) -> Row:
        """`InputError` if it is damaged or missing."""
        info = self.manifest.rows[index]
        stored = self._shard(info.shard).stored(info)
        aux = self._whole(index, stored.aux)
        return Row(
            id=info.id,
            task=info.task,
            ids_T=stored.ids_T,
            loss_mask_T=stored.loss_mask_T,
            aux_TL=restore(*aux, self.dtype),
            hidden_UD=restore(*stored.hidden, self.dtype),
        )

    def rows(self, indices: Sequence[int]) -> Iterator[Row]:
        """In this order; from elsewhere than this machine several at once, for what takes time there is the way."""
        if self.directory.is_local:
            yield from map(self.row, indices)
            return
        with ThreadPoolExecutor(READERS) as pool:
            coming: deque[Future[Row]] = deque()
            for index in indices:
                coming.append(pool.submit(self.row, index))
                if len(coming) == 2 * READERS:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()

    def texts(self, indices: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """ids_T and loss_mask_T of these rows, without reading their features; a shard at a time."""
        number, texts = None, (torch.empty(0), torch.empty(0))
        for info in (self.manifest.rows[index] for index in indices):
            if info.shard != number:
                number, texts = info.shard, self._shard(info.shard).texts()
            span = slice(info.start, info.start + info.length)
            yield texts[0][span], texts[1][span]

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

    def _whole(self, index: int, own: Pair) -> Pair:
        """Captured layers of all tokens of a row: those that it shares with the row before it, then its own."""
        shared = self.manifest.rows[index].shared
        if not shared:
            return own
        before = self.manifest.rows[index - 1]
        codes_TL, scales_TP = self._whole(index - 1, self._shard(before.shard).aux(before))
        return torch.cat((codes_TL[:shared], own[0])), torch.cat((scales_TP[:shared], own[1]))

    def _shard(self, number: int) -> ShardFile:
        if number not in self._shards:
            self._shards[number] = ShardFile(self.directory.join(self.manifest.shards[number].name))
        return self._shards[number]


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
