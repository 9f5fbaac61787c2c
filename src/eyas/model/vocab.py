"""The draft vocabulary: the target tokens that the head may propose. V draft tokens, W target tokens.

target id   0  1  2  3  4  5  6
t2d_W       .  x  .  x  x  .  x        t2d_W[target] is true for the chosen tokens
draft id       0     1  2     3        draft ids number the chosen tokens in ascending order
d2t_V          1     2  2     3        an OFFSET, as in the checkpoints of other projects: target = draft + d2t_V[draft]
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from eyas.base.errors import InputError


@dataclass(frozen=True)
class DraftIds:
    """Draft ids, 0 where the token is not in the draft vocabulary; `in_vocab` is True where it is."""

    ids: Tensor
    in_vocab: Tensor


@dataclass(frozen=True, eq=False)
class DraftVocab:
    """The two tables of a draft vocabulary, `d2t_V` int64 offsets and `t2d_W` bool, on one device."""

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
        """Converts draft ids of any shape to target ids."""
        return self.target_ids_V[draft_ids]

    def to_draft(self, target_ids: Tensor) -> DraftIds:
        """Converts target ids of any shape to draft ids."""
        in_vocab = self.t2d_W[target_ids]
        return DraftIds(self.draft_ids_W[target_ids] * in_vocab, in_vocab)

    def coverage(self, counts_W: Tensor) -> float:
        """Returns the share of the counted tokens that is in the vocabulary, so that the head can propose it."""
        total = counts_W.sum().item()
        return counts_W[self.t2d_W].sum().item() / total if total else 0.0

    def to(self, device: torch.device | str) -> "DraftVocab":
        """Returns the vocabulary on another device."""
        return DraftVocab(self.d2t_V.to(device), self.t2d_W.to(device))

    def find_problem(self) -> str | None:
        """Returns in words how the two tables disagree; None if they agree."""
        if self.d2t_V.dtype != torch.int64 or self.t2d_W.dtype != torch.bool:
            return f"d2t has type {self.d2t_V.dtype} and t2d {self.t2d_W.dtype}, not int64 and bool"
        if self.d2t_V.ndim != 1 or self.t2d_W.ndim != 1:
            return f"d2t has shape {list(self.d2t_V.shape)} and t2d {list(self.t2d_W.shape)}, not one dimension each"
        if int(self.t2d_W.sum()) != self.size:
            return f"t2d marks {int(self.t2d_W.sum())} tokens, but d2t has {self.size}"
        chosen_V = self.t2d_W.nonzero()[:, 0]
        if torch.equal(self.target_ids_V, chosen_V):
            return None
        if torch.equal(self.d2t_V, chosen_V):
            return "d2t holds target ids, not offsets (target id - draft id)"
        wrong = int((self.target_ids_V != chosen_V).nonzero()[0, 0])
        ids = f"{int(self.target_ids_V[wrong])}, but t2d means {int(chosen_V[wrong])}"
        return f"d2t maps draft token {wrong} to target token {ids}"

    def check(self) -> None:
        """Asserts that the two tables agree."""
        assert self.find_problem() is None, self.find_problem()

    @staticmethod
    def from_chosen(is_chosen_W: Tensor) -> "DraftVocab":
        """Builds the vocabulary of the target tokens that are True."""
        chosen_V = is_chosen_W.nonzero()[:, 0]
        return DraftVocab(chosen_V - torch.arange(len(chosen_V)), is_chosen_W)

    @staticmethod
    def from_counts(counts_W: Tensor, size: int, required: Collection[int] = ()) -> "DraftVocab":
        """Chooses the required tokens, then the most frequent ones; of equally frequent ones the smaller id.

        So a size beyond the tokens that occur is filled by id: in vocabularies made by merging pairs, ids follow the
        order of the merges, and so the tokens' frequency in text.

        Args:
            counts_W: How often each target token occurs among the supervised tokens.
            size: V, the number of draft tokens.
            required: Tokens to choose in any case, see `required_ids`.

        Raises:
            InputError: `size` is smaller than the required tokens or larger than the target's vocabulary.
        """
        num_target, ids = counts_W.shape[0], sorted(set(required))
        if ids and not 0 <= ids[0] <= ids[-1] < num_target:
            problem = f"The required draft tokens {ids} are not all ids of this target (0 to {num_target - 1})"
            raise InputError(problem, "Use the target of the features")
        least = max(1, len(ids))
        if not least <= size <= num_target:
            problem = f"A draft vocabulary of {size} tokens is impossible: this target allows {least} to {num_target}"
            raise InputError(problem, "Set train.draft_vocab_size within these bounds")
        rank_W = counts_W.detach().cpu().double()
        rank_W = rank_W.index_fill(0, torch.tensor(ids, dtype=torch.int64), float("inf"))
        is_chosen_W = torch.zeros(num_target, dtype=torch.bool)
        is_chosen_W[rank_W.argsort(descending=True, stable=True)[:size]] = True
        return DraftVocab.from_chosen(is_chosen_W)


def required_ids(tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int], counts_W: Tensor) -> tuple[int, ...]:
    """Returns the tokens that every draft vocabulary needs, ascending, even where the data is too small to show them.

    These are the end-of-turn tokens, and of the tokenizer's added tokens (control tokens that mark roles, tools or
    thinking) those that the chat template writes or that were generated. A template writes the marks that its target
    generates, such as that of a tool call. It also writes marks that only users' turns have; each costs a row of the
    head. The hundreds of reserved tokens of a vocabulary are in no template and are never generated.

    Args:
        tokenizer: The target's tokenizer.
        eos_ids: The target's end-of-turn tokens.
        counts_W: How often each of the W target tokens was generated.
    """
    template = tokenizer.chat_template
    texts = list(template.values()) if isinstance(template, dict) else [template or ""]
    in_use = {
        token_id
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token_id < counts_W.shape[0]
        and (bool(counts_W[token_id] > 0) or any(token.content in text for text in texts))
    }
    return tuple(sorted({*eos_ids, *in_use}))
