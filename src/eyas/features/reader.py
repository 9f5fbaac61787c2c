"""Reading features: rows of a split. In which order training sees them is told in order.py."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from eyas.base.errors import InputError
from eyas.base.provenance import require_finished
from eyas.base.storage import StoragePath
from eyas.features.capture import extract_features, quantize_features
from eyas.features.layout import Row, Split
from eyas.features.quantize import dequantize
from eyas.features.shard import CodesAndScales, ShardReader, StoredRow
from eyas.features.store import Manifest, read_manifest
from eyas.model.target import Target

NUM_READERS = 8  # rows that are on the way at once


class Features:
    """A finished features directory, at a path or any URL. Rows are compared with their checksums as they are read."""

    def __init__(
        self, directory: Path | StoragePath, dtype: torch.dtype = torch.float32, target: Target | None = None
    ) -> None:
        """dtype: of the rows' features, whatever they are stored in. target: computes those that are not stored.

        `InputError` if unfinished or damaged.
        """
        self.directory = StoragePath.of(directory)
        self.dtype = dtype
        self.digest = require_finished(self.directory, "capture").digest
        self.manifest: Manifest = read_manifest(self.directory)
        self._target = target
        self._shards: dict[int, ShardReader] = {}

    def indices(self, split: Split) -> list[int]:
        """Rows of the split, as indices into manifest.rows, in the order they were captured."""
        return [i for i, row in enumerate(self.manifest.rows) if row.split == split]

    def row(self, index: int) -> Row:
        """`InputError` if it is damaged or missing."""
        return next(self.rows([index]))

    def rows(self, indices: Sequence[int]) -> Iterator[Row]:
        """In this order. Those that are not stored are computed together, as many as fit into a forward."""
        batch: list[tuple[int, StoredRow]] = []
        tokens = 0
        for index, stored in zip(indices, self._read_stored_rows(indices), strict=True):
            if not self.manifest.online:
                yield self._to_row(index, stored, self._join_shared_aux(index, stored.aux), stored.hidden)
                continue
            if batch and tokens + len(stored.ids_T) > self.manifest.batch_tokens:
                yield from self._extract_rows(batch)
                batch, tokens = [], 0
            batch.append((index, stored))
            tokens += len(stored.ids_T)
        yield from self._extract_rows(batch)

    def texts(self, indices: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """ids_T and loss_mask_T of these rows, without reading their features; a shard at a time."""
        infos = (self.manifest.rows[index] for index in indices)
        for number, members in groupby(infos, key=lambda info: info.shard):
            yield from self._open_shard(number).read_texts(list(members))

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

    def _read_stored_rows(self, indices: Sequence[int]) -> Iterator[StoredRow]:
        """From elsewhere than this machine several at once, for what takes time there is the way."""
        if self.directory.is_local:
            yield from map(self._read_stored_row, indices)
            return
        with ThreadPoolExecutor(NUM_READERS) as pool:
            coming: deque[Future[StoredRow]] = deque()
            for index in indices:
                coming.append(pool.submit(self._read_stored_row, index))
                if len(coming) == 2 * NUM_READERS:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()

    def _read_stored_row(self, index: int) -> StoredRow:
        info = self.manifest.rows[index]
        return self._open_shard(info.shard).read_row(info)

    def _extract_rows(self, batch: Sequence[tuple[int, StoredRow]]) -> Iterator[Row]:
        """The numbers that would have been stored."""
        if not batch:
            return
        assert self._target is not None, "these features are computed when they are read"
        manifest, texts = self.manifest, [(stored.ids_T, stored.loss_mask_T) for _, stored in batch]
        found = {one.index: one for one in extract_features(texts, self._target, manifest.batch_tokens)}
        for number, (index, stored) in enumerate(batch):
            yield self._to_row(
                index, stored, *quantize_features(found[number], manifest.dtype, manifest.rows[index].id)
            )

    def _to_row(self, index: int, stored: StoredRow, aux: CodesAndScales, hidden: CodesAndScales) -> Row:
        info = self.manifest.rows[index]
        values = (dequantize(*pair, self.dtype) for pair in (aux, hidden))
        return Row(info.id, info.task, stored.ids_T, stored.loss_mask_T, *values)

    def _join_shared_aux(self, index: int, own: CodesAndScales) -> CodesAndScales:
        """Captured layers of all tokens of a row: those that it shares with the row before it, then its own."""
        shared = self.manifest.rows[index].shared
        if not shared:
            return own
        before = self.manifest.rows[index - 1]
        codes_TL, scales_TP = self._join_shared_aux(index - 1, self._open_shard(before.shard).read_aux(before))
        return torch.cat((codes_TL[:shared], own[0])), torch.cat((scales_TP[:shared], own[1]))

    def _open_shard(self, number: int) -> ShardReader:
        if number not in self._shards:
            self._shards[number] = ShardReader(self.directory.join(self.manifest.shards[number].name))
        return self._shards[number]
