"""What each step is graded by: the losses of all steps at once, and the figures that training shows.

Q chains, K steps, J teacher rows, C of them in a chunk, D hidden, V draft vocabulary, W target vocabulary.

    loss = sum over steps k, chains t of  m_k(t) * known(t, k) * decay^k * each(teacher_{t+1+k}, head at step k) / count

p: the target's softmax over all of W, looked at inside V; mass: the sum of p over V; q: the head's softmax over V.

    each      of p_V, mass, q_V                      gradient in the head's logits    what p has outside V
    soft      -sum_v p_v / mass * log q_v            q - p / mass                     left out: p is renormalised
    kl        soft - entropy of p / mass             the same                         left out as well
    lk        -alpha, alpha = sum_v min(p_v, q_v)    q * (S - I)                      never accepted: alpha <= mass
    lk_log    -log alpha                             q * (S - I) / alpha              the same

    I_v = 1 where q_v < p_v, else 0;  S = sum_v q_v * I_v

soft is EAGLE-3's (arXiv 2503.01840; facts A.1, "Teacher"). kl differs from it by what the head cannot change: it
trains the same head and shows a loss whose best is 0. alpha is the chance that speculative sampling accepts one draft;
to train on it is Samarin et al., "LK Losses" (arXiv 2602.23881). lk_log is their LK-alpha, -mean(log alpha), `alpha`
in SpecForge and `nla` in speculators (facts A.1); lk + 1 is the total variation, `tv` there. lk's gradient carries a
factor q: on a token that the head thinks unlikely it all but vanishes, so a head may stall where it starts. lk_log
divides that by alpha; for a teacher that is sure of one token it is cross-entropy. Steps weigh as in soft (facts A.1).

Where the target's likeliest token is not in the draft vocabulary (`known` false) the head cannot be right: no loss,
but a miss in the accuracy. That is SpecForge's mask, for every loss. `count` is one number for the whole optimizer
step, so rows, steps and micro-batches weigh alike however they are cut (facts A.1: nobody else does).

What the head is taught: the target's distribution, inside the draft vocabulary and beyond.

J rows, D hidden, V draft vocabulary, W target vocabulary.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eyas.model.submodules import apply_softcap
from eyas.model.vocab import DraftVocab
from eyas.train.chain_attention import max_floats


@dataclass(frozen=True, eq=False)
class SoftTargets:
    """f32 probs_JV: the target's probabilities of the draft tokens, not renormalised; mass_J their sum.

    best_J: draft id of the target's likeliest token over all W; known_J False where it is not in the draft vocabulary.
    """

    probs_JV: Tensor
    mass_J: Tensor
    best_J: Tensor
    known_J: Tensor


class Teacher:
    """The target's output matrix with the draft tokens first, so that one product gives both views."""

    def __init__(
        self, lm_head: nn.Module, vocab: DraftVocab, dtype: torch.dtype, logit_cap: float | None = None
    ) -> None:
        """logit_cap: the target's own (Gemma 2)."""
        weight_WD, bias_W = lm_head.weight, getattr(lm_head, "bias", None)
        assert isinstance(weight_WD, Tensor), "the target's output matrix"
        others = (~vocab.t2d_W).nonzero()[:, 0]
        order_W = torch.cat((vocab.target_ids_V, others))
        self.num_draft = vocab.size
        self.logit_cap = logit_cap
        self.weight_WD = weight_WD.detach()[order_W].to(dtype)
        self.bias_W = None if bias_W is None else bias_W.detach()[order_W].to(dtype)

    def soft_targets(self, hidden_JD: Tensor) -> SoftTargets:
        """From final normed states. Hand over as many rows as W floats each may fill."""
        logits_JW = apply_softcap(F.linear(hidden_JD, self.weight_WD, self.bias_W), self.logit_cap)
        probs_JW = logits_JW.softmax(-1, dtype=torch.promote_types(logits_JW.dtype, torch.float32))
        best_J = probs_JW.max(-1).indices
        probs_JV = probs_JW[:, : self.num_draft]
        return SoftTargets(probs_JV, probs_JV.sum(-1), best_J.clamp(max=self.num_draft - 1), best_J < self.num_draft)


LossName = Literal["soft", "kl", "lk", "lk_log"]
CHUNK_FLOATS = 1_000_000  # logits in flight, of the head or of the target, on a CPU


@dataclass(frozen=True, eq=False)
class TeacherTargets:
    """Which output is taught by which row: see `ttt.Packed`. hidden_JD are the teachers' final normed states."""

    hidden_JD: Tensor
    student_index_JK: Tensor
    supervised_JK: Tensor


@dataclass(frozen=True, eq=False)
class LossOutput:
    """loss_J: f32, weighted by decay^k, summed over steps and chains, not yet divided. The rest is without gradient.

    hits_JK: the head's likeliest token is the target's; overlap_JK: sum_v min(p, q), the chance that speculative
    sampling accepts one draft, p being the target's probability over all of W. Both 0 where nothing is taught.
    each_JK: the loss of each, not weighted; 0 where nothing is learnt.
    """

    loss: Tensor
    hits_JK: Tensor
    overlap_JK: Tensor
    token_loss_JK: Tensor


