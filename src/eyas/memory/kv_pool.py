"""The KV memory: one slot a token in every layer, and the table req_to_token that maps texts to slots.

Z KV slots, R request slots, C columns, G key-value heads, H head size, L = 3D captured features.

    req_to_token  request slot 0   17 18 19 40 41 42 43 44 . .    column = position in the text
                  request slot 1   17 18 19 50 51 52 .  .  . .    the first three are a shared prefix
    kv            [layers, 2, Z, G, H]                            one tensor: one operation moves rows of all layers

The host assigns slots, so it always knows the table. How many of them hold committed text only the device knows
(`future_map`). Slot 0 belongs to no request: padding rows are written there. The last request slot belongs to no
request either, and all its columns name slot 0: it stands for the rows that pad a batch.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Slots = NDArray[np.int32]


class KVPool:
    """The tensors of the KV memory and the list of free slots. Owned by the KVCacheManager.

    aux_ZL: the captured features of each committed token, until a drafter reads them.
    """

    def __init__(self, shape: tuple[int, int, int], num_slots: int, table: tuple[int, int], weight: Tensor) -> None:
        """Allocates the tensors.

        Args:
            shape: layers, key-value heads, head size.
            table: request slots and columns.
            weight: gives device and type.
        """
        num_layers, num_kv_heads, head_dim = shape
        self.num_slots = num_slots
        self.kv = torch.zeros(
            (num_layers, 2, num_slots + 1, num_kv_heads, head_dim), dtype=weight.dtype, device=weight.device
        )
        self.req_to_token_RC = torch.zeros(table, dtype=torch.int32, device=weight.device)
        self.aux_ZL: Tensor | None = None
        self._free = np.arange(num_slots, 0, -1, dtype=np.int32)  # a stack: the last one is taken first
        self._num_free = num_slots

    def allocate_aux(self, size: int) -> None:
        """Allocates captured features, `size` numbers a token; once, for all drafters."""
        if self.aux_ZL is not None:
            assert self.aux_ZL.shape[1] == size, "all drafters read the same layers"
            return
        self.aux_ZL = torch.zeros(self.num_slots + 1, size, dtype=self.kv.dtype, device=self.kv.device)

    @property
    def num_free(self) -> int:
        """Number of free slots."""
        return self._num_free

    @property
    def token_bytes(self) -> int:
        """Bytes of one token: keys and values in every layer, and its captured features."""
        size = self.kv.shape[0] * 2 * self.kv.shape[3] * self.kv.shape[4]
        return (size + (0 if self.aux_ZL is None else self.aux_ZL.shape[1])) * self.kv.element_size()

    def allocate(self, count: int) -> Slots:
        """Removes `count` slots from the free list and returns them. The caller checks `num_free` first."""
        assert 0 <= count <= self._num_free, (count, self._num_free)
        self._num_free -= count
        return self._free[self._num_free : self._num_free + count].copy()

    def free(self, slots: Slots) -> None:
        """Returns slots to the free list."""
        assert self._num_free + len(slots) <= self.num_slots, "more slots freed than there are"
        self._free[self._num_free : self._num_free + len(slots)] = slots
        self._num_free += len(slots)

    def free_slots(self) -> Slots:
        """Returns the free slots, for checks."""
        return self._free[: self._num_free]

    def move(self, source: Tensor, destination: Tensor) -> None:
        """Copies keys and values between slots in every layer; all sources are read before a destination changes."""
        self.kv.index_copy_(2, destination, self.kv.index_select(2, source))

    def check(self, cached: Slots, running: Slots) -> None:
        """Asserts free + cached + running == pool: every slot has exactly one owner."""
        owned = np.concatenate((self.free_slots(), cached, running))
        assert len(owned) == self.num_slots, (self.num_free, len(cached), len(running), self.num_slots)
        assert np.array_equal(np.sort(owned), np.arange(1, self.num_slots + 1)), "a slot has two owners or none"
