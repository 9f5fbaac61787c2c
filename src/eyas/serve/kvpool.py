"""Keys and values of all requests, contiguous per slot, and the `Attend` over them.

B slots, T new rows, P committed columns, N heads, G key-value heads, H head size, S path slots, r = N / G.

One tensor holds every layer, so that the accepted path of a round is moved in one operation:

    slot 0   | x x x x x . . . | t t t t |          x committed rows (slot 0 has 5, slot 1 has 8)
    slot 1   | x x x x x x x x | t t t t |          t rows of this forward, at the same columns in every slot
             0                 P         P + T      P = the longest slot

New rows stand at common columns behind the longest slot: writing them is one slice, and what a row may see is
`Tree.visible(lengths, P)` as it is. `commit` then moves the kept ones to the end of their own slot.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.model.attention import Rule
from eyas.tree.verify import Accepted


class KVPool:
    """Storage for `num_slots` requests of at most `size` rows, tree rows included.

    On the device and in the type of the model, which `weight` stands for; but float32 on a CPU: attention over bfloat16
    keys is slower there (no fused kernel for a few rows), and rounds once more.
    """

    def __init__(
        self, num_layers: int, num_slots: int, num_kv_heads: int, size: int, head_dim: int, weight: Tensor
    ) -> None:
        dtype = torch.float32 if weight.device.type == "cpu" else weight.dtype
        shape = (num_layers, 2, num_slots, num_kv_heads, size, head_dim)
        self.kv = torch.zeros(shape, dtype=dtype, device=weight.device)
        self.lengths = [0] * num_slots

    @property
    def size(self) -> int:
        """Rows that one slot can hold."""
        return self.kv.shape[4]

    def longest(self, count: int) -> int:
        """P of the first `count` slots."""
        return max(self.lengths[:count])

    def is_ragged(self, count: int) -> bool:
        """Whether the first `count` slots have different lengths."""
        return len(set(self.lengths[:count])) > 1

    def lengths_B1(self, count: int) -> Tensor:
        """Lengths of the first `count` slots on the device: rotary position of the first row behind them."""
        return torch.tensor(self.lengths[:count], device=self.kv.device)[:, None]

    def prefix_B1P(self, count: int) -> Tensor:
        """bool: which of the P columns hold committed rows."""
        columns_P = torch.arange(self.longest(count), device=self.kv.device)
        return (columns_P < self.lengths_B1(count))[:, None]

    def commit(self, count: int, accepted: Accepted | None, lengths: list[int], start: int) -> None:
        """Keep the accepted rows of the first `count` slots. `start` is the column of the forward's row 0.

        lengths[b] rows are kept: rows accepted.nodes_BS[b] of the forward, or its first rows where accepted is None.
        """
        if accepted is not None or self.is_ragged(count):
            self._move(count, accepted, max(lengths), start)
        for slot, length in enumerate(lengths):
            self.lengths[slot] += length
            assert self.lengths[slot] <= self.size, "a slot ran over"

    def _move(self, count: int, accepted: Accepted | None, num_rows: int, start: int) -> None:
        device = self.kv.device
        rows_BS = torch.arange(num_rows, device=device)[None].expand(count, -1)
        source_BS = rows_BS if accepted is None else accepted.nodes_BS[:, :num_rows]
        if count == 1:
            begin = self.lengths[0]
            kept = self.kv[:, :, 0, :, start:].index_select(3, source_BS[0])
            self.kv[:, :, 0, :, begin : begin + num_rows] = kept
            return
        slots_B1 = torch.arange(count, device=device)[:, None]
        self.kv[:, :, slots_B1, :, self.lengths_B1(count) + rows_BS] = self.kv[:, :, slots_B1, :, start + source_BS]

    def replace(self, slot: int, last: int) -> None:
        """Free `slot` by moving the request of slot `last` into it."""
        length = self.lengths[last]
        if slot != last:
            self.kv[:, :, slot, :, :length] = self.kv[:, :, last, :, :length]
            self.lengths[slot] = length
        self.lengths[last] = 0

    def check(self) -> None:
        """Assert that no slot claims rows it does not have."""
        assert all(0 <= length <= self.size for length in self.lengths), self.lengths


class PoolAttend:
    """`Attend` for one forward: writes the new rows at column `start` of some slots, reads all columns up to them.

    The views of all layers are cut here, at once: a layer's attention of a few rows is as short as a few such cuts.
    """

    def __init__(
        self, pool: KVPool, slots: slice, start: int, num_new: int, visible_BTS: Tensor | None, groups: int
    ) -> None:
        """visible_BTS covers columns 0..start + T; None: every row sees everything (one row), or causal from column 0.

        groups: r, query heads for each key-value head. The r heads of a group are folded into rows, so the mask is
        repeated r times; it is made additive once, not in every layer.
        """
        assert visible_BTS is not None or num_new == 1 or start == 0, "rows without a mask are one, or a prefill"
        held = pool.kv[:, :, slots, :, : start + num_new]
        self.keys, self.values = held[:, 0].unbind(0), held[:, 1].unbind(0)
        new = held[:, :, :, :, start:]
        self.new_keys, self.new_values = new[:, 0].unbind(0), new[:, 1].unbind(0)
        self.mask_B1RS: Tensor | None = None
        if visible_BTS is not None:
            mask = torch.zeros(visible_BTS.shape, dtype=pool.kv.dtype, device=pool.kv.device)
            self.mask_B1RS = mask.masked_fill_(~visible_BTS, -torch.inf).repeat(1, groups, 1)[:, None]

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, rule: Rule) -> Tensor:
        num_requests, num_heads, num_new, head_dim = q_BNTH.shape
        keys, values = self.keys[layer], self.values[layer]
        self.new_keys[layer].copy_(k_BGTH)
        self.new_values[layer].copy_(v_BGTH)
        if self.mask_B1RS is None and num_new > 1:
            q = q_BNTH.to(keys.dtype)
            out = F.scaled_dot_product_attention(q, keys, values, is_causal=True, scale=rule.scale, enable_gqa=True)
            return out.to(q_BNTH.dtype)
        num_kv_heads = k_BGTH.shape[1]
        rows = num_heads // num_kv_heads * num_new
        q = q_BNTH.reshape(num_requests, num_kv_heads, rows, head_dim).to(keys.dtype)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=self.mask_B1RS, scale=rule.scale)
        return out.view(num_requests, num_heads, num_new, head_dim).to(q_BNTH.dtype)
