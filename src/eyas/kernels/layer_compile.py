"""Compiles a target's decoder layers and the head for CUDA: merges linear layers, and fuses what lies between them.

T rows (tokens) of one forward, N heads, G key-value heads, H head size.

A layer of transformers runs about 40 kernels, most of which read a few kilobytes. Within a CUDA graph each still takes
some microseconds, together longer than one read of the weights. torch.export captures a layer as a graph, this module
merges the linear layers with the same input, and torch.compile fuses the other operators:

    before    q = W_q x    k = W_k x    v = W_v x         gate = W_g x    up = W_u x
    after     q, k, v = split(W_qkv x)                    gate, up = split(W_gu x)

The separate weights become views of the merged ones, so no memory is added. Layers with the same structure share one
graph, which is compiled twice: for one row, and for any other number of rows. Attention is one operator of the graph.
It calls the attention that was passed to the running forward.
"""

import operator
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from eyas.kernels.attention_op import CompileError
from eyas.kernels.compiled_package import TOLERANCE, attend_to_text, head_inputs, relative_error, target_inputs
from eyas.model.attention import AttentionParams, PackedAttention, PackedAttentionFn
from eyas.model.head import Head
from eyas.model.submodules import find_layers, text_config
from eyas.model.target import Target

EXAMPLE_ROWS, OTHER_ROWS = 16, 24  # a size that differs between two such forwards is the number of rows
CHECK_ROWS = (EXAMPLE_ROWS, 1, 2, 40)
MAX_ROWS = 1 << 20
SCHEMA = (
    "packed_attention(Tensor q, Tensor k, Tensor v, float scale, int? window, int? chunk, float? softcap, "
    "Tensor? sinks) -> Tensor"
)
LINEAR = torch.ops.aten.linear.default
LINEAR_SCHEMA = "linear_of_rows(Tensor x, Tensor weight) -> Tensor"

_running = threading.local()  # attention and layer of the running forward
_libraries: list[torch.library.Library] = []  # a registration lasts as long as its library object


def compile_layers(target: Target, head: Head | None) -> None:
    """Compiles the layers of the target and the step of the head. Forwards over packed rows then run compiled.

    It takes about half a minute, and does nothing to a target or head that already runs compiled.

    Raises:
        CompileError: a layer cannot be captured or compiled, or its outputs are wrong. It then runs uncompiled.
    """
    try:
        with torch.inference_mode():
            if target.compiled_forward is None:
                _compile_target(target, find_layers(target.model))
            if head is not None and head.compiled_forward is None:
                _compile_head(head)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:  # what torch.compile and graphs raise
        raise CompileError("The layers cannot be compiled for CUDA") from error