def compute_loss(
    normed_ND: Tensor,
    lm_weight_VD: Tensor,
    targets: TeacherTargets,
    teacher: Teacher,
    decay: float,
    name: LossName = "soft",
) -> LossOutput:
    """normed_ND: the head's outputs after its final norm, N = K * Q, step-major; lm_weight_VD: its output matrix."""
    steps = targets.student_index_JK.shape[1]
    student_JKD = normed_ND.index_select(0, targets.student_index_JK.flatten()).unflatten(0, (-1, steps))
    return LossOutput(*_DistillationLoss.apply(student_JKD, lm_weight_VD, targets, teacher, (name, decay)))


class _DistillationLoss(torch.autograd.Function):
    """Logits, loss and gradients of a chunk of teacher rows at a time; [N, V] never exists.

    The gradient of the loss in the logits is known as soon as the loss is, so it is taken in the forward and backward
    only scales it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        student_JKD: Tensor,
        lm_weight_VD: Tensor,
        lessons: TeacherTargets,
        teacher: Teacher,
        kind: tuple[LossName, float],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        name, decay = kind
        num_rows, steps, _ = student_JKD.shape
        wide = torch.promote_types(student_JKD.dtype, torch.float32)
        where = student_JKD.device
        scale_K = torch.tensor([decay**step for step in range(steps)], dtype=wide, device=where)
        dstudent_JKD = torch.empty_like(student_JKD)
        dweight_VD = torch.zeros_like(lm_weight_VD, dtype=wide)
        hits_JK = torch.zeros(num_rows, steps, dtype=torch.bool, device=where)
        overlap_JK = torch.zeros(num_rows, steps, dtype=wide, device=where)
        each_JK = torch.zeros_like(overlap_JK)
        row_floats = max(steps * lm_weight_VD.shape[0], teacher.weight_WD.shape[0])
        size = max(1, max_floats(CHUNK_FLOATS, where) // row_floats)
        for start in range(0, num_rows, size):
            rows = slice(start, start + size)
            lesson = teacher.soft_targets(lessons.hidden_JD[rows])
            student_MD = student_JKD[rows].flatten(0, 1)
            logits_CKV = (student_MD @ lm_weight_VD.T).to(wide).unflatten(0, (-1, steps))
            probs_CKV = logits_CKV.softmax(-1)
            top_CK, best_CK = probs_CKV.max(-1)
            taught_CK = lessons.supervised_JK[rows]
            hits_JK[rows] = taught_CK & lesson.known_J[:, None] & (best_CK == lesson.best_J[:, None])
            goal_CV = lesson.probs_JV / lesson.mass_J[:, None]
            # -sum p log q = lse - sum p z, and lse stands in the likeliest token: z_best - log q_best.
            lse_CK = logits_CKV.gather(-1, best_CK[..., None])[..., 0] - top_CK.log()
            expected_CK = torch.bmm(logits_CKV, goal_CV[:, :, None])[..., 0]
            least_CKV = torch.minimum(probs_CKV, lesson.probs_JV[:, None], out=logits_CKV)  # their memory is free now
            alpha_CK = least_CKV.sum(-1)
            overlap_JK[rows] = alpha_CK * taught_CK
            learn_CK = taught_CK & lesson.known_J[:, None]
            weight_CK1 = (learn_CK * scale_K)[..., None]
            if name in ("soft", "kl"):
                each_CK = lse_CK - expected_CK
                if name == "kl":
                    each_CK = each_CK - torch.special.entr(goal_CV).sum(-1, keepdim=True)
                slope_CKV = probs_CKV.sub_(goal_CV[:, None])
            else:
                each_CK, slope_CKV = _lk_loss(name, probs_CKV, lesson.probs_JV, alpha_CK)
            each_JK[rows] = each_CK * learn_CK
            dlogits_MV = slope_CKV.mul_(weight_CK1).flatten(0, 1).to(student_JKD.dtype)
            dstudent_JKD[rows] = (dlogits_MV @ lm_weight_VD).unflatten(0, (-1, steps))
            dweight_VD += dlogits_MV.T @ student_MD
        ctx.save_for_backward(dstudent_JKD, dweight_VD.to(lm_weight_VD.dtype))
        ctx.mark_non_differentiable(hits_JK, overlap_JK, each_JK)
        return (each_JK * scale_K).sum(), hits_JK, overlap_JK, each_JK

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dstudent_JKD, dweight_VD = ctx.saved_tensors
        scale = grads[0].to(dstudent_JKD.dtype)
        return dstudent_JKD * scale, dweight_VD * scale, None, None, None


def _lk_loss(name: LossName, probs_CKV: Tensor, target_CV: Tensor, alpha_CK: Tensor) -> tuple[Tensor, Tensor]:
    """lk or lk_log of each, and its gradient in the logits; probs_CKV is used up.

    Where p_v and q_v are equal, the gradient of their minimum is taken as 0.
    """
    under_CKV = probs_CKV * (probs_CKV < target_CV[:, None])
    slope_CKV = probs_CKV.mul_(under_CKV.sum(-1, keepdim=True)).sub_(under_CKV)
    if name == "lk":
        return -alpha_CK, slope_CKV
    floored_CK = alpha_CK.clamp(min=torch.finfo(alpha_CK.dtype).tiny)  # q of a token may round to nothing
    return -floored_CK.log(), slope_CKV.div_(floored_CK[..., None])
