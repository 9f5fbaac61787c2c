"""Linear layers on a CPU: packs their weights, and calls the operator of cpu_linear.c.

T rows, K inputs, N outputs. The operator is faster than torch's for few rows, and on processors without instructions
for bfloat16 also for many. The result of a row does not depend on the other rows.

    pack_linears(module)    replaces the nn.Linear layers of a module that computes no gradients
"""

import ctypes
from collections.abc import Callable
from ctypes import c_int32, c_int64, c_void_p
from functools import cache
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eyas.kernels.cpu_attention import TYPES, Unavailable, load_cpu_library
from eyas.kernels.huge_pages import ALIGNMENT, HugePages

SHARED_INPUTS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of one module that read the same input. They are computed in one call."""


class _Linear(ctypes.Structure):
    """The struct `linear` of cpu_linear.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "weight", "bias", "out")),
        *((name, c_int64) for name in ("x_row", "num_rows", "num_in", "num_out")),
        *((name, c_int32) for name in ("is_bf16", "num_threads")),
    )


@cache
def linear_library() -> ctypes.CDLL | Unavailable:
    """Returns the library with `eyas_linear`, or why there is none. Loads it on the first call of the process."""
    library = load_cpu_library()
    if not isinstance(library, Unavailable):
        library.eyas_linear.argtypes = (c_void_p,)
    return library


class PackedWeight(nn.Module):
    """The weights of one layer, or of several with the same input, in the order in which the operator reads them.

    Attributes:
        packed: [panels, steps, width, 1] of float32 or [panels, steps, width, 2] of bfloat16; see cpu_linear.c.
        bias_N: The biases as float32; None if no layer has a bias.
    """

    packed: Tensor
    bias_N: Tensor | None

    def __init__(self, layers: list[nn.Linear], memory: HugePages | None = None) -> None:
        super().__init__()
        weight_NK = torch.cat([layer.weight.data for layer in layers]) if len(layers) > 1 else layers[0].weight.data
        biases = [torch.zeros(layer.out_features) if layer.bias is None else layer.bias.float() for layer in layers]
        has_bias = any(layer.bias is not None for layer in layers)
        self.num_out, self.num_in = weight_NK.shape
        self.register_buffer("packed", pack(weight_NK, memory), persistent=False)
        self.register_buffer("bias_N", torch.cat(biases).detach() if has_bias else None, persistent=False)
        self._kept: tuple[Tensor, Tensor, int] | None = None  # input, result, number of layers that have not read it

    def forward(self, x: Tensor) -> Tensor:
        """Returns x W^T + b [..., N] for x [..., K]."""
        if torch.compiler.is_exporting():
            return torch.ops.eyas.packed_linear(x, self.packed, self.bias_N, self.num_out)
        library, dtype = linear_library(), self.packed.dtype
        assert not isinstance(library, Unavailable), "layers are packed only if there is a library"
        assert (x.dtype, x.shape[-1]) == (dtype, self.num_in), (x.dtype, x.shape, dtype, self.num_in)
        assert not (x.requires_grad and torch.is_grad_enabled()), "packed layers compute no gradients"
        x_TK = x.reshape(-1, self.num_in).contiguous()
        out = x.new_empty(*x.shape[:-1], self.num_out)
        addresses = [None if part is None else part.data_ptr() for part in (x_TK, self.packed, self.bias_N, out)]
        sizes = (self.num_in, len(x_TK), self.num_in, self.num_out)
        layer = _Linear(*addresses, *sizes, dtype == torch.bfloat16, torch.get_num_threads())
        if library.eyas_linear(ctypes.addressof(layer)):
            raise MemoryError("a linear layer could not allocate memory for its rows")
        return out

    def result_for(self, x: Tensor, num_layers: int) -> Tensor:
        """Returns `self(x)`, computed by the first of `num_layers` calls with the same tensor."""
        kept = self._kept
        if kept is None or kept[0] is not x:
            kept = (x, self(x), num_layers)
        self._kept = (kept[0], kept[1], kept[2] - 1) if kept[2] > 1 else None
        return kept[1]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PackedWeight":
        probe = fn(self.packed[:0])
        if (probe.dtype, probe.device) != (self.packed.dtype, self.packed.device):
            raise TypeError("packed layers cannot be cast or moved to another device")
        return self

    def unpack(self) -> Tensor:
        """Returns the weights [N, K] of all layers."""
        panels, steps, width, per_step = self.packed.shape
        weight = self.packed.permute(0, 2, 1, 3).reshape(panels * width, steps * per_step)
        return weight[: self.num_out, : self.num_in]


