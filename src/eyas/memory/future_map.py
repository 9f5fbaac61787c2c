"""The state that one round passes to the next, on the device, by request slot (as SGLang's FutureMap).

R request slots, C columns (positions of a text), D hidden, V draft vocabulary, B requests, S path slots (the root and
the accepted nodes of a round).

    round t       draft reads hidden, logits      verify writes lengths, tokens      extend writes hidden, logits
    round t + 1   draft reads hidden, logits      ...

The host launches round t + 1 before it has read the result of round t, so it never reads these tensors. It gets
lengths and tokens with the result of each round, one round later.
"""

import torch
from torch import Tensor


class HeadState:
    """The hidden state and draft logits that one head computed at the last committed token of each request.

    The drafter of the head owns it.
    """

    def __init__(self, hidden_RD: Tensor, logits_RV: Tensor) -> None:
        self.hidden_RD = hidden_RD
        self.logits_RV = logits_RV

    def store(self, req_slots_B: Tensor, hidden_BD: Tensor, logits_BV: Tensor) -> None:
        """Stores the outputs of the head. Requirement: the head has read each text up to its last committed token."""
        self.hidden_RD[req_slots_B] = hidden_BD
        self.logits_RV[req_slots_B] = logits_BV

    def load(self, req_slots_B: Tensor) -> tuple[Tensor, Tensor]:
        """Returns hidden_BD and logits_BV of these request slots."""
        return self.hidden_RD[req_slots_B], self.logits_RV[req_slots_B]


class FutureMap:
    """The text of each request, on the device.

    Attributes:
        lengths_R: The number of committed tokens: those whose keys and values are in KV memory.
        tokens_RC: The tokens. The token after the committed ones is the root of the next tree.
        head_states: One HeadState for each head that drafts.
    """

    def __init__(self, num_req_slots: int, num_columns: int, device: torch.device) -> None:
        self.lengths_R = torch.zeros(num_req_slots, dtype=torch.int64, device=device)
        self.tokens_RC = torch.zeros(num_req_slots, num_columns, dtype=torch.int64, device=device)
        self.head_states: list[HeadState] = []

    def new_head_state(self, hidden_size: int, draft_vocab_size: int, weight: Tensor) -> HeadState:
        """Adds a HeadState for another head and returns it. It has the device and dtype of `weight`."""
        state = HeadState(*(weight.new_zeros(len(self.lengths_R), n) for n in (hidden_size, draft_vocab_size)))
        self.head_states.append(state)
        return state

    def start_sequence(self, req_slot: int, ids: Tensor, length: int) -> None:
        """Writes the text of a new request into a request slot.

        Args:
            req_slot: the request slot.
            ids: the tokens of the text.
            length: the number of its first tokens whose keys and values are already in KV memory.
        """
        self.lengths_R[req_slot].fill_(length)
        self.tokens_RC[req_slot, : len(ids)] = ids

    def roots_B(self, req_slots_B: Tensor, lengths_B: Tensor) -> Tensor:
        """Returns the token that follows the committed tokens of each request: the root of its next tree."""
        return self.tokens_RC[req_slots_B, lengths_B]

    def publish(self, req_slots_B: Tensor, tokens_BS: Tensor, lengths_B: Tensor, accepted_B: Tensor) -> None:
        """Appends the accepted tokens of a round to each text and increases its length.

        Args:
            req_slots_B: the request slots.
            tokens_BS: the tokens of each path; the first accepted_B[b] are accepted.
            lengths_B: the committed tokens before the round.
            accepted_B: the number of accepted tokens.
        """
        self.lengths_R[req_slots_B] = lengths_B + accepted_B
        if tokens_BS.shape[1] == 1:  # it is accepted
            self.tokens_RC[req_slots_B, lengths_B + 1] = tokens_BS[:, 0]
            return
        steps_S = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)
        # A rejected slot repeats the last accepted token, so that no column is written with two values.
        kept_BS = torch.minimum(steps_S, accepted_B[:, None] - 1)
        self.tokens_RC[req_slots_B[:, None], lengths_B[:, None] + 1 + kept_BS] = tokens_BS.gather(1, kept_BS)
