"""Attention as an argument: the protocol, and the plain version that everything else is compared with.

B requests, T new rows, S rows kept so far (the new ones included), N heads, G key-value heads, H head size, r = N / G.

A model hands over only its new rows; the `Attend` object owns the past keys and decides who sees whom:

                      kept rows S
                 past           new T
    new row 0   x x x x x  |  x . .
    new row 1   x x x . .  |  . x .         x = visible; any picture may be drawn: causal, tree, unrolled training
    new row 2   x x x x .  |  x . x

What a layer asks for beyond that is its `Rule`. Over rows of text, window = 3 and chunk = 3 cut the causal picture to

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

BLOCK_ROWS = 512  # of masks and of score matrices that are written out: memory grows with BLOCK_ROWS * S, not S * S


@dataclass(frozen=True, eq=False)
class AttentionParams:
    """What the attention of one layer asks for. Plain causal attention has a scale and nothing else.

    window   a row sees the last `window` positions, its own included (Mistral, Gemma, gpt-oss)
    chunk    positions are cut into chunks of this size and a row sees its own chunk (Llama 4)
    softcap  scores become softcap * tanh(score / softcap), before the mask (Gemma 2)
    sinks_N  one more score a head, which takes probability and gives nothing (gpt-oss)
    """

    scale: float
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    sinks_N: Tensor | None = None

    @property
    def is_plain_causal(self) -> bool:
        """Whether the scale says everything."""
        return self.visible_span is None and self.has_plain_scores

    @property
    def has_plain_scores(self) -> bool:
        """Whether weights are the softmax of scaled products, which is what SDPA computes."""
        return self.softcap is None and self.sinks_N is None

    @property
    def visible_span(self) -> int | None:
        """Text of at most so many rows is seen as by plain causal attention; None: text of any length."""
        return self.chunk if self.window is None else self.window

    def first_visible(self, positions: Tensor) -> Tensor | None:
        """The first position that a row at each of these positions may see; None: all of them."""
        if self.window is not None:
            return (positions - self.window + 1).clamp_(min=0)
        if self.chunk is not None:
            return positions - positions % self.chunk
        return None


class AttentionFn(Protocol):
    """Attention of one model, called once for each layer and forward."""

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        """Keep the new keys and values of `layer`, return out_BNTH. RoPE is already in q and k."""
        ...


class PackedAttentionFn(Protocol):
    """Attention over the rows of one sequence, without a dimension for the batch: called once a layer.

    One that C++ can call by itself has an attribute `native` (kernels/cpu_attention.py).
    """

    def __call__(self, layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, params: AttentionParams) -> Tensor:
        """Keep the rows' keys and values, return out_TNH."""
        ...


class PackedAttention:
    """The `Attend` of forwards over one sequence (B = 1): the rows of all requests of a server, one after the other."""

    def __init__(self, attention: PackedAttentionFn) -> None:
        self.packed_attention = attention

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        q_TNH, k_TGH, v_TGH = (part[0].transpose(0, 1) for part in (q_BNTH, k_BGTH, v_BGTH))
        return self.packed_attention(layer, q_TNH, k_TGH, v_TGH, params).transpose(0, 1)[None]


class CompiledForward(Protocol):
    """A forward compiled for the rows of one sequence, any number of them, without gradients."""

    def __call__(self, rows: PackedAttentionFn, *inputs: Tensor) -> Any:
        """What the forward returns."""
        ...


def dense_attention(q_BNTH: Tensor, k_BGSH: Tensor, v_BGSH: Tensor, visible_BTS: Tensor, scale: float) -> Tensor:
    """out_BNTH of softmax(q k^T * scale) v over the visible rows. Every row must see at least one key."""
    return F.scaled_dot_product_attention(
        q_BNTH, k_BGSH, v_BGSH, attn_mask=visible_BTS[:, None], scale=scale, enable_gqa=True
    )


def masked_attention(
    q_BNTH: Tensor, k_BGSH: Tensor, v_BGSH: Tensor, visible_BTS: Tensor, params: AttentionParams
) -> Tensor:
    """`dense_attention` with the scores of the rule; its window and chunk must be in `visible_BTS` already."""
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
    """visible_BTS with B = 1: the last `num_new` of `num_kept` rows see everything up to themselves."""
    visible_TS = torch.ones(num_new, num_rows, dtype=torch.bool, device=device)
    return visible_TS.tril(num_rows - num_new)[None]


