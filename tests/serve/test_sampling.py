"""Sampled answers: reproducible by seed alone, and distributed as the target says, with and without trees.

B slots, M tree nodes, W target vocabulary.
"""

import math
from itertools import product
from pathlib import Path

import pytest
import torch
from tests.serve.small import CONTEXT, Spoken, drive, random_draft, tokens
from torch import Tensor
from transformers import AutoModelForCausalLM

from eyas.model.target import Target
from eyas.serve.drafter import Drafter
from eyas.serve.engine import Draft, Engine
from eyas.serve.request import Request
from eyas.tree.sampling import Sampling
from eyas.tree.shape import TreeShape, chain
from eyas.tree.tree import Tree

TREE = TreeShape(3, 3, 10)
MIXED = (Sampling(0.8), Sampling(), Sampling(1.3, top_k=5), Sampling(1.0, top_p=0.9), Sampling(2.0, min_p=0.05))


@pytest.mark.parametrize("shape", [None, chain(3), TREE], ids=["plain", "chain", "tree"])
def test_the_seed_alone_decides(llama: Spoken, learnt: Draft, shape: TreeShape | None) -> None:
    draft = None if shape is None else Draft(learnt.head, learnt.vocab, shape)
    requests = [
        Request(f"{i}-{seed}", llama.requests[i].prompt_ids, 10, sampling, seed)
        for i, sampling in enumerate(MIXED)
        for seed in (1, 2)
    ]
    together = tokens(drive(Engine(llama.target, draft, 8, CONTEXT), requests))
    fewer = tokens(drive(Engine(llama.target, draft, 3, CONTEXT), reversed(requests)))
    alone = {name: drive(Engine(llama.target, draft, 1, CONTEXT), [r])[name].token_ids for name, r in named(requests)}
    assert together == fewer == alone
    assert together["0-1"] != together["0-2"], "another seed, another answer"
    assert together["1-1"] == together["1-2"] == llama.answers["r1"][:10], "greedy beside sampled"


def named(requests: list[Request]) -> list[tuple[str, Request]]:
    return [(request.id, request) for request in requests]


PROMPT = (72, 101, 108, 108, 111)
SAMPLING = Sampling(1.5, top_k=3)
NUM_TOKENS = 3
NUM_SEEDS = 1500


class KnowingDrafter(Drafter):
    """Drafts some of the three tokens that can come, so that tokens are accepted, refused and drawn anew.

    root -> a -> b, c       beside a two tokens are left to the bonus, beside b and c one
    """

    support: dict[tuple[int, ...], list[int]]

    def grow(self, root_B: Tensor) -> Tree:
        rows = []
        for slot, root in enumerate(root_B.tolist()):
            if self.pool.lengths[slot] == len(PROMPT):
                a = self.support[(root,)][0]
                rows.append([root, a, *self.support[(root, a)][:2]])
            else:
                rows.append([root, 0, 0, 1])
        parents_BM = torch.tensor([0, 0, 1, 1]).expand(len(rows), -1)
        depths_BM = torch.tensor([0, 1, 2, 2]).expand(len(rows), -1)
        valid_BM = torch.ones(len(rows), 4, dtype=torch.bool)
        return Tree(torch.tensor(rows), parents_BM, depths_BM, -depths_BM.float(), valid_BM, 2)


@pytest.fixture(scope="module")
def exact(shallow: Path) -> dict[tuple[int, ...], float]:
    """Probability of every triple, by transformers alone and the definition of top-k sampling."""
    model = AutoModelForCausalLM.from_pretrained(shallow, dtype=torch.float32)

    def next_probs(prefix: tuple[int, ...]) -> dict[int, float]:
        with torch.no_grad():
            logits_W = model(torch.tensor([PROMPT + prefix])).logits[0, -1].double()
        best = sorted(range(len(logits_W)), key=lambda w: -logits_W[w])[: SAMPLING.top_k]
        weights = [math.exp(logits_W[w] / SAMPLING.temperature) for w in best]
        return {w: weight / sum(weights) for w, weight in zip(best, weights, strict=True)}

    table = {(): 1.0}
    for _ in range(NUM_TOKENS):
        table = {(*prefix, w): p * q for prefix, p in table.items() for w, q in next_probs(prefix).items()}
    return table


@pytest.mark.parametrize("speculative", [False, True], ids=["plain", "speculative"])
def test_drawn_as_the_target_says(
    exact: dict[tuple[int, ...], float], shallow_target: Target, speculative: bool
) -> None:
    """Total variation of N draws from the exact distribution of three tokens.

    E[TV] <= 1/2 sum_i sqrt(p_i (1 - p_i) / N) by Jensen; one draw moves TV by at most 1/N, so by McDiarmid
    P(TV > E + t) <= exp(-2 N t^2), below 1e-6 for t = sqrt(6.91 / N).
    """
    draft = random_draft(shallow_target, TreeShape(2, 2, 4)) if speculative else None
    engine = Engine(shallow_target, draft, 64, 16)
    if draft is not None and engine.drafter is not None:
        size = engine.drafter.pool.size
        drafter = engine.drafter = KnowingDrafter(draft.head, draft.vocab, shallow_target, draft.shape, 64, size)
        drafter.support = supports(exact)
    requests = [Request(str(seed), PROMPT, NUM_TOKENS, SAMPLING, seed) for seed in range(NUM_SEEDS)]
    answers = drive(engine, requests)
    counts = dict.fromkeys(exact, 0)
    for answer in answers.values():
        counts[tuple(answer.token_ids)] += 1
    if speculative:
        lengths = [sum(answer.accepted[:1]) for answer in answers.values()]
        assert min(lengths.count(length) for length in (1, 2)) > NUM_SEEDS / 20, "drafts were refused and accepted"
    distance = sum(abs(counts[triple] / NUM_SEEDS - p) for triple, p in exact.items()) / 2
    expected = sum(math.sqrt(p * (1 - p) / NUM_SEEDS) for p in exact.values()) / 2
    assert distance < expected + math.sqrt(6.91 / NUM_SEEDS)


def supports(exact: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], list[int]]:
    """The tokens that may follow each prefix, likeliest first."""
    prefixes = {triple[:n] for triple, n in product(exact, range(NUM_TOKENS))}
    children = {prefix: sorted({t[len(prefix)] for t in exact if t[: len(prefix)] == prefix}) for prefix in prefixes}

    def mass(path: tuple[int, ...]) -> float:
        return sum(p for triple, p in exact.items() if triple[: len(path)] == path)

    return {prefix: sorted(tokens, key=lambda w: -mass((*prefix, w))) for prefix, tokens in children.items()}
