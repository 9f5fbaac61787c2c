"""Sampled answers: reproducible by seed alone, and distributed as the target says, with and without trees.

B slots, M tree nodes, W target vocabulary.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
import torch
from tests.engine.small import CONTEXT, Spoken, drive, optional, random_draft, tokens
from torch import Tensor
from transformers import AutoModelForCausalLM

from eyas.drafters.eagle3 import Eagle3Drafter, Eagle3Spec
from eyas.engine.engine import Engine
from eyas.engine.grammar import Grammar, GrammarVocab
from eyas.engine.request import Request
from eyas.model.target import Target
from eyas.tree.acceptance_length import acceptance_length
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape
from eyas.tree.tree import Tree

TREE = TreeShape(3, 3, 10)
MIXED = (
    SamplingParams(0.8),
    SamplingParams(),
    SamplingParams(1.3, top_k=5),
    SamplingParams(1.0, top_p=0.9),
    SamplingParams(2.0, min_p=0.05),
)


PENALISED = (
    SamplingParams(0.7, repetition_penalty=1.3),
    SamplingParams(frequency_penalty=0.6, presence_penalty=0.4),
    SamplingParams(1.0, top_k=20, logit_bias=((65, 4.0), (66, -100.0))),
)


def asked(llama: Spoken, samplings: Sequence[SamplingParams]) -> list[Request]:
    return [
        Request(f"{i}-{seed}", llama.requests[i].prompt_ids, 16, sampling, seed)
        for i, sampling in enumerate(samplings)
        for seed in (1, 2)
    ]


@pytest.mark.parametrize("shape", [chain_shape(3), TREE, TreeShape(4, 2, 6)], ids=["chain", "tree", "narrow"])
@pytest.mark.parametrize("samplings", [MIXED, PENALISED], ids=["filters", "penalties"])
def test_a_drawn_answer_is_that_of_plain_decoding(
    llama: Spoken, learnt: Eagle3Spec, samplings: tuple[SamplingParams, ...], shape: TreeShape
) -> None:
    """Token by token, whatever is drafted and whoever shares the batch: the coin belongs to the position."""
    requests = asked(llama, samplings)
    plain = tokens(drive(Engine(llama.target, (), 1, CONTEXT), requests))
    answers = drive(
        Engine(llama.target, [Eagle3Spec(learnt.head, learnt.vocab, shape)], 5, CONTEXT), reversed(requests)
    )
    assert tokens(answers) == plain
    assert any(plain[f"{i}-1"] != plain[f"{i}-2"] for i in range(len(samplings))), "another seed, another answer"
    assert acceptance_length([answer.rounds for answer in answers.values()]) > 1, "drafts were accepted"


def test_greedy_beside_sampled(llama: Spoken, learnt: Eagle3Spec) -> None:
    answers = tokens(
        drive(Engine(llama.target, [Eagle3Spec(learnt.head, learnt.vocab, TREE)], 4, CONTEXT), asked(llama, MIXED))
    )
    assert answers["1-1"] == answers["1-2"] == llama.answers["r1"][:16]


def test_penalties_say_something(llama: Spoken) -> None:
    """Forbidden and favoured tokens, and no token twice under a penalty that no logit outweighs."""
    request = llama.requests[0]
    never = SamplingParams(logit_bias=tuple((token, -100.0) for token in set(llama.answers["r0"])))
    once = SamplingParams(presence_penalty=2.0, frequency_penalty=2.0, repetition_penalty=50.0)
    requests = [Request("never", request.prompt_ids, 20, never), Request("once", request.prompt_ids, 20, once)]
    answers = tokens(drive(Engine(llama.target, (), 2, CONTEXT), requests))
    assert not set(answers["never"]) & set(llama.answers["r0"])
    assert len(set(answers["once"])) == len(answers["once"])


@pytest.mark.parametrize("shape", [None, TREE], ids=["plain", "tree"])
def test_an_answer_fits_its_grammar(llama: Spoken, learnt: Eagle3Spec, shape: TreeShape | None) -> None:
    facts = llama.target.info
    vocab = GrammarVocab(llama.target.tokenizer, facts.vocab_size, facts.eos_ids)
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    grammars = {"json": Grammar.json_schema(vocab, schema), "word": Grammar.regex(vocab, "(yes|no|perhaps)")}
    requests = [
        Request(f"{name}-{seed}", llama.requests[seed].prompt_ids, 60, SamplingParams(0.9), seed, grammar=grammar)
        for name, grammar in grammars.items()
        for seed in range(3)
    ]
    requests.append(Request("free", llama.requests[0].prompt_ids, 10))
    draft = None if shape is None else Eagle3Spec(learnt.head, learnt.vocab, shape)
    answers = drive(Engine(llama.target, optional(draft), 4, CONTEXT), requests)
    for name, answer in answers.items():
        text = llama.target.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
        if name.startswith("word"):
            assert text in ("yes", "no", "perhaps")
            assert answer.finish_reason == "stop"
        elif name.startswith("json") and answer.finish_reason == "stop":
            assert isinstance(json.loads(str(text))["n"], int)
    assert answers["free"].token_ids == llama.answers["r0"][:10]
    assert any(answer.finish_reason == "stop" for name, answer in answers.items() if name.startswith("json"))
    plain = tokens(drive(Engine(llama.target, (), 1, CONTEXT), requests))
    assert tokens(answers) == plain


@pytest.mark.parametrize("shape", [None, chain_shape(3), TREE], ids=["plain", "chain", "tree"])
def test_logprobs_are_those_of_one_plain_pass(llama: Spoken, learnt: Eagle3Spec, shape: TreeShape | None) -> None:
    draft = None if shape is None else Eagle3Spec(learnt.head, learnt.vocab, shape)
    requests = [
        dataclasses.replace(r, max_tokens=9, logprobs=n)
        for r, n in zip(llama.requests[:4], (3, 0, None, 1), strict=True)
    ]
    model = AutoModelForCausalLM.from_pretrained(llama.path, dtype=torch.float32)
    for request in requests:
        answer = drive(Engine(llama.target, optional(draft), 2, CONTEXT), requests)[request.id]
        if request.logprobs is None:
            assert answer.logprobs == []
            continue
        text = torch.tensor([[*request.prompt_ids, *answer.token_ids]])
        with torch.no_grad():
            wanted_TW = model(text).logits[0, len(request.prompt_ids) - 1 : -1].log_softmax(-1)
        assert [one.token for one in answer.logprobs] == answer.token_ids
        for one, wanted_W in zip(answer.logprobs, wanted_TW, strict=True):
            assert one.logprob == pytest.approx(float(wanted_W[one.token]), abs=1e-4)
            best = wanted_W.topk(request.logprobs)
            assert [token for token, _ in one.top] == best.indices.tolist()
            assert [value for _, value in one.top] == pytest.approx(best.values.tolist(), abs=1e-4)


PROMPT = (72, 101, 108, 108, 111)
SAMPLING = SamplingParams(1.5, top_k=3)
NUM_TOKENS = 3
NUM_SEEDS = 1500


class KnowingDrafter(Eagle3Drafter):
    """Drafts some of the three tokens that can come, so that tokens are accepted, refused and drawn anew.

    root -> a -> b, c       beside a two tokens are left to the bonus, beside b and c one
    """

    support: dict[tuple[int, ...], list[int]]

    def draft(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, shape: TreeShape) -> Tree:
        rows = []
        for length, root in zip(lengths_B.tolist(), roots_B.tolist(), strict=True):
            if length == len(PROMPT):
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
    engine = Engine(shallow_target, optional(draft), 64, 16)
    if draft is not None:
        drafter = KnowingDrafter(draft, engine.runner.memory)
        drafter.support = supports(exact)
        engine.runner.drafters[0] = drafter
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
