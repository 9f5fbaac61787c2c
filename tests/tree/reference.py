"""References: sampling one text at a time, by transformers' logits processors in vLLM's order; the mask of training.

Legend: W vocabulary, R rows.
"""

import math
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
from eyas.tree.shape import TreeShape
from eyas.tree.tree import ExpandFn, ToTargetFn, Tree, TreeGrower


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


def sampling_probs(logits_RW: Tensor, sampling: SamplingParams) -> Tensor:
    """Probabilities of one request's rows, fp32, same shape as the logits (any leading dimensions), filter by filter.

    Equal logits share their fate, unlike in transformers' top_p. Greedy: all on the argmax, the first one on ties.
    """
    logits_RW = logits_RW.float()
    if sampling.is_greedy:
        return torch.zeros_like(logits_RW).scatter_(-1, logits_RW.argmax(dim=-1, keepdim=True), 1.0)
    logits_RW = logits_RW / sampling.temperature
    if sampling.min_p:
        floor_R1 = logits_RW.amax(dim=-1, keepdim=True) + math.log(sampling.min_p)
        logits_RW = logits_RW.masked_fill(logits_RW < floor_R1, -torch.inf)
    if sampling.top_k is not None:
        kth_R1 = logits_RW.topk(min(sampling.top_k, logits_RW.shape[-1]), dim=-1).values[..., -1:]
        logits_RW = logits_RW.masked_fill(logits_RW < kth_R1, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        ascending_RW = logits_RW.sort(dim=-1).values
        sums_RW = ascending_RW.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
        num_dropped_R1 = (sums_RW[..., :-1] <= 1 - sampling.top_p).sum(dim=-1, keepdim=True)
        logits_RW = logits_RW.masked_fill(logits_RW < ascending_RW.gather(-1, num_dropped_R1), -torch.inf)
    return logits_RW.softmax(dim=-1)


def grow_tree(shape: TreeShape, root_B: Tensor, logits_BV: Tensor, expand: ExpandFn, to_target: ToTargetFn) -> Tree:
    """Grows once, tables included."""
    return TreeGrower(shape, root_B.device).grow(root_B, logits_BV, expand, to_target)


def tree_visible(tree: Tree, prefix_lengths_B: Tensor, prefix_size: int) -> Tensor:
    """Returns the attention mask of the nodes, bool [B, M, P + M], True where a node attends to a column.

    A node attends to the committed text before the root, to its ancestors and to ittree. The first P columns are
    the committed text, the last M columns are the nodes. Example: a text of 3 tokens with P = 4, and a tree of 4
    nodes in which the parent of 1 is 0, the parent of 2 is 1, and the parent of 3 is 0.

                  text       nodes
        node 0    x x x .    x . . .
        node 1    x x x .    x x . .
        node 2    x x x .    x x x .
        node 3    x x x .    x . . x

    Args:
        tree: The trees.
        prefix_lengths_B: The number of committed tokens before the root.
        prefix_size: P, the number of columns for these tokens.
    """
    num_requests, num_nodes = tree.parents_BM.shape
    columns_P = torch.arange(prefix_size, device=tree.parents_BM.device)
    prefix_B1P = (columns_P < prefix_lengths_B[:, None])[:, None]
    return torch.cat([prefix_B1P.expand(num_requests, num_nodes, prefix_size), tree.ancestors_BMM()], dim=2)


def unrolled_chains_visible(num_positions: int, depth: int, device: torch.device) -> Tensor:
    """Returns the tree mask of one chain at every position of a text, in the layout of unrolled training.

    bool [M, T, M, T], M = depth + 1 steps, T positions: [j, t, i, s] is True where step j of the chain at position t
    sees step i of the chain at s. Step 0 of a chain is the text itself, the root of that chain. This is `tree_visible`
    with other labels: request t of the tree is the chain at position t, and its prefix is the t rows before.

        T = 3, depth = 1      step 0   step 1
          step 0, t = 0       x . .    . . .
                  t = 1       x x .    . . .
                  t = 2       x x x    . . .
          step 1, t = 0       x . .    x . .
                  t = 1       x x .    . x .
                  t = 2       x x x    . . x
    """
    num_steps = depth + 1
    tokens_TM = torch.zeros(num_positions, num_steps, dtype=torch.int64, device=device)
    tree = Tree.from_chains(tokens_TM, torch.ones_like(tokens_TM, dtype=torch.bool))
    positions_T = torch.arange(num_positions, device=device)
    visible = tree_visible(tree, positions_T, num_positions)
    own_MTM = visible[:, :, num_positions:].permute(1, 0, 2)
    out = own_MTM[:, :, :, None] & (positions_T[:, None, None] == positions_T)
    out[:, :, 0] |= visible[:, :, :num_positions].permute(1, 0, 2)
    return out
