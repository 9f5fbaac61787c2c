"""Prompt lookup: finds an earlier copy of the last tokens of the text, and drafts the tokens that followed it there.

    text     the cat sat . the cat      the last two tokens also occur at the start
    draft    sat . the                  depth 3: the tokens after that place

Source: github.com/apoorvumang/prompt-lookup-decoding. Matches have up to three tokens, as in transformers and vLLM.
B requests, C columns of the text, M nodes of a chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.drafters.drafter import AcceptedTokens
from eyas.kernels.paged_attention import PrepareAttention
from eyas.memory.future_map import FutureMap
from eyas.memory.kv_pool import KVPool
from eyas.model.target import Target
from eyas.speculation.acceptance_model import DEFAULT_PRIOR
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree

MAX_MATCH = 3  # tokens


@dataclass(frozen=True)
class PromptLookupSpec:
    """The description of prompt lookup. shape: its depth is the number of drafted tokens."""

    shape: TreeShape

    @property
    def shapes(self) -> tuple[TreeShape, ...]:
        """All tree shapes that a round may use: `shape`."""
        return (self.shape,)

    def build(
        self, target: Target, pool: KVPool, future_map: FutureMap, prepare: PrepareAttention
    ) -> "PromptLookupDrafter":
        """Returns the drafter. It copies from the text in the future map and allocates no memory."""
        return PromptLookupDrafter(future_map)


class PromptLookupDrafter:
    """A drafter that copies its draft tokens from the text of the request."""

    head = None
    acceptance_prior = DEFAULT_PRIOR
    needs_features = False

    def __init__(self, future_map: FutureMap) -> None:
        self.future_map = future_map

    def draft(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, shape: TreeShape) -> Tree:
        """Returns one chain for each request. A text without a match gets a chain with the root only."""
        followers_BM, valid_BM = lookup(self.future_map.tokens_RC[req_slots_B], lengths_B, shape.depth)
        return Tree.from_chains(
            torch.cat((roots_B[:, None], followers_BM), 1), torch.cat((torch.ones_like(valid_BM[:, :1]), valid_BM), 1)
        )

    def read(self, req_slots: Sequence[int], draft_lags: Sequence[int]) -> None:
        """Does nothing: the drafter keeps no state."""

    def extend(self, req_slots_B: Tensor, lengths_B: Tensor, accepted_B: Tensor, tokens: AcceptedTokens) -> None:
        """Does nothing: the drafter keeps no state."""


def lookup(texts_BC: Tensor, last_B: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """Finds the longest earlier match of the last tokens of each text, and returns the tokens that follow it.

    Among matches of equal length, the last one in the text is used.

    Args:
        texts_BC: token ids. Columns after last_B are ignored.
        last_B: column of the last token of each text.
        depth: number of tokens to return for each text.

    Returns:
        tokens [B, depth] and valid [B, depth]. A token is invalid if it would lie after the end of the text, or if the
        text has no match.
    """
    columns_C = torch.arange(texts_BC.shape[1], device=texts_BC.device)
    same_BC = torch.ones_like(texts_BC, dtype=torch.bool)
    from_B = torch.zeros_like(last_B)  # the column after the match; 0: there is none
    for size in range(1, MAX_MATCH + 1):
        # same_BC[b, c]: the `size` tokens that end in column c are the last ones of the text.
        last_B1 = texts_BC.gather(1, (last_B - size + 1).clamp_(min=0)[:, None])
        same_BC = same_BC & (texts_BC.roll(size - 1, 1) == last_B1)
        ends_BC = same_BC & (columns_C >= size - 1) & (columns_C < last_B[:, None])
        found_B = torch.where(ends_BC, columns_C + 1, 0).amax(1)
        from_B = torch.where((found_B > 0) & (last_B >= size), found_B, from_B)
    columns_BM = from_B[:, None] + torch.arange(depth, device=texts_BC.device)
    valid_BM = (from_B > 0)[:, None] & (columns_BM <= last_B[:, None])
    return texts_BC.gather(1, columns_BM.clamp_(0, texts_BC.shape[1] - 1)), valid_BM
