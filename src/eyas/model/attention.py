"""The attention that is passed to a model: its protocol, and dense attention, the reference for tests of all kernels.

B requests, T new rows, S cached rows (the new rows included), N heads, G key-value heads, H head size.

A model passes the queries, keys and values of its new rows. The `AttentionFn` stores keys and values and has the mask.
The mask may be of any kind: causal, that of a draft tree, or that of unrolled training. An x means visible:

                 S cached rows
                 past          T new rows
    new row 0   x x x x x  |  x . .
    new row 1   x x x . .  |  . x .
    new row 2   x x x x .  |  x . x

The settings of a layer are its `AttentionParams`. A window or a chunk size makes fewer rows visible than causal
attention:

              window = 3           chunk = 3
    position  0 1 2 3 4 5 6        0 1 2 3 4 5 6
    row 3     . x x x              . . . x
    row 4     . . x x x            . . . x x
    row 5     . . . x x x          . . . x x x
    row 6     . . . . x x x        . . . . . . x
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK_ROWS = 512  # rows of a mask or a score matrix at a time: memory grows with BLOCK_ROWS * S, not S * S


@dataclass(frozen=True, eq=False)
class AttentionParams:
    """The attention settings of one layer. Plain causal attention has only a scale.

    Attributes:
        scale: The factor of the products of queries and keys.
        window: Sliding window: a row sees the last `window` positions, its own included (Mistral, Gemma, gpt-oss).
        chunk: The text is divided into chunks of this size, and a row sees only its own chunk (Llama 4).
        softcap: Scores become softcap * tanh(score / softcap) before the mask (Gemma 2).
        sinks_N: One additional score for each head. It takes a share of the probability but has no value (gpt-oss).
    """

    scale: float
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    sinks_N: Tensor | None = None

    @property
    def has_plain_scores(self) -> bool:
        """True if there is no softcap and no sink, so that PyTorch's SDPA can compute the attention."""
        return self.softcap is None and self.sinks_N is None

    @property
    def visible_span(self) -> int | None:
        """The longest text for which the mask equals the causal mask, in tokens; None if there is no limit."""
        return self.chunk if self.window is None else self.window

    def first_visible(self, positions: Tensor) -> Tensor | None:
        """Returns the first position that a row at each position sees; None without a window and chunk."""
        if self.window is not None:
            return (positions - self.window + 1).clamp_(min=0)
        if self.chunk is not None:
            return positions - positions % self.chunk
        return None


class AttentionFn(Protocol):
    """The attention of a model. It stores keys and values and has the mask. Each layer calls it once per forward."""

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        """Stores the new keys and values of `layer` and returns out_BNTH. Requirement: q and k have RoPE applied."""
        ...


class PackedAttentionFn(Protocol):
    """Attention over packed rows: the rows of all requests follow one another, without a batch dimension.

    An implementation that C++ can call directly has the attribute `native` (kernels/cpu_attention.py).
    """

    def __call__(self, layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, params: AttentionParams) -> Tensor:
        """Stores the keys and values of the rows and returns out_TNH."""
        ...


class PackedAttention:
    """An `AttentionFn` for forwards over packed rows (B = 1). It calls a `PackedAttentionFn`."""

    def __init__(self, attention: PackedAttentionFn) -> None:
        self.packed_attention = attention

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        """Calls the packed attention on the rows without the batch dimension and returns out_BNTH."""
        q_TNH, k_TGH, v_TGH = (part[0].transpose(0, 1) for part in (q_BNTH, k_BGTH, v_BGTH))
        return self.packed_attention(layer, q_TNH, k_TGH, v_TGH, params).transpose(0, 1)[None]


class CompiledForward(Protocol):
    """A compiled forward over any number of packed rows. It computes no gradients."""

    def __call__(self, attention: PackedAttentionFn, *inputs: Tensor) -> Any:
        """Runs the forward and returns its result."""
        ...


def dense_attention(q_BNTH: Tensor, k_BGSH: Tensor, v_BGSH: Tensor, visible_BTS: Tensor, scale: float) -> Tensor:
    """Returns out_BNTH, softmax(q k^T * scale) v over the visible rows. Requirement: each row sees a key."""
    return F.scaled_dot_product_attention(
        q_BNTH, k_BGSH, v_BGSH, attn_mask=visible_BTS[:, None], scale=scale, enable_gqa=True
    )


def masked_attention(
    q_BNTH: Tensor, k_BGSH: Tensor, v_BGSH: Tensor, visible_BTS: Tensor, params: AttentionParams
) -> Tensor:
    """Returns out_BNTH with the scale, softcap and sinks of `params`. It does not apply the window and chunk.

    Requirement: `visible_BTS` already excludes the rows that the window or chunk hides.
    """
    if params.has_plain_scores:
        return dense_attention(q_BNTH, k_BGSH, v_BGSH, visible_BTS, params.scale)
    (B, N, T, H), (G, S) = q_BNTH.shape, k_BGSH.shape[1:3]
    wide = torch.promote_types(q_BNTH.dtype, torch.float32)
    q, k_BGSH, v_BGSH = q_BNTH.to(wide).reshape(B, G, -1, H), k_BGSH.to(wide), v_BGSH.to(wide)
    scores_BNTS = (q @ k_BGSH.transpose(2, 3) * params.scale).view(B, N, T, S)
    if params.softcap is not None:
        scores_BNTS = params.softcap * (scores_BNTS / params.softcap).tanh()
    scores_BNTS = scores_BNTS.masked_fill(~visible_BTS[:, None], -torch.inf)
    if params.sinks_N is not None:
        sinks_BNT1 = params.sinks_N.to(wide).view(1, N, 1, 1).expand(B, N, T, 1)
        scores_BNTS = torch.cat((scores_BNTS, sinks_BNT1), -1)
    weights_BNTS = scores_BNTS.softmax(-1)[..., :S]
    return (weights_BNTS.reshape(B, G, -1, S) @ v_BGSH).view(B, N, T, H).to(q_BNTH.dtype)


