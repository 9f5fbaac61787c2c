"""What the head is taught: the target's distribution, inside the draft vocabulary and beyond.

J rows, D hidden, V draft vocabulary, W target vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eyas.model.submodules import apply_softcap
from eyas.model.vocab import DraftVocab


@dataclass(frozen=True, eq=False)
class Lesson:
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

    def teach(self, hidden_JD: Tensor) -> Lesson:
        """From final normed states. Hand over as many rows as W floats each may fill."""
        logits_JW = apply_softcap(F.linear(hidden_JD, self.weight_WD, self.bias_W), self.logit_cap)
        probs_JW = logits_JW.softmax(-1, dtype=torch.promote_types(logits_JW.dtype, torch.float32))
        best_J = probs_JW.max(-1).indices
        probs_JV = probs_JW[:, : self.num_draft]
        return Lesson(probs_JV, probs_JV.sum(-1), best_J.clamp(max=self.num_draft - 1), best_J < self.num_draft)
