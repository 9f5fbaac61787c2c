"""The block head as a drafter: one forward of the head for each round, then a tree over its slots.

B requests, T rows, D hidden, L = 3D captured features, g rows of a block, K frontier nodes, W target vocabulary, S path
slots, G key-value heads, H head size, Z slots of the head's memory, N layers of the head.

With n committed tokens x_0..x_{n - 1} and root x_n, the root is the anchor: position n, row 0. The head's memory holds
the context, which is the keys and values of x_0..x_{n - 1}. Slot k predicts the nodes of level k.

    keys and values of      stored in                                               written by           kept
    tokens of the text      the head's memory, at the KV slots of their tokens      `read`, `extend`     as the token's
    rows of a block         a scratch area of each request slot                     `draft`              for one draft

The probability of a child depends on its slot and on the token of its parent: softmax(base logits of the slot +
correction of the parent), over the whole vocabulary. So a tree needs no further forward. `exact_shape` makes the tree
that of an exact best-first search: the nodes with the highest products of these probabilities.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eyas.drafters.drafter import AcceptedTokens, EngineMemory, chunk_reads
from eyas.drafters.head_spec import HeadDrafter, HeadSpec
from eyas.kernels.paged_attention import AttentionMetadata
from eyas.model.block_head import BlockHead
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Frontier, Tree


def exact_shape(shape: TreeShape) -> TreeShape:
    """Returns a shape whose growth finds the most likely nodes of all possible trees. A chain stays a chain.

    A node is never more likely than its parent or than a sibling that comes before it. So the best tree with n nodes
    below its root is among those that expand the n best nodes of each level and give each of them n children.
    """
    return shape if shape.top_k == 1 else replace(shape, top_k=shape.nodes - 1)


def expand_block(head: BlockHead, base_BgW: Tensor) -> Callable[[Frontier], Tensor]:
    """Returns the function that gives the logits [B, K, W] of the children of a frontier's nodes.

    Args:
        head: The head.
        base_BgW: The logits of all slots without the correction.
    """
    return lambda frontier: base_BgW[:, frontier.level + 1, None] + head.correction(frontier.tokens_BK)


class BlockSpec(HeadSpec):
    """A block head and the shapes of its trees."""

    head: BlockHead

    @property
    def scratch_rows(self) -> int:
        """The number of tokens of a block."""
        return self.head.config.num_rows

    def build(self, memory: EngineMemory) -> "BlockDrafter":
        """Allocates the drafter's own memory for all request slots of the engine, and returns the drafter."""
        return BlockDrafter(self, memory)


class BlockDrafter(HeadDrafter[BlockHead]):
    """The head with its memory. A scratch area holds one block."""

    def grown_shape(self, shape: TreeShape) -> TreeShape:
        """Returns `exact_shape` of the shape."""
        return exact_shape(shape)

    def draft(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, shape: TreeShape) -> Tree:
        """Returns one tree for each request. Requirement: the head has read all committed tokens."""
        assert shape.depth <= self.head.config.block_size, "a tree is not deeper than the block"
        base_BgW = self.base_logits(req_slots_B, lengths_B, roots_B, shape.depth)
        first_BW = base_BgW[:, 0] + self.head.correction(roots_B)
        return self.grower(shape).grow(roots_B, first_BW, expand_block(self.head, base_BgW), lambda ids: ids)

    def base_logits(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, depth: int) -> Tensor:
        """Runs the head over one block for each request. Returns the logits of the first `depth` slots."""
        count, size = len(req_slots_B), len(self.scratch_E)
        own_Bg = (self.pool.num_slots + 1 + req_slots_B[:, None] * size + self.scratch_E).int()
        positions_T = (lengths_B[:, None] + self.scratch_E).view(-1)
        visible_Tg = torch.ones(count * size, size, dtype=torch.bool, device=self.kv.device)
        metadata = AttentionMetadata.uniform(req_slots_B, lengths_B, own_Bg.view(-1), own_Bg, positions_T, visible_Tg)
        embeds_1TD = self.target.embed(self.head.block_ids(roots_B).view(1, -1))
        normed_1TD = self.head.step(embeds_1TD, positions_T[None], self.attend_with_sinks(metadata))
        slots_BSD = normed_1TD.view(count, size, -1)[:, -self.head.config.block_size :]
        return self.target.logits(slots_BSD[:, :depth])

    def extend(self, req_slots_B: Tensor, lengths_B: Tensor, accepted_B: Tensor, tokens: AcceptedTokens) -> None:
        """Stores the context of the root and of the accepted tokens before the last one. It runs no layer."""
        positions_BS = lengths_B[:, None] + torch.arange(tokens.slots_BS.shape[1], device=lengths_B.device)
        self._write_context(tokens.aux_BSL.flatten(0, 1), positions_BS.view(-1), tokens.slots_BS.reshape(-1))

    def read(self, req_slots: Sequence[int], draft_lags: Sequence[int]) -> None:
        """Stores the context of the last `draft_lags` committed tokens, with the target's features from the pool."""
        for reads in chunk_reads(req_slots, draft_lags):
            rows = self.stage_reads(reads)
            assert self.pool.aux_ZL is not None, "the pool keeps features for the head"
            self._write_context(self.pool.aux_ZL[rows.slots_T], rows.positions_T, rows.slots_T)

    def _write_context(self, aux_TL: Tensor, positions_T: Tensor, slots_T: Tensor) -> None:
        """Writes keys and values of tokens into every layer of the head's memory. Slot 0 takes those of padding."""
        layers = self.head.context_keys_values(aux_TL[None].to(self.kv.dtype), positions_T[None])
        self.kv.index_copy_(2, slots_T.long(), torch.stack([torch.cat(layer) for layer in layers]))
