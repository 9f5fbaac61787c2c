"""Drafts with the head at positions of known texts, from their stored features.

At the tokens of the text, the head reads the target's features. In the tree, it reads its own outputs, as in serving.

B requests (the texts of the batch, or the texts of a round), T tokens, D hidden, K frontier nodes, E nodes expanded so
far, S cached keys, V draft vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eyas.drafters.block import exact_shape, expand_block
from eyas.features.layout import Row
from eyas.model.attention import DenseAttention
from eyas.model.block_head import BlockHead
from eyas.model.head import DraftHead, Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Frontier, Tree, TreeGrower


def build_embed(target: Target, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Returns a function that computes the target's embeddings. Its result is on the device of the token ids."""
    device = target.embedding.weight.device
    return lambda ids: target.embed(ids.to(device)).to(ids.device, dtype)


def build_head_drafter(
    head: DraftHead, vocab: DraftVocab, target: Target, shape: TreeShape, rows: Sequence[Row], is_exact: bool = True
) -> "HeadDrafter | BlockHeadDrafter":
    """Returns the drafter of a head of any kind over a batch of texts. The trees have at most the depth of the head.

    Args:
        head: The head. It runs in the dtype of its weights.
        vocab: Its draft vocabulary.
        target: The target of the head.
        shape: The draft tree.
        rows: The texts with their features.
        is_exact: True if a block head drafts the most likely nodes of all trees (`exact_shape`), as in serving; False
            if `shape` is already such a shape.
    """
    embed, shape = build_embed(target, head.norm.weight.dtype), shape.limit_depth(head.config.max_depth)
    if isinstance(head, BlockHead):
        return BlockHeadDrafter(head, target, embed, exact_shape(shape) if is_exact else shape, rows)
    assert isinstance(head, Head), "the other kind of head"
    return HeadDrafter(head, vocab, embed, shape, rows)


class HeadDrafter:
    """A drafter over a batch of texts. It runs the head once over all texts, then drafts at any of their positions."""

    def __init__(
        self, head: Head, vocab: DraftVocab, embed: Callable[[Tensor], Tensor], shape: TreeShape, rows: Sequence[Row]
    ) -> None:
        """Runs step 0 of the head over all rows. embed: computes the target's embeddings in the dtype of the head."""
        self.head, self.vocab, self.embed = head, vocab, embed
        self.grower = TreeGrower(shape, torch.device("cpu"))
        dtype = head.lm_head.weight.dtype
        self.ids_BT = pad_sequence([row.ids_T for row in rows], batch_first=True)
        aux_BTL = pad_sequence([row.aux_TL.to(dtype) for row in rows], batch_first=True)
        next_BT = self.ids_BT.roll(-1, 1)  # the last column is wrong, but no prefix contains it
        attention, positions_1T = DenseAttention(), torch.arange(self.ids_BT.shape[1])[None]
        self.out_BTD = head.step(embed(next_BT), head.fuse_aux(aux_BTL), positions_1T, attention)
        self.k_BGTH, self.v_BGTH = attention.kv_by_layer[0]

    def draft(self, texts: Sequence[int], positions: Sequence[int]) -> Tree:
        """Returns a tree for each text index and position. The root of the tree is the token at position + 1."""
        texts_B, positions_B = torch.tensor(texts), torch.tensor(positions)
        out_B1D = self.out_BTD[texts_B, positions_B][:, None]
        root_B = self.ids_BT[texts_B, positions_B + 1]
        expand = self._build_expand(texts_B, positions_B, out_B1D)
        return self.grower.grow(root_B, self.head.logits(out_B1D)[:, 0], expand, self.vocab.to_target)

    def _build_expand(self, texts_B: Tensor, positions_B: Tensor, out_B1D: Tensor) -> Callable[[Frontier], Tensor]:
        """Returns a function that runs the head over the nodes of a new level and returns its logits."""
        longest = int(positions_B.max()) + 1
        prefix_BS = torch.arange(longest) <= positions_B[:, None]
        attention = DenseAttention()
        attention.kv_by_layer[0] = (self.k_BGTH[texts_B, :, :longest], self.v_BGTH[texts_B, :, :longest])
        last_BKD = self.head.next_hidden(out_B1D)

        def expand(frontier: Frontier) -> Tensor:
            nonlocal last_BKD
            num_nodes = frontier.tokens_BK.shape[1]
            parents_BK = torch.zeros_like(frontier.tokens_BK) if frontier.parents_BK is None else frontier.parents_BK
            hidden_BKD = last_BKD.gather(1, parents_BK[:, :, None].expand(-1, -1, last_BKD.shape[2]))
            prefix_BKS = prefix_BS[:, None].expand(-1, num_nodes, -1)
            attention.set_visible(torch.cat((prefix_BKS, frontier.visible_BKE), 2))
            positions_BK = (positions_B + 1 + frontier.level)[:, None].expand(-1, num_nodes)
            out_BKD = self.head.step(self.embed(frontier.tokens_BK), hidden_BKD, positions_BK, attention)
            last_BKD = self.head.next_hidden(out_BKD)
            return self.head.logits(out_BKD)

        return expand


