"""Checks a target when it is loaded: eyas's attention must give the results of transformers' attention.

The check runs the model on seven tokens, so it needs no list of supported families.

B requests, T rows, D hidden, N heads, G key-value heads, H head size, W target vocabulary, P positions in the text.

    forward       attention       rows
    reference     transformers    0 1 2 3 4 5 6
    first         eyas            0 1 2
    second        eyas            s 3 4 5 6, a tree in which s is a sibling of 3

Every layer must compute the same results in the reference and in the two forwards of eyas. A layer with a recurrent
state or a convolution, or one that counts positions itself, gives other results in the second forward. In eyas's
forwards each layer reads its input rows of the reference, so that differences do not add up over the layers. Otherwise
a rounding difference could make the router of a mixture of experts choose another expert.

Seven tokens are too few to test a window or a chunk. So in the first forward transformers passes its mask functions to
the layers, in place of masks. The probe compares the mask function of each layer with its `AttentionParams`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel

from eyas.base.errors import InputError
from eyas.model import submodules
from eyas.model.attention import AttentionParams, DenseAttention
from eyas.model.hook import ATTENTION_NAME, disable_attn_temperature, hf_attention, run_decoder
from eyas.model.submodules import unsupported_target

PROBE_NAME = "eyas-probe"
LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
# Their frequencies follow the largest position of a forward: tree nodes would change the rows before them.
LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
# As a share of what a layer changes in a row, the median over the rows: a router may send one row elsewhere, not most.
MAX_DISTANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
MAX_DISTANCE_HALF = 0.3

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A mask function of transformers: takes the indices of batch, head, query and key, returns True where visible."""


@dataclass(frozen=True)
class ProbeForward:
    """A forward with eyas's attention, whose rows are compared with rows of transformers' forward (the reference).

    Attributes:
        attention: The name of the attention implementation in transformers' registry.
        ids: The token of each row.
        rows: The row of the reference with which each row is compared. Each layer reads the input of that row.
        positions: The position of each row in the text.
        num_skipped: The number of rows at the start that are not compared.
        visible: One string per row over the cached and new rows, "x" where visible; None for the causal mask.
    """

    attention: str
    ids: tuple[int, ...]
    rows: tuple[int, ...]
    positions: tuple[int, ...]
    num_skipped: int
    visible: tuple[str, ...] | None


NUM_TOKENS = 7
TREE_MASK = ("xxxx....", "xxx.x...", "xxx.xx..", "xxx.xxx.", "xxx.xxxx")
PROBE_FORWARDS = (
    ProbeForward(PROBE_NAME, (0, 1, 2), (0, 1, 2), (0, 1, 2), 0, None),
    # The sibling has its own id; between the layers it reads the rows of the last token.
    ProbeForward(ATTENTION_NAME, (7, 3, 4, 5, 6), (6, 3, 4, 5, 6), (3, 3, 4, 5, 6), 1, TREE_MASK),
)


