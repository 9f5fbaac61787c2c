"""What else may draft, on the same engine, so that a head can be compared with it: the text itself, or a small model.

B requests, T rows, C columns of the table, M nodes of a chain (the root is number 0), W vocabulary, D hidden.

    Lookup       the tokens that followed the last few the last time they were said      nothing to read, no memory
    SmallModel   a target of its own, of the same vocabulary, token by token             keys and values of its own

Both draft chains, and neither needs the target's features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.base.errors import InputError
from eyas.drafters.eagle3 import chunk_reads
from eyas.kernels.paged_attention import AttentionMetadata, PrepareAttention
from eyas.memory.future_map import FutureMap
from eyas.memory.kv_pool import KVPool
from eyas.model.attention import PackedAttention
from eyas.model.target import Target
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree

MAX_MATCH = 3  # tokens; as transformers and vLLM look for


@dataclass(frozen=True)
class PromptLookupSpec:
    """Prompt lookup (github.com/apoorvumang/prompt-lookup-decoding), chains as deep as `shape`."""

    shape: TreeShape

    @property
    def shapes(self) -> tuple[TreeShape, ...]:
        """All shapes that a round may have."""
        return (self.shape,)

    def build(
        self, target: Target, pool: KVPool, future_map: FutureMap, prepare: PrepareAttention
    ) -> "PromptLookupDrafter":
        """It needs the text alone."""
        return PromptLookupDrafter(future_map)


class PromptLookupDrafter:
    """Looks in the future_map, where the text is."""

    needs_features = False

    def __init__(self, future_map: FutureMap) -> None:
        self.future_map = future_map

    def of(self, is_canary: bool) -> "PromptLookupDrafter":
        """There is one."""
        return self

    def draft(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, shape: TreeShape) -> Tree:
        """What followed the longest match, of those the last; a root alone where nothing matches."""
        texts_BC = self.future_map.tokens_RC[req_slots_B]
        columns_C = torch.arange(texts_BC.shape[1], device=texts_BC.device)
        same_BC = torch.ones_like(texts_BC, dtype=torch.bool)
        from_B = torch.zeros_like(lengths_B)  # the column behind the match; 0: there is none
        for size in range(1, MAX_MATCH + 1):
            # same_BC[b, c]: the `size` tokens that end in column c are the last ones of the text, root included.
            last_B1 = texts_BC.gather(1, (lengths_B - size + 1).clamp_(min=0)[:, None])
            same_BC = same_BC & (texts_BC.roll(size - 1, 1) == last_B1)
            ends_BC = same_BC & (columns_C >= size - 1) & (columns_C < lengths_B[:, None])
            found_B = torch.where(ends_BC, columns_C + 1, 0).amax(1)
            from_B = torch.where((found_B > 0) & (lengths_B >= size), found_B, from_B)
        steps_M = torch.arange(shape.depth + 1, device=texts_BC.device)
        columns_BM = from_B[:, None] + steps_M - 1
        valid_BM = (steps_M == 0) | ((from_B > 0)[:, None] & (columns_BM <= lengths_B[:, None]))
        tokens_BM = texts_BC.gather(1, columns_BM.clamp_(0, texts_BC.shape[1] - 1))
        tokens_BM[:, 0] = roots_B
        return Tree.from_chains(tokens_BM, valid_BM)

    def read(self, lines: Sequence[int], lags: Sequence[int]) -> None:
        """Nothing is kept that would have to be read."""


@dataclass(frozen=True)
class SmallModelSpec:
    """A small model of the same vocabulary that drafts chains as deep as `shape` (arXiv 2211.17192)."""

    model: Target
    shape: TreeShape

    @property
    def shapes(self) -> tuple[TreeShape, ...]:
        """All shapes that a round may have."""
        return (self.shape,)

    def build(
        self, target: Target, pool: KVPool, future_map: FutureMap, prepare: PrepareAttention
    ) -> "SmallModelDrafter":
        """InputError where the two do not name tokens alike."""
        small, large = self.model.info.vocab_size, target.info.vocab_size
        ours, theirs = self.model.tokenizer.get_vocab(), target.tokenizer.get_vocab()
        num_other = sum(theirs.get(token) != number for token, number in ours.items())
        if small != large or ours != theirs:
            raise InputError(
                f"a draft model of {small:,} tokens, {num_other:,} of them other than the target's",
                f"the target's {large:,} tokens",
                "name a draft model of the same family",
            )
        return SmallModelDrafter(self.model, pool, future_map, prepare)


class SmallModelDrafter:
    """The small model and its memory, which lies in the slots of the target's.

    With n committed tokens and the root x_n, `grow` reads columns n - 1, n and then each token that it proposes, into
    the slots that the target will verify them in. What is accepted stays where it is: chains are never moved. Only the
    last proposal is not read; where it is accepted it stands at n - 1 the next time, which is why that one is read.
    """

    needs_features = False

    def __init__(self, model: Target, pool: KVPool, future_map: FutureMap, prepare: PrepareAttention) -> None:
        facts, weight = model.info, next(model.model.parameters())
        shape = (facts.num_layers, 2, pool.num_slots + 1, facts.num_kv_heads, facts.head_dim)
        self.model = model
        self.pool = pool
        self.future_map = future_map
        self.prepare_attention = prepare
        self.kv = torch.zeros(shape, dtype=weight.dtype, device=weight.device)

    def of(self, is_canary: bool) -> "SmallModelDrafter":
        """There is one."""
        return self

    def draft(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, shape: TreeShape) -> Tree:
        """The likeliest token, `depth` times. A text has a token before its root."""
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

    def read(self, lines: Sequence[int], lags: Sequence[int]) -> None:
        """Read the last `lags` committed tokens of each line: prompts, and what rounds without drafting left."""
        for pieces in chunk_reads(lines, lags):
            for line, lag, count in pieces:  # not a hot path: prompts, once each
                line_1 = torch.tensor([line], device=self.kv.device)
                begin_1 = self.future_map.lengths_R[line_1] - lag
                columns_1Q = begin_1[:, None] + torch.arange(count, device=self.kv.device)
                self._forward(line_1, begin_1, self.future_map.tokens_RC[line_1[:, None], columns_1Q])

    def _forward(self, req_slots_B: Tensor, begins_B: Tensor, ids_BQ: Tensor) -> Tensor:
        """Logits [B, W] behind the last of Q tokens, which stand in columns begins.. of their lines."""
        count, num_rows = ids_BQ.shape
        device = ids_BQ.device
        positions_BQ = begins_B[:, None] + torch.arange(num_rows, device=device)
        own_BE = self.pool.req_to_token_RC[req_slots_B[:, None], positions_BQ]
        starts_B1 = torch.arange(0, (count + 1) * num_rows, num_rows, dtype=torch.int32, device=device)
        positions_T, slots_T = positions_BQ.view(-1), own_BE.reshape(-1)
        rows = AttentionMetadata(starts_B1, req_slots_B.int(), begins_B.int(), slots_T, own_BE, None, positions_T.int())
        attend = PackedAttention(self.prepare_attention(self.kv, self.pool.req_to_token_RC, rows))
        out = self.model.forward(ids_BQ.reshape(1, -1), positions_T[None], attend, want_aux=False)
        return self.model.logits(out.hidden_BTD[0].view(count, num_rows, -1)[:, -1])