class BlockHeadDrafter:
    """A drafter with a block head over a batch of texts. It computes the context once, then drafts at any position."""

    def __init__(
        self, head: BlockHead, target: Target, embed: Callable[[Tensor], Tensor], shape: TreeShape, rows: Sequence[Row]
    ) -> None:
        """Computes the keys and values of all rows. embed: the target's embeddings in the dtype of the head."""
        self.head, self.target, self.embed = head, target, embed
        self.depth, self.grower = shape.depth, TreeGrower(shape, torch.device("cpu"))
        self.ids_BT = pad_sequence([row.ids_T for row in rows], batch_first=True)
        aux_BTL = pad_sequence([row.aux_TL.to(head.norm.weight.dtype) for row in rows], batch_first=True)
        layers = head.context_keys_values(aux_BTL, torch.arange(self.ids_BT.shape[1])[None])
        self.context = [(k_BTGH.transpose(1, 2), v_BTGH.transpose(1, 2)) for k_BTGH, v_BTGH in layers]

    def draft(self, texts: Sequence[int], positions: Sequence[int]) -> Tree:
        """Returns a tree for each text index and position. The root of the tree is the token at position + 1."""
        texts_B, positions_B = torch.tensor(texts), torch.tensor(positions)
        root_B = self.ids_BT[texts_B, positions_B + 1]
        base_BgW = self.base_logits(texts_B, positions_B)
        first_BW = base_BgW[:, 0] + self.head.correction(root_B)
        return self.grower.grow(root_B, first_BW, expand_block(self.head, base_BgW), lambda ids: ids)

    def base_logits(self, texts_B: Tensor, positions_B: Tensor) -> Tensor:
        """Returns the logits [B, depth, W] of the slots of the blocks behind these positions, without correction."""
        ids_Bg, longest = self.head.block_ids(self.ids_BT[texts_B, positions_B + 1]), int(positions_B.max()) + 1
        size = ids_Bg.shape[1]
        attention = DenseAttention()
        for layer, (k_BGTH, v_BGTH) in enumerate(self.context):
            attention.kv_by_layer[layer] = (k_BGTH[texts_B, :, :longest], v_BGTH[texts_B, :, :longest])
        sees_BS = torch.arange(longest + size) <= positions_B[:, None]
        sees_BS[:, longest:] = True
        attention.set_visible(sees_BS[:, None].expand(-1, size, -1))
        positions_Bg = positions_B[:, None] + 1 + torch.arange(size)
        normed_BgD = self.head.step(self.embed(ids_Bg), positions_Bg, attention)
        slots_BgD = normed_BgD[:, -self.head.config.block_size :][:, : self.depth]
        weight, dtype = self.target.logits_weight, slots_BgD.dtype
        return self.target.logits(slots_BgD.to(weight.device, weight.dtype)).to(slots_BgD.device, dtype)
