"""Speculative decoding writes what plain decoding writes, and both write what the target says.

A target over 8 words whose logits depend on the last word, and random trees. Two proofs:

the coupling   the same seed gives the same tokens, whatever was drafted and whoever else is in the batch
the law        over many seeds, triples of tokens have the frequencies that transformers' processors give

A chi-square statistic X of d degrees of freedom obeys P(X >= d + 2 sqrt(d x) + 2 x) <= exp(-x) (Laurent and Massart
2000, lemma 1); x = ln(1e6). Cells that expect fewer than 10 runs are counted as one. Two mistakes that engines make
fail the same bound.

Legend: B runs, M tree nodes, S path slots, T = B * M rows, W words, C columns of the answer.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from tests.tree.reference import adjusted, grow_tree, probs
from torch import Tensor

from eyas.staging import Staging
from eyas.tree.penalties import NodePaths, PenaltyState
from eyas.tree.sampling import SamplingBatch, SamplingParams, choose_tokens, position_uniforms
from eyas.tree.shape import TreeShape, chain_shape
from eyas.tree.tree import Frontier, Tree
from eyas.tree.verify import verify

WORDS = 8
PROMPT = [3, 5, 5, 1]
CPU = torch.device("cpu")
PLAIN_SETTINGS = {
    "temperature": SamplingParams(temperature=1.3),
    "top-k": SamplingParams(temperature=1.0, top_k=5),
    "top-p": SamplingParams(temperature=1.0, top_p=0.9),
    "min-p": SamplingParams(temperature=1.0, min_p=0.12),
    "all": SamplingParams(temperature=1.4, top_k=6, top_p=0.95, min_p=0.05),
}
PENALTIES = {
    "repetition": SamplingParams(1.0, repetition_penalty=1.8),
    "presence": SamplingParams(1.0, presence_penalty=1.5),
    "frequency": SamplingParams(1.2, frequency_penalty=-0.9),
    "bias": SamplingParams(1.0, logit_bias={0: 1.0, 4: -100.0}),
    "everything": SamplingParams(1.3, 6, 0.95, 0.03, 1.2, 0.4, 0.5, {2: 0.7}),
}
SETTINGS = {**PLAIN_SETTINGS, **PENALTIES}
GREEDY = {
    "greedy": SamplingParams(),
    "greedy with penalties": SamplingParams(0.0, None, None, None, 1.2, 0.4, 0.5, {2: 0.7}),
}
SHAPES = {
    "tree": TreeShape(3, 3, 10),
    "shallow": TreeShape(1, 2, 3),
    "chain": chain_shape(3),
    "padded": TreeShape(2, 2, 9),
}

Drafts = Callable[[Tensor, Tensor], Tree]  # roots_B, number of tokens that each answer holds


def target_logits() -> Tensor:
    return torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(11)) * 1.2


def random_trees(shape: TreeShape) -> Drafts:
    """Another tree for every run and round, that knows a little of the target."""
    generator = torch.Generator().manual_seed(12)

    def head(words: Tensor) -> Tensor:
        return target_logits()[words] + torch.randn(*words.shape, WORDS, generator=generator)

    def advance(frontier: Frontier) -> Tensor:
        return head(frontier.tokens_BK)

    return lambda roots_B, lengths_B: grow_tree(shape, roots_B, head(roots_B), advance, lambda ids: ids)


def no_drafts(roots_B: Tensor, lengths_B: Tensor) -> Tree:
    return Tree.from_chains(roots_B[:, None], torch.ones(len(roots_B), 1, dtype=torch.bool))


def drafts_of(answers_BC: Tensor, change: int) -> Drafts:
    """Three tokens that are known to come, each changed by so much: an oracle, or one that is always wrong."""

    def chains(roots_B: Tensor, lengths_B: Tensor) -> Tree:
        next_B3 = answers_BC.gather(1, lengths_B[:, None] + torch.arange(3))
        tokens_BM = torch.cat((roots_B[:, None], (next_B3 + change) % WORDS), dim=1)
        return Tree.from_chains(tokens_BM, torch.ones_like(tokens_BM, dtype=torch.bool))

    return chains


@dataclass(frozen=True)
class Decoder:
    """The loop of an engine: draft, target, choose, verify. Two mistakes can be made on purpose."""

    samplings: list[SamplingParams]
    seeds_B: Tensor
    one_coin: bool = False
    flat_penalties: bool = False

    def run(self, drafts: Drafts, num_tokens: int) -> tuple[Tensor, Tensor]:
        """The answers, and how many tokens the first round gave."""
        count = len(self.samplings)
        batch = SamplingBatch.from_params(self.samplings, CPU)
        state = PenaltyState(count, WORDS, Staging(CPU))
        if batch.adjusts:
            for line, sampling in enumerate(self.samplings):
                state.admit(line, sampling, PROMPT)
        lines_B, lengths_B = torch.arange(count), torch.zeros(count, dtype=torch.int64)
        answers_BC = torch.zeros(count, num_tokens + 1, dtype=torch.int64)  # and one for the rest
        roots_B, first_B = torch.full((count,), PROMPT[-1]), None
        while int(lengths_B.min()) < num_tokens:
            tree = drafts(roots_B, lengths_B.clamp(max=num_tokens))
            ids_BM = self._choose(tree, batch, state, len(PROMPT) + lengths_B)
            accepted = verify(tree, ids_BM)
            state.update(lines_B, accepted.tokens_BS, accepted.lengths_B)
            columns_BS = lengths_B[:, None] + torch.arange(accepted.tokens_BS.shape[1])
            rest_BS = ~accepted.is_accepted_BS() | (columns_BS >= num_tokens)
            answers_BC.scatter_(1, columns_BS.masked_fill(rest_BS, num_tokens), accepted.tokens_BS)
            roots_B = accepted.tokens_BS.gather(1, accepted.lengths_B[:, None] - 1)[:, 0]
            lengths_B = lengths_B + accepted.lengths_B
            first_B = accepted.lengths_B if first_B is None else first_B
        assert first_B is not None
        return answers_BC[:, :num_tokens], first_B

    def _choose(self, tree: Tree, batch: SamplingBatch, state: PenaltyState, positions_B: Tensor) -> Tensor:
        num_nodes = tree.tokens_BM.shape[1]
        lines_T = torch.arange(len(positions_B)).repeat_interleave(num_nodes)
        logits_TW = target_logits()[tree.tokens_BM].flatten(0, 1)
        if batch.adjusts:
            logits_TW = state.apply(logits_TW, lines_T, None if self.flat_penalties else NodePaths.from_tree(tree))
        positions_T = (positions_B[:, None] + tree.depths_BM).flatten()
        coins_T = position_uniforms(
            self.seeds_B[lines_T], torch.zeros_like(positions_T) if self.one_coin else positions_T
        )
        return choose_tokens(logits_TW, batch, lines_T, coins_T).view(tree.tokens_BM.shape)


# --- the coupling ----------------------------------------------------------------------------------------------------

NUM_TOKENS = 25


def everyone() -> tuple[list[SamplingParams], Tensor]:
    """40 seeds of each of the settings, side by side in one batch."""
    samplings = [sampling for sampling in {**SETTINGS, **GREEDY}.values() for _ in range(40)]
    return samplings, torch.arange(len(samplings)) % 40


@pytest.fixture(scope="module")
def plain() -> Tensor:
    """Plain decoding, each of the settings in a batch of its own."""
    samplings, seeds_B = everyone()
    runs = []
    for begin in range(0, len(samplings), 40):
        own = slice(begin, begin + 40)
        runs.append(Decoder(samplings[own], seeds_B[own]).run(no_drafts, NUM_TOKENS + 3)[0])
    return torch.cat(runs)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_same_seed_gives_the_same_tokens_for_any_tree(plain: Tensor, shape: TreeShape) -> None:
    answers_BC, first_B = Decoder(*everyone()).run(random_trees(shape), NUM_TOKENS)
    assert torch.equal(answers_BC, plain[:, :NUM_TOKENS])
    assert set(first_B.tolist()) == set(range(1, shape.depth + 2)), "some drafts are accepted, some refused"


@pytest.mark.parametrize(("change", "accepted"), [(0, 4), (1, 1)], ids=["oracle", "always wrong"])
def test_even_a_drafter_that_knows_the_coins_changes_nothing(plain: Tensor, change: int, accepted: int) -> None:
    answers_BC, first_B = Decoder(*everyone()).run(drafts_of(plain, change), NUM_TOKENS)
    assert torch.equal(answers_BC, plain[:, :NUM_TOKENS])
    assert first_B.eq(accepted).all()


def test_answers_differ_between_seeds_and_greedy_ones_do_not(plain: Tensor) -> None:
    for begin in range(0, 40 * len(SETTINGS), 40):
        assert len(plain[begin : begin + 40].unique(dim=0)) > 35
    for begin in range(40 * len(SETTINGS), len(plain), 40):
        assert len(plain[begin : begin + 40].unique(dim=0)) == 1


def test_penalties_by_text_alone_break_the_coupling(plain: Tensor) -> None:
    answers_BC, _ = Decoder(*everyone(), flat_penalties=True).run(random_trees(SHAPES["tree"]), NUM_TOKENS)
    same_B = (answers_BC == plain[:, :NUM_TOKENS]).all(dim=1).view(-1, 40)
    names = [*SETTINGS, *GREEDY]
    for name in ("repetition", "presence", "frequency", "everything"):
        assert not same_B[names.index(name)].all(), name
    assert same_B[: len(PLAIN_SETTINGS)].all()


# --- the law ---------------------------------------------------------------------------------------------------------

RUNS = 12_000


def exact_triples(sampling: SamplingParams) -> Tensor:
    """fp64 [W * W * W]: the probability of every first three tokens, one prefix at a time."""
    table: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        following = {}
        for prefix, p in table.items():
            logits_W = target_logits()[[*PROMPT, *prefix][-1]]
            after = probs(adjusted(logits_W, sampling, PROMPT, prefix), sampling).tolist()
            following.update({(*prefix, word): p * q for word, q in enumerate(after)})
        table = following
    return torch.tensor([table[triple] for triple in product(range(WORDS), repeat=3)], dtype=torch.float64)


def misfit(triples_B3: Tensor, exact: Tensor) -> float:
    """The chi-square statistic over its bound: above 1 the law is another one."""
    index_B = (triples_B3 * torch.tensor([WORDS**2, WORDS, 1])).sum(dim=1)
    counts, expected = torch.bincount(index_B, minlength=WORDS**3).double(), exact * len(index_B)
    assert not counts[exact == 0].any(), "a token that the filters removed came out"
    often = expected >= 10
    counts = torch.cat((counts[often], counts[~often].sum()[None]))
    expected = torch.cat((expected[often], expected[~often].sum()[None]))
    some = expected > 0
    statistic = float(((counts - expected)[some] ** 2 / expected[some]).sum())
    degrees, x = int(some.sum()) - 1, math.log(1e6)
    return statistic / (degrees + 2 * math.sqrt(degrees * x) + 2 * x)


def first_triples(sampling: SamplingParams, drafts: Drafts, **mistake: bool) -> tuple[Tensor, Tensor]:
    return Decoder([sampling] * RUNS, torch.arange(RUNS), **mistake).run(drafts, 3)


@pytest.mark.parametrize("sampling", SETTINGS.values(), ids=SETTINGS)
def test_three_tokens_follow_the_target(sampling: SamplingParams) -> None:
    exact = exact_triples(sampling)
    triples_B3, first_B = first_triples(sampling, random_trees(SHAPES["tree"]))
    assert misfit(triples_B3, exact) < 1
    shares = torch.bincount(first_B, minlength=5) / RUNS
    assert bool((shares[1:] > 0.02).all()), "otherwise this would prove less than it says"


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_three_tokens_follow_the_target_whatever_the_shape(shape: TreeShape) -> None:
    triples_B3, _ = first_triples(SETTINGS["all"], random_trees(shape))
    assert misfit(triples_B3, exact_triples(SETTINGS["all"])) < 1


def test_children_are_accepted_with_the_sum_of_their_probabilities() -> None:
    """As often as by the target-only rule: 6 sigma of a binomial share, over many different pairs of children."""
    sampling, head = SETTINGS["all"], random_trees(TreeShape(1, 2, 3))
    tree = head(torch.full((RUNS,), PROMPT[-1]), torch.zeros(RUNS, dtype=torch.int64))
    after_W = probs(target_logits()[PROMPT[-1]], sampling)
    expected = float(after_W[tree.tokens_BM[:, 1:]].sum(dim=1).mean())
    _, first_B = first_triples(sampling, lambda roots_B, lengths_B: tree)
    assert 0.2 < expected < 0.8
    assert abs(float((first_B > 1).double().mean()) - expected) < 6 * math.sqrt(0.25 / RUNS)


def test_one_coin_for_all_positions_is_not_the_target() -> None:
    triples_B3, _ = first_triples(SETTINGS["temperature"], no_drafts, one_coin=True)
    assert misfit(triples_B3, exact_triples(SETTINGS["temperature"])) > 10


def test_penalties_by_text_alone_are_not_the_target() -> None:
    """What SGLang does: all nodes pay for the committed text, none for its own path."""
    sampling = SETTINGS["repetition"]
    triples_B3, _ = first_triples(sampling, random_trees(SHAPES["tree"]), flat_penalties=True)
    assert misfit(triples_B3, exact_triples(sampling)) > 2
