"""Paged attention on CUDA in Triton. It computes what `dense_paged_attention` computes, in one pass over KV memory.

T rows of one forward, B requests, N heads, G key-value heads, r = N / G heads of one group, H head size, C columns of
req_to_token (here: the table), E columns of the own block, W = E / 64 words of mask per row, L layers, Z KV slots,
R request slots (rows of the table). In the kernels: M packed rows of a tile, S columns of a block, P parts.

A tile packs rows of one request with the r heads that share a key-value head, so each key is read once for all of them.
The columns of a tile are cut into blocks of S columns, those of the own block first. The blocks are divided into parts,
which different processors read at the same time:

                         own block | prefix
    blocks of S columns      0     |   1      2      3      4      5      6
    tile    row 0 head 0   x . .   | x x x  x x x  x x x  x x x  x x x  x . .     the end of the prefix
            row 0 head 1   x . .   | x x x  x x x  x x x  x x x  x x x  x . .
            row 1 head 0   x x .   | x x x  x x x  x x x  x x x  x x x  x . .
            row 1 head 1   x x .   | x x x  x x x  x x x  x x x  x x x  x . .
    parts                 [---------- 0 ----------][--------- 1 ---------][----- 2, shorter

Each part writes its softmax result over its own columns, and the logarithm of its sum. `_merge` then averages the
parts, weighted by these sums. A tile with one part writes the output directly.

Lengths, starts, slots and masks stay on the device. The grid comes from shapes alone, so that a forward can be captured
in a CUDA graph and replayed with other lengths; programs without work return at once.

Needs compute capability 8.0 (bfloat16 and tf32 on tensor cores), and 8.9 if the memory is fp8 (float8_e4m3fn, without a
scale: larger numbers than 448 become 448). Keys and values are then converted as they are read.
"""

# ruff: noqa: ANN001, ANN202, PLR0913 - the arguments of a kernel are pointers, and many
# triton comes with the CUDA build of torch alone; where it is, a kernel's type knows nothing of how it is launched.
# pyright: reportMissingImports=false, reportArgumentType=false, reportCallIssue=false

import math
from functools import partial

import torch
from torch import Tensor

from eyas.base.errors import InputError
from eyas.kernels import attention_split
from eyas.kernels.attention_split import ceil_div, power_of_2
from eyas.kernels.paged_attention import AttentionMetadata, PrepareAttention
from eyas.model.attention import AttentionParams

try:
    import triton
    import triton.language as tl
except ImportError:
    problem = "The package triton, which compiles attention for CUDA, is missing"
    raise InputError(problem, "Install the CUDA build of torch") from None

from eyas.kernels.dependent_launch import await_previous, dependent_launch

LOG2_E = math.log2(math.e)  # the kernels work with powers of two
WORD = 64  # columns of the own block in one word of a row's mask; blocks of columns divide it


def prepare_on(device: torch.device) -> PrepareAttention:
    """Returns the attention for this CUDA device: a function that prepares one forward."""
    return partial(TritonAttention, num_processors=torch.cuda.get_device_properties(device).multi_processor_count)