class PackedLinear(nn.Module):
    """A layer in the place of an nn.Linear. Of layers that share a PackedWeight, the first call computes all."""

    def __init__(self, shared: PackedWeight, rows: slice, num_layers: int, has_bias: bool) -> None:
        super().__init__()
        self._shared = [shared]  # in a list: a submodule of the first layer only
        if rows.start == 0:
            self.shared = shared
        self.rows, self.num_layers, self.has_bias = rows, num_layers, has_bias
        self.in_features, self.out_features = shared.num_in, rows.stop - rows.start

    @property
    def weight(self) -> Tensor:
        """A copy of the weights, [N, K]."""
        return self._shared[0].unpack()[self.rows].contiguous()

    @property
    def bias(self) -> Tensor | None:
        """A copy of the biases; None if the layer has none."""
        shared = self._shared[0]
        return None if not self.has_bias or shared.bias_N is None else shared.bias_N[self.rows].to(shared.packed.dtype)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Adds the tensors that the nn.Linear had."""
        destination[f"{prefix}weight"] = self.weight
        if (bias := self.bias) is not None:
            destination[f"{prefix}bias"] = bias

    def forward(self, x: Tensor) -> Tensor:
        """Returns x W^T + b [..., N] for x [..., K]."""
        shared = self._shared[0]
        return shared(x) if self.num_layers == 1 else shared.result_for(x, self.num_layers)[..., self.rows]


def pack(weight_NK: Tensor, memory: HugePages | None = None) -> Tensor:
    """Returns the weights [N, K] of a layer in the order in which the operator reads them; see `PackedWeight.packed`.

    Args:
        weight_NK: the weights.
        memory: the memory that stores the result; None to allocate it.
    """
    library = linear_library()
    assert not isinstance(library, Unavailable), "layers are packed only if there is a library"
    width, per_step = library.eyas_linear_width(), 2 if weight_NK.dtype == torch.bfloat16 else 1
    num_out, num_in = weight_NK.shape
    if num_out % width or num_in % per_step:
        weight_NK = F.pad(weight_NK, (0, -num_in % per_step, 0, -num_out % width))
    packed = weight_NK.view(-(-num_out // width), width, -1, per_step).transpose(1, 2)
    return packed.contiguous() if memory is None else memory.copy(packed)


def can_pack(dtype: torch.dtype) -> bool:
    """Returns True if layers of this dtype are faster with the operator than with torch.

    Without the matrix units (AMX) of a processor that has them, torch is faster for layers of bfloat16.
    """
    library = linear_library()
    if dtype not in TYPES or isinstance(library, Unavailable):
        return False
    return dtype == torch.float32 or bool(library.eyas_linear_units()) or not torch.cpu._is_amx_tile_supported()


def use_thread_pool(num_threads: int) -> None:
    """Lets the C operators compute on a thread pool (cpu_thread_pool.h), and torch on one. Requirement: `can_pack`."""
    library = linear_library()
    assert not isinstance(library, Unavailable), "layers can be packed"
    library.eyas_set_pool(num_threads)
    torch.set_num_threads(1)


def count_threads() -> int:
    """Returns the number of threads of a forward: those of the pool, if there is one, or those of torch."""
    library, threads = linear_library(), torch.get_num_threads()
    return threads if isinstance(library, Unavailable) else library.eyas_threads(threads)


def is_packed(module: nn.Module) -> bool:
    """Returns True if the module has packed layers."""
    return any(isinstance(layer, PackedLinear) for layer in module.modules())


def pack_linears(module: nn.Module) -> None:
    """Replaces the nn.Linear layers of a module on a CPU by PackedLinear layers. It can no longer be trained.

    Layers of other classes and devices, and those for which `can_pack` returns False, stay as they are.
    """
    found = [layer for layer in module.modules() if _can_pack(layer)]
    fill = 64  # `pack` adds less than this to the outputs of a layer, and at most one input
    sizes = [(layer.out_features + fill) * (layer.in_features + 1) * layer.weight.itemsize for layer in found]
    memory = HugePages(sum(sizes) + ALIGNMENT * len(sizes))
    for parent in list(module.modules()):
        layers = {name: layer for name, layer in parent.named_children() if _can_pack(layer)}
        while layers:
            names = next((group for group in SHARED_INPUTS if _share(layers, group)), (next(iter(layers)),))
            chosen = [layers.pop(name) for name in names]
            shared, begin = PackedWeight(chosen, memory), 0
            for name, layer in zip(names, chosen, strict=True):
                rows = slice(begin, begin + layer.out_features)
                setattr(parent, name, PackedLinear(shared, rows, len(names), layer.bias is not None))
                begin = rows.stop
    if is_packed(module):
        module.requires_grad_(False)


def _can_pack(layer: nn.Module) -> TypeGuard[nn.Linear]:
    return type(layer) is nn.Linear and layer.weight.device.type == "cpu" and can_pack(layer.weight.dtype)


def _share(layers: dict[str, nn.Linear], names: tuple[str, ...]) -> bool:
    """Returns True if the layers of these names exist and read inputs of the same size and dtype."""
    found = {(layers[name].in_features, layers[name].weight.dtype) if name in layers else None for name in names}
    return len(found) == 1 and None not in found
