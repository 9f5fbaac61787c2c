"""One shard: rows of features as bytes, and back by byte ranges. store.py says what lies in a features directory.

N tokens of a shard (its rows one behind the other), A of them whose captured layers are its own, M of them taught; T, U
those of one row, D hidden, P captured layers, L = PD. What codes and scales mean is told in quantise.py; float dtypes
have no scales: no columns.

    ids_N int32   loss_mask_N uint8   aux_AL codes   aux_scales_AP   hidden_MD codes   hidden_scales_M1     safetensors

A row is read by its ranges of these and compared with its checksums, so nobody needs a whole shard, wherever it lies.
"""

import dataclasses
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save as save_safetensors
from torch import Tensor

from eyas.base.errors import InputError
from eyas.base.storage import StoragePath
from eyas.features.layout import Split

COLUMNS = ("ids_N", "loss_mask_N", "aux_AL", "aux_scales_AP", "hidden_MD", "hidden_scales_M1")
DTYPES = {
    "I32": torch.int32,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}
"""What a header of safetensors calls them."""
CodesAndScales = tuple[Tensor, Tensor]
"""Codes and scales."""


@dataclass(frozen=True, eq=False)
class StoredRow:
    """A row as its shard holds it. aux: of the tokens that are not shared. T of them, U of them taught."""

    ids_T: Tensor
    loss_mask_T: Tensor
    aux: CodesAndScales
    hidden: CodesAndScales


@dataclass(frozen=True)
class RowInfo:
    """Where a row lies: tokens [start, start + length) of a shard, which is an index into Manifest.shards.

    The captured layers of its first `shared` tokens are those of the row before it; its own begin at aux_start, its
    hidden states, num_taught of them, at hidden_start. CRC-32 of the bytes, as they lie in the shard: text_crc of ids
    and mask, aux_crc and hidden_crc of codes and scales.
    """

    id: str
    task: str
    split: Split
    looping: bool
    length: int
    shared: int
    num_taught: int
    num_supervised: int
    shard: int = 0
    start: int = 0
    aux_start: int = 0
    hidden_start: int = 0
    text_crc: int = 0
    aux_crc: int = 0
    hidden_crc: int = 0


@dataclass(frozen=True)
class ShardInfo:
    name: str
    digest: str
    num_bytes: int
    num_tokens: int


def encode_shard(number: int, infos: Sequence[RowInfo], rows: Sequence[StoredRow]) -> tuple[bytes, tuple[RowInfo, ...]]:
    """The bytes of shard `number`, and its rows where they lie in it."""
    placed: list[RowInfo] = []
    start = aux_start = hidden_start = 0
    for info, row in zip(infos, rows, strict=True):
        raw = [_to_bytes(column) for column in _row_columns(row)]
        places = {"shard": number, "start": start, "aux_start": aux_start, "hidden_start": hidden_start}
        crcs = {"text_crc": _crc32(raw[:2]), "aux_crc": _crc32(raw[2:4]), "hidden_crc": _crc32(raw[4:])}
        placed.append(dataclasses.replace(info, **places, **crcs))
        start, aux_start = start + info.length, aux_start + info.length - info.shared
        hidden_start += info.num_taught
    columns = zip(*map(_row_columns, rows), strict=True)
    tensors = {name: torch.cat(parts) for name, parts in zip(COLUMNS, columns, strict=True)}
    return save_safetensors(tensors), tuple(placed)


def _row_columns(row: StoredRow) -> tuple[Tensor, ...]:
    """What a shard holds of it: ids, mask, aux, its scales, hidden, its scales."""
    return (row.ids_T.to(torch.int32), row.loss_mask_T.to(torch.uint8), *row.aux, *row.hidden)


def _to_bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _crc32(parts: Iterable[bytes]) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


