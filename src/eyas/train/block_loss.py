"""Runs a block head over the blocks of a micro-batch and computes its loss.

Q blocks, K slots of a block, P rows of the batch, N = K * Q slots ("slot-major": slot k of block q is k * Q + q), J
teacher rows, M slots of a chunk of them, D hidden, r rank of the correction, W target vocabulary, H head size.

A block is a chain of `ttt.PackedBatch`: it starts at t, its anchor is x_{t+1}, slot k predicts x_{t+2+k} and has the
teacher h_{t+1+k}. The context of the block is the text up to t, so the anchor's own features are not visible. For the
text of features/layout.py, the block at t = 2 with 3 slots:

    slot k            0      1      2
    input             D      mask   mask        at RoPE position 3, 4, 5
    token before it   D      E      F           of the correction and the confidence
    predicts          E      F      G           teacher h_3, h_4, h_5

With fill-in slots, the inputs are D and three mask tokens at 3, 4, 5, 6, and the last three rows are the slots.

    loss = sum over blocks, slots k of  decay^k * (w * cross_entropy + 0.9 * distance + confidence) / sum_k decay^k

    cross_entropy      -log q of the next token of the text
    distance           sum_v |p_v - q_v| = 2 - 2 alpha,  alpha = sum_v min(p_v, q_v): the probability of acceptance
    confidence         binary cross-entropy of the confidence with the target alpha; 0 for a head of rank 0

These are the losses of DSpark (arXiv 2607.05147), where w = 0.1. p is the target's softmax, q the head's, both over all
W tokens.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.model.attention import AttentionParams
from eyas.model.block_head import BlockHead
from eyas.model.submodules import apply_softcap
from eyas.model.target import Target
from eyas.train.chain_attention import chain_attention
from eyas.train.loss import LossOutput, Teacher, chunk_rows
from eyas.train.ttt import PackedBatch

DISTANCE_WEIGHT = 0.9


def compute_block_loss(
    head: BlockHead, packed: PackedBatch, teacher: Teacher, target: Target, weights: tuple[float, float]
) -> LossOutput:
    """Returns the loss of a micro-batch. The caller must divide it by the number of blocks of the update.

    Args:
        head: The head.
        packed: The micro-batch. Its chains are blocks (`max_chains` of `ttt.pack_rows`).
        teacher: The target's output matrix.
        target: The target.
        weights: decay and w in the formula above.
    """
    decay, _ = weights
    normed_NkD = run_blocks(head, packed, target).flatten(0, 1)
    has_correction, total = head.config.markov_rank > 0, sum(decay**slot for slot in range(len(packed.tokens_KQ)))
    if has_correction:
        vectors_Nr = head.markov_head.markov_w1(packed.tokens_KQ).flatten(0, 1)
        w2_Wr = head.markov_head.markov_w2.weight
    else:
        vectors_Nr, w2_Wr = normed_NkD.new_empty(len(normed_NkD), 0), normed_NkD.new_empty(head.config.vocab_size, 0)
    output = LossOutput(*_BlockLoss.apply(normed_NkD, vectors_Nr, w2_Wr, packed, teacher, weights))
    loss = output.loss
    if has_correction:
        weights_JK = decay ** torch.arange(len(packed.tokens_KQ), device=normed_NkD.device) * packed.supervised_JK
        logits_JK = head.confidence(normed_NkD, vectors_Nr)[packed.student_index_JK].float()
        losses_JK = F.binary_cross_entropy_with_logits(logits_JK, output.overlap_JK.float(), reduction="none")
        loss = loss + (losses_JK * weights_JK).sum()
    return replace(output, loss=loss / total)


def run_blocks(head: BlockHead, packed: PackedBatch, target: Target) -> Tensor:
    """Runs the head over all blocks. Returns normed_KQD, the outputs of its final norm for the slots."""
    dtype = packed.aux_PL.dtype
    context = head.context_keys_values(packed.aux_PL[None], packed.positions_P[None])
    ids_KQ = head.block_ids(packed.tokens_KQ[0]).T
    with torch.no_grad():
        embeds_KQD = target.embed(ids_KQ).to(dtype)
    rows_K1 = torch.arange(len(ids_KQ), device=ids_KQ.device)[:, None]
    positions_KQ = packed.positions_P[packed.chains_Q] + 1 + rows_K1
    attention = PackedBlockAttention(packed, context)
    normed_1ND = head.step(embeds_KQD.flatten(0, 1)[None], positions_KQ.view(1, -1), attention)
    return normed_1ND.view(*ids_KQ.shape, -1)[-head.config.block_size :]


class PackedBlockAttention:
    """The attention of `run_blocks`: a row attends to the text up to the start of its block, and to its own block.

    All rows of a block have the same keys. So they are computed as so many times the query heads of one chain.
    """

    def __init__(self, packed: PackedBatch, context: list[tuple[Tensor, Tensor]]) -> None:
        self._packed, self._context, self._places = packed, context, packed.chain_places

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        """Returns the attention output of a layer for all rows of all blocks."""
        num_blocks = self._packed.tokens_KQ.shape[1]
        num_rows = q_BNTH.shape[2] // num_blocks
        k_GPH, v_GPH = (part[0].transpose(0, 1) for part in self._context[layer])
        k_GKQH, v_GKQH = (part[0].unflatten(1, (num_rows, num_blocks)) for part in (k_BGTH, v_BGTH))
        own = [(k_GKQH[:, row], v_GKQH[:, row]) for row in range(num_rows)]
        q_NQH = q_BNTH[0].unflatten(1, (num_rows, num_blocks)).flatten(0, 1)
        out_NQH = chain_attention(self._places, q_NQH, (k_GPH, v_GPH), own, params.scale)
        return out_NQH.unflatten(0, (-1, num_rows)).flatten(1, 2)[None]


class _BlockLoss(torch.autograd.Function):
    """An autograd function that computes logits, loss and gradients for one chunk of teacher rows at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        normed_ND: Tensor,
        vectors_Nr: Tensor,
        w2_Wr: Tensor,
        packed: PackedBatch,
        teacher: Teacher,
        weights: tuple[float, float],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        decay, token_weight = weights
        dtype, wide = normed_ND.dtype, torch.promote_types(normed_ND.dtype, torch.float32)
        supervised_JK, cap = packed.supervised_JK, teacher.logit_softcap
        dnormed_ND, dvectors_Nr = torch.zeros_like(normed_ND), torch.zeros_like(vectors_Nr)
        dw2_Wr = torch.zeros_like(w2_Wr, dtype=wide)
        hits_JK = torch.zeros_like(supervised_JK)
        overlap_JK = torch.zeros(supervised_JK.shape, dtype=wide, device=normed_ND.device)
        loss_JK = torch.zeros_like(overlap_JK)
        weights_K = decay ** torch.arange(supervised_JK.shape[1], dtype=wide, device=normed_ND.device)
        labels_J = packed.ids_P[packed.teacher_rows_J + 1]
        size = chunk_rows(supervised_JK.shape[1] * w2_Wr.shape[0], normed_ND.device)
        for start in range(0, len(labels_J), size):
            j_M, k_M = supervised_JK[start : start + size].nonzero(as_tuple=True)
            soft = teacher.soft_targets(packed.hidden_JD[start : start + size])
            goals_MW, best_M, j_M = soft.probs_JV[j_M], soft.best_J[j_M], j_M + start
            rows_M, labels_M1 = packed.student_index_JK[j_M, k_M], labels_J[j_M][:, None]
            normed_MD, vectors_Mr = normed_ND[rows_M], vectors_Nr[rows_M]
            base_MW = apply_softcap(F.linear(normed_MD, teacher.weight_WD, teacher.bias_W), cap)
            probs_MW = (base_MW + vectors_Mr @ w2_Wr.T).softmax(-1, dtype=wide)
            hits_JK[j_M, k_M] = probs_MW.argmax(-1) == best_M
            alpha_M = torch.minimum(probs_MW, goals_MW).sum(-1)
            overlap_JK[j_M, k_M] = alpha_M
            token_loss_M1 = -probs_MW.gather(-1, labels_M1).clamp(min=torch.finfo(wide).tiny).log()
            loss_JK[j_M, k_M] = token_weight * token_loss_M1[:, 0] + DISTANCE_WEIGHT * (2 - 2 * alpha_M)
            # The gradient of alpha in the logits is q * (I - S): I is 1 where q < p, S the sum of q * I.
            under_MW = probs_MW * (probs_MW < goals_MW)
            slopes_MW = (2 * DISTANCE_WEIGHT) * (probs_MW * under_MW.sum(-1, keepdim=True) - under_MW)
            slopes_MW += token_weight * probs_MW
            slopes_MW.scatter_add_(-1, labels_M1, torch.full_like(token_loss_M1, -token_weight))
            slopes_MW = (slopes_MW * weights_K[k_M][:, None]).to(dtype)
            dvectors_Nr[rows_M] = slopes_MW @ w2_Wr
            dw2_Wr += slopes_MW.T @ vectors_Mr
            if cap is not None:
                slopes_MW = slopes_MW * (1 - (base_MW / cap) ** 2)
            dnormed_ND[rows_M] = slopes_MW @ teacher.weight_WD
        ctx.save_for_backward(dnormed_ND, dvectors_Nr, dw2_Wr.to(w2_Wr.dtype))
        ctx.mark_non_differentiable(hits_JK, overlap_JK, loss_JK)
        return (loss_JK * weights_K).sum(), hits_JK, overlap_JK, loss_JK

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *(grad * grads[0].to(grad.dtype) for grad in ctx.saved_tensors), None, None, None
