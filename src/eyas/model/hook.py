"""The one place where transformers calls us: attention, and the inputs of the captured layers.

B requests, T rows, D hidden, N heads, G key-value heads, H head size.

Both ride on keyword arguments that transformers hands down unchanged from a model's forward to its layers, so nothing
is looked up and two forwards may run at once:

    decoder(ids, attend=..., capture=...) -> layer(..., attend, capture) -> hf_attention(..., attend, capture)
                                             ^ pre-hook fills capture       ^ calls attend
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from eyas.base.errors import InputError
from eyas.model.attention import Attend, Rule
from eyas.model.layer_ids import HFIndex

ATTENTION_NAME = "eyas"


@dataclass
class Capture:
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
            layers[i].register_forward_pre_hook(_hook(i), with_kwargs=True)


def _hook(i: HFIndex) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    def write(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        capture = kwargs.get("capture")
        if capture is not None:
            capture.inputs_BTD[i] = args[0] if args else kwargs["hidden_states"]

    return write


def hf_attention(  # noqa: PLR0913, transformers calls it with these
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    attend: Attend | None = None,
    capture: Capture | None = None,
    position_ids: Tensor | None = None,
    use_cache: bool | None = None,
    is_causal: bool | None = None,
    **more: object,
) -> tuple[Tensor, None]:
    """transformers' attention signature: [B, N, T, H] in, [B, T, N, H] out. RoPE is applied, key and value are G wide.

    Whatever else a family passes here changes its attention, so it is refused: sliding_window, softcap, s_aux (sinks),
    a mask of its own. The probe at load meets this first.
    """
    assert attend is not None, "a model loaded by eyas runs through Target.forward"
    if attention_mask is not None:
        raise _refused("brings a mask of its own")
    if is_causal is False:
        raise _refused("is not causal")
    if more:
        for name, wanted in more.items():
            if wanted is not None and wanted is not False:
                raise _refused(f"needs {name}={wanted if isinstance(wanted, bool | int | float | str) else '...'}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment]
    return attend(layer, query, key, value, Rule(scale)).transpose(1, 2), None


def _refused(what: str) -> InputError:
    return InputError(f"a target whose attention {what}", "plain causal attention", "choose another target")
