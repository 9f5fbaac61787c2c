"""The distribution against transformers' own warpers, and drawing against exact arithmetic.

Legend: R rows, W vocabulary.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from eyas.base.errors import UsageError
from eyas.tree.sampling import Sampling, distribution, draw

SETTINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.6),
    Sampling(temperature=1.7, top_k=5),
    Sampling(temperature=0.9, top_p=0.8),
    Sampling(temperature=1.3, min_p=0.1),
    Sampling(temperature=1.2, top_k=12, top_p=0.9, min_p=0.08),
    Sampling(temperature=1.2, top_k=100, top_p=1.0, min_p=0.0),
    Sampling(temperature=1.0, top_k=1),
    Sampling(temperature=1.0, top_p=0.01),
    Sampling(temperature=1.0, top_p=1e-9),
]


def transformers_probs(logits_RW: Tensor, sampling: Sampling) -> Tensor:
    """What `generate` builds from these settings, in the order in which it builds it."""
    config = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    generation = GenerationConfig(
        do_sample=True,
        temperature=float(sampling.temperature),
        top_k=sampling.top_k or 0,
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        min_p=sampling.min_p,
    )
    model: Any = LlamaForCausalLM(config)
    processors = model._get_logits_processor(generation, input_ids_seq_length=1)
    assert processors or sampling == Sampling(temperature=1.0)
    return processors(torch.zeros(len(logits_RW), 1, dtype=torch.int64), logits_RW.float()).softmax(dim=-1)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distribution_is_that_of_generate(sampling: Sampling, dtype: torch.dtype) -> None:
    logits_RW = (torch.randn(64, 40, generator=torch.Generator().manual_seed(1)) * 2).to(dtype)
    ours_RW, theirs_RW = distribution(logits_RW, sampling), transformers_probs(logits_RW, sampling)
    assert ours_RW.dtype == torch.float32
    assert torch.equal(ours_RW > 0, theirs_RW > 0)
    torch.testing.assert_close(ours_RW, theirs_RW, rtol=1e-6, atol=1e-7)
    assert torch.equal(distribution(logits_RW.reshape(4, 16, 40), sampling), ours_RW.reshape(4, 16, 40))


def test_the_order_of_the_filters_matters_and_is_top_k_first() -> None:
    """p = .4 .3 .2 .1: top_k=2 leaves .57 .43, of which top_p=.5 keeps one. top_p first would keep two."""
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert distribution(logits, Sampling(temperature=1.0, top_k=2, top_p=0.5)).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_temperature_zero_is_the_first_argmax() -> None:
    logits_RW = torch.tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]])
    expected = [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    assert distribution(logits_RW, Sampling()).tolist() == expected
    assert distribution(logits_RW, Sampling(top_k=2, top_p=0.5, min_p=0.5)).tolist() == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "1"},
        {"top_k": 0},
        {"top_k": 2.5},
        {"top_k": True},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.5},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict) -> None:
    with pytest.raises(UsageError, match=f"found {next(iter(wrong))} = "):
        Sampling(**wrong)


def test_draw_inverts_the_cumulative_sum() -> None:
    weights = torch.tensor([0.0, 2.0, 0.0, 1.0, 1.0, 0.0])
    coins = torch.tensor([0.0, 0.25, 0.4999, 0.51, 0.7499, 0.76, 1.0])
    assert draw(weights.expand(7, 6), coins).tolist() == [1, 1, 1, 3, 3, 4, 4]


def test_draw_resolves_a_tail_that_fp32_sums_blur() -> None:
    """100,000 words of 1e-9 behind one of almost 1: between 0.5 and 1 an fp32 sum steps by 60 such words."""
    weights = torch.full((1, 100_001), 1e-9)
    weights[0, 0] = 1 - 1e-4
    coin = torch.tensor([1 - 3.5e-5])
    head, tail = float(weights[0, 0]), float(weights[0, 1])  # fp32 values, followed in Python's fp64
    expected = (float(coin) * (head + 100_000 * tail) - head) / tail
    assert 60_000 < expected < 70_000
    assert abs(int(draw(weights, coin)) - expected) <= 1.5
