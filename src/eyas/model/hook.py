"""The one place where transformers calls us: attention, and the inputs of the captured layers.

B requests, T rows, D hidden, N heads, G key-value heads, H head size.

All rides on keyword arguments that transformers hands down unchanged from a model's forward to its layers, so nothing
is looked up and two forwards may run at once:

    run_decoder -> decoder(ids, attend, capture, rows) -> layer(..., attend, capture, rows) -> hf_attention(...)
                                                          ^ pre-hook fills capture             ^ calls attend
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from eyas.base.errors import InputError
from eyas.model.attention import AttentionFn, AttentionParams
from eyas.model.layer_ids import HFIndex

ATTENTION_NAME = "eyas"
# Keywords that say nothing about who sees whom: dropout is for training, positions are in RoPE, capture is our own.
IGNORED_KWARGS = frozenset({"dropout", "position_ids", "use_cache", "is_causal", "capture"})
SUPPORTED_KWARGS = frozenset({"scaling", "sliding_window", "softcap", "s_aux"})


@dataclass
class LayerCapture:
    """The inputs of the captured layers during one forward, filled by the hooks."""

    inputs_BTD: dict[HFIndex, Tensor] = field(default_factory=dict)


def register_attention() -> None:
    """Make our attention known to transformers (again is harmless).

    No mask function of the same name is registered on purpose: without one transformers builds no mask and does not
    look at the positions, which would cost a synchronisation in every forward.
    """
    AttentionInterface.register(ATTENTION_NAME, hf_attention)


def hook_layers(layers: nn.ModuleList, ids: tuple[HFIndex, ...]) -> None:
    """Let the named layers write their input into the `capture` that their forward is given."""
    for i in ids:
        if i < len(layers):  # id n is the final hidden state, which no layer takes as input
            layers[i].register_forward_pre_hook(_capture_hook(i), with_kwargs=True)


def _capture_hook(i: HFIndex) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    def write(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        capture = kwargs.get("capture")
        if capture is not None:
            capture.inputs_BTD[i] = args[0] if args else kwargs["hidden_states"]

    return write


def run_decoder(
    decoder: nn.Module, ids_BT: Tensor, positions_BT: Tensor, attend: AttentionFn, capture: LayerCapture | None = None
) -> Tensor:
    """hidden_BTD after the final norm. positions_BT is [B, T] or [1, T], in any order.

    `rows_BT` carries the positions to attention: not every family hands `position_ids` on.
    """
    out = decoder(
        input_ids=ids_BT,
        position_ids=positions_BT,
        use_cache=False,
        attend=attend,
        capture=capture,
        rows_BT=positions_BT,
    )
    return out.last_hidden_state


def disable_attn_temperature(model: nn.Module) -> None:
    """Llama 4 scales queries by position in its layers without RoPE, and counts positions by transformers' own cache.

    That count is wrong without such a cache, so it is switched off here; `hf_attention` does it from the positions.
    """
    for module in model.modules():
        if getattr(module, "attn_temperature_tuning", False):
            module.attn_temperature_tuning = False  # type: ignore[assignment]


def hf_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    attend: AttentionFn | None = None,
    rows_BT: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """transformers' attention signature: [B, N, T, H] in, [B, T, N, H] out. RoPE is applied, key and value are G wide.

    What a family asks for becomes a `Rule`. What we do not know changes its attention, so it is refused, as is a mask
    of its own. The probe at load meets this first.
    """
    assert attend is not None, "a model loaded by eyas runs through Target.forward"
    assert rows_BT is not None, "run_decoder gives positions with the attend"
    if attention_mask is not None:
        raise _unsupported_attention("brings a mask of its own")
    if kwargs.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise _unsupported_attention("looks in both directions")
    params = _attention_params(module, query.shape[-1], kwargs)
    config = getattr(module, "config", None)
    if getattr(config, "attn_temperature_tuning", False) and not module.use_rope:
        query = (query * _attn_temperature(module, rows_BT)).to(query.dtype)
    layer: int = module.layer_idx  # type: ignore[assignment]
    return attend(layer, query, key, value, params).transpose(1, 2).contiguous(), None  # some families view it flat


def _attention_params(module: nn.Module, head_dim: int, kwargs: dict[str, Any]) -> AttentionParams:
    """The rule of one layer from what transformers passes, and for chunks from the configuration, which alone says it.

    `sliding_window` counts the row itself in every family: transformers masks `key > query - sliding_window`. The probe
    compares window and chunk with that mask.
    """
    for name, wanted in kwargs.items():
        if name not in IGNORED_KWARGS and name not in SUPPORTED_KWARGS and wanted is not None and wanted is not False:
            raise _unsupported_attention(
                f"needs {name}={wanted if isinstance(wanted, bool | int | float | str) else '...'}"
            )
    scale = kwargs.get("scaling")
    layer_types = getattr(getattr(module, "config", None), "layer_types", None)
    is_chunked = layer_types is not None and layer_types[module.layer_idx] == "chunked_attention"
    return AttentionParams(
        scale=head_dim**-0.5 if scale is None else scale,
        window=kwargs.get("sliding_window"),
        chunk=module.config.attention_chunk_size if is_chunked else None,  # type: ignore[union-attr]
        softcap=kwargs.get("softcap"),
        sinks_N=kwargs.get("s_aux"),
    )


def _attn_temperature(module: Any, positions_BT: Tensor) -> Tensor:
    """Factors [B, 1, T, 1] of Llama 4's queries: 1 + attn_scale * log(1 + floor((position + 1) / floor_scale))."""
    chunks_BT = ((positions_BT.float() + 1.0) / module.floor_scale).floor()
    return (chunks_BT.log1p() * module.attn_scale + 1.0)[:, None, :, None]


def _unsupported_attention(what: str) -> InputError:
    return InputError(
        f"a target whose attention {what}",
        "causal attention, with windows, chunks, soft-caps or sinks at most (docs/families.md)",
        "choose another target",
    )
