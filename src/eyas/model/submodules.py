"""The parts of a transformers model that a text runs through, and what its configuration says of them.

ids -> [embedding -> layers -> norm] -> output matrix -> cap -> logits
       `-------- decoder --------'
"""

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from eyas.base.errors import InputError


def text_config(model: PreTrainedModel) -> PreTrainedConfig:
    """The configuration of the text part; of a text model its own."""
    return model.config.get_text_config(decoder=True)


def find_decoder(model: PreTrainedModel) -> nn.Module:
    """The module from ids to final hidden states."""
    decoder = model.get_decoder()
    if decoder is model:  # Llama 4 names another prefix than the one that its text part has
        decoder = model.get_submodule("model")
    return decoder


def find_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The layers, in order; `InputError` if they do not stand in one list."""
    decoder, num_layers = find_decoder(model), text_config(model).num_hidden_layers
    for child in decoder.children():
        if isinstance(child, nn.ModuleList) and len(child) == num_layers:
            return child
    raise unsupported_target(f"no list of {num_layers} layers in its {type(decoder).__name__}")


def find_embedding(model: PreTrainedModel) -> nn.Embedding:
    """The rows that ids select."""
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):
        raise unsupported_target(f"an embedding of class {type(embedding).__name__}")
    return embedding


def find_lm_head(model: PreTrainedModel) -> nn.Module:
    """The module from final hidden state to logits; `InputError` if the model has none."""
    lm_head = model.get_output_embeddings()
    if lm_head is None:
        raise unsupported_target("no output matrix of its own")
    return lm_head


def final_logit_softcap(model: PreTrainedModel) -> float | None:
    """Logits become cap * tanh(logits / cap) (Gemma 2); None: they stay as they are."""
    return getattr(text_config(model), "final_logit_softcapping", None)


def apply_softcap(logits: Tensor, softcap: float | None) -> Tensor:
    """The logits of a target whose output matrix gave these."""
    return logits if softcap is None else (logits / softcap).tanh() * softcap


def count_parameters(model: PreTrainedModel) -> int:
    """Of what a text runs through; a vision part is loaded with some targets, and not counted."""
    parts = (find_decoder(model), find_embedding(model), find_lm_head(model))
    return sum(weight.numel() for weight in {weight for part in parts for weight in part.parameters()})


def all_rope_parameters(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """The parameters of every kind of RoPE in the model; those of layers that see the whole text come first."""
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    nested = {kind: inner for kind, inner in rope.items() if isinstance(inner, dict)}
    if not nested:
        return [rope]
    return sorted(nested.values(), key=lambda inner: inner is not nested.get("full_attention"))


def unsupported_target(what: str) -> InputError:
    """A target of a family that is not handled."""
    return InputError(
        f"a target with {what}",
        "a decoder that docs/families.md describes: attention by keys and values in every layer, logits soft-capped"
        " at most",
        "choose another target; this family is not handled",
    )
