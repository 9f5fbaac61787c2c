"""A target's sizes without its weights: from its config.json, or from sizes that somebody wrote down.

The model is built on the meta device, where a tensor has a shape and no memory. So transformers itself says how many
parameters a family has, and no formula of ours can be wrong about it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from eyas.base.errors import InputError
from eyas.model.attention_probe import HeadShape
from eyas.model.submodules import num_parameters, text_config
from eyas.model.target import EMBEDDED, read_facts, resolve_target
from eyas.model.target_info import TargetFacts

EXPERTS = re.compile(r"\.experts\.")  # shared experts, which every token passes, have another name
NUM_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")  # Llama 4 and Mixtral, Qwen, DeepSeek


@dataclass(frozen=True)
class Blueprint:
    """active_parameters: those that one token passes through, embedding and output matrix among them."""

    facts: TargetFacts
    active_parameters: int


def read_blueprint(name: str, sizes: Mapping[str, object] | None) -> Blueprint:
    """Of a directory, of a hub id whose config.json lies in the hub's cache, else of `sizes`, else as the hub says.

    sizes: `model_type` and further keys of a config.json. `InputError` where there is nothing of all that.
    """
    config = _config(name, sizes).get_text_config(decoder=True)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return Blueprint(read_facts(name, model, shape_of(config)), active_parameters(model))


def shape_of(config: PreTrainedConfig) -> HeadShape:
    """Of the attention that a text's configuration asks for; `probe` says what its layers really do."""
    num_heads: int = config.num_attention_heads
    return HeadShape(
        num_heads,
        getattr(config, "num_key_value_heads", None) or num_heads,
        getattr(config, "head_dim", None) or config.hidden_size // num_heads,
    )


def active_parameters(model: PreTrainedModel) -> int:
    """Of a token's way through the model: of the routed experts only as many as a token is sent to."""
    config, total = text_config(model), num_parameters(model)
    experts = sum(weight.numel() for name, weight in model.named_parameters() if EXPERTS.search(name))
    of = next((count for key in NUM_EXPERTS if (count := getattr(config, key, None))), None)
    used = getattr(config, "num_experts_per_tok", None)
    return total - round(experts * (1 - used / of)) if experts and of and used else total


def _config(name: str, sizes: Mapping[str, object] | None) -> PreTrainedConfig:
    known = resolve_target(name) if name == EMBEDDED or Path(name).is_dir() else _cached(name)
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


def _cached(name: str) -> Path | None:
    """The directory in the hub's cache that has this model's config.json; nothing is downloaded."""
    from huggingface_hub import try_to_load_from_cache

    if name.count("/") != 1:
        return None
    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None
