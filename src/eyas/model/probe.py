"""Does a family's attention say everything to us? Asked of the loaded model itself, not of a list of names.

B requests, T rows, N heads, G key-value heads, H head size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from eyas.base.errors import InputError
from eyas.model.attention import DenseAttend, Rule

NUM_PROBE_TOKENS = 3


@dataclass(frozen=True)
class HeadShape:
    """What the attention of every layer receives."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class ProbeAttend(DenseAttend):
    """Dense causal attention that notes which layers called it, with what shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []
        self.shapes: set[tuple[int, int, int, int]] = set()

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, rule: Rule) -> Tensor:
        self.calls.append(layer)
        self.shapes.add((q_BNTH.shape[1], k_BGTH.shape[1], q_BNTH.shape[3], v_BGTH.shape[3]))
        if q_BNTH.shape[3] != v_BGTH.shape[3]:
            raise _refused(f"values of size {v_BGTH.shape[3]} for keys of size {q_BNTH.shape[3]}")
        return super().__call__(layer, q_BNTH, k_BGTH, v_BGTH, rule)


def check_config(config: PreTrainedConfig) -> None:
    """`InputError` for families whose configuration announces attention that is not plain."""
    layer_types = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if layer_types:
        raise _refused(f"layers of type {', '.join(layer_types)}")
    windows = () if hasattr(config, "layer_types") else ("sliding_window",)  # a list of full layers says: not used
    for name in (*windows, "attention_chunk_size", "attn_logit_softcapping"):
        if getattr(config, name, None):
            raise _refused(f"{name} = {getattr(config, name)}")
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rope_type in ("dynamic", "longrope"):
        # Their frequencies follow the largest position of a forward: tree nodes would change the rows before them.
        raise _refused(f"rotary positions of type {rope_type}")
    if getattr(config, "is_encoder_decoder", False):
        raise _refused("an encoder")


def output_matrix(model: PreTrainedModel) -> nn.Module:
    """The module from final hidden state to logits; `InputError` if the model has none."""
    lm_head = model.get_output_embeddings()
    if lm_head is None:
        raise _refused("no output matrix of its own")
    return lm_head


@torch.no_grad()
def probe(model: PreTrainedModel, num_layers: int) -> HeadShape:
    """Run a few tokens through the model; `InputError` naming what is not plain.

    Each layer must call our attention once and in order with the same shapes, and the model's logits must be its
    output matrix times the final hidden state, for that is what `Target.logits` computes.
    """
    ids_BT = torch.arange(NUM_PROBE_TOKENS, device=model.device)[None]
    attend = ProbeAttend()
    seen: dict[str, Any] = {}
    lm_head = output_matrix(model)
    hooks = (
        model.get_decoder().register_forward_hook(lambda _, args, out: seen.update(final=out.last_hidden_state)),
        lm_head.register_forward_pre_hook(lambda _, args: seen.update(hidden=args[0])),
    )
    try:
        logits_BTW = model(input_ids=ids_BT, position_ids=ids_BT, use_cache=False, attend=attend).logits
    except TypeError as error:  # a forward without room for our arguments
        raise _refused(f"a forward that does not take our arguments ({error})") from error
    finally:
        for hook in hooks:
            hook.remove()
    if not torch.isfinite(logits_BTW).all():
        raise InputError("a target whose logits are not finite", "finite weights", "fetch the target again")
    if attend.calls != list(range(num_layers)):
        raise _refused(f"attention called by layers {attend.calls} of {num_layers}")
    if len(attend.shapes) != 1:
        raise _refused(f"layers with different head shapes {sorted(attend.shapes)}")
    if not torch.equal(seen["hidden"], seen["final"]) or not torch.equal(lm_head(seen["hidden"]), logits_BTW):
        raise _refused("logits that are scaled or capped, not just the output matrix times the hidden state")
    num_heads, num_kv_heads, head_dim, _ = attend.shapes.pop()
    return HeadShape(num_heads, num_kv_heads, head_dim)


def _refused(what: str) -> InputError:
    return InputError(
        f"a target with {what}",
        "a decoder with plain causal attention in every layer and plain logits",
        "choose another target; this family is not handled yet",
    )
