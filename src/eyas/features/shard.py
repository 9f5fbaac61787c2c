"""Writes one shard (a safetensors file of rows) and reads single rows of it. store.py describes the directory.

N tokens of a shard, its rows one after the other; A of these tokens store their captured layers; M of these tokens are
teacher positions; T and U the tokens and teacher positions of one row; D hidden, P captured layers, L = PD.

    tensor             dtype        content
    ids_N              int32        token ids
    loss_mask_N        uint8        1 where the target generated the token
    aux_AL             codes        captured layers
    aux_scales_AP      bfloat16     scales of aux_AL
    hidden_MD          codes        final hidden states
    hidden_scales_M1   bfloat16     scales of hidden_MD

quantize.py defines codes and scales. With bfloat16 or float32 there are no scales, and these tensors have width 0.

The reader reads only the byte ranges of one row and compares them with the row's checksums. It does not load a whole
shard.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eyas.base.errors import InputError
from eyas.base.storage import StoragePath
from eyas.features.layout import Split

COLUMNS = ("ids_N", "loss_mask_N", "aux_AL", "aux_scales_AP", "hidden_MD", "hidden_scales_M1")
DTYPES = {
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "U8": torch.uint8,
}
"""The dtypes by their names in a safetensors header, in the order in which `safetensors` writes their tensors."""
CodesAndScales = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class StoredRow:
    """A row as its shard stores it.

    Attributes:
        ids_T: The token ids.
        loss_mask_T: The loss mask.
        aux: The codes and scales of the captured layers, without the first `RowInfo.shared` tokens.
        hidden: The codes and scales of the final hidden states at the teacher positions.
    """

    ids_T: Tensor
    loss_mask_T: Tensor
    aux: CodesAndScales
    hidden: CodesAndScales


@dataclass(frozen=True)
class RowInfo:
    """An entry of `rows` in a manifest: describes a row and the place where it is stored.

    Attributes:
        id: The id of the row.
        task: The task of the conversation.
        split: The split of the conversation, "train" or "held_out".
        looping: True if the answer repeats itself.
        length: The number of tokens.
        shared: The number of first tokens whose captured layers are stored with the row before it.
        num_taught: The number of teacher positions.
        num_supervised: The number of supervised tokens.
        shard: The index of the shard in `Manifest.shards`.
        start: The index of the first token in the shard.
        aux_start: The index of the first row in aux_AL.
        hidden_start: The index of the first row in hidden_MD.
        text_crc: The CRC-32 of the bytes of ids and mask.
        aux_crc: The CRC-32 of the codes and scales in aux_AL.
        hidden_crc: The CRC-32 of the codes and scales in hidden_MD.
        mode: The mode of the conversation; "" if it has none.
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
    mode: str = ""


@dataclass(frozen=True)
class ShardInfo:
    """An entry of `shards` in a manifest."""

    name: str
    digest: str
    num_bytes: int
    num_tokens: int


def encode_shard(number: int, infos: Sequence[RowInfo], rows: Sequence[StoredRow]) -> tuple[bytes, tuple[RowInfo, ...]]:
    """Returns the bytes of shard `number`, and `infos` with the offsets and checksums of the rows filled in."""
    by_row = ((row.ids_T.to(torch.int32), row.loss_mask_T.to(torch.uint8), *row.aux, *row.hidden) for row in rows)
    columns = list(zip(*by_row, strict=True))  # in the order of COLUMNS
    raw = [[_to_bytes(tensor) for tensor in column] for column in columns]
    placed: list[RowInfo] = []
    start = aux_start = hidden_start = 0
    for info, *parts in zip(infos, *raw, strict=True):
        offsets = {"shard": number, "start": start, "aux_start": aux_start, "hidden_start": hidden_start}
        crcs = {"text_crc": _crc32(parts[:2]), "aux_crc": _crc32(parts[2:4]), "hidden_crc": _crc32(parts[4:])}
        placed.append(replace(info, **offsets, **crcs))
        start, aux_start = start + info.length, aux_start + info.length - info.shared
        hidden_start += info.num_taught
    return _to_safetensors(columns, raw), tuple(placed)


def _to_safetensors(columns: Sequence[Sequence[Tensor]], raw: Sequence[Sequence[memoryview]]) -> bytes:
    """Returns the bytes that `safetensors.torch.save` would write for these columns, with one copy instead of three.

    During the copies of safetensors, no other Python thread can run.

    Args:
        columns: For each name in COLUMNS, the tensors of all rows.
        raw: The bytes of these tensors.
    """
    names = {dtype: name for name, dtype in DTYPES.items()}
    found = sorted(zip(COLUMNS, columns, raw, strict=True))  # names are unique, so nothing else is compared
    header, data, begin = {}, [], 0
    for name, tensors, parts in sorted(found, key=lambda column: list(names).index(column[1][0].dtype)):
        end = begin + sum(part.nbytes for part in parts)
        shape = [sum(map(len, tensors)), *tensors[0].shape[1:]]
        header[name] = {"dtype": names[tensors[0].dtype], "shape": shape, "data_offsets": [begin, end]}
        data, begin = [*data, *parts], end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *data])


