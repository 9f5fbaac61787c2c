"""Finds near-duplicates among the prompts of all sources: workers compute MinHash signatures, one process compares.

    process        call                                              result
    each worker    minhash_signature(texts)                          uint32 [128]: R-MinHash over 5-character shingles
    one process    NearDuplicates(dir).add([n, 128]) ... .find()     pairs (record, earlier record)

Records are visited in their order. A record is dropped if its estimated Jaccard similarity with an earlier, kept record
is at least the threshold. The estimate is the share of equal rows in the two signatures. A record with the signature of
an earlier record is always dropped. The result does not depend on the number of workers or the size of their batches.

Memory grows by one byte for each record and by the pairs that are found. The signatures are on disk. The hashes of
their bands are on disk, too, in partitions that are sorted one at a time.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from eyas.base.environment import import_extra
from eyas.evalsets.ngram_hashes import mix_bits

NUM_ROWS = 128  # of a signature: the estimate's standard deviation is at most 0.044
SHINGLE_CHARS = 5
SEED = 1

# Two records are compared if one of 25 bands of 5 rows is equal. At a similarity of 0.8, that misses fewer than 1 pair
# in 100,000.
NUM_BANDS, BAND_ROWS = 25, 5
MIN_THRESHOLD = 0.7  # at this similarity, 2 pairs in 1,000 are missed; below it, more
MAX_COMPARED = 64  # records that each record of a bucket is compared with; see `_candidate_pairs`
BLOCK = 8192  # signatures read at a time: 4 MB
PARTITION = 2**16  # entries sorted at a time: 1 MB

_ENTRY = np.dtype([("hash", "<u8"), ("record", "<u4")])
_WHOLE_SIGNATURE = "whole"  # the partitions of the hashes of whole signatures


def normalize(texts: Sequence[str]) -> str:
    """Joins user turns to one text, in lower case and with single blanks. Prompts with equal results are duplicates."""
    return " ".join(" ".join(texts).casefold().split())


def minhash_signature(texts: Sequence[str]) -> np.ndarray:
    """Returns the MinHash signature of a record, uint32 [128]. Deterministic; takes 50 us for 250 characters.

    Args:
        texts: The user turns of the record. If they have fewer than 5 characters, they are one shingle.

    Raises:
        InputError: The extra `data` is not installed.
    """
    text = normalize(texts)
    minhash = import_extra("rensa", "data").RMinHash(num_perm=NUM_ROWS, seed=SEED)
    minhash.update([text[start : start + SHINGLE_CHARS] for start in range(max(1, len(text) - SHINGLE_CHARS + 1))])
    return np.array(minhash.digest(), dtype=np.uint32)


class NearDuplicates(AbstractContextManager["NearDuplicates"]):
    """The signatures of all records, and the search for near-duplicates among them.

    It is a context manager, which removes its scratch files at the end. They take 512 bytes for each record, and 312
    more during the search.
    """

    def __init__(self, directory: Path, threshold: float = 0.8) -> None:
        """Creates the scratch files in `directory`. threshold: the similarity from which a record is a duplicate."""
        assert MIN_THRESHOLD <= threshold <= 1, f"the bands do not support the threshold {threshold}"
        directory.mkdir(parents=True, exist_ok=True)
        self._scratch = tempfile.TemporaryDirectory(prefix="duplicates-", dir=directory)
        self._root = Path(self._scratch.name)
        self._file: BinaryIO = (self._root / "signatures").open("w+b")
        self._min_equal = int(np.ceil(threshold * NUM_ROWS - 1e-9))
        self.num_records = 0

    def __exit__(self, *_: object) -> None:
        try:
            self._file.close()
        finally:
            self._scratch.cleanup()

    def add(self, signatures: np.ndarray) -> None:
        """Adds the signatures uint32 [n, 128] of the next n records."""
        assert signatures.dtype == np.uint32, signatures.dtype
        assert signatures.shape[1:] == (NUM_ROWS,), signatures.shape
        self._file.seek(0, 2)
        self._file.write(np.ascontiguousarray(signatures, dtype="<u4").tobytes())
        self.num_records += len(signatures)

    def find(self) -> np.ndarray:
        """Returns the duplicates as sorted int64 [k, 2]: (record, the kept record that it repeats)."""
        self._write_partitions()
        # original[r] is the first record with the signature of r.
        original: dict[int, int] = {}
        for entries in self._read_partitions(_WHOLE_SIGNATURE):
            original.update(self._keep_similar(_candidate_pairs(entries, max_heads=1), NUM_ROWS).tolist())
        is_kept = np.ones(self.num_records, dtype=bool)
        is_kept[list(original)] = False
        duplicate_of: dict[int, int] = {}
        for later, earlier in self._find_near_pairs(is_kept):
            # Sorted by the later record, then by the earlier one: `earlier` is decided.
            if is_kept[earlier] and later not in duplicate_of:
                is_kept[later] = False
                duplicate_of[later] = earlier
        duplicate_of |= {later: duplicate_of.get(first, first) for later, first in original.items()}
        return np.array(sorted(duplicate_of.items()), dtype=np.int64).reshape(-1, 2)

    def _find_near_pairs(self, is_kept: np.ndarray) -> Iterator[tuple[int, int]]:
        """Yields sorted pairs (later record, earlier record) with enough equal rows. Skips records that are not kept.

        is_kept: bool [records]; False for exact copies of earlier records.
        """
        found = [np.empty(0, dtype=np.uint64)]
        for band in range(NUM_BANDS):
            for entries in self._read_partitions(str(band)):
                pairs = _candidate_pairs(entries[is_kept[entries["record"]]], MAX_COMPARED)
                similar = self._keep_similar(pairs, self._min_equal).astype(np.uint64)
                found.append((similar[:, 0] << np.uint64(32)) | similar[:, 1])
            found = [np.unique(np.concatenate(found))]
        for pair in found[0]:
            yield int(pair) >> 32, int(pair) & 0xFFFFFFFF

    def _write_partitions(self) -> None:
        """Writes the entries (hash, record) of each band and of whole signatures, about PARTITION to a file."""
        num_parts = -(-self.num_records // PARTITION) or 1
        for start in range(0, self.num_records, BLOCK):
            rows = self._read_signatures(np.arange(start, min(start + BLOCK, self.num_records)))
            bands = {str(band): rows[:, band * BAND_ROWS : (band + 1) * BAND_ROWS] for band in range(NUM_BANDS)}
            for name, part in {**bands, _WHOLE_SIGNATURE: rows}.items():
                entries = np.empty(len(rows), dtype=_ENTRY)
                entries["hash"], entries["record"] = _hash_rows(part), np.arange(start, start + len(rows))
                partition = entries["hash"] % np.uint64(num_parts)
                for index in range(num_parts):
                    with (self._root / f"{name}-{index:05}").open("ab") as file:
                        file.write(entries[partition == index].tobytes())

    def _read_partitions(self, name: str) -> Iterator[np.ndarray]:
        """Yields the partitions of a band, each sorted by hash and record, and removes their files.

        name: The index of the band as text, or _WHOLE_SIGNATURE.
        """
        for path in sorted(self._root.glob(f"{name}-*")):
            entries = np.fromfile(path, dtype=_ENTRY)
            path.unlink()
            # Stable: records were written in their order.
            yield entries[np.argsort(entries["hash"], kind="stable")]

    def _keep_similar(self, pairs: Iterator[np.ndarray], min_equal: int) -> np.ndarray:
        """Returns those of the pairs [k, 2] whose signatures have at least `min_equal` equal rows."""
        similar = [np.empty((0, 2), dtype=np.int64)]
        for batch in pairs:
            for start in range(0, len(batch), BLOCK):
                block = batch[start : start + BLOCK]
                records, index = np.unique(block, return_inverse=True)
                rows = self._read_signatures(records)[index.reshape(block.shape)]
                similar.append(block[(rows[:, 0] == rows[:, 1]).sum(axis=1) >= min_equal])
        return np.concatenate(similar)

    def _read_signatures(self, records: np.ndarray) -> np.ndarray:
        """Returns the signatures [n, 128] of records, given by their indices. Requirement: `records` is sorted."""
        rows = np.empty((len(records), NUM_ROWS), dtype="<u4")
        starts = np.flatnonzero(np.diff(records, prepend=-2) != 1)
        for start, end in zip(starts, [*starts[1:], len(records)], strict=True):
            self._file.seek(int(records[start]) * NUM_ROWS * 4)
            data = self._file.read(int(end - start) * NUM_ROWS * 4)
            rows[start:end] = np.frombuffer(data, dtype="<u4").reshape(-1, NUM_ROWS)
        return rows


def _candidate_pairs(entries: np.ndarray, max_heads: int) -> Iterator[np.ndarray]:
    """Yields pairs [k, 2] (later record, earlier record) with the same hash. Records with one hash are a bucket.

    Each record is paired only with the first `max_heads` records of its bucket. This bounds the work if thousands of
    prompts share a template. Near-duplicates share many buckets, and one template does not fill all of them.

    Args:
        entries: Sorted entries (hash, record) of one partition.
        max_heads: The number of first records in a bucket with which the others are paired.
    """
    new = np.flatnonzero(np.diff(entries["hash"], prepend=~entries["hash"][:1]) != 0)
    sizes = np.diff(new, append=len(entries))
    rank = np.arange(len(entries)) - np.repeat(new, sizes)
    head = np.repeat(new, sizes)
    for index in range(max_heads):
        later = np.flatnonzero(rank > index)
        if not len(later):
            return
        records = entries["record"].astype(np.int64)
        yield np.stack([records[later], records[head[later] + index]], axis=1)


def _hash_rows(rows: np.ndarray) -> np.ndarray:
    """Hashes uint32 [n, k] to uint64 [n] with the mixing function of splitmix64."""
    value = np.zeros(len(rows), dtype=np.uint64)
    for column in range(rows.shape[1]):
        value = mix_bits((value ^ rows[:, column]) + np.uint64(0x9E3779B97F4A7C15))
    return value
