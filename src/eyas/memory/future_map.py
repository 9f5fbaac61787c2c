"""The state that one round leaves for the next, on the device, by request slot (SGLang's FutureMap).

R request slots, C columns (positions of a text), D hidden, V draft vocabulary, B requests, S path slots.

    launch t      draft <- hidden, logits      verify -> lengths, tokens (published)      extend -> hidden, logits
    launch t + 1  draft <- ...                 the host has not read a number of round t yet

The host never reads these tensors. It gets what it needs with the result of a round, one round late.
"""

import torch
from torch import Tensor


class HeadState:
    """The outputs of one head at the last committed token of each request. Owned by its drafter."""

    def __init__(self, hidden_RD: Tensor, logits_RV: Tensor) -> None:
        self.hidden_RD = hidden_RD
        self.logits_RV = logits_RV
        self.poisoned = False  # tests: reading a value before it is written must fail

    def store(self, req_slots_B: Tensor, hidden_BD: Tensor, logits_BV: Tensor) -> None:
        """Stores the outputs after the head has read everything up to the last committed token."""
        self.hidden_RD[req_slots_B] = hidden_BD
        self.logits_RV[req_slots_B] = logits_BV

    def load(self, req_slots_B: Tensor) -> tuple[Tensor, Tensor]:
        """Returns hidden_BD and logits_BV."""
        hidden_BD, logits_BV = self.hidden_RD[req_slots_B], self.logits_RV[req_slots_B]
        if self.poisoned:
            assert not bool(logits_BV.isnan().any() | hidden_BD.isnan().any()), "the head state is read before written"
            self.poison(req_slots_B)
        return hidden_BD, logits_BV

    def poison(self, req_slots: Tensor | int) -> None:
        """Overwrites the state with NaN."""
        self.hidden_RD[req_slots] = torch.nan
        self.logits_RV[req_slots] = torch.nan


class FutureMap:
    """The committed text of each request.

    lengths_R: committed tokens, whose keys and values are in memory. tokens_RC: the text; the token after the
    committed ones is the root of the next tree. head_states: one for each head that drafts.
    """

    def __init__(self, num_req_slots: int, num_columns: int, device: torch.device) -> None:
        self.lengths_R = torch.zeros(num_req_slots, dtype=torch.int64, device=device)
        self.tokens_RC = torch.zeros(num_req_slots, num_columns, dtype=torch.int64, device=device)
        self.head_states: list[HeadState] = []
        self._poisoned = False

    def poison(self) -> None:
        """Fills the state with invalid values, so that later reads of unwritten values fail. For tests."""
        self._poisoned = True
        for state in self.head_states:
            state.poisoned = True

    def new_head_state(self, hidden_size: int, draft_vocab_size: int, weight: Tensor) -> HeadState:
        """Returns the state of a further head, with the device and type of `weight`."""
        num_req_slots = len(self.lengths_R)
        state = HeadState(
            torch.zeros(num_req_slots, hidden_size, dtype=weight.dtype, device=weight.device),
            torch.zeros(num_req_slots, draft_vocab_size, dtype=weight.dtype, device=weight.device),
        )
        state.poisoned = self._poisoned
        self.head_states.append(state)
        return state

    def start_sequence(self, req_slot: int, ids: Tensor, length: int) -> None:
        """Writes a new text. length: how many of its tokens are in memory already."""
        self.lengths_R[req_slot] = length
        self.tokens_RC[req_slot, : len(ids)] = ids
        if self._poisoned:
            self.tokens_RC[req_slot, len(ids) :] = -1
            for state in self.head_states:
                state.poison(req_slot)

    def roots_B(self, req_slots_B: Tensor, lengths_B: Tensor) -> Tensor:
        """Returns the token after the committed ones of each request."""
        roots_B = self.tokens_RC[req_slots_B, lengths_B]
        if self._poisoned:
            assert int(roots_B.min()) >= 0, "a root is read before it is written"
        return roots_B

    def publish(self, req_slots_B: Tensor, tokens_BS: Tensor, lengths_B: Tensor, accepted_B: Tensor) -> None:
        """Appends tokens_BS[b, :accepted_B[b]] to each text and advances its length. lengths_B: before the round."""
        steps_S = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)
        # A rejected slot repeats the last accepted token, so that no column is written with two values.
        kept_BS = torch.minimum(steps_S, accepted_B[:, None] - 1)
        columns_BS = lengths_B[:, None] + 1 + kept_BS
        self.tokens_RC[req_slots_B[:, None], columns_BS] = tokens_BS.gather(1, kept_BS)
        self.lengths_R[req_slots_B] = lengths_B + accepted_B
