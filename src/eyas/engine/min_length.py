"""Outputs of at least a number of tokens: no end of turn and no stop token before. Used in the place of a grammar."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MinLength:
    """The rule that an output has at least some tokens before it ends.

    Attributes:
        num_tokens: The number of tokens before the end.
        end_ids: The ids that end an output.
        vocab_size: The number of columns of the target's logits.
    """

    num_tokens: int
    end_ids: tuple[int, ...]
    vocab_size: int

    def start(self) -> "MinLengthState":
        """Returns a new state, for an output that is still empty."""
        return MinLengthState(self)


class MinLengthState:
    """The number of tokens that one output still needs. It has the methods of `grammar.GrammarState`."""

    def __init__(self, rule: MinLength) -> None:
        self._missing = rule.num_tokens
        self._end_ids = list(rule.end_ids)
        self._vocab_size = rule.vocab_size

    @property
    def is_finished(self) -> bool:
        """True if the output may end."""
        return self._missing <= 0

    def advance(self, tokens: Sequence[int]) -> None:
        """Appends tokens to the output."""
        self._missing -= len(tokens)

    def allow(self, tokens_M: Sequence[int], parents_M: Sequence[int], valid_M: Sequence[bool] | None = None) -> Tensor:
        """Returns the tokens that may follow each node of a draft tree, bool [M, W]. See `grammar.GrammarState`."""
        allowed_MW = torch.ones(len(tokens_M), self._vocab_size, dtype=torch.bool)
        depths: list[int] = []
        for node, parent in enumerate(parents_M):
            depths.append(depths[parent] + 1 if node else 0)
            if depths[node] < self._missing:
                allowed_MW[node, self._end_ids] = False
        return allowed_MW
