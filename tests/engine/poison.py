"""A `FutureMap` whose values fail when they are read before they are written.

B requests, D hidden, V draft vocabulary.
"""

import torch
from torch import Tensor

from eyas.memory.future_map import FutureMap, HeadState


class PoisonedHeadState(HeadState):
    """Each state may be loaded once: it is NaN before it is stored, and again after it was loaded."""

    def load(self, req_slots_B: Tensor) -> tuple[Tensor, Tensor]:
        hidden_BD, logits_BV = super().load(req_slots_B)
        assert not bool(logits_BV.isnan().any() | hidden_BD.isnan().any()), "the head state is read before written"
        fill_with_nan(self, req_slots_B)
        return hidden_BD, logits_BV


class PoisonedFutureMap(FutureMap):
    """The text after the known tokens of a request is -1, and the states of the heads are NaN, until written."""

    def new_head_state(self, hidden_size: int, draft_vocab_size: int, weight: Tensor) -> HeadState:
        state = super().new_head_state(hidden_size, draft_vocab_size, weight)
        state.__class__ = PoisonedHeadState
        return state

    def start_sequence(self, req_slot: int, ids: Tensor, length: int) -> None:
        super().start_sequence(req_slot, ids, length)
        self.tokens_RC[req_slot, len(ids) :] = -1
        for state in self.head_states:
            fill_with_nan(state, req_slot)

    def roots_B(self, req_slots_B: Tensor, lengths_B: Tensor) -> Tensor:
        roots_B = super().roots_B(req_slots_B, lengths_B)
        assert int(roots_B.min()) >= 0, "a root is read before it is written"
        return roots_B


def fill_with_nan(state: HeadState, req_slots: Tensor | int) -> None:
    """Overwrites the state of these request slots."""
    state.hidden_RD[req_slots] = torch.nan
    state.logits_RV[req_slots] = torch.nan


def poison_map(future_map: FutureMap) -> None:
    """Turns a map, and the states of its heads, into poisoned ones in place."""
    future_map.__class__ = PoisonedFutureMap
    for state in future_map.head_states:
        state.__class__ = PoisonedHeadState
