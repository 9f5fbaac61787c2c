"""The work that the host gives a ModelRunner, and the results that it gets back.

B requests, M tree nodes, S path slots, C columns of a round's result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.engine.copy_rows import CopyRows
from eyas.tree.sampling import Logprobs
from eyas.tree.shape import TreeShape


@dataclass(frozen=True)
class PrefillChunk:
    """A chunk of prefill: tokens ids[begin:end] of a text.

    Attributes:
        req_slot: The request slot.
        ids: All tokens of the text.
        begin: The first token of the chunk.
        end: The token after the chunk.
        is_first: True for the first chunk of a text in this request slot; tokens before `begin` are in memory already.
        samples_token: True if the last row of the chunk decides the next token. False if a later chunk follows, or if
            the next token is known: it is in `ids`.
    """

    req_slot: int
    ids: Sequence[int]
    begin: int
    end: int
    is_first: bool
    samples_token: bool


@dataclass(frozen=True, eq=False)
class PrefillOutput:
    """The next token of each chunk with `samples_token`, in order, and its log-probabilities if requested."""

    tokens: Tensor
    logprobs: Logprobs | None = None


NO_OUTPUT = PrefillOutput(torch.empty(0, dtype=torch.int64))
"""The result of a prefill that samples no token."""


@dataclass(frozen=True)
class RoundBatch:
    """The requests of one round.

    Attributes:
        req_slots: The request slots.
        shape: The shape of the trees; None for plain decoding.
        nodes: The number of nodes of all trees that the target verifies, roots included.
        drafts: For each request, True if it drafts. The tree of a request that does not draft is its root.
        draft_lags: For each request that drafts, the number of committed tokens that the drafter has not read.
        num_logprobs: The number of alternatives to report for each token; None for no log-probabilities.
        wants_trees: True to copy the trees to the host.
        drafter: The index of the drafter.
        copies: The copies to merge into the trees; None for a round without copies.
        chunks: Prompt chunks of other requests, which share the forward of the target.
        num_chunk_logprobs: As num_logprobs, for the tokens that these chunks sample.
    """

    req_slots: tuple[int, ...]
    shape: TreeShape | None = None
    nodes: int = 0
    drafts: tuple[bool, ...] = ()
    draft_lags: tuple[int, ...] = ()
    num_logprobs: int | None = None
    wants_trees: bool = False
    drafter: int = 0
    copies: CopyRows | None = None
    chunks: tuple[PrefillChunk, ...] = ()
    num_chunk_logprobs: int | None = None

    @property
    def has_branches(self) -> bool:
        """True if accepted nodes may have other nodes between them."""
        return self.shape is not None and (self.shape.top_k > 1 or self.copies is not None)


@dataclass(frozen=True, eq=False)
class VerifiedTrees:
    """The trees of a round and the accepted paths, on the host; see `Tree` and `AcceptedPath`."""

    tokens_BM: Tensor
    parents_BM: Tensor
    valid_BM: Tensor
    nodes_BS: Tensor


@dataclass
class PhaseTimes:
    """The seconds of the phases of a round, measured on the host.

    On a CPU they are the times of the computation. On CUDA they are the times to queue the kernels, and 0 for a round
    that runs as a CUDA graph.
    """

    draft_s: float = 0.0
    verify_s: float = 0.0
    extend_s: float = 0.0


@dataclass(frozen=True, eq=False)
class RoundOutput:
    """The results of a round. Requirement: read the tensors only after the round's event.

    Attributes:
        read_BC: int64 on the host. Its columns: the tokens of the S path slots; the number of accepted tokens; 1 if the
            target rejected all children of the last accepted node, else 0; in rounds that drafted trees, `trace_BC`.
        num_slots: S.
        times: The seconds of the phases.
        logprobs: The log-probabilities of the B * S path slots; None if no request wants them.
        broken_req_slots: The request slots whose output exceeds the limits of its grammar.
        trees: The verified trees; None unless `RoundBatch.wants_trees` is True.
        node_counts_SDN2: The graded nodes of the drafter since they were read before; None in most rounds.
        prefill: The result of the prompt chunks that shared the forward.
    """

    read_BC: Tensor
    num_slots: int
    times: PhaseTimes
    logprobs: Logprobs | None = None
    broken_req_slots: frozenset[int] = frozenset()
    trees: VerifiedTrees | None = None
    node_counts_SDN2: Tensor | None = None
    prefill: PrefillOutput = NO_OUTPUT
