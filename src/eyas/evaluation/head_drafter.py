"""The head as a drafter over stored features: the prefix from true features, the tree from its own outputs.

B requests (texts of the group, or those of a round), T tokens, D hidden, K frontier nodes, E nodes expanded so far, S
kept keys, V draft vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eyas.features.layout import Row
from eyas.model.attention import DenseAttention
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Frontier, Tree, TreeGrower


def build_embed(target: Target, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Rows of the target's embedding for a head that drafts on the CPU, wherever the target is."""
    place = target.embedding.weight.device
    return lambda ids: target.embed(ids.to(place)).to(ids.device, dtype)


class HeadDrafter:
    """Reads a group of texts once, then drafts at any of their positions."""

    def __init__(
        self, head: Head, vocab: DraftVocab, embed: Callable[[Tensor], Tensor], shape: TreeShape, rows: Sequence[Row]
    ) -> None:
        """embed: rows of the target's embedding in the head's precision."""
        self.head, self.vocab, self.embed = head, vocab, embed
        self.grower = TreeGrower(shape, torch.device("cpu"))
        length = max(row.ids_T.shape[0] for row in rows)
        dtype = head.lm_head.weight.dtype
        self.ids_BT = torch.stack([_pad(row.ids_T, length) for row in rows])
        aux_BTL = torch.stack([_pad(row.aux_TL.to(dtype), length) for row in rows])
        next_BT = self.ids_BT.roll(-1, 1)  # the last column is nobody's prefix
        attend = DenseAttention()
        hidden_BTD = head.fuse_aux(aux_BTL)
        self.out_BTD = head.step(embed(next_BT), hidden_BTD, torch.arange(length)[None], attend)
        self.k_BGTH, self.v_BGTH = attend.kv_by_layer[0]

    def draft(self, texts: Sequence[int], positions: Sequence[int]) -> Tree:
        texts_B, positions_B = torch.tensor(texts), torch.tensor(positions)
        out_B1D = self.out_BTD[texts_B, positions_B][:, None]
        root_B = self.ids_BT[texts_B, positions_B + 1]
        advance = self._advance(texts_B, positions_B, out_B1D)
        return self.grower.grow(root_B, self.head.logits(out_B1D)[:, 0], advance, self.vocab.to_target)

    def _advance(self, texts_B: Tensor, positions_B: Tensor, out_B1D: Tensor) -> Callable[[Frontier], Tensor]:
        longest = int(positions_B.max()) + 1
        prefix_BS = torch.arange(longest) <= positions_B[:, None]
        attend = DenseAttention()
        attend.kv_by_layer[0] = (self.k_BGTH[texts_B, :, :longest], self.v_BGTH[texts_B, :, :longest])
        last_BKD = self.head.next_hidden(out_B1D)

        def advance(frontier: Frontier) -> Tensor:
            nonlocal last_BKD
            num_nodes = frontier.tokens_BK.shape[1]
            parents_BK = torch.zeros_like(frontier.tokens_BK) if frontier.parents_BK is None else frontier.parents_BK
            hidden_BKD = last_BKD.gather(1, parents_BK[:, :, None].expand(-1, -1, last_BKD.shape[2]))
            prefix_BKS = prefix_BS[:, None].expand(-1, num_nodes, -1)
            attend.set_visible(torch.cat((prefix_BKS, frontier.visible_BKE), 2))
            positions_BK = (positions_B + 1 + frontier.level)[:, None].expand(-1, num_nodes)
            out_BKD = self.head.step(self.embed(frontier.tokens_BK), hidden_BKD, positions_BK, attend)
            last_BKD = self.head.next_hidden(out_BKD)
            return self.head.logits(out_BKD)

        return advance


def _pad(x: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, 0) * (x.ndim - 1) + (0, length - x.shape[0]))
