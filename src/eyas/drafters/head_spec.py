"""The description and the memory of drafters with a trained head, for every kind of head."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Generic, NamedTuple, Self, TypeVar, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from eyas.drafters.drafter import Drafter, EngineMemory
from eyas.formats.head_dir import StoredHead
from eyas.kernels.dispatch import pack_head
from eyas.kernels.huge_pages import zeros_on_huge_pages
from eyas.kernels.paged_attention import AttentionMetadata
from eyas.model.attention import PackedAttention
from eyas.model.head import DraftHead
from eyas.model.vocab import DraftVocab
from eyas.speculation.acceptance_model import DEFAULT_PRIOR, AcceptancePrior
from eyas.speculation.arms import Arm
from eyas.tree.node_scale import IDENTITY_N, NodeScale, read_prior
from eyas.tree.shape import TreeShape
from eyas.tree.tree import TreeGrower

HeadT = TypeVar("HeadT", bound=DraftHead)

SINK_TOKENS = 4
"""The first tokens of a text, which the head sees beside its window: attention sinks (arXiv 2309.17453)."""


@dataclass(frozen=True)
class HeadSpec(ABC):
    """A head, its draft vocabulary and the shapes of its trees. A subclass for each kind of head builds the drafter.

    Attributes:
        head: The head.
        vocab: Its draft vocabulary.
        shape: The shape of the trees of all rounds for which no policy chooses an arm.
        arms: The arms that a policy may choose. Memory is allocated for the largest.
        acceptance_prior: The acceptance on held-out answers.
        node_prior_N: The shares of accepted nodes on held-out answers (`NodeScale`).
    """

    head: DraftHead
    vocab: DraftVocab
    shape: TreeShape
    arms: tuple[Arm, ...] = ()
    acceptance_prior: AcceptancePrior = DEFAULT_PRIOR
    node_prior_N: NDArray[Any] = field(default_factory=lambda: IDENTITY_N, compare=False)

    @classmethod
    def on(cls, device: torch.device, stored: StoredHead, shape: TreeShape) -> Self:
        """Returns a spec with head and vocabulary on this device. The head's projections are packed for serving.

        The head attends to no more of a text than it had in training (`DraftHead.limit_attention`), and to its first
        SINK_TOKENS tokens. Where a text is longer, this restores acceptance (sgl-project/sglang #24664).

        Args:
            device: The device of the target.
            stored: The head, its draft vocabulary and its acceptance.
            shape: The shape of the trees of all rounds for which no policy chooses an arm. It is limited to the depth
                that the head can draft.
        """
        head, prior = stored.head.to(device), AcceptancePrior.from_json(stored.acceptance)
        node_prior_N = read_prior(stored.acceptance)
        head.limit_attention(stored.metadata.trained_context)
        pack_head(head)
        shape = shape.limit_depth(stored.config.max_depth)
        return cls(head, stored.vocab.to(device), shape, acceptance_prior=prior, node_prior_N=node_prior_N)

    @property
    def shapes(self) -> tuple[TreeShape, ...]:
        """All tree shapes that a round may use: `shape`, and those of the arms."""
        return (self.shape, *(arm.shape for arm in self.arms if arm.shape is not None))

    @property
    def token_bytes(self) -> int:
        """The bytes of the head's own keys and values of one token."""
        config = self.head.config
        return 2 * config.kv_layers * config.num_kv_heads * config.head_dim * self.head.norm.weight.element_size()

    @property
    @abstractmethod
    def scratch_rows(self) -> int:
        """The number of rows of KV memory that a draft needs for each request, besides those of the text."""

    @abstractmethod
    def build(self, memory: EngineMemory) -> Drafter:
        """Allocates the drafter's own memory for all request slots of the engine, and returns the drafter."""


class ReadRows(NamedTuple):
    """The tokens that a forward of a drafter reads, on the device. All tensors are int64, but slots_T is int32.

    Attributes:
        req_slots_B: The request slot of each request.
        lengths_B: The number of tokens of its text before those that are read.
        starts_B1: The row of the first token of each request, and the number of all rows.
        req_slots_T: The request slot of each row.
        positions_T: The position in the text of each row.
        slots_T: The KV slot of each row.
    """

    req_slots_B: Tensor
    lengths_B: Tensor
    starts_B1: Tensor
    req_slots_T: Tensor
    positions_T: Tensor
    slots_T: Tensor


class HeadDrafter(Generic[HeadT]):
    """A head and its own KV memory, which has as many slots as the target's, then a scratch area per request slot.

    Attributes:
        kv: The keys and values of every layer of the head, [layers, 2, rows, heads, head size].
        scratch_E: The numbers 0, 1, ... of the rows of a scratch area.
        growers: The TreeGrower of each shape.
        node_scale: The scale of the head's node probabilities.
    """

    needs_features = True

    def __init__(self, spec: HeadSpec, memory: EngineMemory) -> None:
        """Allocates the memory."""
        config, weight, pool = spec.head.config, spec.head.norm.weight, memory.pool
        self.head = cast(HeadT, spec.head)
        self.acceptance_prior = spec.acceptance_prior
        self.node_scale = NodeScale(spec.node_prior_N, weight.device)
        self.target, self.pool, self.future_map, self._prepare = memory.target, pool, memory.future_map, memory.prepare
        self.scratch_E = torch.arange(spec.scratch_rows, device=weight.device)
        num_rows = pool.num_slots + 1 + len(pool.req_to_token_RC) * spec.scratch_rows
        shape = (config.kv_layers, 2, num_rows, config.num_kv_heads, config.head_dim)
        self.kv = zeros_on_huge_pages(shape, weight.dtype, weight.device)
        self.growers = {shape: TreeGrower(self.grown_shape(shape), weight.device) for shape in spec.shapes}
        pool.allocate_aux(len(config.aux_layer_ids) * config.target_hidden_size)

    def attend(self, metadata: AttentionMetadata) -> PackedAttention:
        """Returns the attention of a forward of the head."""
        return PackedAttention(self._prepare(self.kv, self.pool.req_to_token_RC, metadata))

    def attend_with_sinks(self, metadata: AttentionMetadata) -> PackedAttention:
        """Returns the attention of a forward whose rows also see the sink tokens of texts longer than the window.

        Requirement: as in `AttentionMetadata.with_sink_tokens`.
        """
        window, table_RC = self.head.window, self.pool.req_to_token_RC
        if window is None or table_RC.shape[1] <= window:  # no text of this engine is longer
            return self.attend(metadata)
        # On a GPU, the host does not know the lengths.
        if self.kv.is_cuda or int(metadata.positions_T.max()) >= window:
            metadata = metadata.with_sink_tokens(table_RC, window, SINK_TOKENS)
        return self.attend(metadata)

    def stage_reads(self, reads: Sequence[tuple[int, int, int]]) -> ReadRows:
        """Returns the tokens that a forward reads.

        Args:
            reads: (request slot, lag, count) of each request. A request with n committed tokens reads `count` tokens
                from position n - lag on.
        """
        req_slots, draft_lags, counts = zip(*reads, strict=True)
        request_T = [b for b, count in enumerate(counts) for _ in range(count)]
        step_T = [step for count in counts for step in range(count)]
        req_slots_B, draft_lags_B, starts_B1, request_T, step_T = self.pool.staging.copy(
            req_slots, draft_lags, [0, *accumulate(counts)], request_T, step_T
        )
        lengths_B = self.future_map.lengths_R[req_slots_B] - draft_lags_B
        positions_T, req_slots_T = lengths_B[request_T] + step_T, req_slots_B[request_T]
        slots_T = self.pool.req_to_token_RC[req_slots_T, positions_T]
        return ReadRows(req_slots_B, lengths_B, starts_B1, req_slots_T, positions_T, slots_T)

    def grower(self, shape: TreeShape) -> TreeGrower:
        """Returns the TreeGrower of a shape. Makes it if the spec did not name the shape."""
        if shape not in self.growers:
            self.growers[shape] = TreeGrower(self.grown_shape(shape), self.kv.device)
        return self.growers[shape]

    def grown_shape(self, shape: TreeShape) -> TreeShape:
        """Returns the shape that the TreeGrower of `shape` gets."""
        return shape
