"""Attention as an argument: the protocol, and the plain version that everything else is compared with.

B requests, T new rows, S rows kept so far (the new ones included), N heads, G key-value heads, H head size.

A model hands over only its new rows; the `Attend` object owns the past keys and decides who sees whom:

                      kept rows S
                 past           new T
    new row 0   x x x x x  |  x . .
    new row 1   x x x . .  |  . x .         x = visible; any picture may be drawn: causal, tree, unrolled training
    new row 2   x x x x .  |  x . x
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rule:
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
    def is_plain(self) -> bool:
        """Whether the scale says everything."""
        return self.window is None and self.chunk is None and self.softcap is None and self.sinks_N is None

    def first(self, positions: Tensor) -> Tensor | None:
        """The first position that a row at each of these positions may see; None: all of them."""
        if self.window is not None:
            return (positions - self.window + 1).clamp_(min=0)
        if self.chunk is not None:
            return positions - positions % self.chunk
        return None


class Attend(Protocol):
    """Attention of one model, called once for each layer and forward."""

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, rule: Rule) -> Tensor:
        """Keep the new keys and values of `layer`, return out_BNTH. RoPE is already in q and k."""
        ...


def dense_attention(q_BNTH: Tensor, k_BGSH: Tensor, v_BGSH: Tensor, visible_BTS: Tensor, scale: float) -> Tensor:
    """out_BNTH of softmax(q k^T * scale) v over the visible rows. Every row must see at least one key."""
    return F.scaled_dot_product_attention(
        q_BNTH, k_BGSH, v_BGSH, attn_mask=visible_BTS[:, None], scale=scale, enable_gqa=True
    )


def causal_visible(num_new: int, num_kept: int, device: torch.device | str = "cpu") -> Tensor:
    """visible_BTS with B = 1: the last `num_new` of `num_kept` rows see everything up to themselves."""
    visible_TS = torch.ones(num_new, num_kept, dtype=torch.bool, device=device)
    return visible_TS.tril(num_kept - num_new)[None]


class DenseAttend:
    """An `Attend` that keeps plain growing tensors; for tests and references, not for speed.

    Who sees whom is said before each forward: `model(..., attend.see(visible_BTS))`. Without a mask the new rows are
    causal. After a forward of tree rows, `keep` leaves only the rows that became text.
    """

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.visible_BTS: Tensor | None = None

    @property
    def num_kept(self) -> int:
        """S, the rows kept by layer 0 (0 before the first forward)."""
        return self.kept[0][0].shape[2] if 0 in self.kept else 0

    def see(self, visible_BTS: Tensor | None) -> "DenseAttend":
        """Use this visibility for the next forward (None: causal); S counts the rows that the forward will add."""
        self.visible_BTS = visible_BTS
        return self

    def keep(self, rows_BR: Tensor) -> None:
        """Keep only the named rows of each request, in that order, in every layer."""
        for layer, (k_BGSH, v_BGSH) in self.kept.items():
            rows_BGRH = rows_BR[:, None, :, None].expand(-1, k_BGSH.shape[1], -1, k_BGSH.shape[3])
            self.kept[layer] = (k_BGSH.gather(2, rows_BGRH), v_BGSH.gather(2, rows_BGRH))

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, rule: Rule) -> Tensor:
        assert rule.is_plain, rule
        if layer in self.kept:
            past_k, past_v = self.kept[layer]
            k_BGTH, v_BGTH = torch.cat((past_k, k_BGTH), 2), torch.cat((past_v, v_BGTH), 2)
        self.kept[layer] = (k_BGTH, v_BGTH)
        num_new, num_kept = q_BNTH.shape[2], k_BGTH.shape[2]
        visible_BTS = self.visible_BTS
        if visible_BTS is None:
            if num_new == 1:  # one causal row sees everything: no mask needed
                return F.scaled_dot_product_attention(q_BNTH, k_BGTH, v_BGTH, scale=rule.scale, enable_gqa=True)
            visible_BTS = causal_visible(num_new, num_kept, q_BNTH.device)
        assert visible_BTS.shape[1:] == (num_new, num_kept), (visible_BTS.shape, num_new, num_kept)
        return dense_attention(q_BNTH, k_BGTH, v_BGTH, visible_BTS, rule.scale)
