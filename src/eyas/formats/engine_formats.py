"""A head written for other engines: one directory each, with what that engine reads and nothing that it misreads.

sglang/             config.json at one level, layers under eagle_config as SGLang counts them, midlayer.X
vllm/               the same, layers at the top level alone; `--speculative-config` names the directory
vllm-speculators/   transformer_layer_config, layers.0.X; `vllm serve DIR` finds the target by itself
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyas.base.storage import write_atomic
from eyas.formats.aux_layers import AUX_LAYERS_KEY, to_sglang_ids
from eyas.formats.config import VARIANT_FLAGS, build_config_json
from eyas.formats.head_dir import CONFIG_FILE, StoredHead, head_tensors, to_safetensors
from eyas.formats.weights import WEIGHTS_FILE
from eyas.model.head import HeadConfig

SPECULATORS_VERSION = "0.9.0"  # whose files these are shaped after
LAYER_KEYS = (
    "model_type",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_hidden_layers",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "attention_bias",
    "mlp_bias",
)


@dataclass(frozen=True)
class EngineFormat:
    """config: the object of config.json, from the head, its dtype, the target's name and the length of its chains.

    refuses: why no such directory can say what this head is; None: it can. prefix: of the layer's tensors.
    """

    name: str
    build_config: Callable[[StoredHead, torch.dtype, str, int], dict[str, Any]]
    find_problem: Callable[[HeadConfig, int], str | None]
    prefix: str = "midlayer."


def write_engine_dir(
    directory: Path, engine_format: EngineFormat, stored: StoredHead, target_name: str, chain: int
) -> None:
    """config.json and the weights, in the precision that they have. config.json comes last."""
    dtype = stored.head.lm_head.weight.dtype
    tensors = head_tensors(stored.head, stored.vocab, dtype)
    renamed = {name.replace("midlayer.", engine_format.prefix): tensor for name, tensor in tensors.items()}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG_FILE).unlink(missing_ok=True)
    write_atomic(directory / WEIGHTS_FILE, to_safetensors(renamed))
    text = json.dumps(engine_format.build_config(stored, dtype, target_name, chain), indent=2) + "\n"
    write_atomic(directory / CONFIG_FILE, text)


def _sglang_config(stored: StoredHead, dtype: torch.dtype, target_name: str, chain: int) -> dict[str, Any]:
    return build_config_json(stored.config, stored.metadata, dtype)


def _vllm_config(stored: StoredHead, dtype: torch.dtype, target_name: str, chain: int) -> dict[str, Any]:
    # A second list under eagle_config would be read literally by some versions and as SGLang's by others.
    return build_config_json(stored.config, stored.metadata, dtype) | {"eagle_config": {"use_aux_hidden_state": True}}


def _speculators_config(stored: StoredHead, dtype: torch.dtype, target_name: str, chain: int) -> dict[str, Any]:
    config, flat = stored.config, build_config_json(stored.config, stored.metadata, dtype)
    rope = {"rope_type": "default", **(config.rope_scaling or {}), "rope_theta": config.rope_theta}
    proposal = {"proposal_type": "greedy", "speculative_tokens": chain, "accept_tolerance": 0.0, "verifier_accept_k": 1}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS_VERSION,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "tie_word_embeddings": False,
        "embed_requires_grad": False,
        **{
            flag: flat[flag] for flag in VARIANT_FLAGS
        },  # vLLM takes what is left out here for true, elsewhere for false
        AUX_LAYERS_KEY: flat[AUX_LAYERS_KEY],
        "torch_dtype": flat["torch_dtype"],
        "transformer_layer_config": {key: flat[key] for key in LAYER_KEYS} | {"rope_parameters": rope},
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": target_name, "architectures": []},
        },
    }


def _sglang_problem(config: HeadConfig, num_layers: int) -> str | None:
    if to_sglang_ids(config.aux_layer_ids) is None:
        return (
            f"layers {list(map(int, config.aux_layer_ids))}: SGLang takes a list that begins with layer 1 for the "
            "layers behind those (since sglang #25454)"
        )
    if config.norm_before_residual:
        return "norm_before_residual, which SGLang does not know"
    return _common_problem(config, num_layers)


def _common_problem(config: HeadConfig, num_layers: int) -> str | None:
    if num_layers in config.aux_layer_ids:
        return f"layer {num_layers}: the engines hand over the last state before the final norm, eyas after it"
    return None


ENGINE_FORMATS = (
    EngineFormat("sglang", _sglang_config, _sglang_problem),
    EngineFormat("vllm", _vllm_config, _common_problem),
    EngineFormat("vllm-speculators", _speculators_config, _common_problem, prefix="layers.0."),
)


def sglang_flags(tree: dict[str, int] | None, head: str) -> str | None:
    """As `python -m sglang.launch_server` takes them; its draft tokens count the root, as our nodes do."""
    if tree is None:
        return None
    return (
        f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {head} "
        f"--speculative-num-steps {tree['depth']} --speculative-eagle-topk {tree['top_k']} "
        f"--speculative-num-draft-tokens {tree['nodes']}"
    )


def vllm_flags(tree: dict[str, int] | None, head: str) -> str | None:
    """As `vllm serve` takes them; it drafts chains alone."""
    if tree is None:
        return None
    assert tree["top_k"] == 1, "vLLM has no trees"
    config = {"method": "eagle3", "model": head, "num_speculative_tokens": tree["depth"]}
    return f"--speculative-config '{json.dumps(config)}'"
