"""The KV memory: one KV slot per token in every layer, and the table req_to_token, which maps texts to KV slots.

Z KV slots, R request slots, C columns, G key-value heads, H head size, L = 3D captured features.

    req_to_token  request slot 0   17 18 19 40 41 42 43 44 . .    column = position in the text
                  request slot 1   17 18 19 50 51 52 .  .  . .    the first three are a shared prefix
    kv            [layers, 2, Z, G, H]                            one tensor: one operation moves rows of all layers

The host assigns the KV slots, so it always knows the table. Only the device knows how many columns hold committed text
(`future_map`). KV slot 0 belongs to no request: padding rows are written there. The last request slot belongs to no
request either. All its columns name KV slot 0, and the rows that pad a batch use it.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eyas.kernels.huge_pages import zeros_on_huge_pages
from eyas.staging import Staging

Slots = NDArray[np.int32]


class KVPool:
    """The tensors of the KV memory and the list of free KV slots. The KVCacheManager owns it.

    Attributes:
        num_slots: The number of KV slots that can be allocated; slot 0 is not counted.
        num_free: The number of free KV slots.
        kv: Keys and values, [layers, 2, num_slots + 1, key-value heads, head size].
        req_to_token_RC: The KV slot of each column of each request slot, int32.
        staging: The copies between the host and the device of the tensors.
        aux_ZL: The captured features of the token in each KV slot, for drafters; None if no drafter needs them.
    """

    def __init__(
        self, shape: tuple[int, int, int], num_slots: int, table: tuple[int, int], weight: Tensor, dtype: torch.dtype
    ) -> None:
        """Allocates the tensors.

        Args:
            shape: the numbers of layers and key-value heads, and the head size.
            num_slots: the number of KV slots.
            table: the numbers of request slots and columns of req_to_token.
            weight: a weight of the target; the tensors get its device, and the captured features its dtype.
            dtype: of keys and values.
        """
        num_layers, num_kv_heads, head_dim = shape
        self.num_slots = num_slots
        self.kv = zeros_on_huge_pages((num_layers, 2, num_slots + 1, num_kv_heads, head_dim), dtype, weight.device)
        self.req_to_token_RC = torch.zeros(table, dtype=torch.int32, device=weight.device)
        self.staging = Staging(weight.device)
        self.aux_ZL: Tensor | None = None
        self._aux_dtype = weight.dtype
        self._free = np.arange(num_slots, 0, -1, dtype=np.int32)  # a stack: the last one is taken first
        self.num_free = num_slots

    def allocate_aux(self, size: int) -> None:
        """Allocates aux_ZL with `size` numbers per token. Later calls do nothing: all drafters share the tensor."""
        if self.aux_ZL is not None:
            assert self.aux_ZL.shape[1] == size, "all drafters read the same layers"
            return
        self.aux_ZL = torch.zeros(self.num_slots + 1, size, dtype=self._aux_dtype, device=self.kv.device)

    def allocate(self, count: int) -> Slots:
        """Removes `count` slots from the free list and returns them. Requirement: `num_free` is at least `count`."""
        assert 0 <= count <= self.num_free, (count, self.num_free)
        self.num_free -= count
        return self._free[self.num_free : self.num_free + count].copy()

    def free(self, slots: Slots) -> None:
        """Returns slots to the free list."""
        assert self.num_free + len(slots) <= self.num_slots, "more slots freed than there are"
        self._free[self.num_free : self.num_free + len(slots)] = slots
        self.num_free += len(slots)

    def move(self, source: Tensor, destination: Tensor) -> None:
        """Copies keys and values from source[i] to destination[i] in every layer. All sources are read first."""
        kv = self.kv.view(torch.uint8) if self.kv.itemsize == 1 else self.kv  # a CPU has no index_copy_ of fp8
        kv.index_copy_(2, destination, kv.index_select(2, source))
