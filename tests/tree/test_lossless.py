"""Speculative sampling draws from the target's own distribution; the two classic mistakes do not.

A target over 8 words whose next-word distribution depends on the last word, a drafter that is another such table, and
many independent runs. Each run emits two tokens: the tree of the first word is verified once, and once more (with the
tree of the token that came out) where the first round emitted one token only. The frequency of the first token, of the
second and of the pair is compared with exact products of the distributions that transformers' warpers give.

The bound. Let n runs fall into k cells with probabilities p, and TV = 1/2 sum |f - p| for the observed frequencies f.
  mean:  E|f_i - p_i| <= sqrt(p_i (1 - p_i) / n), and by Cauchy-Schwarz sum_i sqrt(p_i (1 - p_i)) <= sqrt(k - 1),
         so E TV <= 1/2 sqrt((k - 1) / n).
  tail:  one run moves TV by at most 1/n, so by McDiarmid P(TV >= E TV + t) <= exp(-2 n t^2); t = sqrt(ln(1e9) / 2n)
         makes a false alarm a one-in-a-billion event.
  n = 200,000: bound 0.0102 for one token (k = 8), 0.0161 for the pair (k = 64).

Legend: B runs, C words as context, M tree nodes, W words.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from eyas.tree.sampling import Sampling, distribution
from eyas.tree.shape import TreeShape, chain
from eyas.tree.tree import Frontier, Tree, grow
from eyas.tree.verify import verify_sampling

WORDS = 8
RUNS = 200_000
FIRST_WORD = 3
SETTINGS = {
    "temperature": Sampling(temperature=1.3),
    "top-k": Sampling(temperature=1.0, top_k=5),
    "top-p": Sampling(temperature=1.0, top_p=0.9),
    "min-p": Sampling(temperature=1.0, min_p=0.12),
    "all": Sampling(temperature=1.4, top_k=6, top_p=0.95, min_p=0.05),
}
SHAPES = {"tree": TreeShape(2, 3, 8), "shallow": TreeShape(1, 2, 3), "chain": chain(3), "padded": TreeShape(2, 2, 9)}


def bound(runs: int, cells: int) -> float:
    return 0.5 * math.sqrt((cells - 1) / runs) + math.sqrt(math.log(1e9) / (2 * runs))


def target_logits() -> Tensor:
    return torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(11)) * 1.2


def draft_logits() -> Tensor:
    """A fair head: the target's logits with an error of its own."""
    return target_logits() + torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(12)) * 0.7


def exact_probs(sampling: Sampling) -> Tensor:
    """[C, W] by transformers' warpers."""
    warpers: list[LogitsProcessor] = [TemperatureLogitsWarper(float(sampling.temperature))]
    if sampling.top_k is not None:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p is not None:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    scores: Any = target_logits()
    no_ids: Any = torch.zeros(WORDS, 1, dtype=torch.int64)
    for warper in warpers:
        scores = warper(no_ids, scores)
    return scores.double().softmax(dim=-1)


def trees_of_every_word(shape: TreeShape) -> Tree:
    def advance(frontier: Frontier) -> Tensor:
        return draft_logits()[frontier.tokens_BK]

    tree = grow(shape, torch.arange(WORDS), draft_logits(), advance, lambda ids: ids)
    tree.check()
    return tree


def rows(tree: Tree, words_B: Tensor) -> Tree:
    return Tree(
        tree.tokens_BM[words_B],
        tree.parents_BM[words_B],
        tree.depths_BM[words_B],
        tree.scores_BM[words_B],
        tree.valid_BM[words_B],
        tree.depth,
    )


def total_variation(tokens: Tensor, probs: Tensor) -> float:
    counts = torch.bincount(tokens, minlength=probs.numel()).double()
    return float((counts / counts.sum() - probs.flatten()).abs().sum() / 2)


