"""Computes the distillation loss of all steps at once, its gradient, and the accuracy and acceptance of each step.

Q chains, K steps, J teacher rows, C of them in a chunk, M = C * K, D hidden, V draft vocabulary, W target vocabulary.

The teacher is the target, the student is the head. A teacher row is a position of a text at which the target's
distribution of the next token is the goal of one or more student outputs.

    loss = sum over steps k, chains t of  m_k(t) * known(t, k) * decay^k * token_loss(teacher_{t+1+k}, step k) / count

    m_k(t)      1 if step k of the chain at t is supervised (`layout.supervised_positions`), else 0
    known(t,k)  1 if the most likely token of the teacher is in the draft vocabulary, else 0
    p           the target's softmax over W, restricted to V;  mass: the sum of p over V
    q           the head's softmax over V

    loss      token_loss of p_V, mass, q_V           gradient in the head's logits    probability outside V
    soft      -sum_v p_v / mass * log q_v            q - p / mass                     ignored: p is renormalized
    kl        soft - entropy of p / mass             q - p / mass                     ignored: p is renormalized
    lk        -alpha, alpha = sum_v min(p_v, q_v)    q * (S - I)                      counts as rejected: alpha <= mass
    lk_log    -log alpha                             q * (S - I) / alpha              counts as rejected: alpha <= mass

    I_v = 1 where q_v < p_v, else 0;  S = sum_v q_v * I_v

soft is the loss of EAGLE-3 (arXiv 2503.01840). kl differs from soft by the target's entropy, which the head cannot
change. So kl trains the same head, and its best value is 0. alpha is the probability that speculative sampling accepts
a draft; Samarin et al. propose it as a loss in "LK Losses" (arXiv 2602.23881). lk_log is their LK-alpha. SpecForge
calls lk_log `alpha`, speculators calls it `nla`. lk + 1 is the total variation, which speculators calls `tv`. The
gradient of lk has a factor q. It is almost 0 on a token with a small q, so a new head may not start to learn. lk_log
divides this gradient by alpha. If the teacher gives one token the probability 1, lk_log equals cross-entropy.

Where the target's most likely token is not in the draft vocabulary (`known` is 0), the head cannot draft it. Such a
token adds nothing to the loss and counts as a miss in the accuracy. SpecForge uses this mask for soft, eyas uses it for
every loss. `count` is the number of supervised tokens of the whole update. So every token has the same weight in every
division into micro-batches.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eyas.model.submodules import apply_softcap
from eyas.model.vocab import DraftVocab

LossName = Literal["soft", "kl", "lk", "lk_log"]
CHUNK_FLOATS, GPU_CHUNK_FLOATS = 8_000_000, 64_000_000
"""Logits that a CPU and a GPU compute at once. Each chunk reads both output matrices, so small ones are slow."""


def chunk_rows(row_floats: int, device: torch.device) -> int:
    """Returns the number of teacher rows of a chunk. row_floats: the logits of one row."""
    return max(1, (CHUNK_FLOATS if device.type == "cpu" else GPU_CHUNK_FLOATS) // row_floats)


@dataclass(frozen=True, eq=False)
class SoftTargets:
    """The target's distributions of the next token at J teacher rows.

    Attributes:
        probs_JV: f32, the target's probabilities of the draft tokens, not renormalized.
        mass_J: The sum of these probabilities.
        best_J: The draft id of the target's most likely token over W; meaningless where known_J is False.
        known_J: True where the target's most likely token is in the draft vocabulary.
    """

    probs_JV: Tensor
    mass_J: Tensor
    best_J: Tensor
    known_J: Tensor


class Teacher:
    """A copy of the target's output matrix, with the rows of draft tokens first. One product gives all W logits."""

    def __init__(self, lm_head: nn.Module, vocab: DraftVocab, dtype: torch.dtype, softcap: float | None = None) -> None:
        """Copies the matrix and its bias.

        Args:
            lm_head: The target's output layer.
            vocab: The draft vocabulary of the head.
            dtype: The dtype of the copy.
            softcap: The soft cap c of the target's logits, c * tanh(logits / c), as in Gemma 2. None: no cap.
        """
        weight_WD, bias_W = lm_head.weight, getattr(lm_head, "bias", None)
        assert isinstance(weight_WD, Tensor), "the target's output matrix"
        order_W = torch.cat((vocab.target_ids_V, (~vocab.t2d_W).nonzero()[:, 0]))
        self.num_draft = vocab.size
        self.logit_softcap = softcap
        self.weight_WD = weight_WD.detach()[order_W].to(dtype)
        self.bias_W = None if bias_W is None else bias_W.detach()[order_W].to(dtype)

    def soft_targets(self, hidden_JD: Tensor) -> SoftTargets:
        """Returns the distributions for the target's final hidden states after its norm. Allocates J * W floats."""
        logits_JW = apply_softcap(F.linear(hidden_JD, self.weight_WD, self.bias_W), self.logit_softcap)
        probs_JW = logits_JW.softmax(-1, dtype=torch.promote_types(logits_JW.dtype, torch.float32))
        best_J = probs_JW.max(-1).indices
        probs_JV = probs_JW[:, : self.num_draft]
        return SoftTargets(probs_JV, probs_JV.sum(-1), best_J.clamp(max=self.num_draft - 1), best_J < self.num_draft)


