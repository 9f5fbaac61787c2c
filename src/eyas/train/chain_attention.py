"""Attention of unrolled chains with its gradient written out: causal over one text, plus the chain's own later keys.

Q chains and P rows of the batch, C chains and T rows of one text, N heads, G key-value heads, R = N / G, H head size,
J unrolled steps so far, M = R * C.

    scores of a chain     [ q . k of its text, causal | q . k of its own steps 1..J ]  ->  one softmax over both

Autograd would keep four copies of the scores and repeat the keys for every head of a group; this keeps the
probabilities alone. Texts are looped over, so nothing is padded and texts cannot see each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Text:
    """Where one text lies in the batch, and what its chains do not see: bool, True where the key comes later."""

    rows: slice
    chains: slice
    later_CT: Tensor


def chain_attention(
    texts: Sequence[Text],
    q_NQH: Tensor,
    prefix: tuple[Tensor, Tensor],
    own: Sequence[tuple[Tensor, Tensor]],
    scale: float,
) -> Tensor:
    """out_NQH. prefix: keys and values of step 0, [G, P, H]; own: those of each later step so far, [G, Q, H]."""
    flat = [tensor for pair in own for tensor in pair]
    return _ChainAttention.apply(texts, q_NQH * scale, *prefix, *flat)  # type: ignore[return-value]


class _ChainAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, texts: Sequence[Text], q_NQH: Tensor, k_GPH: Tensor, v_GPH: Tensor, *own: Tensor) -> Tensor:
        num_groups, _, head_size = k_GPH.shape
        q_GRQH = q_NQH.unflatten(0, (num_groups, -1))
        own_scores_GRQJ = _dots(q_GRQH, own[::2])
        out_GRQH = torch.empty_like(q_GRQH, memory_format=torch.contiguous_format)
        own_probs_GRQJ = torch.empty_like(own_scores_GRQJ)
        kept = []
        for text in texts:
            num_keys = text.later_CT.shape[1]
            keys = slice(text.rows.start, text.rows.start + num_keys)
            q_GMH = q_GRQH[:, :, text.chains].reshape(num_groups, -1, head_size)
            scores_GMT = torch.bmm(q_GMH, k_GPH[:, keys].transpose(1, 2))
            scores_GRCT = scores_GMT.view(num_groups, -1, *text.later_CT.shape)
            scores_GRCT.masked_fill_(text.later_CT, -torch.inf)
            both = torch.cat((scores_GRCT, own_scores_GRQJ[:, :, text.chains]), -1) if own else scores_GRCT
            probs = both.softmax(-1)
            probs_GMT = probs[..., :num_keys].flatten(1, 2)
            out_GMH = torch.bmm(probs_GMT, v_GPH[:, keys])
            out_GRQH[:, :, text.chains] = out_GMH.view(num_groups, -1, text.later_CT.shape[0], head_size)
            own_probs_GRQJ[:, :, text.chains] = probs[..., num_keys:]
            kept.append(probs_GMT)
        for step, v_GQH in enumerate(own[1::2]):
            out_GRQH.addcmul_(own_probs_GRQJ[..., step, None], v_GQH[:, None])
        ctx.texts, ctx.num_kept = texts, len(kept)
        ctx.save_for_backward(q_NQH, k_GPH, v_GPH, out_GRQH, own_probs_GRQJ, *kept, *own)
        return out_GRQH.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q_NQH, k_GPH, v_GPH, out_GRQH, own_probs_GRQJ, *rest = ctx.saved_tensors
        kept, own = rest[: ctx.num_kept], rest[ctx.num_kept :]
        num_groups, _, head_size = k_GPH.shape
        q_GRQH = q_NQH.unflatten(0, (num_groups, -1))
        dout_GRQH = grads[0].unflatten(0, (num_groups, -1))
        # d scores = probs * (d probs - sum(probs * d probs)), and that sum is out . d out.
        sum_GRQ1 = (dout_GRQH * out_GRQH).sum(-1, keepdim=True)
        dq_GRQH = torch.empty_like(out_GRQH)
        dk_GPH, dv_GPH = torch.zeros_like(k_GPH), torch.zeros_like(v_GPH)
        for text, probs_GMT in zip(ctx.texts, kept, strict=True):
            keys = slice(text.rows.start, text.rows.start + text.later_CT.shape[1])
            q_GMH = q_GRQH[:, :, text.chains].reshape(num_groups, -1, head_size)
            dout_GMH = dout_GRQH[:, :, text.chains].reshape(num_groups, -1, head_size)
            sum_GM1 = sum_GRQ1[:, :, text.chains].reshape(num_groups, -1, 1)
            dscores_GMT = torch.bmm(dout_GMH, v_GPH[:, keys].transpose(1, 2)).sub_(sum_GM1).mul_(probs_GMT)
            dq_GRQH[:, :, text.chains] = torch.bmm(dscores_GMT, k_GPH[:, keys]).view(
                num_groups, -1, text.later_CT.shape[0], head_size
            )
            dk_GPH[:, keys] = torch.bmm(dscores_GMT.transpose(1, 2), q_GMH)
            dv_GPH[:, keys] = torch.bmm(probs_GMT.transpose(1, 2), dout_GMH)
        dscores_GRQJ = (_dots(dout_GRQH, own[1::2]) - sum_GRQ1) * own_probs_GRQJ
        down: list[Tensor] = []
        for step, k_GQH in enumerate(own[::2]):
            dscores_GRQ1 = dscores_GRQJ[..., step, None]
            dq_GRQH.addcmul_(dscores_GRQ1, k_GQH[:, None])
            down.append((dscores_GRQ1 * q_GRQH).sum(1))
            down.append((own_probs_GRQJ[..., step, None] * dout_GRQH).sum(1))
        return None, dq_GRQH.flatten(0, 1), dk_GPH, dv_GPH, *down


def _dots(x_GRQH: Tensor, others: Sequence[Tensor]) -> Tensor:
    """[G, R, Q, J]: x . y of the same group and chain for each of the others, [G, Q, H]."""
    if not others:
        return x_GRQH.new_zeros(*x_GRQH.shape[:-1], 0)
    return torch.stack([(x_GRQH * y_GQH[:, None]).sum(-1) for y_GQH in others], -1)
