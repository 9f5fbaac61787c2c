"""Does a family's attention say everything to us? Asked of the loaded model itself, not of a list of names.

B requests, T rows, D hidden, N heads, G key-value heads, H head size, W target vocabulary, P places in the text.

    plain    transformers' own attention over the whole text         0 1 2 3 4 5 6
    ours     the same text in two forwards, the second a tree        0 1 2 | s 3 4 5 6      s is a sibling of 3

Every layer must do the same to its rows. A layer that carries anything from row to row beside keys and values (a state,
a convolution), or that counts positions by itself, gives other rows in the second forward. In ours each layer reads the
rows that it read in plain, so that differences do not add up: in half precision a rounded router may send a row to
another expert, and a few layers later nothing would be comparable.

Seven tokens are fewer than any window. So the first forward runs with transformers' mask functions in place of masks,
and each layer's rule is compared with the function that its mask would have been made from, at places of any distance.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel

from eyas.base.errors import InputError
from eyas.model.attention import AttentionParams, DenseAttention
from eyas.model.hook import ATTENTION_NAME, disable_attn_temperature, hf_attention, run_decoder
from eyas.model.submodules import (
    all_rope_parameters,
    apply_softcap,
    final_logit_softcap,
    find_decoder,
    find_layers,
    find_lm_head,
    text_config,
    unsupported_target,
)

PROBE_NAME = "eyas-probe"
LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
# Their frequencies follow the largest position of a forward: tree nodes would change the rows before them.
LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
# Of what a layer does to a row, the middle one of the rows: a router may send one row elsewhere, but not most of them.
MAX_DISTANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
MAX_DISTANCE_HALF = 0.3

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""transformers' form: (batch, head, query, key) as index tensors that broadcast -> bool."""


@dataclass(frozen=True)
class ProbeForward:
    """One of our forwards: row r of the text has id r and position r; the rows behind `skip` are compared.

    sees: who sees whom, over kept and new rows; None: causal.
    """

    name: str
    ids: tuple[int, ...]
    rows: tuple[int, ...]
    positions: tuple[int, ...]
    num_skipped: int
    visible: tuple[str, ...] | None


NUM_TOKENS = 7
PROBE_FORWARDS = (
    ProbeForward(PROBE_NAME, (0, 1, 2), (0, 1, 2), (0, 1, 2), 0, None),
    # The sibling has an id of its own; between the layers it borrows the rows of the last token.
    ProbeForward(
        ATTENTION_NAME,
        (7, 3, 4, 5, 6),
        (6, 3, 4, 5, 6),
        (3, 3, 4, 5, 6),
        1,
        ("xxxx....", "xxx.x...", "xxx.xx..", "xxx.xxx.", "xxx.xxxx"),
    ),
)


@dataclass(frozen=True)
class AttentionShape:
    """What the attention of every layer receives."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class ProbeAttention(DenseAttention):
    """Dense attention that notes which layers called it and with what shapes, and compares rules with masks."""

    def __init__(self, num_positions: int) -> None:
        super().__init__()
        self.num_positions = num_positions
        self.calls: list[int] = []
        self.shapes: set[tuple[int, int, int, int]] = set()
        self.compared: set[tuple[MaskFunction, int | None, int | None]] = set()
        self.masks: dict[int, MaskFunction] = {}

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        self.calls.append(layer)
        self.shapes.add((q_BNTH.shape[1], k_BGTH.shape[1], q_BNTH.shape[3], v_BGTH.shape[3]))
        if q_BNTH.shape[3] != v_BGTH.shape[3]:
            raise unsupported_target(f"values of size {v_BGTH.shape[3]} for keys of size {q_BNTH.shape[3]}")
        if (mask := self.masks.pop(layer, None)) is not None:
            self._compare(layer, mask, params)
        return super().__call__(layer, q_BNTH, k_BGTH, v_BGTH, params)

    def _compare(self, layer: int, mask: MaskFunction, params: AttentionParams) -> None:
        asked = (mask, params.window, params.chunk)
        if asked in self.compared:  # layers of one kind share their mask
            return
        self.compared.add(asked)
        places_P = probe_positions(params, self.num_positions)
        zero, rows, columns = torch.zeros(1, 1, 1, 1, dtype=torch.int64), places_P[:, None], places_P
        theirs_PP = mask(zero, zero, rows[None, None], columns[None, None, None])[0, 0].expand(len(rows), -1)
        first_P = params.first_visible(places_P)
        ours_PP = columns <= rows if first_P is None else (columns <= rows) & (columns >= first_P[:, None])
        if (theirs_PP != ours_PP).any():
            row, column = (int(places_P[i]) for i in (theirs_PP != ours_PP).nonzero()[0])
            verb = "sees" if theirs_PP[ours_PP != theirs_PP][0] else "does not see"
            raise unsupported_target(f"a mask in layer {layer} by which row {row} {verb} row {column}")


def probe_positions(params: AttentionParams, num_positions: int) -> Tensor:
    """Positions around every power of two, and around the first multiples of the rule's window or chunk."""
    edges = [2**power for power in range(num_positions.bit_length())]
    edges += [count * params.visible_span for count in (1, 2, 3) if params.visible_span is not None]
    near = {edge + step for edge in edges for step in (-1, 0, 1)}
    return torch.tensor(sorted(place for place in near if 0 <= place < num_positions))


