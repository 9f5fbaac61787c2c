"""Sampling the slow way: one text at a time, through transformers' logits processors, in vLLM's order.

Legend: W vocabulary.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from eyas.tree.sampling import SamplingParams


def adjusted(logits_W: Tensor, sampling: SamplingParams, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    """Logits after bias and penalties. Presence and frequency by OpenAI's formula: count * f + (count > 0) * p less."""
    text: Any = torch.tensor([[*prompt, *answer]])
    scores: Any = logits_W.float()[None].clone()
    if sampling.logit_bias:
        bias: Any = [[[token], float(value)] for token, value in dict(sampling.logit_bias).items()]
        scores = SequenceBiasLogitsProcessor(bias)(text, scores)
    scores = RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty))(text, scores)
    for token, count in Counter(answer).items():
        scores[0, token] -= count * sampling.frequency_penalty + sampling.presence_penalty
    return scores[0]


def warpers(sampling: SamplingParams) -> LogitsProcessorList:
    """Temperature and filters, min_p before top_k and top_p."""
    out = LogitsProcessorList([TemperatureLogitsWarper(float(sampling.temperature))])
    if sampling.min_p is not None:
        out.append(MinPLogitsWarper(sampling.min_p))
    if sampling.top_k is not None:
        out.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None:
        out.append(TopPLogitsWarper(sampling.top_p))
    return out


def probs(logits_W: Tensor, sampling: SamplingParams) -> Tensor:
    """fp64 probabilities from adjusted logits without ties."""
    no_ids: Any = torch.zeros(1, 1, dtype=torch.int64)
    scores: Any = logits_W[None]
    return warpers(sampling)(no_ids, scores)[0].double().softmax(dim=-1)
