"""The description of a drafter with a trained head, for every kind of head."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import torch

from eyas.drafters.drafter import Drafter
from eyas.formats.head_dir import StoredHead
from eyas.kernels.dispatch import pack_head
from eyas.kernels.paged_attention import PrepareAttention
from eyas.memory.future_map import FutureMap
from eyas.memory.kv_pool import KVPool
from eyas.model.head import DraftHead
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.speculation.acceptance_model import DEFAULT_PRIOR, AcceptancePrior
from eyas.speculation.arms import Arm
from eyas.tree.shape import TreeShape


@dataclass(frozen=True)
class HeadSpec(ABC):
    """A head, its draft vocabulary and the shapes of its trees. A subclass for each kind of head builds the drafter.

    Attributes:
        head: The head.
        vocab: Its draft vocabulary.
        shape: The shape of the trees of all rounds for which no policy chooses an arm.
        arms: The arms that a policy may choose. Memory is allocated for the largest.
        acceptance_prior: The acceptance on held-out answers.
    """

    head: DraftHead
    vocab: DraftVocab
    shape: TreeShape
    arms: tuple[Arm, ...] = ()
    acceptance_prior: AcceptancePrior = DEFAULT_PRIOR

    @classmethod
    def on(cls, device: torch.device, stored: StoredHead, shape: TreeShape) -> Self:
        """Returns a spec with head and vocabulary on this device. The head's projections are packed for serving.

        The head attends to no more of a text than it had in training (`DraftHead.limit_attention`). Where a text is
        longer, this restores acceptance (sgl-project/sglang #24664).

        Args:
            device: The device of the target.
            stored: The head, its draft vocabulary and its acceptance.
            shape: The shape of the trees of all rounds for which no policy chooses an arm. It is limited to the depth
                that the head can draft.
        """
        head, prior = stored.head.to(device), AcceptancePrior.from_json(stored.acceptance)
        head.limit_attention(stored.metadata.trained_context)
        pack_head(head)
        shape = shape.limit_depth(stored.config.max_depth)
        return cls(head, stored.vocab.to(device), shape, acceptance_prior=prior)

    @property
    def shapes(self) -> tuple[TreeShape, ...]:
        """All tree shapes that a round may use: `shape`, and those of the arms."""
        return (self.shape, *(arm.shape for arm in self.arms if arm.shape is not None))

    @property
    def token_bytes(self) -> int:
        """The bytes of the head's own keys and values of one token."""
        config = self.head.config
        return 2 * config.kv_layers * config.num_kv_heads * config.head_dim * self.head.norm.weight.element_size()

    @abstractmethod
    def build(self, target: Target, pool: KVPool, future_map: FutureMap, prepare: PrepareAttention) -> Drafter:
        """Allocates the drafter's memory for all request slots of the pool, and returns the drafter."""