class TritonAttention:
    """The attention of one forward. It implements `PackedAttentionFn`.

    Requirement: no prefix is longer than the number of columns of the table. A caller that knows a smaller bound may
    pass req_to_token_RC[:, :bound]; the kernel then needs fewer parts.
    """

    def __init__(self, kv: Tensor, req_to_token_RC: Tensor, metadata: AttentionMetadata, num_processors: int) -> None:
        """Prepares one forward. kv: [L, 2, Z, G, H], contiguous. num_processors: multiprocessors of the device."""
        assert kv.is_contiguous()
        assert req_to_token_RC.stride(1) == 1
        self._kv = kv
        self._table_RC = req_to_token_RC
        self._metadata = metadata
        self._own_BE = metadata.block_slots_BE.contiguous()
        self._words_TW = None if metadata.visible_TE is None else pack_words(metadata.visible_TE)
        self._num_processors = num_processors
        self._first_T: dict[tuple[int | None, int | None], Tensor | None] = {}

    def __call__(self, layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, params: AttentionParams) -> Tensor:
        """Computes one layer. Writes the rows' keys and values to their KV slots before it attends to them.

        Returns:
            out_TNH with the dtype of q_TNH.
        """
        keys_ZGH, values_ZGH = self._kv[layer, 0], self._kv[layer, 1]
        q_TNH, k_TGH, v_TGH = (part if part.stride(2) == 1 else part.contiguous() for part in (q_TNH, k_TGH, v_TGH))
        (num_rows, num_heads, head_dim), num_groups = q_TNH.shape, keys_ZGH.shape[1]
        assert num_heads % num_groups == 0, (num_heads, num_groups)
        assert k_TGH.shape == v_TGH.shape == (num_rows, num_groups, head_dim) == (num_rows, *keys_ZGH.shape[1:])
        if num_rows == 0:
            return torch.empty_like(q_TNH)
        padded_dim = max(16, power_of_2(head_dim))
        _write[(num_rows,)](
            k_TGH, v_TGH, keys_ZGH, values_ZGH, self._metadata.slots_T,
            k_TGH.stride(0), k_TGH.stride(1), v_TGH.stride(0), v_TGH.stride(1),
            G=num_groups, G_PAD=power_of_2(num_groups), H=head_dim, H_PAD=padded_dim, **dependent_launch(q_TNH.device),
        )  # fmt: skip
        return self._attend(keys_ZGH, values_ZGH, q_TNH, padded_dim, params)

    def _attend(
        self, keys_ZGH: Tensor, values_ZGH: Tensor, q_TNH: Tensor, padded_dim: int, params: AttentionParams
    ) -> Tensor:
        """Launches `_parts`, and `_merge` if there is more than one part."""
        metadata, num_own = self._metadata, self._own_BE.shape[1]
        num_requests = len(metadata.req_slots_B)
        (num_rows, num_heads, head_dim), num_groups = q_TNH.shape, keys_ZGH.shape[1]
        group = num_heads // num_groups
        tile = attention_split.choose_tile(ceil_div(num_rows, num_requests), group, padded_dim, keys_ZGH.dtype)
        tile_rows = tile.packed // group
        num_blocks = ceil_div(self._table_RC.shape[1], tile.columns) + ceil_div(num_own, tile.columns)
        num_tiles = max(ceil_div(num_rows, tile_rows), min(num_requests, num_rows))
        unit_blocks = attention_split.UNIT // tile.columns
        num_programs = num_tiles * num_groups
        fill, num_parts = attention_split.choose_split(num_programs, num_blocks, unit_blocks, self._num_processors)
        whole = num_parts == 1
        out_TNH = torch.empty((num_rows, num_heads, head_dim), dtype=q_TNH.dtype, device=q_TNH.device)
        parts_PTNH, logs_PTN = out_TNH, None
        if not whole:
            parts_PTNH = torch.empty((num_parts, *out_TNH.shape), dtype=torch.float32, device=q_TNH.device)
            logs_PTN = torch.empty(parts_PTNH.shape[:3], dtype=torch.float32, device=q_TNH.device)
        # A request of n rows needs at most n // tile_rows + 1 tiles: see `_parts`.
        _parts[(num_groups, num_rows // tile_rows + num_requests, num_parts)](
            q_TNH, keys_ZGH, values_ZGH, self._table_RC,
            metadata.starts_B1, metadata.req_slots_B, metadata.lengths_B, self._own_BE, self._words_TW,
            metadata.positions_T, metadata.own_positions_BE, self._first(params), params.sinks_N, parts_PTNH, logs_PTN,
            params.scale * LOG2_E if params.softcap is None else 2 * LOG2_E * params.scale / params.softcap,
            None if params.softcap is None else params.softcap * LOG2_E,
            q_TNH.stride(0), q_TNH.stride(1), self._table_RC.stride(0),
            num_requests, num_rows, num_heads, num_own, fill, unit_blocks,
            B_PAD=power_of_2(num_requests), ROWS=tile_rows, GROUP=group, G=num_groups,
            H=head_dim, H_PAD=padded_dim, M=tile.packed, S=tile.columns, WHOLE=whole,
            num_warps=tile.num_warps, num_stages=tile.num_stages, **dependent_launch(q_TNH.device),
        )  # fmt: skip
        if not whole:
            padded_parts = power_of_2(num_parts)
            _merge[(num_rows, num_heads)](
                parts_PTNH, logs_PTN, out_TNH, num_parts, num_rows, num_heads,
                P_PAD=padded_parts, H=head_dim, H_PAD=padded_dim,
                num_warps=min(max(padded_parts * padded_dim // 1024, 1), 8), **dependent_launch(q_TNH.device),
            )  # fmt: skip
        return out_TNH

    def _first(self, params: AttentionParams) -> Tensor | None:
        """Returns the first visible position of each row, computed once a forward for each window and chunk."""
        key = (params.window, params.chunk)
        if key not in self._first_T:
            self._first_T[key] = params.first_visible(self._metadata.positions_T)
        return self._first_T[key]


def pack_words(visible_TE: Tensor) -> Tensor:
    """Packs the tree mask into int64 [T, W]: bit e % 64 of word e // 64 is set if the row sees own column e."""
    num_rows, num_own = visible_TE.shape
    num_words = ceil_div(num_own, WORD)
    visible_TE = torch.nn.functional.pad(visible_TE, (0, num_words * WORD - num_own))
    bits = torch.arange(WORD, device=visible_TE.device)
    # Bit 63 is the sign. A sum of different bits is their union, so nothing overflows.
    return (visible_TE.reshape(num_rows, num_words, WORD).long() << bits).sum(2)


@triton.jit
def _write(
    k, v, keys, values, slots, k_stride_t, k_stride_g, v_stride_t, v_stride_g,
    G: tl.constexpr, G_PAD: tl.constexpr, H: tl.constexpr, H_PAD: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Writes the keys and values of one row to its KV slot. Grid: T."""
    t = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + t).to(tl.int64)
    g_G1 = tl.arange(0, G_PAD)[:, None]
    h_1H = tl.arange(0, H_PAD)[None, :]
    mask_GH = (g_G1 < G) & (h_1H < H)
    destination_GH = slot * (G * H) + g_G1 * H + h_1H
    await_previous(DEPENDENT)
    k_GH = tl.load(k + t * k_stride_t + g_G1 * k_stride_g + h_1H, mask=mask_GH)
    v_GH = tl.load(v + t * v_stride_t + g_G1 * v_stride_g + h_1H, mask=mask_GH)
    tl.store(keys + destination_GH, k_GH.to(keys.dtype.element_ty), mask=mask_GH)
    tl.store(values + destination_GH, v_GH.to(values.dtype.element_ty), mask=mask_GH)


@triton.jit
def _fold(
    acc_MH, high_M, total_M, q_MH, keys, values, slots_S, read_S, seen_MS, scale, cap,
    G: tl.constexpr, H: tl.constexpr, H_PAD: tl.constexpr,
):  # fmt: skip
    """Adds a block of columns to the running softmax. Returns the new weighted sum, highest score and total weight."""
    h_1H = tl.arange(0, H_PAD)[None, :]
    # int64: memory may have more than 2**31 elements.
    at_SH = slots_S.to(tl.int64)[:, None] * (G * H) + h_1H
    mask_SH = read_S[:, None] if H == H_PAD else read_S[:, None] & (h_1H < H)
    k_SH = tl.load(keys + at_SH, mask=mask_SH, other=0.0).to(q_MH.dtype)
    # tf32x3: float32 out of three products on tensor cores. Plain tf32 keeps 11 bits, and "ieee" spills its registers.
    score_MS = tl.dot(q_MH, tl.trans(k_SH), input_precision="tf32x3")
    if cap is None:
        score_MS = score_MS * scale
    else:
        score_MS = cap * (1 - 2 / (1 + tl.exp2(score_MS * scale)))  # tanh
    score_MS = tl.where(seen_MS, score_MS, float("-inf"))
    new_high_M = tl.maximum(high_M, tl.max(score_MS, 1))  # finite, because high starts finite
    weight_MS = tl.exp2(score_MS - new_high_M[:, None])
    fade_M = tl.exp2(high_M - new_high_M)
    total_M = total_M * fade_M + tl.sum(weight_MS, 1)
    v_SH = tl.load(values + at_SH, mask=mask_SH, other=0.0).to(q_MH.dtype)
    acc_MH = tl.dot(weight_MS.to(v_SH.dtype), v_SH, acc_MH * fade_M[:, None], input_precision="tf32x3")
    return acc_MH, new_high_M, total_M


@triton.jit(
    do_not_specialize=["num_requests", "num_rows", "num_heads", "num_own", "fill", "unit_blocks", "table_stride"]
)
def _parts(
    q, keys, values, table, starts, lines, lengths, own, words, positions, own_positions, first, sinks, parts, logs,
    scale, cap, q_stride_t, q_stride_n, table_stride, num_requests, num_rows, num_heads, num_own, fill, unit_blocks,
    B_PAD: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr, G: tl.constexpr, H: tl.constexpr,
    H_PAD: tl.constexpr, M: tl.constexpr, S: tl.constexpr, WHOLE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Computes one part of one tile against one key-value head. Grid: G, tiles, P.

    Programs of one tile run at the same time for all heads, because the heads of a token are neighbors in memory.

    An operand that these rows do not need is None. WHOLE: there is one part, and `parts` is the output tensor itself.
    """
    g, tile, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)

    # Request b owns tiles starts[b] // ROWS + b and up: as many as its rows need or one more, without a prefix sum.
    b_B = tl.arange(0, B_PAD)
    starts_B = tl.load(starts + b_B, mask=b_B < num_requests, other=0).to(tl.int32)
    b = tl.sum(((b_B < num_requests) & (starts_B // ROWS + b_B <= tile)).to(tl.int32), 0) - 1
    begin = tl.load(starts + b).to(tl.int32)
    request_rows = tl.load(starts + b + 1).to(tl.int32) - begin
    row_0 = (tile - begin // ROWS - b) * ROWS
    if row_0 >= request_rows:
        return

    m_M = tl.arange(0, M)
    row_M = row_0 + m_M // GROUP
    is_row_M = (m_M < ROWS * GROUP) & (row_M < request_rows)
    t_M = (begin + row_M).to(tl.int64)
    head_M = g * GROUP + m_M % GROUP
    h_1H = tl.arange(0, H_PAD)[None, :]
    mask_MH = is_row_M[:, None] & (h_1H < H)
    out_M = (part.to(tl.int64) * num_rows + t_M) * num_heads + head_M
    length = tl.load(lengths + b).to(tl.int32)
    low = 0
    if first is not None:
        first_M = tl.load(first + t_M, mask=is_row_M, other=2**30).to(tl.int32)
        low = tl.minimum(tl.min(first_M, 0), length)

    # The blocks of this part: those of one of `fill` parts, but at most a unit, unless all parts are needed.
    own_end = num_own if words is not None else tl.minimum(row_0 + ROWS, request_rows)
    own_blocks = tl.cdiv(own_end, S)
    blocks = own_blocks + tl.cdiv(length - low, S)
    if WHOLE:
        from_block, to_block = 0, blocks
    else:
        share = tl.maximum(tl.cdiv(blocks, tl.num_programs(2)), tl.minimum(unit_blocks, tl.cdiv(blocks, fill)))
        from_block = part * share
        to_block = tl.minimum(from_block + share, blocks)
        if from_block >= blocks:
            tl.store(logs + out_M, tl.full((M,), float("-inf"), tl.float32), mask=is_row_M)
            return

    keys += g * H
    values += g * H
    q_MH = tl.load(q + t_M[:, None] * q_stride_t + head_M[:, None] * q_stride_n + h_1H, mask=mask_MH, other=0.0)
    acc_MH = tl.zeros((M, H_PAD), tl.float32)
    high_M = tl.full((M,), -1.0e30, tl.float32)
    total_M = tl.zeros((M,), tl.float32)
    if sinks is not None:  # noqa: SIM102, this is decided when compiled, the part is not
        if part == 0:  # a sink is a score without a value, and counts once
            high_M = tl.load(sinks + head_M, mask=is_row_M, other=0.0).to(tl.float32) * 1.4426950408889634
            total_M = tl.full((M,), 1.0, tl.float32)

    await_previous(DEPENDENT)  # the previous kernel writes keys and values of the own block
    for block in tl.range(from_block, tl.minimum(to_block, own_blocks), num_stages=1):
        e_S = block * S + tl.arange(0, S)
        if words is None:
            read_S = e_S < own_end
            seen_MS = e_S[None, :] <= row_M[:, None]
        else:
            word_M = tl.load(words + t_M * tl.cdiv(num_own, 64) + block * S // 64, mask=is_row_M, other=0)
            bit_S = (e_S % 64).to(tl.int64)
            # What no row of the tile sees is not read: it may be anything, NaN too.
            read_S = ((tl.reduce_or(word_M, 0) >> bit_S) & 1) == 1
            seen_MS = ((word_M[:, None] >> bit_S[None, :]) & 1) == 1
        if first is not None:
            if own_positions is None:
                position_S = tl.load(positions + begin + e_S, mask=e_S < request_rows, other=-1).to(tl.int32)
            else:
                position_S = tl.load(own_positions + b * num_own + e_S, mask=e_S < num_own, other=-1).to(tl.int32)
            seen_MS &= position_S[None, :] >= first_M[:, None]
        slots_S = tl.load(own + b * num_own + e_S, mask=read_S, other=0)
        acc_MH, high_M, total_M = _fold(
            acc_MH, high_M, total_M, q_MH, keys, values, slots_S, read_S, seen_MS, scale, cap, G, H, H_PAD
        )

    columns = table + tl.load(lines + b).to(tl.int64) * table_stride
    for block in range(tl.maximum(from_block - own_blocks, 0), to_block - own_blocks):
        c_S = low + block * S + tl.arange(0, S)
        read_S = c_S < length
        seen_MS = read_S[None, :]
        if first is not None:
            seen_MS = seen_MS & (c_S[None, :] >= first_M[:, None])
        slots_S = tl.load(columns + c_S, mask=read_S, other=0)
        acc_MH, high_M, total_M = _fold(
            acc_MH, high_M, total_M, q_MH, keys, values, slots_S, read_S, seen_MS, scale, cap, G, H, H_PAD
        )

    some_M = total_M > 0
    safe_M = tl.where(some_M, total_M, 1.0)
    acc_MH = acc_MH / safe_M[:, None]
    tl.store(parts + out_M[:, None] * H + h_1H, acc_MH.to(parts.dtype.element_ty), mask=mask_MH)
    if not WHOLE:
        tl.store(logs + out_M, tl.where(some_M, high_M + tl.log2(safe_M), float("-inf")), mask=is_row_M)


@triton.jit(do_not_specialize=["num_parts", "num_rows", "num_heads"])
def _merge(
    parts, logs, out, num_parts, num_rows, num_heads, P_PAD: tl.constexpr, H: tl.constexpr, H_PAD: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Averages the parts of one head of one row, weighted by their sums. Grid: T, N."""
    at = tl.program_id(0).to(tl.int64) * num_heads + tl.program_id(1)
    p_P = tl.arange(0, P_PAD)
    h_1H = tl.arange(0, H_PAD)[None, :]
    at_P = at + p_P.to(tl.int64) * num_rows * num_heads
    await_previous(DEPENDENT)
    log_P = tl.load(logs + at_P, mask=p_P < num_parts, other=float("-inf"))
    high = tl.maximum(tl.max(log_P, 0), -1.0e30)  # finite, also for a row without visible columns
    weight_P = tl.exp2(log_P - high)
    total = tl.sum(weight_P, 0)
    # A part without visible columns has not written its result.
    mask_PH = (weight_P > 0)[:, None] & (h_1H < H)
    part_PH = tl.load(parts + at_P[:, None] * H + h_1H, mask=mask_PH, other=0.0)
    out_H = tl.sum(part_PH * weight_P[:, None], 0) / tl.where(total > 0, total, 1.0)
    h_H = tl.arange(0, H_PAD)
    tl.store(out + at * H + h_H, out_H.to(out.dtype.element_ty), mask=h_H < H)
