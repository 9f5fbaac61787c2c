"""Drafts without a model. `eyas eval` and `eyas bench` compare the head with these drafters.

prompt lookup   searches the text for the latest earlier occurrence of its last 3 tokens (else 2, else 1), and proposes
                the tokens that followed it
4-gram table    proposes the token that most often followed the last 3 tokens in training answers, then repeats this
                with the proposed token
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from eyas.tree.tree import Tree

LONGEST_MATCH = 3
CONTEXT = 3  # tokens of a 4-gram before its last token


class PromptLookup:
    """Prompt lookup over a batch of texts. Requirement: the positions of a text do not decrease from call to call."""

    def __init__(self, texts: Sequence[Tensor], depth: int) -> None:
        """Creates an empty index. texts: the token ids [T] of each text. depth: the most tokens of a proposal."""
        self.depth = depth
        self._texts = [ids_T.tolist() for ids_T in texts]
        # n-gram -> index of the token that followed it last.
        self._followed: list[dict[tuple[int, ...], int]] = [{} for _ in texts]
        self._indexed = [1] * len(texts)

    def draft(self, texts: Sequence[int], positions: Sequence[int]) -> Tree:
        """Returns one chain for each text number and position; its root is the text's token at position + 1."""
        pairs = zip(texts, positions, strict=True)
        return _to_chain_trees([self._propose(text, position + 2) for text, position in pairs], self.depth)

    def _propose(self, text: int, count: int) -> list[int]:
        """Returns the last of the first `count` tokens of a text (the root), and the tokens proposed after it."""
        ids, followed = self._texts[text], self._followed[text]
        for index in range(self._indexed[text], count):
            for n in range(1, min(LONGEST_MATCH, index) + 1):
                followed[tuple(ids[index - n : index])] = index
        self._indexed[text] = max(self._indexed[text], count)
        for n in range(min(LONGEST_MATCH, count), 0, -1):
            index = followed.get(tuple(ids[count - n : count]))
            if index is not None:
                return [ids[count - 1], *ids[index : min(index + self.depth, count)]]
        return [ids[count - 1]]


class NgramTable:
    """The most frequent next token of each 3-token context in training answers. The smallest id wins a tie."""

    def __init__(self, rows: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Counts the generated tokens of texts (ids_T, loss_mask_T). The 3 tokens before one may be prompt tokens."""
        counts: dict[tuple[int, ...], Counter[int]] = {}
        for ids_T, loss_mask_T in rows:
            ids, mask = ids_T.tolist(), loss_mask_T.tolist()
            for index in range(CONTEXT, len(ids)):
                if mask[index]:
                    counts.setdefault(tuple(ids[index - CONTEXT : index]), Counter())[ids[index]] += 1
        self.next = {
            context: min(counter, key=lambda token: (-counter[token], token)) for context, counter in counts.items()
        }

    def continue_chain(self, ids: list[int], depth: int) -> list[int]:
        """Returns up to `depth` predicted tokens after `ids`; fewer if the table does not contain a context."""
        context, chain = ids[-CONTEXT:], []
        while len(chain) < depth and (token := self.next.get(tuple(context))) is not None:
            chain.append(token)
            context = [*context[1:], token]
        return chain


class NgramDrafter:
    """A 4-gram table that drafts over a batch of texts."""

    def __init__(self, table: NgramTable, texts: Sequence[Tensor], depth: int) -> None:
        self.table, self.depth = table, depth
        self._texts = [ids_T.tolist() for ids_T in texts]

    def draft(self, texts: Sequence[int], positions: Sequence[int]) -> Tree:
        """Returns one chain for each text number and position; its root is the text's token at position + 1."""
        chains = []
        for text, position in zip(texts, positions, strict=True):
            ids = self._texts[text][max(0, position + 2 - CONTEXT) : position + 2]
            chains.append([ids[-1], *self.table.continue_chain(ids, self.depth)])
        return _to_chain_trees(chains, self.depth)


def _to_chain_trees(chains: Sequence[list[int]], depth: int) -> Tree:
    lengths_B = torch.tensor([len(tokens) for tokens in chains])
    tokens_BM = torch.tensor([tokens + [0] * (depth + 1 - len(tokens)) for tokens in chains])
    return Tree.from_chains(tokens_BM, torch.arange(depth + 1) < lengths_B[:, None])