def causal_attention(q_BNTH: Tensor, k_BGSH: Tensor, v_BGSH: Tensor, params: AttentionParams) -> Tensor:
    """out_BNTH of text: the last T of S rows see what the rule shows them of the rows up to themselves.

    A rule that is more than its scale is worked through in blocks of rows, each against the columns that it reaches.
    """
    num_new, num_kept = q_BNTH.shape[2], k_BGSH.shape[2]
    past = num_kept - num_new
    if params.has_plain_scores and (params.visible_span is None or num_kept <= params.visible_span):
        if past == 0 or num_new == 1:  # one row at the end sees everything
            causal = num_new > 1
            return F.scaled_dot_product_attention(
                q_BNTH, k_BGSH, v_BGSH, is_causal=causal, scale=params.scale, enable_gqa=True
            )
        return dense_attention(q_BNTH, k_BGSH, v_BGSH, causal_mask(num_new, num_kept, q_BNTH.device), params.scale)
    blocks: list[Tensor] = []
    for start in range(past, num_kept, BLOCK_ROWS):
        end = min(start + BLOCK_ROWS, num_kept)
        rows_T = torch.arange(start, end)  # on the host: where the columns begin is read from it
        first_T = params.first_visible(rows_T)
        begin = 0 if first_T is None else int(first_T[0])
        columns_S = torch.arange(begin, end)
        visible_TS = columns_S <= rows_T[:, None]
        if first_T is not None:
            visible_TS &= columns_S >= first_T[:, None]
        held = k_BGSH[:, :, begin:end], v_BGSH[:, :, begin:end]
        q_BNtH = q_BNTH[:, :, start - past : end - past]
        blocks.append(masked_attention(q_BNtH, *held, visible_TS[None].to(q_BNTH.device), params))
    return torch.cat(blocks, 2)


class DenseAttention:
    """An `Attend` that keeps plain growing tensors; for tests and references, not for speed.

    Who sees whom is said before each forward: `model(..., attend.see(visible_BTS))`. Without a mask all rows are text,
    one after the other, and see what the layer's rule shows them. After a forward of tree rows, `keep` leaves only the
    rows that became text.
    """

    def __init__(self) -> None:
        self.kv_by_layer: dict[int, tuple[Tensor, Tensor]] = {}
        self.visible_BTS: Tensor | None = None
        self.positions_BS: Tensor | None = None

    @property
    def num_cached(self) -> int:
        """S, the rows kept by layer 0 (0 before the first forward)."""
        return self.kv_by_layer[0][0].shape[2] if 0 in self.kv_by_layer else 0

    def set_visible(self, visible_BTS: Tensor | None, positions_BS: Tensor | None = None) -> "DenseAttention":
        """Use this visibility for the next forward (None: text); S counts the rows that the forward will add.

        positions_BS ([B, S] or [1, S]): where each kept row stands in the text. Layers with a window or chunk need it
        beside a mask, and cut what the mask shows; others do not look at it.
        """
        assert visible_BTS is not None or positions_BS is None, "rows without a mask are text"
        self.visible_BTS, self.positions_BS = visible_BTS, positions_BS
        return self

    def keep_rows(self, rows_BR: Tensor) -> None:
        """Keep only the named rows of each request, in that order, in every layer."""
        for layer, (k_BGSH, v_BGSH) in self.kv_by_layer.items():
            rows_BGRH = rows_BR[:, None, :, None].expand(-1, k_BGSH.shape[1], -1, k_BGSH.shape[3])
            self.kv_by_layer[layer] = (k_BGSH.gather(2, rows_BGRH), v_BGSH.gather(2, rows_BGRH))

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        if layer in self.kv_by_layer:
            past_k, past_v = self.kv_by_layer[layer]
            k_BGTH, v_BGTH = torch.cat((past_k, k_BGTH), 2), torch.cat((past_v, v_BGTH), 2)
        self.kv_by_layer[layer] = (k_BGTH, v_BGTH)
        if self.visible_BTS is None:
            return causal_attention(q_BNTH, k_BGTH, v_BGTH, params)
        num_new, num_kept = q_BNTH.shape[2], k_BGTH.shape[2]
        visible_BTS, positions_BS = self.visible_BTS, self.positions_BS
        assert visible_BTS.shape[1:] == (num_new, num_kept), (visible_BTS.shape, num_new, num_kept)
        if params.visible_span is not None:
            assert positions_BS is not None, "a window or chunk needs the positions of the kept rows"
            assert positions_BS.shape[1] == num_kept, (positions_BS.shape, num_kept)
            first_BT = params.first_visible(positions_BS[:, -num_new:])
            assert first_BT is not None, "a rule that reaches a part only"
            visible_BTS = visible_BTS & (positions_BS[:, None] >= first_BT[:, :, None])
        return masked_attention(q_BNTH, k_BGTH, v_BGTH, visible_BTS.to(q_BNTH.device), params)