class ShardReader:
    """A shard of which rows are read, each by its bytes. `InputError` for what is missing, cut off or damaged."""

    def __init__(self, place: StoragePath) -> None:
        self._place = place
        (size,) = place.read_ranges([(0, 8)])
        self._begin = 8 + int.from_bytes(size, "little")  # the format of safetensors: length, header, data
        try:
            (header,) = place.read_ranges([(8, self._begin)])
            self._header: dict[str, Any] = json.loads(header)
        except (ValueError, OverflowError) as error:
            raise self._damaged_error(f"no header ({error})") from None

    def read_texts(self, infos: Sequence[RowInfo]) -> Iterator[CodesAndScales]:
        """ids_T and loss_mask_T of each of these rows; the shard's are read at once."""
        ids, mask = self._read_columns(*((name, 0, self._column_header(name)["shape"][0]) for name in COLUMNS[:2]))
        ids_N, mask_N = ids.to_tensor(), mask.to_tensor()
        for info in infos:
            first, end = info.start, info.start + info.length
            self._check_crc(info, [ids.data[4 * first : 4 * end], mask.data[first:end]], info.text_crc)
            yield ids_N[first:end].long(), mask_N[first:end].bool()

    def read_row(self, info: RowInfo) -> StoredRow:
        """The row as it was written, token ids as int64."""
        token = (info.start, info.start + info.length)
        aux = (info.aux_start, info.aux_start + info.length - info.shared)
        hidden = (info.hidden_start, info.hidden_start + info.num_taught)
        spans = (token, token, aux, aux, hidden, hidden)
        read = self._read_columns(*((name, *span) for name, span in zip(COLUMNS, spans, strict=True)))
        for columns, crc in ((read[:2], info.text_crc), (read[2:4], info.aux_crc), (read[4:], info.hidden_crc)):
            self._check_crc(info, [column.data for column in columns], crc)
        ids_T, mask_T, codes_AL, scales_AP, codes_UD, scales_U1 = (column.to_tensor() for column in read)
        return StoredRow(ids_T.long(), mask_T.bool(), (codes_AL, scales_AP), (codes_UD, scales_U1))

    def read_aux(self, info: RowInfo) -> CodesAndScales:
        """Codes and scales of the captured layers, of the tokens that are not shared."""
        span = (info.aux_start, info.aux_start + info.length - info.shared)
        read = self._read_columns(("aux_AL", *span), ("aux_scales_AP", *span))
        self._check_crc(info, [column.data for column in read], info.aux_crc)
        codes_AL, scales_AP = (column.to_tensor() for column in read)
        return codes_AL, scales_AP

    def _read_columns(self, *wanted: tuple[str, int, int]) -> list["_ColumnSlice"]:
        """Rows [start, end) of the named columns."""
        kinds: list[tuple[torch.dtype, tuple[int, ...]]] = []
        spans: list[tuple[int, int]] = []
        for name, start, end in wanted:
            column = self._column_header(name)
            dtype, width = DTYPES[column["dtype"]], column["shape"][1:]
            first = self._begin + column["data_offsets"][0]
            row_bytes = dtype.itemsize * (width[0] if width else 1)
            kinds.append((dtype, (end - start, *width)))
            spans.append((first + start * row_bytes, first + end * row_bytes))
        return [_ColumnSlice(part, *kind) for part, kind in zip(self._place.read_ranges(spans), kinds, strict=True)]

    def _column_header(self, name: str) -> dict[str, Any]:
        column = self._header.get(name, {})
        if column.get("dtype") not in DTYPES:
            raise self._damaged_error(f"{column.get('dtype')} for {name}")
        return column

    def _check_crc(self, info: RowInfo, parts: Sequence[bytes], crc: int) -> None:
        found = _crc32(parts)
        if found != crc:
            raise self._damaged_error(f"row {info.id} with checksum {found:08x} instead of {crc:08x}")

    def _damaged_error(self, found: str) -> InputError:
        note = self._place.name.replace(".safetensors", ".json")
        return InputError(
            f"damaged shard {self._place}: {found}",
            "what `eyas capture` wrote",
            f"remove it, {note} and provenance.json beside it, then run `eyas capture` again",
        )


@dataclass(frozen=True, eq=False)
class _ColumnSlice:
    """Rows of a column, as they lie in the file."""

    data: bytes
    dtype: torch.dtype
    shape: tuple[int, ...]

    def to_tensor(self) -> Tensor:
        if not self.data:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(bytearray(self.data), dtype=torch.uint8).view(self.dtype).view(self.shape)
