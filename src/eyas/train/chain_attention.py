"""Computes the attention of the training-time test (ttt.py), with a backward that needs little memory.

A chain starts at one position of a text and runs K steps. At each step, its query attends to two groups of keys: the
keys of its text up to its own position (causal), and the keys of its own later steps 1..J.

    scores of a chain     [ q . k of its text, causal | q . k of its own steps 1..J ]  ->  one softmax over both

Q chains and P rows of the batch, N heads, G key-value heads, R = N / G, H head size, J unrolled steps so far; C chains
of a block, T keys from the start of its first text up to its last chain, M = R * C.

Autograd would store four copies of the scores and repeat the keys for every head of a group. This module stores only
the log-sum-exp of each softmax. The backward computes the scores again, one block of chains at a time. So memory grows
with the length of a text, not with its square. The code loops over texts: it pads nothing, and no text attends to
another text. On a GPU, where the launch of a kernel takes longer than the scores of a short text, consecutive texts
share a block, and the scores between them are masked out.

              keys of a text ->              one line for each chain, x: the chain attends to this key
    block 1   x x x x
              x x x x x                      block 1 computes scores of the first 5 keys only
    block 2   x x x x x x x
              x x x x x x x x x              block 2 computes scores of the first 9 keys only
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK_FLOATS = 1_000_000  # scores of a block, f32: 4 MB, which fits into the cache of a CPU core
GPU_FACTOR = 64  # a block on a GPU is so many times larger, because a small block would leave the GPU idle
SHARING = ("cuda",)  # the kinds of devices on which texts share a block


@dataclass(frozen=True, eq=False)
class PackedText:
    """The place of one text in a packed batch.

    Attributes:
        rows: The rows of the batch that hold the tokens of the text.
        chains: The chains of the batch that start in the text.
        positions: The position in the text at which each of these chains starts, ascending.
    """

    rows: slice
    chains: slice
    positions: tuple[int, ...]


KeysValues = tuple[Tensor, Tensor]
PackedTexts = tuple[Sequence[PackedText], Tensor, Tensor]
"""The texts of a batch, and for each chain, the row at which it starts and the first row that it attends to."""


def chain_attention(
    texts: PackedTexts, q_NQH: Tensor, prefix_kv: KeysValues, unrolled_kv: Sequence[KeysValues], scale: float
) -> Tensor:
    """Returns out_NQH, the attention output of every chain at one unrolled step.

    Args:
        texts: The texts of the batch, chains_Q and starts_Q: the last and first rows that each chain attends to.
        q_NQH: The queries of the chains.
        prefix_kv: Keys and values of step 0, [G, P, H] each.
        unrolled_kv: Keys and values of the chains at step 1, 2, ... up to the current step, [G, Q, H] each.
        scale: The factor of the scores, usually 1 / sqrt(H).
    """
    flat = [tensor for pair in unrolled_kv for tensor in pair]
    return _ChainAttention.apply(texts, q_NQH * scale, *prefix_kv, *flat)  # type: ignore[return-value]


class _ChainAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, texts: PackedTexts, q_NQH: Tensor, k_GPH: Tensor, v_GPH: Tensor, *own: Tensor) -> Tensor:
        q_GRQH = q_NQH.unflatten(0, (k_GPH.shape[0], -1))
        own_GRQJ = _dot_products(q_GRQH, own[::2])
        out_GRQH = torch.empty_like(q_GRQH, memory_format=torch.contiguous_format)
        lse_GRQ = q_NQH.new_empty(q_GRQH.shape[:-1], dtype=torch.promote_types(q_NQH.dtype, torch.float32))
        for block in _blocks(texts, q_NQH.shape[0]):
            scores_GRCT = block.scores(q_GRQH, k_GPH)
            all_scores = torch.cat((scores_GRCT, own_GRQJ[:, :, block.chains]), -1) if own else scores_GRCT
            probs = all_scores.softmax(-1)
            # log-sum-exp = score - log prob, at the most likely key, where a rounded probability is most exact.
            top_GRC1, best_GRC1 = probs.max(-1, keepdim=True)
            lse_GRC1 = all_scores.gather(-1, best_GRC1).to(lse_GRQ) - top_GRC1.to(lse_GRQ).log()
            lse_GRQ[:, :, block.chains] = lse_GRC1[..., 0]
            num_keys = scores_GRCT.shape[-1]
            out_GMH = torch.bmm(probs[..., :num_keys].flatten(1, 2), v_GPH[:, block.keys])
            out_GRQH[:, :, block.chains] = out_GMH.view(*scores_GRCT.shape[:-1], -1)
            own_GRQJ[:, :, block.chains] = probs[..., num_keys:]
        for step, v_GQH in enumerate(own[1::2]):
            out_GRQH.addcmul_(own_GRQJ[..., step, None], v_GQH[:, None])
        ctx.texts = texts
        ctx.save_for_backward(q_NQH, k_GPH, v_GPH, out_GRQH, own_GRQJ, lse_GRQ, *own)
        return out_GRQH.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q_NQH, k_GPH, v_GPH, out_GRQH, own_probs_GRQJ, lse_GRQ, *own = ctx.saved_tensors
        num_groups, _, head_size = k_GPH.shape
        q_GRQH = q_NQH.unflatten(0, (num_groups, -1))
        dout_GRQH = grads[0].unflatten(0, (num_groups, -1))
        # d scores = probs * (d probs - sum(probs * d probs)); the sum equals out . d out.
        sum_GRQ1 = (dout_GRQH * out_GRQH).sum(-1, keepdim=True)
        dq_GRQH = torch.empty_like(out_GRQH)
        dk_GPH, dv_GPH = torch.zeros_like(k_GPH), torch.zeros_like(v_GPH)
        for block in _blocks(ctx.texts, q_NQH.shape[0]):
            scores_GRCT = block.scores(q_GRQH, k_GPH)
            probs_GMT = (scores_GRCT - lse_GRQ[:, :, block.chains, None]).exp_().flatten(1, 2).to(q_NQH.dtype)
            q_GMH = q_GRQH[:, :, block.chains].reshape(num_groups, -1, head_size)
            dout_GMH = dout_GRQH[:, :, block.chains].reshape(num_groups, -1, head_size)
            sum_GM1 = sum_GRQ1[:, :, block.chains].reshape(num_groups, -1, 1)
            dv_GPH[:, block.keys] += torch.bmm(probs_GMT.transpose(1, 2), dout_GMH)
            dscores_GMT = torch.bmm(dout_GMH, v_GPH[:, block.keys].transpose(1, 2)).sub_(sum_GM1).mul_(probs_GMT)
            dq_GMH = torch.bmm(dscores_GMT, k_GPH[:, block.keys])
            dq_GRQH[:, :, block.chains] = dq_GMH.view(*scores_GRCT.shape[:-1], -1)
            dk_GPH[:, block.keys] += torch.bmm(dscores_GMT.transpose(1, 2), q_GMH)
        dscores_GRQJ = (_dot_products(dout_GRQH, own[1::2]) - sum_GRQ1) * own_probs_GRQJ
        unrolled_grads: list[Tensor] = []
        for step, k_GQH in enumerate(own[::2]):
            dscores_GRQ1 = dscores_GRQJ[..., step, None]
            dq_GRQH.addcmul_(dscores_GRQ1, k_GQH[:, None])
            unrolled_grads += [(dscores_GRQ1 * q_GRQH).sum(1), (own_probs_GRQJ[..., step, None] * dout_GRQH).sum(1)]
        return None, dq_GRQH.flatten(0, 1), dk_GPH, dv_GPH, *unrolled_grads


@dataclass(frozen=True, eq=False)
class _Block:
    """Consecutive chains whose scores are computed together: chains of one text, or all chains of several texts.

    Attributes:
        chains: The chains of the block, among all chains of the batch.
        keys: The rows of the batch from the start of the first text to the last chain of the block.
        masked_CT: True where the key comes after the start of the chain, before its window, or from another text.
    """

    chains: slice
    keys: slice
    masked_CT: Tensor

    def scores(self, q_GRQH: Tensor, k_GPH: Tensor) -> Tensor:
        """Returns the scores [G, R, C, T]; -inf where the chain does not attend to the key."""
        q_GMH = q_GRQH[:, :, self.chains].reshape(k_GPH.shape[0], -1, k_GPH.shape[-1])
        scores_GMT = torch.bmm(q_GMH, k_GPH[:, self.keys].transpose(1, 2))
        return scores_GMT.view(*q_GRQH.shape[:2], *self.masked_CT.shape).masked_fill_(self.masked_CT, -torch.inf)


def _blocks(texts: PackedTexts, num_heads: int) -> Iterator[_Block]:
    """Yields the blocks of all texts. It copies nothing to the device, so the host need not wait for it."""
    members, chains_Q, starts_Q = texts
    most = BLOCK_FLOATS * (1 if chains_Q.device.type == "cpu" else GPU_FACTOR) // num_heads
    for group in _groups(members, most if chains_Q.device.type in SHARING else 0):
        first_row, last = group[0].rows.start, group[-1]
        size = max(1, most // (last.rows.start + last.positions[-1] + 1 - first_row))
        for start in range(group[0].chains.start, last.chains.stop, size):
            chains = slice(start, min(start + size, last.chains.stop))
            keys = slice(first_row, last.rows.start + last.positions[chains.stop - 1 - last.chains.start] + 1)
            keys_T = torch.arange(keys.start, keys.stop, device=chains_Q.device)
            yield _Block(chains, keys, (keys_T > chains_Q[chains, None]) | (keys_T < starts_Q[chains, None]))


def _groups(texts: Sequence[PackedText], most: int) -> Iterator[list[PackedText]]:
    """Yields consecutive texts in groups: one text, or several with at most `most` chains times rows together."""
    group: list[PackedText] = []
    for text in texts:
        if group and (text.chains.stop - group[0].chains.start) * (text.rows.stop - group[0].rows.start) > most:
            yield group
            group = []
        group.append(text)
    yield group


def _dot_products(x_GRQH: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Returns [G, R, Q, J]: the dot product of x with each of the J tensors [G, Q, H] in `others`, chain by chain."""
    if not others:
        return x_GRQH.new_zeros(*x_GRQH.shape[:-1], 0)
    return torch.stack([(x_GRQH * y_GQH[:, None]).sum(-1) for y_GQH in others], -1)