def register_probe() -> None:
    """Make the probe's attention and masks known to transformers (again is harmless)."""
    AttentionInterface.register(PROBE_NAME, _probe_attention)
    AttentionMaskInterface.register(PROBE_NAME, _probe_mask)


def _probe_mask(
    batch_size: int, q_length: int, kv_length: int, mask_function: MaskFunction, device: torch.device, **_: object
) -> Tensor:
    """In the shape of a mask, so that a layer may hand it on; what counts is the function that goes with it."""
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
    **asked: Any,
) -> tuple[Tensor, None]:
    if attend is None:
        raise unsupported_target("layers that do not hand a forward's arguments on to attention")
    function = getattr(attention_mask, "function", None)
    if function is None:
        raise unsupported_target(f"a mask in layer {module.layer_idx} that transformers' mask functions do not make")
    attend.masks[module.layer_idx] = function
    return hf_attention(module, query, key, value, None, attend=attend, **asked)


def check_attention_config(config: PreTrainedConfig) -> None:
    """`InputError` for families whose configuration announces what cannot be handled."""
    if getattr(config, "is_encoder_decoder", False):
        raise unsupported_target("an encoder")
    layer_types = sorted(set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES)
    if layer_types:
        raise unsupported_target(f"layers of type {', '.join(layer_types)}")
    if getattr(config, "max_position_embeddings", None) is None:
        raise unsupported_target("no largest position (max_position_embeddings)")
    for rope in all_rope_parameters(config):
        if rope.get("rope_type") in LENGTH_DEPENDENT_ROPE:
            raise unsupported_target(f"rotary positions of type {rope['rope_type']}")


@dataclass(frozen=True)
class LayerTrace:
    """What went through the layers in one forward: what the first was given, and each one's input and output.

    `final` came out of the decoder. With `forced`, each layer read those rows instead of what it was given.
    """

    received: list[Tensor]
    inputs: list[Tensor]
    outputs: list[Tensor]
    final: list[Tensor]


