"""The head at work: extend over what was accepted, then grow a tree for the next round.

B slots, T rows, D hidden, L = 3D, V draft vocabulary, K top-k, E nodes expanded so far, P committed columns,
S path slots.

With root x_m (the last committed token) the head has rows 0..m - 1: row t read f_t and the embedding of x_{t + 1}.
The last of them predicts x_{m + 1}, the first level of the tree. A node of level i (text position m + 1 + i) is read at
rotary position m + i, as step i + 1 of training was (features/layout).
"""

import torch
from torch import Tensor

from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.serve.kvpool import KVPool, PoolAttend
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Frontier, Grower, Tree
from eyas.tree.verify import Accepted


class Drafter:
    """Head, its key-value pool, and by slot what a round leaves for the next: logits_BV and hidden_BD of the root."""

    def __init__(self, head: Head, vocab: DraftVocab, target: Target, shape: TreeShape, slots: int, size: int) -> None:
        config = head.config
        self.head = head
        self.vocab = vocab
        self.target = target
        self.shape = shape
        weight = head.lm_head.weight
        dtype, device = weight.dtype, weight.device
        self.pool = KVPool(1, slots, config.num_kv_heads, size, config.head_dim, weight)
        self.groups = config.num_heads // config.num_kv_heads
        self.grower = Grower(shape, device)
        self.logits_BV = torch.zeros(slots, config.draft_vocab_size, dtype=dtype, device=device)
        self.hidden_BD = torch.zeros(slots, config.hidden_size, dtype=dtype, device=device)
        self.causal_SS = torch.ones(shape.slots, shape.slots, dtype=torch.bool, device=device).tril()

    @staticmethod
    def scratch(shape: TreeShape) -> int:
        """Columns that a round needs behind the committed ones."""
        return max(shape.slots, shape.top_k * (shape.depth - 1))

    def prefill(self, slot: int, ids_1T: Tensor, next_id: int, aux_1TL: Tensor) -> None:
        """Read a whole prompt into an empty slot; `next_id` is the token that the target answered with."""
        next_1T = torch.cat((ids_1T[:, 1:], ids_1T.new_tensor([[next_id]])), dim=1)
        positions_1T = torch.arange(ids_1T.shape[1], device=ids_1T.device)[None]
        attend = PoolAttend(self.pool, slice(slot, slot + 1), 0, ids_1T.shape[1], None, self.groups)
        out_1TD = self.head.step(self.target.embed(next_1T), self.head.fuse(aux_1TL), positions_1T, attend)
        self.pool.lengths[slot] = ids_1T.shape[1]
        self._publish(slice(slot, slot + 1), out_1TD[:, -1])

    def grow(self, root_B: Tensor) -> Tree:
        """Trees for the first B slots from what the last extend left."""
        count, top_k = root_B.shape[0], self.shape.top_k
        slots, start = slice(0, count), self.pool.longest(count)
        lengths_B1 = self.pool.lengths_B1(count)
        sees_all = top_k == 1 and not self.pool.is_ragged(count)
        prefix_BKP = self.pool.prefix_B1P(count).expand(-1, top_k, -1)
        hidden_BD = self.hidden_BD[slots]
        last_BKD = hidden_BD[:, None].expand(-1, top_k, -1)

        def advance(frontier: Frontier) -> Tensor:
            nonlocal last_BKD
            if frontier.parents_BK is not None:
                rows_BKD = frontier.parents_BK[:, :, None].expand(-1, -1, last_BKD.shape[2])
                last_BKD = last_BKD.gather(1, rows_BKD)
            visible_BKS = None if sees_all else torch.cat((prefix_BKP, frontier.visible_BKE), dim=2)
            column = start + frontier.level * top_k
            attend = PoolAttend(self.pool, slots, column, top_k, visible_BKS, self.groups)
            embeds_BKD = self.target.embed(frontier.tokens_BK)
            out_BKD = self.head.step(embeds_BKD, last_BKD, lengths_B1 + frontier.level, attend)
            last_BKD = self.head.feedback(out_BKD)
            return self.head.logits(out_BKD)

        return self.grower.grow(root_B, self.logits_BV[slots], advance, self.vocab.to_target)

    def extend(self, accepted: Accepted, lengths: list[int], aux_BSL: Tensor) -> None:
        """Read the accepted tokens with their true features; rows beyond a request's length mean nothing.

        lengths: accepted.lengths_B on the host. aux_BSL: the target's features of the kept nodes (row i: of node
        nodes_BS[:, i]), as many rows as the longest path has.
        """
        count, num_rows = len(lengths), max(lengths)
        slots, start = slice(0, count), self.pool.longest(count)
        lengths_B1 = self.pool.lengths_B1(count)
        positions_BS = lengths_B1 + torch.arange(num_rows, device=aux_BSL.device)
        prefix_BSP = self.pool.prefix_B1P(count).expand(-1, num_rows, -1)
        causal_BSS = self.causal_SS[:num_rows, :num_rows].expand(count, -1, -1)
        visible_BSC = torch.cat((prefix_BSP, causal_BSS), dim=2)
        attend = PoolAttend(self.pool, slots, start, num_rows, visible_BSC, self.groups)
        embeds_BSD = self.target.embed(accepted.tokens_BS[:, :num_rows])
        out_BSD = self.head.step(embeds_BSD, self.head.fuse(aux_BSL), positions_BS, attend)
        last_B11 = (accepted.lengths_B - 1)[:, None, None].expand(-1, 1, out_BSD.shape[2])
        self.pool.commit(count, None, lengths, start)
        self._publish(slots, out_BSD.gather(1, last_B11)[:, 0])

    def _publish(self, slots: slice, out_BD: Tensor) -> None:
        self.hidden_BD[slots] = self.head.feedback(out_BD)
        self.logits_BV[slots] = self.head.logits(out_BD)

    def replace(self, slot: int, last: int) -> None:
        """Free `slot` by moving the request of slot `last` into it."""
        self.pool.replace(slot, last)
        self.logits_BV[slot] = self.logits_BV[last]
        self.hidden_BD[slot] = self.hidden_BD[last]
