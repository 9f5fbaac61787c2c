"""The protocol of all drafters. ModelRunner calls a Drafter in each round; the engine builds it from a DrafterSpec.

B requests of the batch, S path slots of a tree, L captured features.

    read    the drafter reads committed tokens that it has not seen: a prompt, or rounds without drafting
    draft   it proposes one tree for each request
    extend  it reads the tokens that the target accepted, with the target's true features
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from eyas.kernels.paged_attention import PrepareAttention
from eyas.memory.future_map import FutureMap
from eyas.memory.kv_pool import KVPool
from eyas.model.target import Target
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree

MAX_READ_ROWS = 2048  # tokens that one forward of a drafter reads at most


@dataclass(frozen=True, eq=False)
class AcceptedTokens:
    """The tokens that a round accepted, by path slot.

    tokens_BS: token ids. slots_BS: the KV slots that keep them; 0 for an unused path slot. aux_BSL: the target's
    captured features of each token.
    """

    tokens_BS: Tensor
    slots_BS: Tensor
    aux_BSL: Tensor

    def select(self, requests: Tensor) -> "AcceptedTokens":
        """Returns the tokens of these requests, by their index in the batch."""
        return AcceptedTokens(self.tokens_BS[requests], self.slots_BS[requests], self.aux_BSL[requests])


class Drafter(Protocol):
    """A source of draft trees with its own memory. All tensors are on the device."""

    @property
    def needs_features(self) -> bool:
        """True if `read` and `extend` need the target's captured features."""
        ...

    def draft(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, shape: TreeShape) -> Tree:
        """Returns one tree of this shape for each request. lengths_B: committed tokens; roots_B: the next token."""
        ...

    def read(self, req_slots: Sequence[int], draft_lags: Sequence[int]) -> None:
        """Reads the last `draft_lags` committed tokens of each request."""
        ...

    def extend(self, req_slots_B: Tensor, lengths_B: Tensor, accepted_B: Tensor, tokens: AcceptedTokens) -> None:
        """Reads the tokens that a round accepted. lengths_B: committed tokens before the round.

        Called only if `needs_features` is True.
        """
        ...


class DrafterSpec(Protocol):
    """The description of a drafter, from which an engine builds it with memory."""

    @property
    def shape(self) -> TreeShape:
        """The shape of every tree, unless a policy chooses another."""
        ...

    @property
    def shapes(self) -> tuple[TreeShape, ...]:
        """All tree shapes that a round may use. Memory is allocated for the largest."""
        ...

    def build(self, target: Target, pool: KVPool, future_map: FutureMap, prepare: PrepareAttention) -> Drafter:
        """Returns the drafter, with memory for all requests of the pool."""
        ...


def chunk_reads(req_slots: Sequence[int], draft_lags: Sequence[int]) -> Iterator[list[tuple[int, int, int]]]:
    """Yields the reads of one forward at a time, at most MAX_READ_ROWS tokens together.

    Each read is (request slot, tokens that the drafter has not read, tokens to read now).
    """
    rest = [(req_slot, lag) for req_slot, lag in zip(req_slots, draft_lags, strict=True) if lag > 0]
    while rest:
        reads, later, budget = [], [], MAX_READ_ROWS
        for req_slot, lag in rest:
            count = min(lag, budget)
            budget -= count
            if count:
                reads.append((req_slot, lag, count))
            if lag > count:
                later.append((req_slot, lag - count))
        yield reads
        rest = later