def causal_mask(num_new: int, num_rows: int, device: torch.device | str = "cpu") -> Tensor:
    """Returns visible_BTS with B = 1: the last `num_new` of `num_rows` rows see all rows up to themselves."""
    return torch.ones(num_new, num_rows, dtype=torch.bool, device=device).tril(num_rows - num_new)[None]


def causal_attention(q_BNTH: Tensor, k_BGSH: Tensor, v_BGSH: Tensor, params: AttentionParams) -> Tensor:
    """Returns out_BNTH of causal attention for the last T of S rows of a text, with all settings of `params`.

    If `params` has more than a scale, it computes blocks of rows, each with the columns that the block can see.
    """
    num_new, num_cached = q_BNTH.shape[2], k_BGSH.shape[2]
    past = num_cached - num_new
    if params.has_plain_scores and (params.visible_span is None or num_cached <= params.visible_span):
        if past == 0 or num_new == 1:  # one row at the end sees everything
            return F.scaled_dot_product_attention(
                q_BNTH, k_BGSH, v_BGSH, is_causal=num_new > 1, scale=params.scale, enable_gqa=True
            )
        return dense_attention(q_BNTH, k_BGSH, v_BGSH, causal_mask(num_new, num_cached, q_BNTH.device), params.scale)
    blocks: list[Tensor] = []
    for start in range(past, num_cached, BLOCK_ROWS):
        end = min(start + BLOCK_ROWS, num_cached)
        rows_T = torch.arange(start, end)  # on the host, which reads the first column from it
        first_T = params.first_visible(rows_T)
        begin = 0 if first_T is None else int(first_T[0])
        columns_S = torch.arange(begin, end)
        visible_TS = columns_S <= rows_T[:, None]
        if first_T is not None:
            visible_TS &= columns_S >= first_T[:, None]
        columns_kv = k_BGSH[:, :, begin:end], v_BGSH[:, :, begin:end]
        q_BNtH = q_BNTH[:, :, start - past : end - past]
        blocks.append(masked_attention(q_BNtH, *columns_kv, visible_TS[None].to(q_BNTH.device), params))
    return torch.cat(blocks, 2)


class DenseAttention:
    """An `AttentionFn` that appends keys and values to tensors. It is slow and meant for tests and comparisons.

    `set_visible` sets the mask of the next forwards: `model(..., attend.set_visible(visible_BTS))`. Without a mask the
    rows are consecutive tokens of a text, and attention is causal.
    """

    def __init__(self) -> None:
        self.kv_by_layer: dict[int, tuple[Tensor, Tensor]] = {}
        self.visible_BTS: Tensor | None = None
        self.positions_BS: Tensor | None = None

    @property
    def num_cached(self) -> int:
        """S, the number of rows in the cache; 0 before the first forward."""
        return self.kv_by_layer[0][0].shape[2] if 0 in self.kv_by_layer else 0

    def set_visible(self, visible_BTS: Tensor | None, positions_BS: Tensor | None = None) -> "DenseAttention":
        """Sets the mask of the next forwards and returns self.

        Args:
            visible_BTS: The mask. S includes the rows that the forward adds. None means causal attention.
            positions_BS: The position of each cached row in the text, [B, S] or [1, S]. Only layers with a window or
                chunk read it, to apply them to the mask. Requirement: None if the mask is None.
        """
        assert visible_BTS is not None or positions_BS is None, "rows without a mask are text"
        self.visible_BTS, self.positions_BS = visible_BTS, positions_BS
        return self

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        """Appends the new keys and values and returns out_BNTH, computed with the mask of `set_visible`."""
        if layer in self.kv_by_layer:
            past_k, past_v = self.kv_by_layer[layer]
            k_BGTH, v_BGTH = torch.cat((past_k, k_BGTH), 2), torch.cat((past_v, v_BGTH), 2)
        self.kv_by_layer[layer] = (k_BGTH, v_BGTH)
        if self.visible_BTS is None:
            return causal_attention(q_BNTH, k_BGTH, v_BGTH, params)
        num_new, num_cached = q_BNTH.shape[2], k_BGTH.shape[2]
        visible_BTS, positions_BS = self.visible_BTS, self.positions_BS
        assert visible_BTS.shape[1:] == (num_new, num_cached), (visible_BTS.shape, num_new, num_cached)
        if params.visible_span is not None:
            assert positions_BS is not None, "a window or chunk needs the positions of the cached rows"
            assert positions_BS.shape[1] == num_cached, (positions_BS.shape, num_cached)
            first_BT = params.first_visible(positions_BS[:, -num_new:])
            assert first_BT is not None, "a window or chunk has a first position"
            visible_BTS = visible_BTS & (positions_BS[:, None] >= first_BT[:, :, None])
        return masked_attention(q_BNTH, k_BGTH, v_BGTH, visible_BTS.to(q_BNTH.device), params)
