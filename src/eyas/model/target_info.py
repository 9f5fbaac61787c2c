"""What the other rooms need to know about a target, without holding the target."""

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


@dataclass(frozen=True)
class TargetInfo:
    """Sizes and settings of a loaded target.

    `intermediate_size` is None where the target has no single one (some mixtures of experts). `rope_theta` is None
    where the target does not use rotary positions; `rope_type` is transformers' name, "default" for plain RoPE. Where
    layers differ in their RoPE, both are those of the layers that see the whole text.
    `num_kv_heads` and `head_dim` are what the attention function really received, so they hold for any family.
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


EXPERTS = re.compile(r"\.experts\.")  # shared experts, which every token passes, have another name
NUM_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")  # Llama 4 and Mixtral, Qwen, DeepSeek


@dataclass(frozen=True)
class ModelShape:
    """active_parameters: those that one token passes through, embedding and output matrix among them."""

    info: TargetInfo
    active_parameters: int


def read_model_shape(name: str, sizes: Mapping[str, object] | None) -> ModelShape:
    """Of a directory, of a hub id whose config.json lies in the hub's cache, else of `sizes`, else as the hub says.

    sizes: `model_type` and further keys of a config.json. `InputError` where there is nothing of all that.
    """
    config = _load_config(name, sizes).get_text_config(decoder=True)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return ModelShape(read_target_info(name, model, attention_shape_of(config)), count_active_parameters(model))


def attention_shape_of(config: PreTrainedConfig) -> AttentionShape:
    """Of the attention that a text's configuration asks for; `probe` says what its layers really do."""
    num_heads: int = config.num_attention_heads
    return AttentionShape(
        num_heads,
        getattr(config, "num_key_value_heads", None) or num_heads,
        getattr(config, "head_dim", None) or config.hidden_size // num_heads,
    )


def count_active_parameters(model: PreTrainedModel) -> int:
    """Of a token's way through the model: of the routed experts only as many as a token is sent to."""
    config, total = text_config(model), count_parameters(model)
    experts = sum(weight.numel() for name, weight in model.named_parameters() if EXPERTS.search(name))
    of = next((count for key in NUM_EXPERTS if (count := getattr(config, key, None))), None)
    used = getattr(config, "num_experts_per_tok", None)
    return total - round(experts * (1 - used / of)) if experts and of and used else total


def _load_config(name: str, sizes: Mapping[str, object] | None) -> PreTrainedConfig:
    known = resolve_target(name) if name == EMBEDDED or Path(name).is_dir() else _cached_config_dir(name)
    if known is None and sizes is not None:
        rest = {key: value for key, value in sizes.items() if key != "model_type"}
        try:
            return AutoConfig.for_model(str(sizes["model_type"]), **rest)
        except ValueError as error:
            raise InputError(
                f"plan.shape.model_type = {sizes['model_type']!r}",
                "a model_type that transformers knows, as in the target's config.json",
                "correct it",
            ) from error
    try:
        return AutoConfig.from_pretrained(known or name, trust_remote_code=False, local_files_only=known is not None)
    except Exception as error:  # transformers and the hub client raise many classes, all meaning "not available"
        where = "neither here nor on the hub" if known is None else f"damaged in {known}"
        raise InputError(
            f"the configuration of {name} {where} ({type(error).__name__})",
            "its config.json, or its sizes in the recipe's table [plan.shape]",
            "write the sizes down, or download the configuration",
        ) from error


def _cached_config_dir(name: str) -> Path | None:
    """The directory in the hub's cache that has this model's config.json; nothing is downloaded."""
    from huggingface_hub import try_to_load_from_cache

    if name.count("/") != 1:
        return None
    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def read_target_info(name: str, model: PreTrainedModel, shape: AttentionShape) -> TargetInfo:
    """What the model says of itself, and what its attention received."""
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