def _to_bytes(tensor: Tensor) -> memoryview:
    """Returns the bytes of a tensor, without a copy if it is contiguous."""
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data


def _to_tensor(data: bytes, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8)).view(dtype)


def _crc32(parts: Iterable[bytes | memoryview]) -> int:
    return reduce(lambda crc, part: zlib.crc32(part, crc), parts, 0)


class ShardReader:
    """A shard file that is read row by row. Every method raises InputError if the file is missing or damaged."""

    def __init__(self, path: StoragePath) -> None:
        self._path = path
        (size,) = path.read_ranges([(0, 8)])
        self._begin = 8 + int.from_bytes(size, "little")  # safetensors: length of the header, header, data
        try:
            (header,) = path.read_ranges([(8, self._begin)])
            self._header: dict[str, Any] = json.loads(header)
        except (ValueError, OverflowError):
            raise self._damaged_error("its safetensors header is not readable") from None

    def read_texts(self, infos: Sequence[RowInfo]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields ids_T (int64) and loss_mask_T (bool) of each row. Reads the ids and masks of the shard at once."""
        num_tokens = self._column_header(COLUMNS[0])["shape"][0]
        (ids, ids_N), (mask, mask_N) = self._read_columns(*((name, 0, num_tokens) for name in COLUMNS[:2]))
        for info in infos:
            first, end = info.start, info.start + info.length
            self._check_crc(info, [ids[4 * first : 4 * end], mask[first:end]], info.text_crc)
            yield ids_N[first:end].long(), mask_N[first:end].bool()

    def read_row(self, info: RowInfo) -> StoredRow:
        """Reads a row as it was written, except that token ids are int64."""
        (ids_T, mask_T), aux, hidden = self._read_pairs(info, range(3))
        return StoredRow(ids_T.long(), mask_T.bool(), aux, hidden)

    def read_aux(self, info: RowInfo) -> CodesAndScales:
        """Reads the captured layers of a row, without its first `RowInfo.shared` tokens."""
        (aux,) = self._read_pairs(info, [1])
        return aux

    def _read_pairs(self, info: RowInfo, pairs: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Reads pairs of tensors of one row: 0 is (ids, mask), 1 is (aux, scales), 2 is (hidden, scales)."""
        starts = (info.start, info.aux_start, info.hidden_start)
        lengths = (info.length, info.length - info.shared, info.num_taught)
        crcs = (info.text_crc, info.aux_crc, info.hidden_crc)
        names = [(name, pair) for pair in pairs for name in COLUMNS[2 * pair : 2 * pair + 2]]
        columns = iter(self._read_columns(*((n, starts[pair], starts[pair] + lengths[pair]) for n, pair in names)))
        tensors = []
        for pair, (first, first_tensor), (second, second_tensor) in zip(pairs, columns, columns, strict=True):
            self._check_crc(info, [first, second], crcs[pair])
            tensors.append((first_tensor, second_tensor))
        return tensors

    def _read_columns(self, *slices: tuple[str, int, int]) -> list[tuple[bytes, Tensor]]:
        """Reads rows [start, end) of tensors in one request, as bytes and as tensors. slices: (name, start, end)."""
        kinds, spans = [], []
        for name, start, end in slices:
            column = self._column_header(name)
            dtype, width = DTYPES[column["dtype"]], column["shape"][1:]
            first = self._begin + column["data_offsets"][0]
            row_bytes = dtype.itemsize * (width[0] if width else 1)
            kinds.append((dtype, (end - start, *width)))
            spans.append((first + start * row_bytes, first + end * row_bytes))
        found = zip(self._path.read_ranges(spans), kinds, strict=True)
        return [(data, _to_tensor(data, dtype).view(shape)) for data, (dtype, shape) in found]

    def _column_header(self, name: str) -> dict[str, Any]:
        column = self._header.get(name, {})
        if column.get("dtype") not in DTYPES:
            raise self._damaged_error(f"the dtype of {name} is {column.get('dtype')}")
        return column

    def _check_crc(self, info: RowInfo, parts: Sequence[bytes], crc: int) -> None:
        if (actual := _crc32(parts)) != crc:
            raise self._damaged_error(f"row {info.id} has checksum {actual:08x} instead of {crc:08x}")

    def _damaged_error(self, reason: str) -> InputError:
        record = self._path.name.replace(".safetensors", ".json")
        fix = f"Remove it together with {record} and provenance.json, then run `eyas capture` again"
        return InputError(f"The feature shard {self._path} is damaged: {reason}", fix)
