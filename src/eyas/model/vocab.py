"""The draft vocabulary: the target tokens that the head can propose. V draft tokens, W target tokens.

The chosen target tokens get the draft ids 0, 1, 2, ... in ascending order. Two tables convert between the ids, as in
the checkpoints of other projects: t2d is True for the chosen target tokens, and d2t has an offset for each draft token,
so that target id = draft id + d2t[draft id]. Example with W = 7 and V = 4:

    target id   0  1  2  3  4  5  6
    t2d_W       .  x  .  x  x  .  x        x means True
    draft id       0     1  2     3
    d2t_V          1     2  2     3
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from eyas.base.errors import InputError


@dataclass(frozen=True, eq=False)
class DraftVocab:
    """A draft vocabulary. All tensors are on one device.

    Attributes:
        d2t_V: int64, the offset target id - draft id of each draft token.
        t2d_W: bool, True for each target token in the draft vocabulary.
        target_ids_V: The target id of each draft token.
        draft_ids_W: The draft id of each target token; meaningless where t2d_W is False.
    """

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

    def to_draft(self, target_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Converts target ids of any shape to draft ids.

        Returns:
            The draft ids, 0 for a token that is not in the draft vocabulary; and bool, True for a token that is in it.
        """
        in_vocab = self.t2d_W[target_ids]
        return self.draft_ids_W[target_ids] * in_vocab, in_vocab

    def coverage(self, counts_W: Tensor) -> float:
        """Returns the share of tokens that the head can propose, from 0 to 1.

        Args:
            counts_W: How often each target token occurs.
        """
        total = counts_W.sum().item()
        return counts_W[self.t2d_W].sum().item() / total if total else 0.0

    def to(self, device: torch.device | str) -> "DraftVocab":
        """Returns the vocabulary on another device."""
        return DraftVocab(self.d2t_V.to(device), self.t2d_W.to(device))

    def find_problem(self) -> str | None:
        """Returns a description of how d2t and t2d contradict each other; None if they agree."""
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
        """Asserts that d2t and t2d agree."""
        assert self.find_problem() is None, self.find_problem()

    @staticmethod
    def from_chosen(is_chosen_W: Tensor) -> "DraftVocab":
        """Builds the vocabulary of the target tokens for which `is_chosen_W` is True."""
        chosen_V = is_chosen_W.nonzero()[:, 0]
        return DraftVocab(chosen_V - torch.arange(len(chosen_V)), is_chosen_W)

    @staticmethod
    def from_counts(counts_W: Tensor, size: int, required: Collection[int] = ()) -> "DraftVocab":
        """Builds the vocabulary of the required tokens and the most frequent other tokens.

        Of equally frequent tokens it takes the smallest ids. This also decides among tokens that never occur: in BPE
        vocabularies smaller ids are merged earlier, so they are usually more frequent in text.

        Args:
            counts_W: How often each target token occurs among the supervised tokens.
            size: V, the number of draft tokens.
            required: Target ids to choose even if they never occur, from `required_ids`.

        Raises:
            InputError: `size` is smaller than the number of required tokens or larger than the target's vocabulary.
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


def choose_mask_id(counts_W: Tensor, required: Collection[int], embedding_WD: Tensor) -> int:
    """Returns the token that stands for unknown tokens in the input of a block head (model.block_head).

    It is the token that the target generates least, so that a text seldom contains it. Of equally rare tokens it is the
    one with the largest id: the last rows of an embedding are often reserved or padding. Rows of zeros are left out,
    because the rows of a block could not be told apart.

    Args:
        counts_W: How often each target token was generated.
        required: Target ids with a role of their own, from `required_ids`.
        embedding_WD: The target's embedding.
    """
    is_unusable_W = ~embedding_WD.any(1).cpu()[: len(counts_W)]
    is_unusable_W[list(required)] = True
    rank_W = counts_W.cpu().double().masked_fill(is_unusable_W, float("inf"))
    return len(rank_W) - 1 - int(rank_W.flip(0).argmin())


def required_ids(tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int], counts_W: Tensor) -> tuple[int, ...]:
    """Returns the ids of the tokens that every draft vocabulary needs, ascending, even if the training data lacks them.

    These are the end-of-turn tokens, and the tokenizer's added tokens that the chat template contains or that occur in
    the answers. Added tokens mark roles, tool calls or thinking. A few of them occur only in user messages; each costs
    one row of the head's lm_head. Reserved tokens, which are in no template and no answer, are left out.

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
