"""The draft vocabulary: the subset of target tokens that the head may propose. V draft tokens, W target tokens.

target id   0  1  2  3  4  5  6
t2d_W       .  x  .  x  x  .  x        t2d_W[target] is true for the chosen tokens
draft id       0     1  2     3        draft ids count the chosen tokens in ascending order
d2t_V          1     2  2     3        an OFFSET, as in the checkpoints others load: target = draft + d2t_V[draft]
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from eyas.base.errors import InputError


@dataclass(frozen=True)
class DraftIds:
    """`ids` are draft ids, 0 where the token is not in the draft vocabulary; `known` says where it is."""

    ids: Tensor
    in_vocab: Tensor


@dataclass(frozen=True, eq=False)
class DraftVocab:
    """`d2t_V` int64 offsets and `t2d_W` bool, on one device."""

    d2t_V: Tensor
    t2d_W: Tensor
    target_ids_V: Tensor = field(init=False, repr=False)
    draft_ids_W: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        arange_V = torch.arange(self.d2t_V.shape[0], device=self.d2t_V.device)
        object.__setattr__(self, "target_ids_V", arange_V + self.d2t_V)
        object.__setattr__(self, "draft_ids_W", (self.t2d_W.long().cumsum(0) - 1).clamp(min=0))

    @property
    def size(self) -> int:
        """V, the number of draft tokens."""
        return self.d2t_V.shape[0]

    @property
    def target_size(self) -> int:
        """W, the number of target tokens."""
        return self.t2d_W.shape[0]

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids, any shape."""
        return self.target_ids_V[draft_ids]

    def to_draft(self, target_ids: Tensor) -> DraftIds:
        """Draft ids of target ids, any shape, and where they exist."""
        known = self.t2d_W[target_ids]
        return DraftIds(self.draft_ids_W[target_ids] * known, known)

    def coverage(self, counts_W: Tensor) -> float:
        """The share of the counted tokens that the head can propose at all."""
        total = counts_W.sum().item()
        return counts_W[self.t2d_W].sum().item() / total if total else 0.0

    def to(self, device: torch.device | str) -> "DraftVocab":
        return DraftVocab(self.d2t_V.to(device), self.t2d_W.to(device))

    def find_problem(self) -> str | None:
        """What is wrong with the two tables, in words; None if they agree."""
        if self.d2t_V.dtype != torch.int64 or self.t2d_W.dtype != torch.bool:
            return f"d2t of type {self.d2t_V.dtype} and t2d of type {self.t2d_W.dtype}, wanted int64 and bool"
        if self.d2t_V.ndim != 1 or self.t2d_W.ndim != 1:
            return f"d2t of shape {list(self.d2t_V.shape)} and t2d of shape {list(self.t2d_W.shape)}, wanted vectors"
        if int(self.t2d_W.sum()) != self.size:
            return f"t2d that marks {int(self.t2d_W.sum())} tokens while d2t has {self.size}"
        chosen_V = self.t2d_W.nonzero()[:, 0]
        if torch.equal(self.target_ids_V, chosen_V):
            return None
        if torch.equal(self.d2t_V, chosen_V):
            return "d2t that holds target ids, wanted offsets (target id - draft id)"
        wrong = int((self.target_ids_V != chosen_V).nonzero()[0, 0])
        return (
            f"d2t that sends draft token {wrong} to target token {int(self.target_ids_V[wrong])} "
            f"while t2d says {int(chosen_V[wrong])}"
        )

    def check(self) -> None:
        """Assert that the two tables agree."""
        assert self.find_problem() is None, self.find_problem()

    @staticmethod
    def from_counts(counts_W: Tensor, size: int, required_ids: Collection[int] = ()) -> "DraftVocab":
        """The `required_ids`, then the most frequent tokens; of equally frequent ones the smaller.

        So a size beyond the tokens that were seen is filled by id: in vocabularies made by merging pairs, ids follow
        the order of the merges, and that follows how frequent they are in text.

        counts_W: how often each target token occurs among the supervised tokens. `InputError` if `size` cannot be met.
        """
        num_target = counts_W.shape[0]
        forced = sorted(set(required_ids))
        if forced and not 0 <= forced[0] <= forced[-1] < num_target:
            raise InputError(
                f"forced draft tokens {forced}", f"ids from 0 to {num_target - 1}", "take them from this target"
            )
        if not max(1, len(forced)) <= size <= num_target:
            raise InputError(
                f"a draft vocabulary of {size} tokens",
                f"a size from {max(1, len(forced))} (the forced tokens) to {num_target} (the target's tokens)",
                "set another size for the draft vocabulary",
            )
        rank_W = counts_W.detach().cpu().double()
        rank_W = rank_W.index_fill(0, torch.tensor(forced, dtype=torch.int64), float("inf"))
        chosen_V = rank_W.argsort(descending=True, stable=True)[:size].sort().values
        t2d_W = torch.zeros(num_target, dtype=torch.bool)
        t2d_W[chosen_V] = True
        return DraftVocab(chosen_V - torch.arange(size), t2d_W)


def required_ids(tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int], counts_W: Tensor) -> tuple[int, ...]:
    """Tokens that a draft vocabulary always has, ascending: what the data may be too small to show.

    The ends of a turn; and of the tokenizer's added tokens (control tokens, which no text is made of: marks of roles,
    tools, thinking) those that the chat template writes out and those that were generated. A template names the marks
    that its target writes, such as a tool call's; that it names some which only users' turns have costs a row of the
    head each. The hundreds that a vocabulary holds in reserve are in no template and never generated.

    counts_W: how often each of the W target tokens was generated.
    """
    template = tokenizer.chat_template
    texts = list(template.values()) if isinstance(template, dict) else [template or ""]
    named = {
        token_id
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token_id < counts_W.shape[0]
        and (bool(counts_W[token_id] > 0) or any(token.content in text for text in texts))
    }
    return tuple(sorted({*eos_ids, *named}))
