"""Writes a head for SGLang, vLLM and DeepSpec, one directory for each format, and returns the flags that load it.

EAGLE-3            place of the sizes        place of the layer ids   tensors       loaded with
sglang/            top level                 top level, eagle_config  midlayer.X    sglang.launch_server
vllm/              top level                 top level                midlayer.X    vllm serve TARGET
vllm-speculators/  transformer_layer_config  top level                layers.0.X    vllm serve DIR

A DSpark head is written as DeepSpec's Qwen3DSparkModel for all three: sglang/, vllm/, and deepspec/, which also has the
target's embedding and output matrix, because DeepSpec's model class takes both from the file. A DFlash head is written
as z-lab's DFlashDraftModel, only for sglang/ and vllm/.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.base.templates import template_environment
from eyas.formats.aux_layers import AUX_LAYERS_KEY, to_sglang_ids
from eyas.formats.config import FILE_DTYPES, FIXED_VALUES, SIZE_KEYS, VARIANT_FLAGS, build_config_json
from eyas.formats.head_dir import StoredHead, head_tensors, write_files
from eyas.model.block_head import BlockConfig
from eyas.model.head import HeadConfig
from eyas.model.target import Target

NUM_ANCHORS = 512  # DeepSpec's model class requires the key, which only its training reads; this is its default
# Keys that speculators keeps at the top level, not in transformer_layer_config.
TOP_LEVEL_KEYS = ("draft_vocab_size", "target_hidden_size", "tie_word_embeddings")
LAYER_KEYS = tuple(key for key in (*FIXED_VALUES, *SIZE_KEYS.values(), "rms_norm_eps") if key not in TOP_LEVEL_KEYS)


@dataclass(frozen=True)
class EngineFormat:
    """The layout that one engine loads.

    Attributes:
        name: The name of the engine and of the directory.
        adapt_config: Changes the object of eyas's config.json into that of the engine. Takes the object, the target's
            name and the length of the chain to draft.
        find_problem: Returns the reason why this format cannot describe a head; None if it can. Takes the head's
            config and the number of layers of the target.
        prefix: The prefix of the names of the layer's tensors.
        has_matrices: True if the files contain the target's embedding and output matrix.
    """

    name: str
    adapt_config: Callable[[dict[str, Any], str, int], dict[str, Any]]
    find_problem: Callable[[HeadConfig, int], str | None]
    prefix: str = "midlayer."
    has_matrices: bool = False


def write_engine_dir(
    directory: Path, engine_format: EngineFormat, stored: StoredHead, target_name: str, chain: int, target: Target
) -> None:
    """Writes a head in the layout of one engine. The dtype of the weights does not change.

    Args:
        directory: The directory to write.
        engine_format: The layout of the engine.
        stored: The head.
        target_name: The name of the target that is written into config.json, usually a hub id.
        chain: The number of tokens that the engine should draft in each round.
        target: The target, for the files of a block head.
    """
    dtype = stored.head.norm.weight.dtype
    tensors = head_tensors(stored.head, stored.vocab, dtype)
    renamed = {name.replace("midlayer.", engine_format.prefix): tensor for name, tensor in tensors.items()}
    if engine_format.has_matrices:
        matrices = {"embed_tokens.weight": target.embedding.weight, "lm_head.weight": target.lm_head.weight}
        renamed |= {name: weight.detach().cpu().clone() for name, weight in matrices.items()}
    flat = build_config_json(stored.config, stored.metadata, dtype)
    if isinstance(stored.config, BlockConfig):
        flat |= {"num_target_layers": target.info.num_layers, "num_anchors": NUM_ANCHORS}
    write_files(directory, engine_format.adapt_config(flat, target_name, chain), renamed)


def _speculators_config(flat: dict[str, Any], target_name: str, chain: int) -> dict[str, Any]:
    rope = {"rope_type": "default", **(flat["rope_scaling"] or {}), "rope_theta": flat["rope_theta"]}
    layer = {key: flat[key] for key in LAYER_KEYS} | {"rope_parameters": rope}
    keys = {"top_level_keys": TOP_LEVEL_KEYS, "flags": VARIANT_FLAGS, "layers_key": AUX_LAYERS_KEY}
    environment = template_environment("eyas.formats", ".")
    environment.filters["json"] = json.dumps
    template = environment.get_template("speculators_config.json.jinja")
    return json.loads(template.render(config=flat, layer=layer, target_name=target_name, chain=chain, **keys))


def _sglang_problem(config: HeadConfig, num_layers: int) -> str | None:
    if (problem := _common_problem(config, num_layers)) is not None:
        return problem
    if to_sglang_ids(config.aux_layer_ids) is None:
        ids = list(map(int, config.aux_layer_ids))
        return f"the head reads layers {ids}, and SGLang adds 1 to a list that begins with layer 1 (sglang #25454)"
    if config.norm_before_residual:
        return "the head has norm_before_residual, which SGLang does not support"
    return None


def _common_problem(config: HeadConfig, num_layers: int) -> str | None:
    if num_layers in config.aux_layer_ids:
        return f"the head reads layer {num_layers}, which eyas takes after the final norm and the engines before it"
    return None


def _sglang_block_problem(config: HeadConfig, num_layers: int) -> str | None:
    if 0 in config.aux_layer_ids:
        return "the head reads layer 0, the embedding, and SGLang's block heads read only outputs of layers"
    if isinstance(config, BlockConfig) and config.method == "dspark" and not config.markov_rank:
        return "the head has no correction, which SGLang's DSpark code needs"
    return _common_problem(config, num_layers)


def find_matrix_problem(target: Target) -> str | None:
    """Returns why the engines' block heads compute other logits with the target's output matrix; None if they agree."""
    if target.logit_softcap is not None:
        return "the target caps its logits, which the code of the engines does not do"
    weight = getattr(target.lm_head, "weight", None)
    if weight is None or weight.dtype not in FILE_DTYPES.values() or getattr(target.lm_head, "bias", None) is not None:
        return "the target's output matrix is quantized or has a bias, which the engines' block heads cannot use"
    return None


ENGINE_FORMATS = (
    EngineFormat("sglang", lambda flat, *_: flat, _sglang_problem),  # SGLang reads eyas's own config.json
    # Some versions of vLLM would read a second list under eagle_config literally, others would add 1 as SGLang does.
    EngineFormat("vllm", lambda flat, *_: flat | {"eagle_config": {"use_aux_hidden_state": True}}, _common_problem),
    EngineFormat("vllm-speculators", _speculators_config, _common_problem, prefix="layers.0."),
)
BLOCK_FORMATS = (
    EngineFormat("sglang", lambda flat, *_: flat, _sglang_block_problem),
    EngineFormat("vllm", lambda flat, *_: flat, _common_problem),
    EngineFormat("deepspec", lambda flat, *_: flat, _common_problem, has_matrices=True),
)


def engine_formats(config: HeadConfig) -> tuple[EngineFormat, ...]:
    """Returns the formats of heads of this kind."""
    without_matrices = tuple(one for one in BLOCK_FORMATS if not one.has_matrices)
    return {"eagle3": ENGINE_FORMATS, "dspark": BLOCK_FORMATS, "dflash": without_matrices}[config.method]


def sglang_flags(
    tree: dict[str, int] | None, head: str, slots: int | None = None, method: str = "dspark"
) -> str | None:
    """Returns the flags of `python -m sglang.launch_server`.

    Args:
        tree: {"depth", "top_k", "nodes"} of the draft tree; None for no speculation. SGLang's num-draft-tokens includes
            the root, as `nodes` does.
        head: The path of the head directory.
        slots: The number of slots of a block head, which always drafts all of them as a chain; None for EAGLE-3.
        method: The method of a block head, `BlockConfig.method`.

    Returns:
        The flags; None if the tree is None.
    """
    if tree is None:
        return None
    if slots is not None:
        flags = f"--speculative-algorithm {method.upper()} --speculative-draft-model-path"
        return f"{flags} {head} --speculative-num-draft-tokens {slots + 1}"
    return (
        f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {head} "
        f"--speculative-num-steps {tree['depth']} --speculative-eagle-topk {tree['top_k']} "
        f"--speculative-num-draft-tokens {tree['nodes']}"
    )


def vllm_flags(tree: dict[str, int] | None, head: str, slots: int | None = None, method: str = "dspark") -> str | None:
    """Returns the flag of `vllm serve`; None if the tree is None. The arguments are those of `sglang_flags`.

    Requirement: the tree's top_k is 1, a chain.
    """
    if tree is None:
        return None
    assert tree["top_k"] == 1, "vLLM drafts only chains"
    config: dict[str, Any] = {"method": "eagle3", "model": head, "num_speculative_tokens": tree["depth"]}
    if slots is not None:
        config = {"method": method, "model": head, "num_speculative_tokens": slots}
        config |= {"draft_sample_method": "probabilistic"} if method == "dspark" else {}
    return f"--speculative-config '{json.dumps(config)}'"
