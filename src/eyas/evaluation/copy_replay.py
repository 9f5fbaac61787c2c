"""Drafts copies of earlier text at positions of known texts, alone or beside the trees of a head. For `eyas tune`.

B requests (the texts of a round), M tree nodes, K tokens of a copy.

A round looks for a copy as in serving (speculation.copy_index), in the prompt and the answer of the same request. All
texts of a replay share one CopyModel, which learns from their rounds as that of a server does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from eyas.evaluation.replay import ReplayDrafter, find_answers, replay_rows
from eyas.features.layout import Row
from eyas.speculation.copy_index import MAX_COPY, Copy, CopyFinder, CopyIndex
from eyas.tree.acceptance_length import RequestRounds
from eyas.tree.merge import merge_chain
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree


@dataclass
class CopyReplay:
    """A replay of texts with copies, for one number of streams: its settings, and its results.

    Attributes:
        streams: The number of streams.
        least_tokens: A copy is used if it is expected to bring more tokens than this, the bonus token included.
        tree: The tree beside which copies are drafted; None for copies alone.
        head: The number of the head of this tree.
        finder: Finds the copies. It learns from every round.
        rounds: The rounds of each text.
        num_rounds: The number of these rounds.
        num_copies: The rounds that used a copy.
        num_rows: The rows of these copies that the target verifies beyond those of the trees.
    """

    streams: int
    least_tokens: float
    tree: TreeShape | None = None
    head: int = 0
    finder: CopyFinder = field(default_factory=lambda: CopyFinder(0))
    rounds: list[RequestRounds] = field(default_factory=list)
    num_rounds: int = 0
    num_copies: int = 0
    num_rows: int = 0

    def run(self, rows: Sequence[Row], head: ReplayDrafter | None) -> None:
        """Replays texts. head: drafts the trees of these texts; None for copies alone."""
        self.rounds += [text.rounds for text in replay_rows(rows, CopyDrafter(rows, self, head))]


class CopyDrafter:
    """A drafter of copies over a batch of texts. Requirement: the positions of a text do not decrease."""

    def __init__(self, rows: Sequence[Row], replay: CopyReplay, head: ReplayDrafter | None) -> None:
        """Initializes the drafter. The arguments are those of `CopyReplay.run`."""
        self.replay, self.head, self.nodes = replay, head, 1 if replay.tree is None else replay.tree.nodes
        self.ids, self.indexes = [row.ids_T.tolist() for row in rows], [CopyIndex() for _ in rows]
        spans = [find_answers(text, row.ids_T, row.loss_mask_T) for text, row in enumerate(rows)]
        self.ends = [[answer.end for answer in answers] for answers in spans]

    def draft(self, texts: Sequence[int], positions: Sequence[int]) -> Tree:
        """Returns a tree for each text index and position. The root of the tree is the token at position + 1."""
        pairs = list(zip(texts, positions, strict=True))
        roots_B = torch.tensor([self.ids[text][position + 1] for text, position in pairs])
        tree = Tree.root_only(roots_B) if self.head is None else self.head.draft(texts, positions)
        tokens_BK, scores_BK = torch.zeros(len(pairs), MAX_COPY, dtype=torch.int64), torch.zeros(len(pairs), MAX_COPY)
        sizes_B = torch.zeros_like(roots_B)
        for request, pair in enumerate(pairs):
            copy = self._propose(*pair)
            if copy is not None:
                size = sizes_B[request] = len(copy.tokens)
                tokens_BK[request, :size] = torch.tensor(copy.tokens)
                scores_BK[request, :size] = torch.tensor(copy.probabilities).log()
        self.replay.num_rounds += len(pairs)
        self.replay.num_copies += int((sizes_B > 0).sum())
        self.replay.num_rows += int((sizes_B + 1 - self.nodes).clamp(min=0).sum())
        merged, _ = merge_chain(tree, tokens_BK, scores_BK, torch.arange(MAX_COPY) < sizes_B[:, None])
        scores_BM = merged.scores_BM.index_fill(1, torch.tensor([0]), torch.inf)
        ranks_BM = scores_BM.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        is_verified_BM = ranks_BM < (sizes_B + 1).clamp(min=self.nodes)[:, None]
        return replace(merged, valid_BM=merged.valid_BM & is_verified_BM)

    def _propose(self, text: int, position: int) -> Copy | None:
        """Returns the copy to use at a position, and learns from what the text has there."""
        known, ids = position + 2, self.ids[text]
        copy = self.replay.finder.propose(self.indexes[text], ids[:known], "", 0)
        if copy is None:
            return None
        is_used = 1 + copy.expected > self.replay.least_tokens
        end = min(end for end in self.ends[text] if end > known)
        self.replay.finder.grade(copy, ids[:known], ids[known : min(end, known + 1 + MAX_COPY * is_used)])
        return copy if is_used else None
