"""The protocol of all drafters. ModelRunner calls a Drafter in each round; the engine builds it from a DrafterSpec.

B requests of the batch, S path slots of a tree, L captured features. To read a token means to run the drafter's forward
over it and to store its keys and values.

    method   when                      what the drafter does
    read     before draft              reads committed tokens that it has not read: of a prompt, or of rounds that
                                       did not draft
    draft    at the start of a round   proposes one tree for each request
    extend   at the end of a round     reads the accepted tokens, with the features that the target computed for them
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from eyas.kernels.paged_attention import PrepareAttention
from eyas.memory.future_map import FutureMap
from eyas.memory.kv_pool import KVPool
from eyas.model.head import DraftHead
from eyas.model.target import Target
from eyas.speculation.acceptance_model import AcceptancePrior
from eyas.tree.node_scale import NodeScale
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree

MAX_READ_ROWS = 2048  # tokens that one forward of a drafter reads at most


@dataclass(frozen=True, eq=False)
class AcceptedTokens:
    """The tokens that a round accepted, by path slot.

    Attributes:
        tokens_BS: The token ids.
        slots_BS: The KV slots of the path: slot s belongs to the token before token s (the root for s = 0). 0 for an
            unused path slot.
        aux_BSL: The target's captured features of the token before token s.
    """

    tokens_BS: Tensor
    slots_BS: Tensor
    aux_BSL: Tensor

    def select(self, requests: Tensor) -> "AcceptedTokens":
        """Returns the tokens of some requests. requests: their indices in the batch."""
        return AcceptedTokens(self.tokens_BS[requests], self.slots_BS[requests], self.aux_BSL[requests])


@dataclass(frozen=True, eq=False)
class EngineMemory:
    """The target of an engine, and the memory of its requests on the device.

    Attributes:
        target: The target that verifies the trees.
        pool: The KV memory of the target.
        future_map: The texts of the requests.
        prepare: The attention of the device.
    """

    target: Target
    pool: KVPool
    future_map: FutureMap
    prepare: PrepareAttention


class Drafter(Protocol):
    """An object that proposes draft trees and owns the memory that it needs. All tensors are on the device."""

    @property
    def head(self) -> DraftHead | None:
        """The trained head that drafts; None for a drafter without one."""
        ...

    @property
    def acceptance_prior(self) -> AcceptancePrior:
        """The acceptance on held-out answers. It is empty if none was measured."""
        ...

    @property
    def node_scale(self) -> NodeScale | None:
        """The scale of the probabilities of its nodes; None if its trees have none."""
        ...

    @property
    def needs_features(self) -> bool:
        """True if `read` and `extend` need the target's captured features."""
        ...

    def draft(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, shape: TreeShape) -> Tree:
        """Returns one tree of this shape for each request.

        Args:
            req_slots_B: the request slots.
            lengths_B: the number of committed tokens.
            roots_B: the token after the committed ones, the root of the tree.
            shape: depth, top-k and number of nodes.
        """
        ...

    def read(self, req_slots: Sequence[int], draft_lags: Sequence[int]) -> None:
        """Reads the last draft_lags[i] committed tokens of the request in req_slots[i]."""
        ...

    def extend(self, req_slots_B: Tensor, lengths_B: Tensor, accepted_B: Tensor, tokens: AcceptedTokens) -> None:
        """Reads the tokens that a round accepted. The engine calls it only if `needs_features` is True.

        Args:
            req_slots_B: the request slots.
            lengths_B: the number of committed tokens before the round.
            accepted_B: the number of accepted tokens.
            tokens: the accepted tokens with their features.
        """
        ...


class DrafterSpec(Protocol):
    """The description of a drafter. An engine calls `build` with its own memory to get the drafter."""

    @property
    def shape(self) -> TreeShape:
        """The shape of the trees of all rounds for which no policy chooses another shape."""
        ...

    @property
    def shapes(self) -> tuple[TreeShape, ...]:
        """All tree shapes that a round may use. Memory is allocated for the largest."""
        ...

    def build(self, memory: EngineMemory) -> Drafter:
        """Allocates the drafter's own memory for all request slots of the engine, and returns the drafter."""
        ...


def chunk_reads(req_slots: Sequence[int], draft_lags: Sequence[int]) -> Iterator[list[tuple[int, int, int]]]:
    """Splits what the drafter must read into forwards of at most MAX_READ_ROWS tokens.

    Args:
        req_slots: the request slots.
        draft_lags: for each of them, the number of last committed tokens that the drafter has not read.

    Yields:
        The reads of one forward: for each request its slot, its unread tokens, and the number of them to read now.
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