class CompiledGraph:
    """A compiled graph with its weights. It is a `CompiledForward`: several layers may share one graph."""

    def __init__(self, run: Callable[..., tuple[Tensor, ...]], weights: list[Tensor], layer: int = 0) -> None:
        self._run, self._weights, self._layer = run, weights, layer

    def __call__(self, attention: PackedAttentionFn, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Runs the graph and returns its outputs."""
        _running.attention, _running.layer = attention, self._layer
        return self._run(*self._weights, *inputs)


class CompiledLayer:
    """The forward of a decoder layer. It runs the graph for packed rows, and the uncompiled layer for other calls."""

    def __init__(self, graph: CompiledGraph, uncompiled: Callable[..., Any]) -> None:
        self.uncompiled = uncompiled
        self._graph = graph

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Takes and returns what the layer of transformers does."""
        attend = kwargs.get("attend")
        if not isinstance(attend, PackedAttention):
            return self.uncompiled(*args, **kwargs)
        return self._graph(attend.packed_attention, *_tensors((args, kwargs)))[0]


@dataclass(frozen=True, eq=False)
class _Captured:
    """A captured module.

    Attributes:
        run: The compiled graph. Its inputs are the weights, then the tensors of the call.
        names: The names of the weights that each of the first inputs consists of.
    """

    run: Callable[..., tuple[Tensor, ...]]
    names: list[list[str]]

    def bind(self, module: nn.Module, layer: int = 0) -> CompiledGraph:
        """Returns the graph with the weights of a module that has the captured structure."""
        return CompiledGraph(self.run, [_merge_weights(module, names) for names in self.names], layer)


# --- capturing ------------------------------------------------------------------------------------------------------


class _Call(nn.Module):
    """A call of a module's method with flat inputs: its tensors, in order. Its other arguments are constants."""

    def __init__(self, module: nn.Module, method: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self._method = method
        self._leaves, self._spec = tree_flatten((args, kwargs))

    def forward(self, *tensors: Tensor) -> object:
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        args, kwargs = tree_unflatten(leaves, self._spec)
        return self._method(*args, **kwargs)


def _tensors(call: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(call) if isinstance(leaf, Tensor)]


@cache
def _register_operator() -> None:
    """Registers the operator eyas::packed_attention, once per process."""
    library = torch.library.Library("eyas", "FRAGMENT")
    library.define(SCHEMA)

    def attend(q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, *settings: Any) -> Tensor:
        return _running.attention(_running.layer, q_TNH, k_TGH, v_TGH, AttentionParams(*settings)).contiguous()

    def multiply(x: Tensor, weight_FD: Tensor) -> Tensor:
        if x.device.type == "cpu":
            return F.linear(x, weight_FD)
        from eyas.kernels.triton_linear import linear  # triton comes with the CUDA build of torch alone

        return linear(x, weight_FD)

    library.define(LINEAR_SCHEMA)
    torch.library.register_fake(
        "eyas::linear_of_rows", lambda x, weight: x.new_empty((*x.shape[:-1], len(weight))), lib=library
    )
    for device in ("CUDA", "CPU"):
        library.impl("packed_attention", attend, device)
        library.impl("linear_of_rows", multiply, device)
    torch.library.register_fake("eyas::packed_attention", lambda q, *_: q.new_empty(q.shape), lib=library)
    _libraries.append(library)


def _captured_attention(layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, params: AttentionParams) -> Tensor:
    """Calls the operator, without the layer: all layers may share a graph."""
    rule = (params.scale, params.window, params.chunk, params.softcap, params.sinks_N)
    return torch.ops.eyas.packed_attention(q_TNH, k_TGH, v_TGH, *rule)


def _capture(call: _Call, inputs: list[Tensor], others: list[Tensor]) -> _Captured:
    """Captures a call as a graph for any number of rows.

    Args:
        call: the call.
        inputs: its tensors for EXAMPLE_ROWS rows. The caller must run the graph with them first.
        others: its tensors for OTHER_ROWS rows.

    Raises:
        CompileError: the call cannot be captured.
    """
    _register_operator()
    rows = torch.export.Dim("rows", min=2, max=MAX_ROWS)
    dims = [
        {dim for dim, (size, other) in enumerate(zip(one.shape, two.shape, strict=True)) if size != other}
        for one, two in zip(inputs, others, strict=True)
    ]
    shapes = (tuple(dict.fromkeys(found, rows) for found in dims),)
    try:
        exported = torch.export.export(call, tuple(inputs), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # export raises many classes for a layer that it cannot take
        raise CompileError("A layer cannot be captured as a graph") from error
    signature = exported.graph_signature
    kinds = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.USER_INPUT}
    if any(one.kind not in kinds for one in signature.input_specs) or signature.buffers_to_mutate:
        raise CompileError("A layer cannot be compiled, because its graph has constants or changes a buffer")
    names = [[str(one.target)] for one in signature.input_specs if one.kind != InputKind.USER_INPUT]
    names = _merge_linears(exported.graph_module, names)
    _replace_linears(exported.graph_module)
    for tensor, found in zip(inputs, dims, strict=True):
        for dim in found:  # the first call, which has these inputs, compiles for any number of rows
            torch._dynamo.maybe_mark_dynamic(tensor, dim)
    # The kernels of the compiler, too, start before the previous one has ended, where the device can do that.
    options: dict[str, Any] = {"triton.enable_pdl": True}
    return _Captured(torch.compile(exported.graph_module.forward, fullgraph=True, options=options), names)


def _merge_linears(graph_module: GraphModule, names: list[list[str]]) -> list[list[str]]:
    """Merges linear layers without bias that have the same input. Returns the names of the weights of each input."""
    graph: Any = graph_module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    weights: dict[Any, list[str]] = dict(zip(placeholders, names, strict=False))
    groups: dict[Any, list[Any]] = defaultdict(list)
    for node in graph.nodes:
        is_plain = node.target == LINEAR and len(node.args) == 2
        if is_plain and node.args[1] in weights and len(node.args[1].users) == 1:
            groups[node.args[0]].append(node)
    for x, linears in [(x, linears) for x, linears in groups.items() if len(linears) > 1]:
        own = [linear.args[1] for linear in linears]
        with graph.inserting_before(linears[0]):
            product = graph.call_function(LINEAR, (x, own[0]))
            sizes = [weight.meta["val"].shape[0] for weight in own]
            parts = graph.call_function(torch.ops.aten.split_with_sizes.default, (product, sizes, -1))
            pieces = [graph.call_function(operator.getitem, (parts, i)) for i in range(len(own))]
        for linear, piece in zip(linears, pieces, strict=True):
            linear.replace_all_uses_with(piece)
            graph.erase_node(linear)
        weights[own[0]] = [weights[weight][0] for weight in own]
        for weight in own[1:]:
            graph.erase_node(weight)
            del weights[weight]
    graph_module.recompile()
    return list(weights.values())


def _replace_linears(graph_module: GraphModule) -> None:
    """Lets the linear layers without bias run with `triton_linear`, which is faster for one row."""
    for node in graph_module.graph.nodes:
        if node.target == LINEAR and len(node.args) == 2:
            node.target = torch.ops.eyas.linear_of_rows.default
    graph_module.recompile()


def _merge_weights(module: nn.Module, names: list[str]) -> Tensor:
    """Returns the named weights as one, with their rows one below the other. They become views of it."""
    weights = [operator.attrgetter(name.removeprefix("module."))(module) for name in names]
    if len(weights) == 1:
        return weights[0].detach()
    merged = torch.cat([weight.detach() for weight in weights])
    for weight, part in zip(weights, merged.split([len(weight) for weight in weights]), strict=True):
        weight.data = part
    return merged


# --- target and head ------------------------------------------------------------------------------------------------


def _compile_target(target: Target, layers: nn.ModuleList) -> None:
    calls = {rows: _record_calls(target, layers, rows) for rows in (*CHECK_ROWS, OTHER_ROWS)}
    layer_types = getattr(text_config(target.model), "layer_types", None) or [None] * len(layers)
    graphs: dict[str, _Captured] = {}
    compiled: list[CompiledLayer] = []
    for i, layer in enumerate(layers):
        args, kwargs = calls[EXAMPLE_ROWS][i]
        key = repr((layer_types[i], _structure(layer)))
        if key not in graphs:
            call = _Call(layer, layer.forward, args, {**kwargs, "attend": PackedAttention(_captured_attention)})
            graphs[key] = _capture(call, _tensors((args, kwargs)), _tensors(calls[OTHER_ROWS][i]))
        compiled.append(CompiledLayer(graphs[key].bind(layer, i), layer.forward))
        for rows in CHECK_ROWS:
            args, kwargs = calls[rows][i]
            _check(compiled[i](*args, **kwargs), layer.forward(*args, **kwargs), rows)
    for layer, forward in zip(layers, compiled, strict=True):
        layer.forward = forward
    target.compiled_forward = _LayeredForward(target)


class _LayeredForward:
    """The forward of a target with compiled layers."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __call__(self, attention: PackedAttentionFn, *inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        ids_1T, positions_1T = inputs
        out = self._target.run_layers(ids_1T, positions_1T, PackedAttention(attention), want_aux=True)
        return out.hidden_BTD, out.aux_BTL


def _compile_head(head: Head) -> None:
    head.to(head.norm.weight.device)  # undoes `pack_projections`
    examples = {rows: head_inputs(head, rows) for rows in (*CHECK_ROWS, OTHER_ROWS)}
    wanted = {rows: head.step_with_logits(*examples[rows], PackedAttention(attend_to_text)) for rows in CHECK_ROWS}
    call = _Call(head, head.step_with_logits, (*examples[EXAMPLE_ROWS], PackedAttention(_captured_attention)), {})
    graph = _capture(call, list(examples[EXAMPLE_ROWS]), list(examples[OTHER_ROWS])).bind(head)
    for rows in CHECK_ROWS:
        for found, other in zip(graph(attend_to_text, *examples[rows]), wanted[rows], strict=True):
            _check(found, other, rows)
    head.compiled_forward = graph


def _structure(layer: nn.Module) -> list[object]:
    """Returns what makes the graphs of two layers equal: classes, plain settings, and shapes of weights."""
    parts: list[object] = []
    for name, module in layer.named_modules():
        settings = {k: v for k, v in vars(module).items() if isinstance(v, bool | int | float | str | None)}
        settings.pop("layer_idx", None)
        weights = [(key, tuple(weight.shape), weight.dtype) for key, weight in module.named_parameters(recurse=False)]
        parts.append((name, type(module), settings, weights))
    return parts


def _record_calls(target: Target, layers: nn.ModuleList, rows: int) -> list[tuple[Any, Any]]:
    """Runs the target over a text of `rows` tokens and returns the arguments of each layer."""
    calls: list[tuple[Any, Any]] = []

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))

    hooks = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in layers]
    try:
        target.run_layers(*target_inputs(target, rows), PackedAttention(attend_to_text), False)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _check(found: Tensor, wanted: Tensor, rows: int) -> None:
    error, bound = relative_error(found, wanted), TOLERANCE[wanted.dtype]
    if not error <= bound:
        raise CompileError(f"A compiled layer is wrong: its error is {error:.2g} at {rows} tokens, the limit {bound:g}")