def two_tokens(shape: TreeShape, sampling: Sampling, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    trees = trees_of_every_word(shape)
    probs_CMW = distribution(target_logits()[trees.tokens_BM], sampling)

    def one_round(words_B: Tensor) -> tuple[Tensor, Tensor]:
        coins_BM = torch.rand(len(words_B), shape.nodes, generator=generator)
        bonus_coins_B = torch.rand(len(words_B), generator=generator)
        accepted = verify_sampling(rows(trees, words_B), probs_CMW[words_B], coins_BM, bonus_coins_B)
        return accepted.tokens_BS, accepted.lengths_B

    tokens_BS, lengths_B = one_round(torch.full((RUNS,), FIRST_WORD))
    again_BS, _ = one_round(tokens_BS[:, 0])
    return tokens_BS[:, 0], torch.where(lengths_B > 1, tokens_BS[:, 1], again_BS[:, 0])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("sampling", SETTINGS.values(), ids=SETTINGS)
def test_two_emitted_tokens_follow_the_target(shape: TreeShape, sampling: Sampling) -> None:
    first_B, second_B = two_tokens(shape, sampling, torch.Generator().manual_seed(5))
    probs_CW = exact_probs(sampling)
    pair_CW = probs_CW[FIRST_WORD, :, None] * probs_CW
    assert total_variation(first_B, probs_CW[FIRST_WORD]) < bound(RUNS, WORDS)
    assert total_variation(second_B, pair_CW.sum(dim=0)) < bound(RUNS, WORDS)
    assert total_variation(first_B * WORDS + second_B, pair_CW) < bound(RUNS, WORDS**2)


# One level of verification, sibling by sibling with a fresh coin each. A rule turns (p, q, tried token) into the chance
# of acceptance, and what is left of p after a refusal. EAGLE's own rule is exact; the two others are the mistakes.
Rule = Callable[[Tensor, Tensor, int], tuple[float, Tensor]]


def zero_and_renormalise(p: Tensor, q: Tensor, token: int) -> tuple[float, Tensor]:
    rest = p.clone()
    rest[token] = 0
    return float(p[token]), rest / rest.sum()


def zero_without_renormalising(p: Tensor, q: Tensor, token: int) -> tuple[float, Tensor]:
    rest = p.clone()
    rest[token] = 0
    return float(p[token]), rest


def ratio_of_p_and_q(p: Tensor, q: Tensor, token: int) -> tuple[float, Tensor]:
    """Leviathan's rule, right for a draft *drawn* from q, applied to the top-k of q."""
    rest = (p - q).clamp(min=0)
    return min(1.0, float(p[token] / q[token])), rest / rest.sum()


def first_token(rule: Rule, sampling: Sampling, generator: torch.Generator) -> Tensor:
    p, q = exact_probs(sampling)[FIRST_WORD], draft_logits()[FIRST_WORD].double().softmax(dim=-1)
    out_B = torch.full((RUNS,), WORDS)  # WORDS = nothing emitted yet
    for token in q.topk(2).indices.tolist():
        chance, p = rule(p, q, token)
        coins_B = torch.rand(RUNS, generator=generator, dtype=torch.float64)
        out_B = torch.where((out_B == WORDS) & (coins_B < chance), token, out_B)
    bonus_B = torch.multinomial(p, RUNS, replacement=True, generator=generator)
    return torch.where(out_B == WORDS, bonus_B, out_B)


@pytest.mark.parametrize("sampling", SETTINGS.values(), ids=SETTINGS)
def test_the_classic_mistakes_fail_the_same_bound(sampling: Sampling) -> None:
    generator = torch.Generator().manual_seed(6)
    probs_W = exact_probs(sampling)[FIRST_WORD]
    limit = bound(RUNS, WORDS)
    assert total_variation(first_token(zero_and_renormalise, sampling, generator), probs_W) < limit
    assert total_variation(first_token(ratio_of_p_and_q, sampling, generator), probs_W) > 2 * limit
    assert total_variation(first_token(zero_without_renormalising, sampling, generator), probs_W) > 2 * limit


def test_the_trees_do_get_accepted() -> None:
    """Otherwise the proof above would prove the bonus only."""
    trees = trees_of_every_word(SHAPES["tree"])
    probs_CMW = distribution(target_logits()[trees.tokens_BM], SETTINGS["temperature"])
    words_B = torch.full((20_000,), FIRST_WORD)
    generator = torch.Generator().manual_seed(7)
    accepted = verify_sampling(
        rows(trees, words_B),
        probs_CMW[words_B],
        torch.rand(20_000, 8, generator=generator),
        torch.rand(20_000, generator=generator),
    )
    shares = torch.bincount(accepted.lengths_B, minlength=4) / 20_000
    assert bool((shares[1:] > 0.1).all()), shares
