"""Reads rows of a features directory, for training and evaluation. train/batches.py chooses their order."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby, islice
from typing import Any, TypeVar

import torch
from torch import Tensor

from eyas.base.errors import InputError
from eyas.base.provenance import StageInputs, digest_json, require_finished
from eyas.base.storage import AnyPath, StoragePath
from eyas.features.examples import group_by_length
from eyas.features.extract import extract_features, launch_quantization
from eyas.features.layout import Row, Split
from eyas.features.quantize import dequantize
from eyas.features.shard import CodesAndScales, ShardReader, StoredRow
from eyas.features.store import Manifest, read_manifest
from eyas.model.target import Target

Job = TypeVar("Job")
Item = TypeVar("Item")

NUM_READERS = 8  # rows that are read at the same time from an object store


@contextmanager
def prefetch(
    read: Callable[[Job], Item], jobs: Iterable[Job], ahead: int, threads: int
) -> Generator[Iterator[Item], None, None]:
    """Yields an iterator over `map(read, jobs)` that calls `read` ahead of time in threads. The order stays the same.

        jobs      1   2   3   4   5   6   7 ...
                  |   '-------.-------'   '--- not started
            in use    read ahead: at most `ahead` jobs, so memory is bounded

    If `read` raises an exception, the iterator raises it when it reaches this job. At the end of the block, the reads
    that have started are awaited.

    Args:
        read: The function that reads one job.
        jobs: The arguments of `read`, in order.
        ahead: The most jobs that are read before they are used.
        threads: The number of threads.
    """
    with ThreadPoolExecutor(threads, "eyas-prefetch") as pool:
        remaining = iter(jobs)
        pending: deque[Future[Item]] = deque(pool.submit(read, job) for job in islice(remaining, ahead))

        def iterate() -> Iterator[Item]:
            while pending:
                item = pending.popleft().result()
                pending.extend(pool.submit(read, job) for job in islice(remaining, 1))
                yield item
                del item  # else it stays in memory beside the next one

        try:
            yield iterate()
        finally:
            pool.shutdown(cancel_futures=True)


class Features:
    """A finished features directory at a path or URL. Reading a row verifies its checksums."""

    def __init__(self, directory: AnyPath, dtype: torch.dtype = torch.float32, target: Target | None = None) -> None:
        """Reads the manifest.

        Args:
            directory: The features directory.
            dtype: The dtype of the features in the rows that are read.
            target: The target. Required only for features that were captured with `capture.online`.

        Raises:
            InputError: If the directory is unfinished or damaged.
        """
        self.directory = StoragePath.of(directory)
        self.dtype = dtype
        self.digest = require_finished(self.directory, "capture").digest
        self.manifest: Manifest = read_manifest(self.directory)
        self._target = target
        self._shards: dict[int, ShardReader] = {}

    def build_origin(
        self, stage: str, settings: Any, parents: Mapping[str, str], undigested: tuple[str, ...] = ()
    ) -> StageInputs:
        """Returns the inputs of a stage that reads these features.

        Args:
            stage: The name of the stage, as in `eyas train`.
            settings: The settings that determine what the stage writes.
            parents: Input name -> digest.
            undigested: The output files that contain times. The digest of the output leaves them out.
        """
        tokenizer, template = self.manifest.tokenizer_digest, self.manifest.template_digest
        return StageInputs(stage, digest_json(settings), parents, tokenizer, template, undigested)

    def indices(self, split: Split) -> list[int]:
        """Returns the rows of a split as indices into manifest.rows, in capture order."""
        return [i for i, row in enumerate(self.manifest.rows) if row.split == split]

    def batches(self, indices: Sequence[int], batch_tokens: int) -> list[list[int]]:
        """Returns the indices in batches of rows of similar length, at most `batch_tokens` padded tokens each."""
        return group_by_length(indices, lambda index: self.manifest.rows[index].length, batch_tokens)

    def rows(self, indices: Sequence[int]) -> Iterator[Row]:
        """Yields rows in the order of `indices`. With `capture.online`, the target computes the features in batches."""
        batch: list[tuple[int, StoredRow]] = []
        num_tokens = 0
        for index, stored in zip(indices, self._read_stored_rows(indices), strict=True):
            if not self.manifest.online:
                yield self._to_row(index, stored, self._join_shared_aux(index, stored.aux), stored.hidden)
                continue
            if batch and num_tokens + len(stored.ids_T) > self.manifest.batch_tokens:
                yield from self._extract_rows(batch)
                batch, num_tokens = [], 0
            batch.append((index, stored))
            num_tokens += len(stored.ids_T)
        if batch:
            yield from self._extract_rows(batch)

    def texts(self, indices: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields ids_T and loss_mask_T of these rows, in the order of `indices`. Does not read their features."""
        infos = (self.manifest.rows[index] for index in indices)
        for number, members in groupby(infos, key=lambda info: info.shard):
            yield from self._open_shard(number).read_texts(list(members))

    def generated_counts(self, indices: Sequence[int]) -> Tensor:
        """Returns int64 [W]: how often the target generated each token in these rows."""
        counts_W = torch.zeros(self.manifest.vocab_size, dtype=torch.int64)
        for ids_T, loss_mask_T in self.texts(indices):
            counts_W += torch.bincount(ids_T[loss_mask_T], minlength=counts_W.shape[0])
        return counts_W

    def check_target(self, target_digest: str) -> None:
        """Raises InputError if another target computed these features."""
        if target_digest != self.manifest.target_digest:
            captured = f"The features in {self.directory} were captured from a target with digest"
            problem = f"{captured} {self.manifest.target_digest}, but this target has digest {target_digest}"
            fix = "Run `eyas capture` with this target, or set target.model to the target that captured the features"
            raise InputError(problem, fix)

    def _read_stored_rows(self, indices: Sequence[int]) -> Iterator[StoredRow]:
        """Yields the stored rows in order. Several threads read an object store, because its latency is high."""
        if self.directory.is_local:
            yield from map(self._read_stored_row, indices)
            return
        with prefetch(self._read_stored_row, indices, ahead=2 * NUM_READERS, threads=NUM_READERS) as rows:
            yield from rows

    def _read_stored_row(self, index: int) -> StoredRow:
        info = self.manifest.rows[index]
        return self._open_shard(info.shard).read_row(info)

    def _extract_rows(self, batch: Sequence[tuple[int, StoredRow]]) -> Iterator[Row]:
        """Computes the features of rows and quantizes them, so that they equal stored features."""
        assert self._target is not None, "online features are computed when they are read, so they need the target"
        manifest, texts = self.manifest, [(stored.ids_T, stored.loss_mask_T) for _, stored in batch]
        extracted = {one.index: one for one in extract_features([texts], self._target, manifest.batch_tokens)}
        for number, (index, stored) in enumerate(batch):
            pairs = launch_quantization(extracted[number], manifest.dtype)(manifest.rows[index].id)
            yield self._to_row(index, stored, *pairs)

    def _to_row(self, index: int, stored: StoredRow, aux: CodesAndScales, hidden: CodesAndScales) -> Row:
        info = self.manifest.rows[index]
        values = (dequantize(*pair, self.dtype) for pair in (aux, hidden))
        return Row(info.id, info.task, stored.ids_T, stored.loss_mask_T, *values)

    def _join_shared_aux(self, index: int, own: CodesAndScales) -> CodesAndScales:
        """Returns the captured layers of all tokens of a row; the row before it stores the first `RowInfo.shared`."""
        shared = self.manifest.rows[index].shared
        if not shared:
            return own
        before = self.manifest.rows[index - 1]
        codes_TL, scales_TG = self._join_shared_aux(index - 1, self._open_shard(before.shard).read_aux(before))
        return torch.cat((codes_TL[:shared], own[0])), torch.cat((scales_TG[:shared], own[1]))

    def _open_shard(self, number: int) -> ShardReader:
        if number not in self._shards:
            self._shards[number] = ShardReader(self.directory.join(self.manifest.shards[number].name))
        return self._shards[number]
