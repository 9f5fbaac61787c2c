"""The functions of eyas that transformers calls: the attention, and hooks that store the inputs of captured layers.

B requests, T rows, D hidden, N heads, G key-value heads, H head size.

transformers passes keyword arguments unchanged from a model's forward to its layers. eyas passes its objects in such
arguments. So it needs no global state, and two forwards may run at the same time:

    run_decoder -> decoder(ids, attend, capture, ...) -> layer(..., attend, capture, ...) -> hf_attention(...)
                                                         ^ a pre-hook fills capture        ^ calls attend
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from eyas.model.attention import AttentionFn, AttentionParams
from eyas.model.layer_ids import HFIndex
from eyas.model.submodules import unsupported_target

ATTENTION_NAME = "eyas"
# Keywords that do not change the mask: dropout is for training, positions are in RoPE, capture is eyas's own.
IGNORED_KWARGS = frozenset({"dropout", "position_ids", "use_cache", "is_causal", "capture"})
SUPPORTED_KWARGS = frozenset({"scaling", "sliding_window", "softcap", "s_aux"})


@dataclass
class LayerCapture:
    """The inputs of the captured layers in one forward. The hooks of `hook_layers` fill it.

    It is no dict: torch.export would take the tensors of a dict for inputs of the layer.

    Attributes:
        inputs_BTD: The input of each captured layer by its id.
    """

    inputs_BTD: dict[HFIndex, Tensor] = field(default_factory=dict)


def register_attention() -> None:
    """Registers eyas's attention with transformers. A second call changes nothing.

    It registers no mask function under this name. So transformers builds no mask. Building one would read the positions
    from the device, which costs a synchronization in every forward.
    """
    AttentionInterface.register(ATTENTION_NAME, hf_attention)


def hook_layers(layers: nn.ModuleList, ids: tuple[HFIndex, ...]) -> None:
    """Adds a hook to the layers with these ids. It writes a layer's input to the `capture` argument of its forward."""
    for i in ids:
        if i < len(layers):  # id n is the final hidden state, which no layer takes as input
            layers[i].register_forward_pre_hook(partial(_capture_input, i), with_kwargs=True)


def _capture_input(i: HFIndex, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    capture = kwargs.get("capture")
    if capture is not None:
        capture.inputs_BTD[i] = args[0] if args else kwargs["hidden_states"]


def run_decoder(
    decoder: nn.Module, ids_BT: Tensor, positions_BT: Tensor, attend: AttentionFn, capture: LayerCapture | None = None
) -> Tensor:
    """Runs the decoder and returns hidden_BTD after the final norm.

    It passes the positions also as `attn_positions_BT`, because some families do not pass `position_ids` to attention.

    Args:
        decoder: The module from ids to final hidden states.
        ids_BT: Token ids.
        positions_BT: Positions in the text, [B, T] or [1, T], in any order.
        attend: The attention of every layer.
        capture: Receives the inputs of the hooked layers; None captures nothing.
    """
    out = decoder(
        input_ids=ids_BT,
        position_ids=positions_BT,
        use_cache=False,
        attend=attend,
        capture=capture,
        attn_positions_BT=positions_BT,
    )
    return out.last_hidden_state


def disable_attn_temperature(model: nn.Module) -> None:
    """Disables the code of Llama 4 that scales queries by position. `hf_attention` scales them instead.

    Llama 4 scales the queries of its layers without RoPE. It reads the positions from transformers' cache, which eyas
    does not use.
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
    attn_positions_BT: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Runs the attention of one layer with the signature that transformers requires.

    Takes queries [B, N, T, H] and keys and values [B, G, T, H], with RoPE applied. Returns [B, T, N, H] and None. It
    converts the keyword arguments of transformers to `AttentionParams` and calls `attend`.

    Raises:
        InputError: The model passes a mask, or a setting that eyas does not know. `probe_attention` raises this error
            when a target is loaded.
    """
    assert attend is not None, "a model loaded by eyas runs through Target.forward"
    assert attn_positions_BT is not None, "run_decoder passes the positions with attend"
    if attention_mask is not None:
        raise unsupported_target("its layers pass their own attention mask")
    if kwargs.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise unsupported_target("its attention is bidirectional")
    params = _attention_params(module, query.shape[-1], kwargs)
    config = getattr(module, "config", None)
    if getattr(config, "attn_temperature_tuning", False) and not module.use_rope:
        query = (query * _attn_temperature(module, attn_positions_BT)).to(query.dtype)
    layer: int = module.layer_idx  # type: ignore[assignment]
    return attend(layer, query, key, value, params).transpose(1, 2).contiguous(), None  # some families view it flat


def _attention_params(module: nn.Module, head_dim: int, kwargs: dict[str, Any]) -> AttentionParams:
    """Converts transformers' arguments for one layer to AttentionParams. The chunk size is in the configuration.

    In every family a sliding window includes the row itself: a row sees `key > query - sliding_window`.
    """
    for name, wanted in kwargs.items():
        if name not in IGNORED_KWARGS and name not in SUPPORTED_KWARGS and wanted is not None and wanted is not False:
            shown = wanted if isinstance(wanted, bool | int | float | str) else "..."
            raise unsupported_target(f"its attention needs {name}={shown}")
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
    """Returns Llama 4's factors of queries [B, 1, T, 1]: 1 + attn_scale * log(1 + (position + 1) // floor_scale)."""
    chunks_BT = ((positions_BT.float() + 1.0) / module.floor_scale).floor()
    return (chunks_BT.log1p() * module.attn_scale + 1.0)[:, None, :, None]