@dataclass(frozen=True, eq=False)
class TeacherTargets:
    """The teacher rows of a micro-batch, and the student outputs that each teacher row supervises.

    The student outputs are numbered k * Q + q for step k of chain q ("step-major").

    Attributes:
        hidden_JD: The target's final hidden states at the teacher rows, after its norm.
        student_index_JK: The number of the student output that teacher row j supervises at step k.
        supervised_JK: False where teacher row j supervises no output at step k; student_index_JK is then meaningless.
    """

    hidden_JD: Tensor
    student_index_JK: Tensor
    supervised_JK: Tensor


@dataclass(frozen=True, eq=False)
class LossOutput:
    """The loss of a micro-batch. Only `loss` has a gradient.

    hits_JK, overlap_JK and token_loss_JK are 0 where teacher row j supervises no output at step k.

    Attributes:
        loss: f32 scalar, the sum of decay^k * token loss over steps and chains. The caller must divide it by the
            supervised tokens of the update.
        hits_JK: True where the most likely token of the head is the most likely token of the target.
        overlap_JK: sum_v min(p_v, q_v), the probability that speculative sampling accepts one draft. The target's
            softmax p runs over all of W.
        token_loss_JK: The loss of each token, without decay^k; also 0 where the target's most likely token is not in
            the draft vocabulary.
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
    """Returns the loss of all steps, with the accuracy and acceptance figures.

    Args:
        normed_ND: The head's outputs after its final norm, N = K * Q, step-major.
        lm_weight_VD: The head's output matrix.
        targets: The teacher rows and the outputs that each of them supervises.
        teacher: The target's output matrix.
        decay: The loss of step k has the weight decay^k.
        name: The loss, as in the table above.
    """
    steps = targets.student_index_JK.shape[1]
    student_JKD = normed_ND.index_select(0, targets.student_index_JK.flatten()).unflatten(0, (-1, steps))
    return LossOutput(*_DistillationLoss.apply(student_JKD, lm_weight_VD, targets, teacher, (name, decay)))


class _DistillationLoss(torch.autograd.Function):
    """An autograd function that computes logits, loss and gradients for one chunk of teacher rows at a time.

    So the logits [N, V] of all outputs are never in memory together. The forward computes the gradients with the loss,
    and the backward only multiplies them by the incoming gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        student_JKD: Tensor,
        lm_weight_VD: Tensor,
        targets: TeacherTargets,
        teacher: Teacher,
        settings: tuple[LossName, float],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        name, decay = settings
        num_rows, steps, _ = student_JKD.shape
        wide = torch.promote_types(student_JKD.dtype, torch.float32)
        device = student_JKD.device
        scale_K = torch.tensor([decay**step for step in range(steps)], dtype=wide, device=device)
        dstudent_JKD = torch.empty_like(student_JKD)
        dweight_VD = torch.zeros_like(lm_weight_VD, dtype=wide)
        hits_JK = torch.zeros(num_rows, steps, dtype=torch.bool, device=device)
        overlap_JK = torch.zeros(num_rows, steps, dtype=wide, device=device)
        token_loss_JK = torch.zeros_like(overlap_JK)
        size = chunk_rows(max(steps * lm_weight_VD.shape[0], teacher.weight_WD.shape[0]), device)
        for start in range(0, num_rows, size):
            rows = slice(start, start + size)
            soft = teacher.soft_targets(targets.hidden_JD[rows])
            student_MD = student_JKD[rows].flatten(0, 1)
            logits_CKV = (student_MD @ lm_weight_VD.T).to(wide).unflatten(0, (-1, steps))
            probs_CKV = logits_CKV.softmax(-1)
            top_CK, best_CK = probs_CKV.max(-1)
            supervised_CK = targets.supervised_JK[rows]
            hits_JK[rows] = supervised_CK & soft.known_J[:, None] & (best_CK == soft.best_J[:, None])
            goal_CV = soft.probs_JV / soft.mass_J[:, None]
            # -sum p log q = log-sum-exp - sum p z; at the most likely token log-sum-exp = z_best - log q_best.
            lse_CK = logits_CKV.gather(-1, best_CK[..., None])[..., 0] - top_CK.log()
            expected_CK = torch.bmm(logits_CKV, goal_CV[:, :, None])[..., 0]
            least_CKV = torch.minimum(probs_CKV, soft.probs_JV[:, None], out=logits_CKV)  # logits are not needed again
            alpha_CK = least_CKV.sum(-1)
            overlap_JK[rows] = alpha_CK * supervised_CK
            learned_CK = supervised_CK & soft.known_J[:, None]
            weight_CK1 = (learned_CK * scale_K)[..., None]
            if name in ("soft", "kl"):
                loss_CK = lse_CK - expected_CK
                if name == "kl":
                    loss_CK = loss_CK - torch.special.entr(goal_CV).sum(-1, keepdim=True)
                slope_CKV = probs_CKV.sub_(goal_CV[:, None])
            else:
                loss_CK, slope_CKV = _lk_loss(name, probs_CKV, soft.probs_JV, alpha_CK)
            token_loss_JK[rows] = loss_CK * learned_CK
            dlogits_MV = slope_CKV.mul_(weight_CK1).flatten(0, 1).to(student_JKD.dtype)
            dstudent_JKD[rows] = (dlogits_MV @ lm_weight_VD).unflatten(0, (-1, steps))
            dweight_VD += dlogits_MV.T @ student_MD
        ctx.save_for_backward(dstudent_JKD, dweight_VD.to(lm_weight_VD.dtype))
        ctx.mark_non_differentiable(hits_JK, overlap_JK, token_loss_JK)
        return (token_loss_JK * scale_K).sum(), hits_JK, overlap_JK, token_loss_JK

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dstudent_JKD, dweight_VD = ctx.saved_tensors
        scale = grads[0].to(dstudent_JKD.dtype)
        return dstudent_JKD * scale, dweight_VD * scale, None, None, None


def _lk_loss(name: LossName, probs_CKV: Tensor, target_CV: Tensor, alpha_CK: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the loss lk or lk_log of each token, and its gradient in the logits. Overwrites probs_CKV.

    Where the probabilities of target and head are equal, the gradient of their minimum is taken as 0.
    """
    under_CKV = probs_CKV * (probs_CKV < target_CV[:, None])
    slope_CKV = probs_CKV.mul_(under_CKV.sum(-1, keepdim=True)).sub_(under_CKV)
    if name == "lk":
        return -alpha_CK, slope_CKV
    floored_CK = alpha_CK.clamp(min=torch.finfo(alpha_CK.dtype).tiny)  # q of a token may underflow to 0
    return -floored_CK.log(), slope_CKV.div_(floored_CK[..., None])
