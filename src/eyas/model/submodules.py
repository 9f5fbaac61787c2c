"""The modules of a transformers model that a text passes through, and their settings in its configuration.

ids -> [embedding -> layers -> norm] -> LM head -> softcap -> logits
       `-------- decoder --------'
"""

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from eyas.base.errors import InputError


def text_config(model: PreTrainedModel) -> PreTrainedConfig:
    """Returns the configuration of the text part; for a text model its own."""
    return model.config.get_text_config(decoder=True)


def find_decoder(model: PreTrainedModel) -> nn.Module:
    """Returns the module from ids to final hidden states."""
    decoder = model.get_decoder()
    if decoder is model:  # Llama 4 declares another prefix than its text part has
        decoder = model.get_submodule("model")
    return decoder


def find_layers(model: PreTrainedModel) -> nn.ModuleList:
    """Returns the layers in order. Raises InputError if they are not in one list."""
    decoder, num_layers = find_decoder(model), text_config(model).num_hidden_layers
    for child in decoder.children():
        if isinstance(child, nn.ModuleList) and len(child) == num_layers:
            return child
    raise unsupported_target(f"its {type(decoder).__name__} has no list of {num_layers} layers")


def find_embedding(model: PreTrainedModel) -> nn.Embedding:
    """Returns the input embedding. Raises InputError if it is of another class."""
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):
        raise unsupported_target(f"its embedding is of class {type(embedding).__name__}")
    return embedding


def find_lm_head(model: PreTrainedModel) -> nn.Module:
    """Returns the module from final hidden states to logits. Raises InputError if the model has none."""
    lm_head = model.get_output_embeddings()
    if lm_head is None:
        raise unsupported_target("it has no LM head")
    return lm_head


def final_logit_softcap(model: PreTrainedModel) -> float | None:
    """Returns the cap of `apply_softcap` for the model's logits (Gemma 2); None for no cap."""
    return getattr(text_config(model), "final_logit_softcapping", None)


def apply_softcap(logits: Tensor, softcap: float | None) -> Tensor:
    """Returns softcap * tanh(logits / softcap), or the logits themselves without a softcap."""
    return logits if softcap is None else (logits / softcap).tanh() * softcap


def count_parameters(model: PreTrainedModel) -> int:
    """Counts the parameters that a text passes through; a vision part, loaded with some targets, does not count."""
    parts = (find_decoder(model), find_embedding(model), find_lm_head(model))
    return sum(weight.numel() for weight in {weight for part in parts for weight in part.parameters()})


def all_rope_parameters(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """Returns the parameters of each kind of RoPE in the model. Those of full-attention layers come first."""
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    nested = {kind: inner for kind, inner in rope.items() if isinstance(inner, dict)}
    if not nested:
        return [rope]
    return sorted(nested.values(), key=lambda inner: inner is not nested.get("full_attention"))


def unsupported_target(reason: str) -> InputError:
    """Returns the error for a target of a family that eyas does not support; `reason` is a clause about the target."""
    return InputError(f"eyas does not support this target: {reason}", "Use another target (docs/families.md)")
