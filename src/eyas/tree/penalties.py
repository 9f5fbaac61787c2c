"""Penalties and logit bias, applied exactly to each node of a draft tree: they depend on the path to the node.

Legend: R request slots, B requests, M tree nodes, S path slots, T rows of logits (of any requests), D = depth, W target
vocabulary.

    answer so far: x y, so the root is y

    tree                 node            answer up to the node    token counts
      y ─┬─ x ─── x      y, the root     x y                      x 1, y 1
         └─ z            x at depth 1    x y x                    x 2, y 1
                         x at depth 2    x y x x                  x 3, y 1
                         z               x y z                    x 1, y 1, z 1

A table on the device holds the token counts of each request slot for the committed answer, the root included. For a
node below the root, the tokens of its path are added to these counts. SGLang uses the committed counts for every node.
That is not exact: a token that occurs twice on a path is then penalized as if it occurred once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eyas.staging import Staging
from eyas.tree.sampling import SamplingParams
from eyas.tree.tree import Tree


@dataclass(frozen=True, eq=False)
class NodePaths:
    """The path from the root to the node of each row of logits. The root is left out, the node is included.

    Attributes:
        tokens_TD: int64, the tokens of the path, in any order.
        present_TD: bool, False in the unused columns of a path that is shorter than D.
    """

    tokens_TD: Tensor
    present_TD: Tensor

    @classmethod
    def from_tree(cls, tree: Tree, rows_T: Tensor | None = None) -> "NodePaths":
        """Returns the paths of the nodes of all requests.

        Args:
            tree: The trees.
            rows_T: The numbers (request * M + node) of the nodes to return; None for all B * M nodes in this order.
        """
        num_requests, num_nodes = tree.tokens_BM.shape
        tokens_BMD = tree.tokens_BM.new_zeros(num_requests, num_nodes, tree.depth)
        present_BMD = torch.zeros_like(tokens_BMD, dtype=torch.bool)
        climbed_BM = torch.arange(num_nodes, device=tokens_BMD.device).expand(num_requests, -1)
        for step in range(tree.depth):
            tokens_BMD[:, :, step] = tree.tokens_BM.gather(1, climbed_BM)
            present_BMD[:, :, step] = climbed_BM > 0
            climbed_BM = tree.parents_BM.gather(1, climbed_BM)
        tokens_TD, present_TD = tokens_BMD.flatten(0, 1), present_BMD.flatten(0, 1)
        return cls(tokens_TD, present_TD) if rows_T is None else cls(tokens_TD[rows_T], present_TD[rows_T])


@dataclass(frozen=True, eq=False)
class _Tables:
    """The state of all request slots. It takes 9 bytes for each slot and token of the vocabulary.

    Attributes:
        prompt_RW: bool, True if the prompt contains the token.
        counts_RW: int32, the number of times that the committed answer contains the token.
        bias_RW: float32, the logit bias of the token.
        settings_RC: float32, the repetition, presence and frequency penalty. 1, 0, 0 change no logit.
    """

    prompt_RW: Tensor
    counts_RW: Tensor
    bias_RW: Tensor
    settings_RC: Tensor


class PenaltyState:
    """The token counts and penalty settings of each request slot. The sampler owns one.

    The tables are allocated when the first request uses a penalty or bias.
    """

    def __init__(self, num_slots: int, vocab_size: int, staging: Staging) -> None:
        self.num_slots = num_slots
        self.vocab_size = vocab_size
        self._staging = staging
        self._tables: _Tables | None = None

    def admit(
        self, slot: int, params: SamplingParams, prompt_ids: Sequence[int], output_ids: Sequence[int] = ()
    ) -> None:
        """Assigns a slot to a request and overwrites the state of the slot.

        Args:
            slot: The request slot.
            params: The sampling settings of the request.
            prompt_ids: The prompt.
            output_ids: The answer so far, the root included.

        Raises:
            InputError: logit_bias names a token outside the vocabulary.
        """
        params.check_vocab(self.vocab_size)
        if self._tables is None:
            if not params.adjusts_logits:
                return
            self._tables = self._empty_tables()
        tables = self._tables
        settings = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        bias = dict(params.logit_bias)
        floats = np.array([*settings, *bias.values()], np.float32)
        prompt_T, output_T, biased_T, floats_X = self._staging.copy(prompt_ids, output_ids, list(bias), floats)
        tables.settings_RC[slot] = floats_X[:3]
        for table_RW in (tables.prompt_RW, tables.counts_RW, tables.bias_RW):
            table_RW[slot].zero_()
        tables.prompt_RW[slot].index_fill_(0, prompt_T, True)
        tables.counts_RW[slot].index_add_(0, output_T, torch.ones_like(output_T, dtype=torch.int32))
        tables.bias_RW[slot].index_copy_(0, biased_T, floats_X[3:])

    def update(self, slots_B: Tensor, tokens_BS: Tensor, lengths_B: Tensor) -> None:
        """Adds the accepted tokens of a round to the counts.

        Args:
            slots_B: The request slots. Requirement: no slot occurs twice.
            tokens_BS: `verify.AcceptedPath.tokens_BS`.
            lengths_B: `verify.AcceptedPath.lengths_B`.
        """
        if self._tables is None:
            return
        is_accepted_BS = torch.arange(tokens_BS.shape[1], device=tokens_BS.device) < lengths_B[:, None]
        flat_BS = slots_B[:, None] * self.vocab_size + torch.where(is_accepted_BS, tokens_BS, 0)
        self._tables.counts_RW.view(-1).scatter_add_(0, flat_BS.flatten(), is_accepted_BS.flatten().int())

    def apply(self, logits_TW: Tensor, slots_T: Tensor, paths: NodePaths | None) -> Tensor:
        """Returns fp32 logits after logit bias and penalties, in vLLM's order. It may return its argument.

        A row whose request uses no penalty and no bias keeps its logits bit for bit.

        Args:
            logits_TW: Logits after the grammar mask.
            slots_T: The request slot of each row.
            paths: The path of each row's node; None where every row is a root.
        """
        logits_TW = logits_TW.float()
        if self._tables is None:
            return logits_TW
        tables = self._tables
        counts_TW = tables.counts_RW[slots_T]
        if paths is not None:
            counts_TW.scatter_add_(1, paths.tokens_TD, paths.present_TD.int())
        in_answer_TW = counts_TW > 0
        repetition_T1, presence_T1, frequency_T1 = tables.settings_RC[slots_T][:, :, None].unbind(dim=1)
        logits_TW = logits_TW + tables.bias_RW[slots_T]
        # 1 where the token is new. Products and clamps: a CPU needs a third of the time of torch.where for them.
        factors_TW = (tables.prompt_RW[slots_T] | in_answer_TW) * (repetition_T1 - 1) + 1
        logits_TW = logits_TW.clamp(min=0) / factors_TW + logits_TW.clamp(max=0) * factors_TW
        return logits_TW - frequency_T1 * counts_TW - presence_T1 * in_answer_TW

    def _empty_tables(self) -> _Tables:
        shape, device = (self.num_slots, self.vocab_size), self._staging.device
        neutral_RC = torch.zeros(self.num_slots, 3, device=device)
        neutral_RC[:, 0].fill_(1.0)
        prompt_RW = torch.zeros(shape, dtype=torch.bool, device=device)
        counts_RW = torch.zeros(shape, dtype=torch.int32, device=device)
        return _Tables(prompt_RW, counts_RW, torch.zeros(shape, device=device), neutral_RC)
