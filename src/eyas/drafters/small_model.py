"""A small model of the same vocabulary that drafts chains (speculative decoding, arXiv 2211.17192).

B requests, Q tokens of one forward, M nodes of a chain, E slots of the own block, T rows, W vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.base.errors import InputError
from eyas.drafters.drafter import AcceptedTokens, EngineMemory, chunk_reads
from eyas.kernels.huge_pages import zeros_on_huge_pages
from eyas.kernels.paged_attention import AttentionMetadata
from eyas.model.attention import PackedAttention
from eyas.model.target import Target
from eyas.speculation.acceptance_model import DEFAULT_PRIOR
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree


@dataclass(frozen=True)
class SmallModelSpec:
    """The description of a small draft model. shape: its depth is the number of drafted tokens."""

    model: Target
    shape: TreeShape

    @property
    def shapes(self) -> tuple[TreeShape, ...]:
        """All tree shapes that a round may use: `shape`."""
        return (self.shape,)

    def build(self, memory: EngineMemory) -> "SmallModelDrafter":
        """Allocates the small model's KV memory and returns the drafter.

        Raises:
            InputError: the two models have different vocabularies.
        """
        small, large = self.model.info.vocab_size, memory.target.info.vocab_size
        ours, theirs = self.model.tokenizer.get_vocab(), memory.target.tokenizer.get_vocab()
        if small != large or ours != theirs:
            num_other = sum(theirs.get(token) != number for token, number in ours.items())
            problem = f"The draft model has {small:,} tokens and the target {large:,}; {num_other:,} tokens differ"
            fix = "Choose a draft model with the target's vocabulary, for example a smaller model of its family"
            raise InputError(problem, fix)
        return SmallModelDrafter(self.model, memory)


class SmallModelDrafter:
    """The small model and its own KV memory, which has as many KV slots as the target's.

    With n committed tokens and root x_n, `draft` runs the model over columns n - 1 and n, and then over each token that
    it proposes. It writes their keys and values to the KV slots in which the target will verify the tokens. Accepted
    tokens of a chain stay in these slots. The model does not run over the last token that it proposes. If that token is
    accepted, it is in column n - 1 of the next round, and `draft` runs over it there.
    """

    head = None
    acceptance_prior = DEFAULT_PRIOR
    node_scale = None  # all its nodes have score 0
    needs_features = False

    def __init__(self, model: Target, memory: EngineMemory) -> None:
        info, weight = model.info, next(model.model.parameters())
        shape = (info.num_layers, 2, memory.pool.num_slots + 1, info.num_kv_heads, info.head_dim)
        self.model, self.pool, self.future_map = model, memory.pool, memory.future_map
        self.prepare_attention = memory.prepare
        self.kv = zeros_on_huge_pages(shape, weight.dtype, weight.device)

    def draft(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, shape: TreeShape) -> Tree:
        """Returns the greedy continuation of each text as a chain. Requirement: a text has a token before its root."""
        before_B = self.future_map.tokens_RC[req_slots_B, lengths_B - 1]
        ids_BQ, begins_B = torch.stack((before_B, roots_B), 1), lengths_B - 1
        tokens = [roots_B]
        for _ in range(shape.depth):
            logits_BW = self._forward(req_slots_B, begins_B, ids_BQ)
            begins_B = begins_B + ids_BQ.shape[1]
            tokens.append(logits_BW.argmax(-1))
            ids_BQ = tokens[-1][:, None]
        tokens_BM = torch.stack(tokens, 1)
        return Tree.from_chains(tokens_BM, torch.ones_like(tokens_BM, dtype=torch.bool))

    def read(self, req_slots: Sequence[int], draft_lags: Sequence[int]) -> None:
        """Reads the last `draft_lags` committed tokens of each request."""
        for reads in chunk_reads(req_slots, draft_lags):
            for req_slot, lag, count in reads:  # not a hot path: prompts, once each
                req_slot_1 = torch.full((1,), req_slot, device=self.kv.device)
                begin_1 = self.future_map.lengths_R[req_slot_1] - lag
                columns_1Q = begin_1[:, None] + torch.arange(count, device=self.kv.device)
                self._forward(req_slot_1, begin_1, self.future_map.tokens_RC[req_slot_1[:, None], columns_1Q])

    def extend(self, req_slots_B: Tensor, lengths_B: Tensor, accepted_B: Tensor, tokens: AcceptedTokens) -> None:
        """Does nothing: `draft` has already run over the accepted tokens."""

    def _forward(self, req_slots_B: Tensor, begins_B: Tensor, ids_BQ: Tensor) -> Tensor:
        """Runs the model over Q tokens of each text, which begin at column begins_B.

        Returns:
            The logits [B, W] after the last of these tokens.
        """
        count, num_rows = ids_BQ.shape
        device = ids_BQ.device
        positions_BQ = begins_B[:, None] + torch.arange(num_rows, device=device)
        own_BE = self.pool.req_to_token_RC[req_slots_B[:, None], positions_BQ]
        starts_B1 = torch.arange(0, (count + 1) * num_rows, num_rows, dtype=torch.int32, device=device)
        positions_T, slots_T = positions_BQ.view(-1), own_BE.reshape(-1)
        ints = starts_B1, req_slots_B.int(), begins_B.int()
        metadata = AttentionMetadata(*ints, slots_T, own_BE, None, positions_T.int())
        attend = PackedAttention(self.prepare_attention(self.kv, self.pool.req_to_token_RC, metadata))
        out = self.model.forward(ids_BQ.reshape(1, -1), positions_T[None], attend, want_aux=False)
        return self.model.logits(out.hidden_BTD[0].view(count, num_rows, -1)[:, -1])
