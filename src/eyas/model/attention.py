"""Attention as an argument of a model: the protocol, and the dense reference that every kernel is compared with.

B requests, T new rows, S rows cached so far (the new ones included), N heads, G key-value heads, H head size.

A model passes only its new rows; the `AttentionFn` owns the past keys and values and the mask:

                     cached rows S
                 past           new T
    new row 0   x x x x x  |  x . .
    new row 1   x x x . .  |  . x .         x = visible; any mask is possible: causal, tree, unrolled training
    new row 2   x x x x .  |  x . x

The settings of a layer are its `AttentionParams`. Over rows of text, window = 3 and chunk = 3 cut the causal mask to

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

    window   sliding window: a row sees the last `window` positions, its own included (Mistral, Gemma, gpt-oss)
    chunk    positions are cut into chunks of this size and a row sees its own chunk (Llama 4)
    softcap  scores become softcap * tanh(score / softcap), before the mask (Gemma 2)
    sinks_N  one more score a head, which takes probability but has no value (gpt-oss)
    """

    scale: float
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    sinks_N: Tensor | None = None

    @property
    def has_plain_scores(self) -> bool:
        """True if weights are the softmax of scaled products, which SDPA computes."""
        return self.softcap is None and self.sinks_N is None

    @property
    def visible_span(self) -> int | None:
        """The largest number of rows for which these settings equal plain causal attention; None: any number."""
        return self.chunk if self.window is None else self.window

    def first_visible(self, positions: Tensor) -> Tensor | None:
        """Returns the first visible position of a row at each of these positions; None if rows see all positions."""
        if self.window is not None:
            return (positions - self.window + 1).clamp_(min=0)
        if self.chunk is not None:
            return positions - positions % self.chunk
        return None


class AttentionFn(Protocol):
    """The attention of a model, called once for each layer and forward. Owns the past keys and values, and the mask."""

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        """Caches the new keys and values of `layer` and returns out_BNTH. RoPE is already applied to q and k."""
        ...


class PackedAttentionFn(Protocol):
    """Attention over packed rows, without a batch dimension: the rows of all requests, one after the other.

    One that C++ can call directly has an attribute `native` (kernels/cpu_attention.py).
    """

    def __call__(self, layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, params: AttentionParams) -> Tensor:
        """Caches the keys and values of the rows and returns out_TNH."""
        ...


class PackedAttention:
    """The `AttentionFn` of forwards over packed rows (B = 1); calls a `PackedAttentionFn`."""

    def __init__(self, attention: PackedAttentionFn) -> None:
        self.packed_attention = attention

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        """Passes the rows on without the batch dimension and returns out_BNTH."""
        q_TNH, k_TGH, v_TGH = (part[0].transpose(0, 1) for part in (q_BNTH, k_BGTH, v_BGTH))
        return self.packed_attention(layer, q_TNH, k_TGH, v_TGH, params).transpose(0, 1)[None]


class CompiledForward(Protocol):
    """A forward compiled for packed rows, any number of them, without gradients."""

    def __call__(self, attention: PackedAttentionFn, *inputs: Tensor) -> Any:
        """Returns the result of the forward."""
        ...


def dense_attention(q_BNTH: Tensor, k_BGSH: Tensor, v_BGSH: Tensor, visible_BTS: Tensor, scale: float) -> Tensor:
    """Returns out_BNTH, softmax(q k^T * scale) v over the visible rows. Every row must see at least one key."""
    return F.scaled_dot_product_attention(
        q_BNTH, k_BGSH, v_BGSH, attn_mask=visible_BTS[:, None], scale=scale, enable_gqa=True
    )


def masked_attention(
    q_BNTH: Tensor, k_BGSH: Tensor, v_BGSH: Tensor, visible_BTS: Tensor, params: AttentionParams
) -> Tensor:
    """Returns out_BNTH with the softcap and sinks of `params`; `visible_BTS` must include its window and chunk."""
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
    visible_TS = torch.ones(num_new, num_rows, dtype=torch.bool, device=device)
    return visible_TS.tril(num_rows - num_new)[None]


def causal_attention(q_BNTH: Tensor, k_BGSH: Tensor, v_BGSH: Tensor, params: AttentionParams) -> Tensor:
    """Returns out_BNTH of text: the last T of S rows see the rows up to themselves that `params` allows.

    With more settings than a scale it runs in blocks of rows, each against the columns that it reaches.
    """
    num_new, num_cached = q_BNTH.shape[2], k_BGSH.shape[2]
    past = num_cached - num_new
    if params.has_plain_scores and (params.visible_span is None or num_cached <= params.visible_span):
        if past == 0 or num_new == 1:  # one row at the end sees everything
            causal = num_new > 1
            return F.scaled_dot_product_attention(
                q_BNTH, k_BGSH, v_BGSH, is_causal=causal, scale=params.scale, enable_gqa=True
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
    """An `AttentionFn` whose cache is plain growing tensors; for tests and references, not for speed.

    `set_visible` sets the mask of the next forward: `model(..., attend.set_visible(visible_BTS))`. Without a mask all
    rows are text, one after the other, and see what the layer's settings allow. After a forward of tree rows,
    `keep_rows` drops the rows that did not become text.
    """

    def __init__(self) -> None:
        self.kv_by_layer: dict[int, tuple[Tensor, Tensor]] = {}
        self.visible_BTS: Tensor | None = None
        self.positions_BS: Tensor | None = None

    @property
    def num_cached(self) -> int:
        """S, the rows cached by layer 0 (0 before the first forward)."""
        return self.kv_by_layer[0][0].shape[2] if 0 in self.kv_by_layer else 0

    def set_visible(self, visible_BTS: Tensor | None, positions_BS: Tensor | None = None) -> "DenseAttention":
        """Sets the mask of the next forward and returns self.

        Args:
            visible_BTS: The mask; S includes the rows that the forward adds. None: all rows are text.
            positions_BS: The position of each cached row in the text, [B, S] or [1, S]. With a mask, layers with a
                window or chunk need it and cut the mask; other layers ignore it.
        """
        assert visible_BTS is not None or positions_BS is None, "rows without a mask are text"
        self.visible_BTS, self.positions_BS = visible_BTS, positions_BS
        return self

    def keep_rows(self, rows_BR: Tensor) -> None:
        """Keeps only these rows of each request, in this order, in every layer."""
        for layer, (k_BGSH, v_BGSH) in self.kv_by_layer.items():
            rows_BGRH = rows_BR[:, None, :, None].expand(-1, k_BGSH.shape[1], -1, k_BGSH.shape[3])
            self.kv_by_layer[layer] = (k_BGSH.gather(2, rows_BGRH), v_BGSH.gather(2, rows_BGRH))

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        """Appends the new keys and values and returns out_BNTH under the mask that was set."""
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
