"""Two drafters without a model, so that a head is compared with what costs nothing.

prompt lookup   the last 3 (else 2, else 1) tokens occurred before in this text: propose what followed there last
4-gram table    the 3 tokens before -> the token that followed them most often in the training answers, chained
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from eyas.tree.tree import Tree

LONGEST_MATCH = 3
CONTEXT = 3  # of a 4-gram


class PromptLookup:
    """One per group of texts; it remembers how far each has been read, so positions of a text may only grow."""

    def __init__(self, texts: Sequence[Tensor], depth: int) -> None:
        """texts: token ids [T] each."""
        self.depth = depth
        self._texts = [ids_T.tolist() for ids_T in texts]
        # n-gram -> index of the token that followed it last.
        self._followed: list[dict[tuple[int, ...], int]] = [{} for _ in texts]
        self._read = [1] * len(texts)

    def draft(self, texts: Sequence[int], positions: Sequence[int]) -> Tree:
        return _to_chain_trees(
            [self._propose(text, t + 2) for text, t in zip(texts, positions, strict=True)], self.depth
        )

    def _propose(self, text: int, count: int) -> list[int]:
        """The last of the `count` committed tokens, then the proposal."""
        ids, followed = self._texts[text], self._followed[text]
        for index in range(self._read[text], count):
            for n in range(1, min(LONGEST_MATCH, index) + 1):
                followed[tuple(ids[index - n : index])] = index
        self._read[text] = max(self._read[text], count)
        for n in range(min(LONGEST_MATCH, count), 0, -1):
            index = followed.get(tuple(ids[count - n : count]))
            if index is not None:
                return [ids[count - 1], *ids[index : min(index + self.depth, count)]]
        return [ids[count - 1]]


class NgramTable:
    """Built once from the training answers. Of equally frequent tokens the smallest id is taken."""

    def __init__(self, rows: Iterable[tuple[Tensor, Tensor]]) -> None:
        """rows: ids_T and loss_mask_T. Only generated tokens are predicted; what they follow may be prompt."""
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
        """Up to `depth` tokens after these; fewer where a context was never seen."""
        tail, found = ids[-CONTEXT:], []
        while len(found) < depth and (token := self.next.get(tuple(tail))) is not None:
            found.append(token)
            tail = [*tail[1:], token]
        return found


class NgramDrafter:
    """A table at work on a group of texts."""

    def __init__(self, table: NgramTable, texts: Sequence[Tensor], depth: int) -> None:
        self.table, self.depth = table, depth
        self._texts = [ids_T.tolist() for ids_T in texts]

    def draft(self, texts: Sequence[int], positions: Sequence[int]) -> Tree:
        chains = []
        for text, t in zip(texts, positions, strict=True):
            ids = self._texts[text][max(0, t + 2 - CONTEXT) : t + 2]
            chains.append([ids[-1], *self.table.continue_chain(ids, self.depth)])
        return _to_chain_trees(chains, self.depth)


def _to_chain_trees(chains: Sequence[list[int]], depth: int) -> Tree:
    tokens_BM = torch.zeros(len(chains), depth + 1, dtype=torch.int64)
    for slot, tokens in enumerate(chains):
        tokens_BM[slot, : len(tokens)] = torch.tensor(tokens)
    lengths_B = torch.tensor([len(tokens) for tokens in chains])
    return Tree.from_chains(tokens_BM, torch.arange(depth + 1) < lengths_B[:, None])