@dataclass(frozen=True)
class AttentionShape:
    """The sizes of the attention of every layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class ProbeAttention(DenseAttention):
    """Dense attention that records its calls and compares the settings of layers with their masks.

    Attributes:
        num_positions: The longest text of the target; masks are compared at positions below it.
        calls: The layers that called the attention, in order.
        shapes: The different (heads, key-value heads, size of keys, size of values) of the calls.
        masks: The mask function of each layer that has not been compared yet.
    """

    def __init__(self, num_positions: int) -> None:
        super().__init__()
        self.num_positions = num_positions
        self.calls: list[int] = []
        self.shapes: set[tuple[int, int, int, int]] = set()
        self.masks: dict[int, MaskFunction] = {}
        self._compared: set[tuple[MaskFunction, int | None, int | None]] = set()

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        """Checks and records the call, and runs dense attention. Raises InputError if settings and mask differ."""
        self.calls.append(layer)
        self.shapes.add((q_BNTH.shape[1], k_BGTH.shape[1], q_BNTH.shape[3], v_BGTH.shape[3]))
        if q_BNTH.shape[3] != v_BGTH.shape[3]:
            raise unsupported_target(f"its values are of size {v_BGTH.shape[3]}, its keys of size {q_BNTH.shape[3]}")
        if (mask := self.masks.pop(layer, None)) is not None:
            self._compare_mask(layer, mask, params)
        return super().__call__(layer, q_BNTH, k_BGTH, v_BGTH, params)

    def _compare_mask(self, layer: int, mask: MaskFunction, params: AttentionParams) -> None:
        key = (mask, params.window, params.chunk)
        if key in self._compared:  # layers of one kind share their mask
            return
        self._compared.add(key)
        positions_P = probe_positions(params, self.num_positions)
        zero, rows, columns = torch.zeros(1, 1, 1, 1, dtype=torch.int64), positions_P[:, None], positions_P
        theirs_PP = mask(zero, zero, rows[None, None], columns[None, None, None])[0, 0].expand(len(rows), -1)
        first_P = params.first_visible(positions_P)
        ours_PP = columns <= rows if first_P is None else (columns <= rows) & (columns >= first_P[:, None])
        if (theirs_PP != ours_PP).any():
            row, column = (int(positions_P[i]) for i in (theirs_PP != ours_PP).nonzero()[0])
            verb = "sees" if theirs_PP[ours_PP != theirs_PP][0] else "does not see"
            reason = f"in the mask of layer {layer} row {row} {verb} row {column}, against its attention arguments"
            raise unsupported_target(reason)


def probe_positions(params: AttentionParams, num_positions: int) -> Tensor:
    """Returns the positions to compare: near each power of two, and near 1, 2 and 3 times the window or chunk size."""
    edges = [2**power for power in range(num_positions.bit_length())]
    edges += [count * params.visible_span for count in (1, 2, 3) if params.visible_span is not None]
    near = {edge + step for edge in edges for step in (-1, 0, 1)}
    return torch.tensor(sorted(position for position in near if 0 <= position < num_positions))


def _probe_mask(
    batch_size: int, q_length: int, kv_length: int, mask_function: MaskFunction, device: torch.device, **_: object
) -> Tensor:
    """Returns a tensor with the shape of a mask, and on it the mask function, so that the probe can read it."""
    mask = torch.ones(batch_size, 1, q_length, kv_length, dtype=torch.bool, device=device)
    mask.function = mask_function  # type: ignore[attr-defined]
    return mask


def _probe_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    attend: ProbeAttention | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if attend is None:
        raise unsupported_target("its layers do not pass keyword arguments on to attention")
    function = getattr(attention_mask, "function", None)
    if function is None:
        raise unsupported_target(f"the mask of layer {module.layer_idx} is not made by transformers' mask functions")
    attend.masks[module.layer_idx] = function
    return hf_attention(module, query, key, value, None, attend=attend, **kwargs)


def check_attention_config(config: PreTrainedConfig) -> None:
    """Raises InputError if a model configuration has a feature that eyas does not support."""
    if getattr(config, "is_encoder_decoder", False):
        raise unsupported_target("it has an encoder")
    layer_types = sorted(set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES)
    if layer_types:
        raise unsupported_target(f"it has layers of type {', '.join(layer_types)}")
    if getattr(config, "max_position_embeddings", None) is None:
        raise unsupported_target("its configuration has no max_position_embeddings")
    for rope in submodules.all_rope_parameters(config):
        if rope.get("rope_type") in LENGTH_DEPENDENT_ROPE:
            raise unsupported_target(f"its RoPE of type {rope['rope_type']} depends on the length of the text")


@dataclass(frozen=True)
class LayerTrace:
    """The inputs and outputs of all layers in one forward.

    Attributes:
        received: For each layer the output of the layer before it.
        inputs: For each layer the input that it read: the received tensor, or the forced one in its place.
        outputs: The output of each layer.
        final: One tensor, the output of the decoder.
    """

    received: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    final: list[Tensor] = field(default_factory=list)


@contextmanager
def trace_layers(model: PreTrainedModel, forced_inputs: list[Tensor] | None = None) -> Iterator[LayerTrace]:
    """Records the next forward in the `with` body.

    Args:
        model: The model.
        forced_inputs: The input that each layer reads in place of the output of the layer before it; None changes none.
    """
    trace = LayerTrace()

    def before(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        received = args[0] if args else named["hidden_states"]
        trace.received.append(received)
        rows = received if forced_inputs is None else forced_inputs[len(trace.inputs)]
        trace.inputs.append(rows)
        return ((rows, *args[1:]), named) if args else (args, {**named, "hidden_states": rows})

    def after(_: nn.Module, args: object, out: Any) -> None:
        trace.outputs.append(out[0] if isinstance(out, tuple) else out)

    decoder = submodules.find_decoder(model)
    hooks = [decoder.register_forward_hook(lambda _, args, out: trace.final.append(out.last_hidden_state))]
    for layer in submodules.find_layers(model):
        hooks += [layer.register_forward_pre_hook(before, with_kwargs=True), layer.register_forward_hook(after)]
    try:
        yield trace
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def probe_attention(model: PreTrainedModel, num_layers: int) -> AttentionShape:
    """Compares eyas's attention with transformers' on a few tokens and returns the measured shape of the attention.

    After the call the model uses eyas's attention: run it only with `run_decoder`.

    Raises:
        InputError: The results differ. Or a layer does not call attention exactly once, in order and with equal shapes.
            Or the settings of a layer differ from its mask. Or the logits are not LM head and softcap of the final
            hidden state, which `Target.logits` computes.
    """
    AttentionInterface.register(PROBE_NAME, _probe_attention)
    AttentionMaskInterface.register(PROBE_NAME, _probe_mask)
    attend = ProbeAttention(submodules.text_config(model).max_position_embeddings)
    try:
        reference = _run_reference(model)
        disable_attn_temperature(model)
        for forward in PROBE_FORWARDS:
            trace = _run_hooked(model, attend, forward, reference)
            if attend.calls != list(range(num_layers)):
                raise unsupported_target(f"of its {num_layers} layers, these call attention: {attend.calls}")
            attend.calls.clear()
            _require_same_trace(trace, reference, forward)
    except torch.OutOfMemoryError:
        raise
    except (TypeError, AttributeError, LookupError, ValueError, RuntimeError) as error:
        raise unsupported_target(f"its forward fails with eyas's attention ({type(error).__name__})") from error
    if len(attend.shapes) != 1:
        raise unsupported_target(f"its layers have different head shapes {sorted(attend.shapes)}")
    num_heads, num_kv_heads, head_dim, _ = attend.shapes.pop()
    return AttentionShape(num_heads, num_kv_heads, head_dim)


def _run_reference(model: PreTrainedModel) -> LayerTrace:
    """Runs the text with transformers' attention and checks that LM head and softcap give the logits of the model."""
    model.set_attn_implementation("eager")
    with trace_layers(model) as trace:
        ids_BT = torch.arange(NUM_TOKENS, device=model.device)[None]
        logits_BTW = model(input_ids=ids_BT, use_cache=False).logits
    if not torch.isfinite(logits_BTW).all():
        raise InputError("The target's logits are not finite: its weights are damaged", "Download the target again")
    softcap = submodules.final_logit_softcap(model)
    computed_BTW = submodules.apply_softcap(submodules.find_lm_head(model)(trace.final[0]), softcap)
    _require_close(computed_BTW, logits_BTW, logits_BTW, "logits")
    return trace


