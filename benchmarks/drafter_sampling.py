"""Compares the law of sampled answers with the exact probabilities of the target. `prove_drafters.py` calls it.

A target over 8 words with random weights answers one prompt many times, at temperature 1, with the drafts of a random
head. The counts of the first three tokens are compared with the probabilities that transformers gives in float64, by
the chi-square statistic. Cells that expect fewer than 5 answers are counted as one.

Two wrong rules run through the same engine and the same statistic, which must find them:

    top-k nodes as samples       accepts a child with min(1, p / q), as if it were drawn from the head's q
    one token tested twice       draws the bonus token anew from all tokens, those that were just rejected included

B requests, M tree nodes, S path slots, W words, T rows, V draft vocabulary.
"""

import dataclasses
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from result_rows import Row
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from eyas.drafters.block import BlockSpec
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.drafters.head_spec import HeadSpec
from eyas.engine import model_runner, sampler
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request, StopCriteria
from eyas.model.block_head import BlockConfig, BlockHead
from eyas.model.head import DraftHead, Head, HeadConfig
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.tree.acceptance_length import acceptance_length
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree
from eyas.tree.verify import AcceptedPath, has_rejected_child, verify

WORDS, DRAFT_WORDS = 8, 6
PROMPT = (3, 5, 5, 1, 7)
NUM_TOKENS = 3  # of an answer: the first comes from the prefill, the others from rounds
LAYERS = (1, 2, 3)  # captured
SHAPE = TreeShape(3, 3, 8)  # a block tree needs as many words
SLOTS = 256
MIN_EXPECTED = 5
LEAST_P, CAUGHT_P = 1e-3, 1e-6


