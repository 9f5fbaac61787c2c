"""Finds the modules of a transformers model that compute logits from token ids, and their settings.

ids -> [embedding -> layers -> norm] -> LM head -> softcap -> logits
       `-------- decoder --------'
"""

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from eyas.base.errors import InputError


def text_config(model: PreTrainedModel) -> PreTrainedConfig:
    """Returns the configuration of the text part of a multimodal model; of a text model its whole configuration."""
    return model.config.get_text_config(decoder=True)


def find_decoder(model: PreTrainedModel) -> nn.Module:
    """Returns the module that computes the final hidden states from token ids."""
    decoder = model.get_decoder()
    if decoder is model:  # Llama 4 declares another prefix than its text part has
        decoder = model.get_submodule("model")
    return decoder


def find_layers(model: PreTrainedModel) -> nn.ModuleList:
    """Returns the decoder layers in order. Raises InputError if the model does not keep them in one ModuleList."""
    decoder, num_layers = find_decoder(model), text_config(model).num_hidden_layers
    for child in decoder.children():
        if isinstance(child, nn.ModuleList) and len(child) == num_layers:
            return child
    raise unsupported_target(f"its {type(decoder).__name__} has no list of {num_layers} layers")


def find_embedding(model: PreTrainedModel) -> nn.Embedding:
    """Returns the input embedding. Raises InputError if it is not an nn.Embedding."""
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):
        raise unsupported_target(f"its embedding is of class {type(embedding).__name__}")
    return embedding


def find_lm_head(model: PreTrainedModel) -> nn.Module:
    """Returns the module that computes logits from final hidden states. Raises InputError if there is none."""
    lm_head = model.get_output_embeddings()
    if lm_head is None:
        raise unsupported_target("it has no LM head")
    return lm_head


def final_logit_softcap(model: PreTrainedModel) -> float | None:
    """Returns the softcap of the model's logits (Gemma 2 has one); None if it has none."""
    return getattr(text_config(model), "final_logit_softcapping", None)


def apply_softcap(logits: Tensor, softcap: float | None) -> Tensor:
    """Returns softcap * tanh(logits / softcap); returns the logits unchanged if softcap is None."""
    return logits if softcap is None else (logits / softcap).tanh() * softcap


def count_parameters(model: PreTrainedModel) -> int:
    """Counts the parameters of decoder, embedding and LM head. A vision part of the model is not counted."""
    parts = (find_decoder(model), find_embedding(model), find_lm_head(model))
    return sum(weight.numel() for weight in {weight for part in parts for weight in part.parameters()})


def all_rope_parameters(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """Returns the RoPE parameters of each kind of layer. The first entry is for layers with full attention."""
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    nested = {kind: inner for kind, inner in rope.items() if isinstance(inner, dict)}
    if not nested:
        return [rope]
    return sorted(nested.values(), key=lambda inner: inner is not nested.get("full_attention"))


def unsupported_target(reason: str) -> InputError:
    """Returns the InputError for an unsupported target. `reason` is a clause such as "it has no LM head"."""
    return InputError(f"eyas does not support this target: {reason}", "Use another target (docs/families.md)")