def _run_hooked(
    model: PreTrainedModel, attend: ProbeAttention, forward: ProbeForward, reference: LayerTrace
) -> LayerTrace:
    """Runs a forward with eyas's attention, in which each layer reads its input rows of the reference."""
    device = model.device
    if forward.visible is not None:
        visible_TS = torch.tensor([[letter == "x" for letter in row] for row in forward.visible], device=device)
        positions_BS = torch.tensor([PROBE_FORWARDS[0].positions + forward.positions], device=device)
        attend.set_visible(visible_TS[None], positions_BS)
    model.set_attn_implementation(forward.attention)
    ids_BT, positions_BT = (torch.tensor([row], device=device) for row in (forward.ids, forward.positions))
    with trace_layers(model, [rows_BTD[:, forward.rows] for rows_BTD in reference.inputs]) as trace:
        run_decoder(submodules.find_decoder(model), ids_BT, positions_BT, attend)
    return trace


def _require_same_trace(trace: LayerTrace, reference: LayerTrace, forward: ProbeForward) -> None:
    """Compares embeddings, outputs of all layers and final hidden states. Raises InputError for a difference."""
    embeddings, final = reference.received[0], reference.final[0]
    compared = [(trace.received[0], embeddings, embeddings, "embeddings")]
    for layer, (received, output) in enumerate(zip(reference.inputs, reference.outputs, strict=True)):
        compared.append((trace.outputs[layer], output, output - received, f"results of layer {layer}"))
    compared.append((trace.final[0], final, final, "hidden states"))
    rows = forward.rows[forward.num_skipped :]
    for ours_BTD, theirs_BTD, change_BTD, name in compared:
        _require_close(ours_BTD[:, forward.num_skipped :], theirs_BTD[:, rows], change_BTD[:, rows], name)


def _require_close(ours: Tensor, theirs: Tensor, change: Tensor, name: str) -> None:
    """Raises InputError if two results differ too much.

    Args:
        ours: The result with eyas's attention.
        theirs: The result with transformers' attention.
        change: What the layer added to its input. The limit is a share of its size (the median over all rows).
        name: The name of the result for the error message.
    """
    limit = MAX_DISTANCE.get(ours.dtype, MAX_DISTANCE_HALF)
    ours, theirs, change = ours.double(), theirs.double(), change.double()
    distance = float(((ours - theirs).norm(dim=-1) / change.norm(dim=-1).clamp(min=1e-30)).median())
    if not distance <= limit:
        raise unsupported_target(f"its {name} differ by {distance:.2g} of their size with eyas's attention")