def make_target(directory: Path) -> Target:
    """Saves a random Llama over WORDS words and loads it in float32."""
    vocab = {f"w{number}": number for number in range(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w0").save_pretrained(directory)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=len(LAYERS) + 1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=0,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(directory)
    return Target.load(directory, torch.float32, LAYERS)


def make_specs(target: Target) -> dict[str, HeadSpec]:
    """Returns both kinds of heads with random weights, wide enough that their drafts depend on the text."""
    sizes = HeadConfig.for_target(target.info, DRAFT_WORDS, aux_layer_ids=target.aux_layer_ids)
    every = dataclasses.replace(sizes, draft_vocab_size=WORDS)
    shared: dict[str, Any] = {field.name: getattr(every, field.name) for field in dataclasses.fields(HeadConfig)}
    block = BlockHead.init(BlockConfig(**shared, num_layers=2, block_size=4, markov_rank=8, mask_id=2), 0)
    counts_W = torch.arange(WORDS).flip(0)
    some, everything = DraftVocab.from_counts(counts_W, DRAFT_WORDS), DraftVocab.from_counts(counts_W, WORDS)
    head = Head.init(sizes, 0)
    for one in (head, block):
        _widen(one)
    return {"EAGLE-3": Eagle3Spec(head.pack_projections(), some, SHAPE), "block": BlockSpec(block, everything, SHAPE)}


@torch.no_grad()
def _widen(head: DraftHead) -> None:
    for weight in head.requires_grad_(False).parameters():
        if weight.ndim == 2:
            weight.mul_(5)


@torch.inference_mode()
def exact_probabilities(directory: Path) -> Tensor:
    """Returns float64 [W * W * W]: the probability of the first three tokens, by transformers."""
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager")
    known = torch.ones(1, dtype=torch.float64)
    for length in range(NUM_TOKENS):
        prefixes = [[*PROMPT, *prefix] for prefix in product(range(WORDS), repeat=length)]
        next_BW = model(torch.tensor(prefixes)).logits[:, -1].softmax(-1)
        known = (known[:, None] * next_BW).flatten()
    return known


def chi_square(counts: Tensor, exact: Tensor) -> tuple[float, int, float]:
    """Returns the chi-square statistic, its degrees of freedom, and the probability of a larger one."""
    counts, expected = counts.double(), exact * counts.sum()
    often = expected >= MIN_EXPECTED
    counts = torch.cat((counts[often], counts[~often].sum()[None]))
    expected = torch.cat((expected[often], expected[~often].sum()[None]))
    some = expected > 0
    statistic = ((counts - expected)[some] ** 2 / expected[some]).sum()
    degrees = int(some.sum()) - 1
    p_value = torch.special.gammaincc(torch.tensor(degrees / 2, dtype=torch.float64), statistic / 2)
    return float(statistic), degrees, float(p_value)


def count_answers(target: Target, spec: HeadSpec, seeds: range) -> tuple[Tensor, float]:
    """Returns how often each triple of first tokens came with these seeds, and the acceptance length of the rounds."""
    engine = Engine(target, [spec], SLOTS, len(PROMPT) + NUM_TOKENS)
    sampling, stop = SamplingParams(1.0), StopCriteria(ignore_eos=True)
    requests = (Request(str(seed), PROMPT, NUM_TOKENS, sampling, seed, stop) for seed in seeds)
    counts, rounds = torch.zeros(WORDS**NUM_TOKENS, dtype=torch.int64), []
    for output in plain_loop(engine, RequestList(requests)):
        first, second, third = output.token_ids
        counts[(first * WORDS + second) * WORDS + third] += 1
        rounds.append(output.rounds)
    return counts, acceptance_length(rounds)


# --- two wrong rules -------------------------------------------------------------------------------------------------


class WrongRule(ABC):
    """A wrong walk in the place of that of a round. It reads the logits of all nodes."""

    def __init__(self) -> None:
        self._logits_TW = torch.empty(0)
        self._generator = torch.Generator().manual_seed(0)
        self._choose = sampler.choose_tokens

    def use(self) -> AbstractContextManager[object]:
        """Returns a context in which engines use this rule."""
        stack = ExitStack()
        stack.enter_context(mock.patch.object(sampler, "choose_tokens", self._keep_logits))
        stack.enter_context(mock.patch.object(model_runner, "verify", self.verify))
        return stack

    def _keep_logits(self, logits_TW: Tensor, *settings: Any) -> Tensor:
        self._logits_TW = logits_TW
        return self._choose(logits_TW, *settings)

    def probabilities(self, tree: Tree) -> Tensor:
        """Returns the target's probabilities [B, M, W] after each node at temperature 1."""
        assert len(self._logits_TW) == tree.tokens_BM.numel(), "all nodes were verified"
        return self._logits_TW.view(*tree.tokens_BM.shape, -1).softmax(-1)

    def uniforms(self, count: int) -> Tensor:
        """Returns new random numbers."""
        return torch.rand(count, generator=self._generator)

    def draw(self, probs_BW: Tensor) -> Tensor:
        """Returns a token of each row."""
        return torch.multinomial(probs_BW, 1, generator=self._generator)[:, 0]

    @abstractmethod
    def verify(self, tree: Tree, ids_BM: Tensor) -> AcceptedPath:
        """Returns the accepted paths of the wrong rule. ids_BM: the tokens of the right rule."""


class TokenTestedTwice(WrongRule):
    """A walk whose bonus token is drawn anew where all children were rejected."""

    def verify(self, tree: Tree, ids_BM: Tensor) -> AcceptedPath:
        accepted = verify(tree, ids_BM)
        last_B1 = accepted.lengths_B[:, None] - 1
        stops_B1 = accepted.nodes_BS.gather(1, last_B1)
        probs_BMW = self.probabilities(tree)
        again_B = self.draw(probs_BMW[torch.arange(len(stops_B1)), stops_B1[:, 0]])
        bonus_B = accepted.tokens_BS.gather(1, last_B1)[:, 0]
        bonus_B = torch.where(has_rejected_child(tree, accepted), again_B, bonus_B)
        return dataclasses.replace(accepted, tokens_BS=accepted.tokens_BS.scatter(1, last_B1, bonus_B[:, None]))


class NodesAsSamples(WrongRule):
    """A walk that tests the children of a node in order, each as if the head had drawn it from its own law q."""

    def verify(self, tree: Tree, ids_BM: Tensor) -> AcceptedPath:
        count, num_nodes = tree.tokens_BM.shape
        probs_BMW, rows_B = self.probabilities(tree), torch.arange(count)
        tokens_BS = torch.zeros(count, tree.depth + 1, dtype=torch.int64)
        nodes_BS, lengths_B = torch.zeros_like(tokens_BS), torch.ones(count, dtype=torch.int64)
        at_B, walks_B = torch.zeros(count, dtype=torch.int64), torch.ones(count, dtype=torch.bool)
        for level in range(tree.depth + 1):
            rest_BW, next_B = probs_BMW[rows_B, at_B], torch.full((count,), -1)
            for node in range(1, num_nodes):
                token_B1 = tree.tokens_BM[:, node, None]
                is_child_B = (tree.parents_BM[:, node] == at_B) & tree.valid_BM[:, node] & walks_B & (next_B < 0)
                q_B = (tree.scores_BM[:, node] - tree.scores_BM[rows_B, at_B]).exp()
                p_B = rest_BW.gather(1, token_B1)[:, 0]
                is_accepted_B = is_child_B & (self.uniforms(count) * q_B < p_B)
                next_B = torch.where(is_accepted_B, node, next_B)
                left_B1 = torch.where(is_child_B, (p_B - q_B).clamp(min=0), p_B)[:, None]
                rest_BW = rest_BW.scatter(1, token_B1, left_B1)
                rest_BW = rest_BW / rest_BW.sum(1, keepdim=True)
            moves_B, chosen_B = next_B > 0, self.draw(rest_BW)
            chosen_B = torch.where(moves_B, tree.tokens_BM[rows_B, next_B], chosen_B)
            tokens_BS[:, level] = torch.where(walks_B, chosen_B, 0)
            walks_B = walks_B & moves_B
            at_B = torch.where(walks_B, next_B, at_B)
            if level < tree.depth:
                nodes_BS[:, level + 1] = torch.where(walks_B, at_B, 0)
            lengths_B += walks_B
        return AcceptedPath(tokens_BS, nodes_BS, lengths_B)


RULES = {"top-k nodes as samples": NodesAsSamples, "one token tested twice": TokenTestedTwice}


def measure_sampling(directory: Path, draws: int, control_draws: int) -> Iterator[Row]:
    """Yields the probability of the statistic with the trees of each head, and with each wrong rule.

    Args:
        directory: An empty directory for the target.
        draws: The number of answers with each head.
        control_draws: The number of answers with each wrong rule and head; more make it easier to find.
    """
    target = make_target(directory)
    exact = exact_probabilities(directory)
    first = 0  # each run has other seeds, because equal seeds give equal answers, whatever is drafted
    for name, spec in make_specs(target).items():
        for rule in (None, *RULES):
            count = draws if rule is None else control_draws
            with nullcontext() if rule is None else RULES[rule]().use():
                counts, length = count_answers(target, spec, range(first, first + count))
            first += count
            statistic, degrees, p_value = chi_square(counts, exact)
            note = f"chi-square {statistic:.0f}, {degrees} degrees of freedom, acceptance length {length:.2f}"
            told = f"{count:,} draws, {name} trees"
            print(f"sampling: {told}, {rule or 'eyas'}: {note}", file=sys.stderr, flush=True)
            if rule is None:
                name_of_row = f"sampling, {told}: probability of a larger chi-square"
                yield Row(name_of_row, p_value, f"at least {LEAST_P:g}", p_value >= LEAST_P, note=note)
            else:
                name_of_row = f"sampling, {told}, control ({rule}): probability of a larger chi-square"
                yield Row(name_of_row, p_value, f"below {CAUGHT_P:g}", p_value < CAUGHT_P, note=note)
