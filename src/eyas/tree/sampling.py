"""From logits to the distribution a token is drawn from: one definition for plain and speculative generation.

Legend: W target vocabulary, R any rows.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.base.errors import UsageError

_LARGEST_COIN = 1.0 - 2.0**-24  # the fp32 number below 1
_SMALLEST_COIN = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. temperature 0 is greedy: the filters then change nothing.

    temperature >= 0; top_k >= 1; 0 < top_p <= 1; 0 <= min_p <= 1; None leaves a filter out.
    Raises UsageError.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise _refusal("temperature", self.temperature, "a number of at least 0", "use 0 for greedy decoding")
        if self.top_k is not None and (type(self.top_k) is not int or self.top_k < 1):
            raise _refusal("top_k", self.top_k, "an integer of at least 1", "leave top_k out to keep all tokens")
        if self.top_p is not None and (not _is_number(self.top_p) or not 0 < self.top_p <= 1):
            raise _refusal("top_p", self.top_p, "a number above 0 and up to 1", "leave top_p out to keep all tokens")
        if self.min_p is not None and (not _is_number(self.min_p) or not 0 <= self.min_p <= 1):
            raise _refusal("min_p", self.min_p, "a number from 0 to 1", "leave min_p out to keep all tokens")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def distribution(logits_RW: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities, fp32, same shape as the logits (any leading dimensions).

    Order and meaning are those of transformers 5 `generate`: temperature -> top_k -> top_p -> min_p, each filter on
    what the one before has left, renormalised. top_k keeps ties with the k-th; top_p drops the unlikely tail that
    holds at most 1 - top_p; min_p drops what is below min_p times the likeliest. The likeliest token always stays.
    temperature 0: all on the argmax, the first one on ties.
    """
    logits_RW = logits_RW.float()
    if sampling.greedy:
        return torch.zeros_like(logits_RW).scatter_(-1, logits_RW.argmax(dim=-1, keepdim=True), 1.0)
    logits_RW = logits_RW / sampling.temperature
    if sampling.top_k is not None:
        kth_R1 = logits_RW.topk(min(sampling.top_k, logits_RW.shape[-1]), dim=-1).values[..., -1:]
        logits_RW = logits_RW.masked_fill(logits_RW < kth_R1, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        ascending_RW, order_RW = logits_RW.sort(dim=-1)
        drop_RW = ascending_RW.softmax(dim=-1).cumsum(dim=-1) <= 1 - sampling.top_p
        drop_RW[..., -1] = False
        logits_RW = logits_RW.masked_fill(drop_RW.scatter(-1, order_RW, drop_RW), -torch.inf)
    probs_RW = logits_RW.softmax(dim=-1)
    if sampling.min_p is not None:
        keep_RW = probs_RW >= sampling.min_p * probs_RW.amax(dim=-1, keepdim=True)
        probs_RW = logits_RW.masked_fill(~keep_RW, -torch.inf).softmax(dim=-1)
    return probs_RW


def draw(weights_RW: Tensor, coins_R: Tensor) -> Tensor:
    """int64 [R]: one token a row, in proportion to non-negative weights that need not sum to 1. One coin a row.

    Plain and speculative sampling draw with this function. Sums are fp64: over 100,000 words fp32 drops the tail.
    """
    cumulative_RW = weights_RW.cumsum(dim=-1, dtype=torch.float64)
    # A coin of 0 would name a first token of weight 0, a coin of 1 could walk past the end of the sum.
    coins_R1 = coins_R.float().clamp(_SMALLEST_COIN, _LARGEST_COIN).double()[:, None]
    goals_R1 = coins_R1 * cumulative_RW[:, -1:]
    # The first sum that reaches the goal was raised to it by its own weight, so that weight is not 0.
    return torch.searchsorted(cumulative_RW, goals_R1)[:, 0]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refusal(name: str, value: object, expected: str, do: str) -> UsageError:
    return UsageError(found=f"{name} = {value!r}", expected=expected, do=do)