@contextmanager
def trace_layers(model: PreTrainedModel, forced_inputs: list[Tensor] | None = None) -> Iterator[LayerTrace]:
    """Trace the next forward of the model or of its decoder."""
    trace = LayerTrace([], [], [], [])

    def before(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = args[0] if args else named["hidden_states"]
        trace.received.append(given)
        rows = given if forced_inputs is None else forced_inputs[len(trace.inputs)]
        trace.inputs.append(rows)
        return ((rows, *args[1:]), named) if args else (args, {**named, "hidden_states": rows})

    def after(_: nn.Module, args: object, out: Any) -> None:
        trace.outputs.append(out[0] if isinstance(out, tuple) else out)

    def last(_: nn.Module, args: object, out: Any) -> None:
        trace.final.append(out.last_hidden_state)

    hooks = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in find_layers(model)]
    hooks += [layer.register_forward_hook(after) for layer in find_layers(model)]
    hooks += [find_decoder(model).register_forward_hook(last)]
    try:
        yield trace
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def probe_attention(model: PreTrainedModel, num_layers: int) -> AttentionShape:
    """Run a few tokens through the model, plain and through us; `InputError` naming what differs.

    Each layer must call our attention once and in order with the same shapes and show its rule's mask; the logits must
    be the output matrix times the final hidden state, soft-capped at most, for that is what `Target.logits` computes.
    From here on the model runs by `run_decoder` only.
    """
    register_probe()
    attend = ProbeAttention(text_config(model).max_position_embeddings)
    try:
        plain = _run_reference(model)
        disable_attn_temperature(model)
        for part in PROBE_FORWARDS:
            ours = _run_hooked(model, attend, part, plain)
            if attend.calls != list(range(num_layers)):
                raise unsupported_target(f"attention called by layers {attend.calls} of {num_layers}")
            attend.calls.clear()
            _require_same_trace(ours, plain, part)
    except torch.OutOfMemoryError:
        raise
    except (TypeError, AttributeError, LookupError, ValueError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [""]
        raise unsupported_target(
            f"a forward that does not run through ours ({type(error).__name__}: {lines[0]})"
        ) from error
    if len(attend.shapes) != 1:
        raise unsupported_target(f"layers with different head shapes {sorted(attend.shapes)}")
    num_heads, num_kv_heads, head_dim, _ = attend.shapes.pop()
    return AttentionShape(num_heads, num_kv_heads, head_dim)


def _run_reference(model: PreTrainedModel) -> LayerTrace:
    """The text by transformers' own attention; its final hidden states must give the model's logits as ours will."""
    model.set_attn_implementation("eager")
    with trace_layers(model) as trace:
        ids_BT = torch.arange(NUM_TOKENS, device=model.device)[None]
        logits_BTW = model(input_ids=ids_BT, use_cache=False).logits
    if not torch.isfinite(logits_BTW).all():
        raise InputError("a target whose logits are not finite", "finite weights", "fetch the target again")
    _require_close(
        apply_softcap(find_lm_head(model)(trace.final[0]), final_logit_softcap(model)), logits_BTW, logits_BTW, "logits"
    )
    return trace


def _run_hooked(model: PreTrainedModel, attend: ProbeAttention, part: ProbeForward, plain: LayerTrace) -> LayerTrace:
    """One of our forwards, each layer reading its rows from the plain one."""
    device = model.device
    if part.visible is not None:
        visible_TS = torch.tensor([[letter == "x" for letter in row] for row in part.visible], device=device)
        attend.set_visible(
            visible_TS[None], torch.tensor([PROBE_FORWARDS[0].positions + part.positions], device=device)
        )
    model.set_attn_implementation(part.name)
    ids_BT, positions_BT = (torch.tensor([each], device=device) for each in (part.ids, part.positions))
    with trace_layers(model, [rows_BTD[:, part.rows] for rows_BTD in plain.inputs]) as trace:
        run_decoder(find_decoder(model), ids_BT, positions_BT, attend)
    return trace


def _require_same_trace(ours: LayerTrace, plain: LayerTrace, part: ProbeForward) -> None:
    """Embeddings, what each layer does to its rows, and the final hidden states."""

    def taken(theirs_BTD: Tensor) -> Tensor:
        return theirs_BTD[:, part.rows[part.num_skipped :]]

    def near(ours_BTD: Tensor, theirs_BTD: Tensor, change_BTD: Tensor, what: str) -> None:
        _require_close(ours_BTD[:, part.num_skipped :], taken(theirs_BTD), taken(change_BTD), what)

    near(ours.received[0], plain.received[0], plain.received[0], "embeddings")
    for layer, (given, output) in enumerate(zip(plain.inputs, plain.outputs, strict=True)):
        near(ours.outputs[layer], output, output - given, f"results of layer {layer}")
    near(ours.final[0], plain.final[0], plain.final[0], "hidden states")


def _require_close(ours: Tensor, theirs: Tensor, change: Tensor, what: str) -> None:
    """The middle one of the rows' distances, as a share of the change that made the row."""
    most = MAX_DISTANCE.get(ours.dtype, MAX_DISTANCE_HALF)
    ours, theirs, change = ours.double(), theirs.double(), change.double()
    distance = float(((ours - theirs).norm(dim=-1) / change.norm(dim=-1).clamp(min=1e-30)).median())
    if not distance <= most:
        raise unsupported_target(f"{what} that come out otherwise through ours, by {distance:.2g} of their size")
