"""Sizes and settings of a target, from a loaded model or from a configuration without weights.

Without weights, the model is built on the meta device, where tensors have shapes but use no memory. So the number of
parameters comes from transformers' own modules and not from a formula for each family.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from eyas.base.errors import InputError
from eyas.model.attention_probe import AttentionShape
from eyas.model.submodules import all_rope_parameters, count_parameters, text_config
from eyas.model.target_dir import EMBEDDED, resolve_target

EXPERTS = re.compile(r"\.experts\.")  # shared experts, which every token passes, have another name
NUM_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")  # Llama 4 and Mixtral, Qwen, DeepSeek


@dataclass(frozen=True)
class TargetInfo:
    """Sizes and settings of a target.

    Attributes:
        name: The directory, hub id or "embedded" from which the target was loaded.
        intermediate_size: The feed-forward width; None if the target has more than one (some mixtures of experts).
        num_kv_heads: The number of key-value heads. For a loaded target, this and `head_dim` are measured.
        max_positions: The longest text in tokens.
        rope_theta: The RoPE base; None if the target uses no RoPE. If layers differ, that of full-attention layers.
        rope_type: transformers' name of the RoPE scaling, "default" for plain RoPE; None without RoPE.
        bos_id: The id of the begin-of-text token, if there is one.
        eos_ids: The ids of the tokens that end an answer.
        num_parameters: The number of parameters of the text part.
    """

    name: str
    hidden_size: int
    intermediate_size: int | None
    vocab_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rope_theta: float | None
    rope_type: str | None
    rms_norm_eps: float
    bos_id: int | None
    eos_ids: tuple[int, ...]
    num_parameters: int


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a target whose weights were not loaded.

    Attributes:
        info: The sizes and settings.
        active_parameters: The number of parameters that compute one token, embedding and LM head included. In a
            mixture of experts only the experts of the token count.
    """

    info: TargetInfo
    active_parameters: int


def read_target_info(name: str, model: PreTrainedModel, shape: AttentionShape) -> TargetInfo:
    """Returns the sizes and settings of a model. `shape` is the shape of its attention, from `probe_attention`."""
    config = text_config(model)
    rope = all_rope_parameters(config)[0]
    bos_id = config.bos_token_id
    eos = getattr(model.generation_config, "eos_token_id", None)
    eos = config.eos_token_id if eos is None else eos
    return TargetInfo(
        name=name,
        hidden_size=config.hidden_size,
        intermediate_size=getattr(config, "intermediate_size", None),
        vocab_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_positions=config.max_position_embeddings,
        rope_theta=rope.get("rope_theta"),
        rope_type=rope.get("rope_type"),
        rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6),
        bos_id=bos_id if isinstance(bos_id, int) else None,
        eos_ids=() if eos is None else (eos,) if isinstance(eos, int) else tuple(eos),
        num_parameters=count_parameters(model),
    )


def read_model_shape(name: str, sizes: Mapping[str, object] | None) -> ModelShape:
    """Reads the sizes of a target without its weights.

    It takes the configuration from the first of these that exists: a local directory, the hub's cache on this machine,
    `sizes`, the hub.

    Args:
        name: A directory, a hub id, or "embedded".
        sizes: `model_type` and other keys of a config.json, from the recipe's table [plan.shape]; None without it.

    Raises:
        InputError: No configuration is available.
    """
    config = _load_config(name, sizes).get_text_config(decoder=True)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return ModelShape(read_target_info(name, model, attention_shape_of(config)), count_active_parameters(model))


def attention_shape_of(config: PreTrainedConfig) -> AttentionShape:
    """Returns the attention shape according to a configuration. `probe_attention` measures it on a loaded model."""
    num_heads: int = config.num_attention_heads
    num_kv_heads: int = getattr(config, "num_key_value_heads", None) or num_heads
    head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    return AttentionShape(num_heads, num_kv_heads, head_dim)


def count_active_parameters(model: PreTrainedModel) -> int:
    """Counts the parameters that compute one token. Of routed experts, only those used per token are counted."""
    config, total = text_config(model), count_parameters(model)
    in_experts = sum(weight.numel() for name, weight in model.named_parameters() if EXPERTS.search(name))
    num_experts = next((count for key in NUM_EXPERTS if (count := getattr(config, key, None))), None)
    num_used = getattr(config, "num_experts_per_tok", None)
    if not (in_experts and num_experts and num_used):
        return total
    return total - round(in_experts * (1 - num_used / num_experts))


def _load_config(name: str, sizes: Mapping[str, object] | None) -> PreTrainedConfig:
    local = resolve_target(name) if name == EMBEDDED or Path(name).is_dir() else _cached_config_dir(name)
    if local is None and sizes is not None:
        others = {key: value for key, value in sizes.items() if key != "model_type"}
        try:
            return AutoConfig.for_model(str(sizes["model_type"]), **others)
        except ValueError as error:
            problem = f"plan.shape.model_type = {sizes['model_type']!r} is unknown to transformers"
            raise InputError(problem, "Use the model_type of the target's config.json") from error
    try:
        return AutoConfig.from_pretrained(local or name, trust_remote_code=False, local_files_only=local is not None)
    except Exception as error:  # transformers and the hub client raise many classes, all meaning "not available"
        where = "neither a local directory nor on the hub" if local is None else f"damaged in {local}"
        fix = "Download the model, or write its sizes into the recipe's table [plan.shape]"
        raise InputError(f"The configuration of {name} is {where} ({type(error).__name__})", fix) from error


def _cached_config_dir(name: str) -> Path | None:
    """Returns the directory of the model's config.json in the hub's cache on this machine; None if it is not there."""
    from huggingface_hub import try_to_load_from_cache

    if name.count("/") != 1:
        return None
    path = try_to_load_from_cache(name, "config.json")
    return Path(path).parent if isinstance(path, str) else None
