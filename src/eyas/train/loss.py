"""Soft cross-entropy of all steps at once, and the figures that training shows.

Q chains, K steps, J teacher rows, C of them in a chunk, D hidden, V draft vocabulary.

    loss = sum over steps k, chains t of  m_k(t) * known(t, k) * decay^k * CE(teacher_{t+1+k}, head at step k)  /  count

The teacher is the target's softmax over the draft vocabulary. Where its likeliest token is not in the draft vocabulary
(`known` false) the head cannot be right: no loss, but a miss in the accuracy. `count` is one number for the whole
optimizer step, so rows, steps and micro-batches weigh alike however they are cut (facts A.1: nobody else does).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eyas.train.teacher import Teacher

CHUNK_FLOATS = 1_000_000  # student logits in flight, f32: 4 MB, which a core's cache holds


@dataclass(frozen=True, eq=False)
class Lessons:
    """Which output is taught by which row: see `ttt.Packed`. hidden_JD are the teachers' final normed states."""

    hidden_JD: Tensor
    pupils_JK: Tensor
    taught_JK: Tensor


@dataclass(frozen=True, eq=False)
class Graded:
    """loss_J: f32, weighted by decay^k, summed over steps and chains, not yet divided. The rest is without gradient.

    hits_JK: the head's likeliest token is the target's; overlap_JK: sum_v min(p, q), the chance that speculative
    sampling accepts one draft, p being the target's probability over all of W. Both 0 where nothing is taught.
    ce_JK: cross-entropy, 0 where nothing is learnt.
    """

    loss: Tensor
    hits_JK: Tensor
    overlap_JK: Tensor
    ce_JK: Tensor


def grade(normed_ND: Tensor, lm_weight_VD: Tensor, lessons: Lessons, teacher: Teacher, decay: float) -> Graded:
    """normed_ND: the head's outputs after its final norm, N = K * Q, step-major; lm_weight_VD: its output matrix."""
    steps = lessons.pupils_JK.shape[1]
    student_JKD = normed_ND.index_select(0, lessons.pupils_JK.flatten()).unflatten(0, (-1, steps))
    loss, hits_JK, overlap_JK, ce_JK = _SoftCrossEntropy.apply(student_JKD, lm_weight_VD, lessons, teacher, decay)
    return Graded(loss, hits_JK, overlap_JK, ce_JK)


class _SoftCrossEntropy(torch.autograd.Function):
    """Logits, loss and gradients of a chunk of teacher rows at a time; [N, V] never exists.

    The gradient of the loss in the logits is weight * (q - p), known as soon as the loss is, so it is taken in the
    forward and backward only scales it.
    """

    @staticmethod
    def forward(
        ctx: Any, student_JKD: Tensor, lm_weight_VD: Tensor, lessons: Lessons, teacher: Teacher, decay: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        num_rows, steps, _ = student_JKD.shape
        wide = torch.promote_types(student_JKD.dtype, torch.float32)
        scale_K = torch.tensor([decay**step for step in range(steps)], dtype=wide)
        dstudent_JKD = torch.empty_like(student_JKD)
        dweight_VD = torch.zeros_like(lm_weight_VD, dtype=wide)
        hits_JK = torch.zeros(num_rows, steps, dtype=torch.bool)
        overlap_JK = torch.zeros(num_rows, steps, dtype=wide)
        ce_JK = torch.zeros(num_rows, steps, dtype=wide)
        size = max(1, CHUNK_FLOATS // (steps * lm_weight_VD.shape[0]))
        for start in range(0, num_rows, size):
            rows = slice(start, start + size)
            lesson = teacher.teach(lessons.hidden_JD[rows])
            student_MD = student_JKD[rows].flatten(0, 1)
            logits_CKV = (student_MD @ lm_weight_VD.T).to(wide).unflatten(0, (-1, steps))
            probs_CKV = logits_CKV.softmax(-1)
            top_CK, best_CK = probs_CKV.max(-1)
            taught_CK = lessons.taught_JK[rows]
            hits_JK[rows] = taught_CK & lesson.known_J[:, None] & (best_CK == lesson.best_J[:, None])
            goal_CV = lesson.probs_JV / lesson.mass_J[:, None]
            # -sum p log q = lse - sum p z, and lse stands in the likeliest token: z_best - log q_best.
            lse_CK = logits_CKV.gather(-1, best_CK[..., None])[..., 0] - top_CK.log()
            expected_CK = torch.bmm(logits_CKV, goal_CV[:, :, None])[..., 0]
            least_CKV = torch.minimum(probs_CKV, lesson.probs_JV[:, None], out=logits_CKV)  # their memory is free now
            overlap_JK[rows] = least_CKV.sum(-1) * taught_CK
            learn_CK = taught_CK & lesson.known_J[:, None]
            ce_JK[rows] = (lse_CK - expected_CK) * learn_CK
            weight_CK1 = (learn_CK * scale_K)[..., None]
            dlogits_MV = probs_CKV.sub_(goal_CV[:, None]).mul_(weight_CK1).flatten(0, 1).to(student_JKD.dtype)
            dstudent_JKD[rows] = (dlogits_MV @ lm_weight_VD).unflatten(0, (-1, steps))
            dweight_VD += dlogits_MV.T @ student_MD
        ctx.save_for_backward(dstudent_JKD, dweight_VD.to(lm_weight_VD.dtype))
        ctx.mark_non_differentiable(hits_JK, overlap_JK, ce_JK)
        return (ce_JK * scale_K).sum(), hits_JK, overlap_JK, ce_JK

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dstudent_JKD, dweight_VD = ctx.saved_tensors
        scale = grads[0].to(dstudent_JKD.dtype)
        return dstudent_JKD * scale, dweight_VD * scale, None, None, None
