"""Chooses how `triton_attention` divides a forward: the tile of a program, and the parts of the key columns.

Nothing here needs triton or a device.
"""

from dataclasses import dataclass

import torch

# Wanted programs a processor: at least 2, so that one computes while another waits for memory; and up to 16 where
# prefixes may be long, so that a request with a long one does not keep a single processor busy to the end.
FULL, BALANCED = 2, 16
UNIT = 2048  # columns of a part that is cut for balance: its result is then small beside the keys that it read
MAX_PARTS = 64


@dataclass(frozen=True)
class Tile:
    """The size of the work of one Triton program.

    Attributes:
        packed: Number of packed query rows: rows times heads of a group.
        columns: Number of keys in a block.
        num_warps: Triton's launch option.
        num_stages: Triton's launch option.
    """

    packed: int
    columns: int
    num_warps: int
    num_stages: int


def choose_tile(rows_a_request: int, group: int, head_dim: int, dtype: torch.dtype) -> Tile:
    """Returns the smallest tile that holds all rows of an average request.

    The tile stays within 255 registers per thread and 99 KB of shared memory.

    Args:
        rows_a_request: average number of rows of a request.
        group: number of heads that share a key-value head.
        head_dim: head size, rounded up to a power of 2.
        dtype: of the KV memory.
    """
    wide = head_dim > 128
    if dtype == torch.float32:
        most, columns = (16, 16) if wide else (32, 32)
        large = 16 * 128
    else:
        most, columns = (64, 32) if wide else (128, 64)
        large = 64 * 128
    packed = min(max(power_of_2(rows_a_request * group), 16), most)
    packed = max(packed, power_of_2(group))
    # The third stage hides that a slot is read before its key.
    num_stages = 2 if wide or dtype == torch.float32 else 3
    return Tile(packed, columns, num_warps=8 if packed * head_dim > large else 4, num_stages=num_stages)


def choose_split(num_programs: int, num_blocks: int, unit_blocks: int, num_processors: int) -> tuple[int, int]:
    """Splits the key columns of a tile of query rows, so that several GPU processors share them (split-KV).

    Args:
        num_programs: number of tiles times number of key-value heads.
        num_blocks: the largest number of blocks that a tile may have.
        unit_blocks: number of blocks with UNIT columns together.
        num_processors: number of multiprocessors of the device.

    Returns:
        fill, the smallest number of parts that gives every processor work; and the number of parts to launch: `fill`,
        or more, so that no part has more than UNIT key columns.
    """
    fill = max(1, FULL * num_processors // num_programs)
    balanced = max(1, BALANCED * num_processors // num_programs)
    parts = max(fill, min(ceil_div(num_blocks, unit_blocks), balanced))
    return fill, min(parts, num_blocks, MAX_PARTS)


def ceil_div(a: int, b: int) -> int:
    """Returns a / b, rounded up."""
    return -(-a // b)


def power_of_2(n: int) -> int:
    """Returns the smallest power of 2 that is at least n."""
    return 1 << (n - 1).bit_length()
