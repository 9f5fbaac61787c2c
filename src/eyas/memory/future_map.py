"""What one round leaves for the next, on the device, by line of the table (SGLang calls it FutureMap).

R lines, C columns, D hidden, V draft vocabulary.

    launch t      draft <- hidden, logits      verify -> lengths, tokens (published)      extend -> hidden, logits
    launch t + 1  draft <- ...                 the host has not seen a number of round t yet

The host never reads these tensors: what it needs comes back with the result of a round, one round late.
"""

import copy

import torch
from torch import Tensor


class FutureMap:
    """lengths_R: committed tokens, those whose keys and values are in memory. tokens_RC: the text; the token behind the
    committed ones is the root of the next tree. hidden_RD, logits_RV: the head at the last committed row.
    """

    def __init__(self, num_req_slots: int, num_columns: int, device: torch.device) -> None:
        self.lengths_R = torch.zeros(num_req_slots, dtype=torch.int64, device=device)
        self.tokens_RC = torch.zeros(num_req_slots, num_columns, dtype=torch.int64, device=device)
        self.hidden_RD: Tensor | None = None
        self.logits_RV: Tensor | None = None
        self.poisoned = False  # tests: what is read before it is written must show

    def for_other_drafter(self) -> "FutureMap":
        """The same texts, for another head."""
        other = copy.copy(self)
        other.hidden_RD = other.logits_RV = None
        return other

    def allocate_head_state(self, hidden_size: int, draft_vocab_size: int, weight: Tensor) -> None:
        """Make room for what the head leaves."""
        lines = len(self.lengths_R)
        self.hidden_RD = torch.zeros(lines, hidden_size, dtype=weight.dtype, device=weight.device)
        self.logits_RV = torch.zeros(lines, draft_vocab_size, dtype=weight.dtype, device=weight.device)

    def start_sequence(self, req_slot: int, ids: Tensor, length: int) -> None:
        """A text starts in this line: its first `length` tokens are in memory."""
        self.lengths_R[req_slot] = length
        self.tokens_RC[req_slot, : len(ids)] = ids
        if self.poisoned:
            self.tokens_RC[req_slot, len(ids) :] = -1
            if self.hidden_RD is not None and self.logits_RV is not None:
                self.hidden_RD[req_slot] = torch.nan
                self.logits_RV[req_slot] = torch.nan

    def roots_B(self, req_slots_B: Tensor, lengths_B: Tensor) -> Tensor:
        """The token behind the committed ones."""
        roots_B = self.tokens_RC[req_slots_B, lengths_B]
        if self.poisoned:
            assert int(roots_B.min()) >= 0, "a root is read before it is written"
        return roots_B

    def publish(self, req_slots_B: Tensor, tokens_BS: Tensor, lengths_B: Tensor, accepted_B: Tensor) -> None:
        """Accepted tokens become text: [b, :accepted] behind what was committed before (lengths_B)."""
        steps_S = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)
        # A rejected slot writes the last accepted token once more, so that no column is written twice differently.
        kept_BS = torch.minimum(steps_S, accepted_B[:, None] - 1)
        columns_BS = lengths_B[:, None] + 1 + kept_BS
        self.tokens_RC[req_slots_B[:, None], columns_BS] = tokens_BS.gather(1, kept_BS)
        self.lengths_R[req_slots_B] = lengths_B + accepted_B

    def store_head_state(self, req_slots_B: Tensor, hidden_BD: Tensor, logits_BV: Tensor) -> None:
        """The head has read everything up to the last committed token."""
        hidden_RD, logits_RV = self._head()
        hidden_RD[req_slots_B] = hidden_BD
        logits_RV[req_slots_B] = logits_BV

    def load_head_state(self, req_slots_B: Tensor) -> tuple[Tensor, Tensor]:
        """hidden_BD and logits_BV that `leave` left."""
        hidden_RD, logits_RV = self._head()
        hidden_BD, logits_BV = hidden_RD[req_slots_B], logits_RV[req_slots_B]
        if self.poisoned:
            assert not bool(logits_BV.isnan().any() | hidden_BD.isnan().any()), "the head is read before it wrote"
            hidden_RD[req_slots_B] = torch.nan
            logits_RV[req_slots_B] = torch.nan
        return hidden_BD, logits_BV

    def _head(self) -> tuple[Tensor, Tensor]:
        assert self.hidden_RD is not None, "there is a head"
        assert self.logits_RV is not None, "there is a head"
        return self.hidden_RD, self.logits_RV
