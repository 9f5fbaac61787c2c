"""Small random models of every family that docs/families.md promises as target.

All have windows and chunks of 16 positions, so that a prompt of 40 tokens crosses them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tests.tiny import VOCAB_SIZE, tiny_tokenizer
from transformers import PreTrainedModel

REACH = 16  # window and chunk
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
Sizes = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """One row of docs/families.md. `name` is transformers' model type; `title` and `asks` are columns of the table.

    asks: what its layers ask of attention or of the logits, beside scale and causality, as `asked_by` names it.
    """

    name: str
    title: str
    asks: tuple[str, ...]
    make: Callable[[Sizes], PreTrainedModel]


def alternate(layers: int, often: str, every: int = 2) -> list[str]:
    """Every `every`-th layer sees all text, the others are of the kind `often`."""
    return [FULL if layer % every == every - 1 else often for layer in range(layers)]


def llama3(sizes: Sizes) -> PreTrainedModel:
    rope: Sizes = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
    }
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, rope_parameters=rope))


def llama4_text(sizes: Sizes) -> hf.Llama4TextConfig:
    """Three layers in four are chunked; the fourth has no positions, and queries that grow with the position."""
    return hf.Llama4TextConfig(
        **sizes,
        intermediate_size_mlp=96,
        interleave_moe_layer_step=2,
        num_local_experts=4,
        num_experts_per_tok=1,
        attention_chunk_size=REACH,
        floor_scale=8,
        attn_scale=0.5,
    )


def llama4(sizes: Sizes) -> PreTrainedModel:
    """The directory holds a vision part too, as the published ones do."""
    vision = hf.Llama4VisionConfig(
        **VISION,
        vision_output_dim=16,
        projector_input_dim=16,
        projector_output_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    tokens: Sizes = {"boi_token_index": 270, "eoi_token_index": 271, "image_token_index": 272}
    config = hf.Llama4Config(text_config=llama4_text(sizes), vision_config=vision, tie_word_embeddings=False, **tokens)
    return hf.Llama4ForConditionalGeneration(config)


def mistral(sizes: Sizes) -> PreTrainedModel:
    return hf.MistralForCausalLM(hf.MistralConfig(**sizes, sliding_window=REACH))


def mixtral(sizes: Sizes) -> PreTrainedModel:
    return hf.MixtralForCausalLM(
        hf.MixtralConfig(**sizes, sliding_window=REACH, num_local_experts=4, num_experts_per_tok=2)
    )


def qwen2(sizes: Sizes) -> PreTrainedModel:
    """The window begins at a layer, as published configurations can ask for."""
    window: Sizes = {"use_sliding_window": True, "sliding_window": REACH, "max_window_layers": 2}
    return hf.Qwen2ForCausalLM(hf.Qwen2Config(**sizes, **window))


def qwen3(sizes: Sizes) -> PreTrainedModel:
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**sizes, use_sliding_window=False))


def qwen3_moe(sizes: Sizes) -> PreTrainedModel:
    experts: Sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    return hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**sizes, **experts))


def gemma2(sizes: Sizes) -> PreTrainedModel:
    config = hf.Gemma2Config(**sizes, sliding_window=REACH, query_pre_attn_scalar=24)
    config.attn_logit_softcapping, config.final_logit_softcapping = 2.0, 3.0  # low, so that both bite
    return hf.Gemma2ForCausalLM(config)


def gemma3_text(sizes: Sizes, full_rope: dict[str, Any]) -> hf.Gemma3TextConfig:
    return hf.Gemma3TextConfig(
        **sizes,
        sliding_window=REACH,
        layer_types=alternate(sizes["num_hidden_layers"], SLIDING, 3),
        query_pre_attn_scalar=24,
        rope_parameters={FULL: full_rope, SLIDING: {"rope_type": "default", "rope_theta": 10_000.0}},
    )


def gemma3(sizes: Sizes) -> PreTrainedModel:
    return hf.Gemma3ForCausalLM(gemma3_text(sizes, {"rope_type": "default", "rope_theta": 1_000_000.0}))


def gemma3_with_vision(sizes: Sizes) -> PreTrainedModel:
    text = gemma3_text(sizes, {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0})
    vision = hf.SiglipVisionConfig(**VISION)
    config = hf.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=272, tie_word_embeddings=False
    )
    return hf.Gemma3ForConditionalGeneration(config)


def gpt_oss(sizes: Sizes) -> PreTrainedModel:
    config = hf.GptOssConfig(
        **sizes,
        sliding_window=REACH,
        layer_types=alternate(sizes["num_hidden_layers"], SLIDING),
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return hf.GptOssForCausalLM(config)


def phi3(sizes: Sizes) -> PreTrainedModel:
    return hf.Phi3ForCausalLM(hf.Phi3Config(**sizes, sliding_window=REACH))


def olmo2(sizes: Sizes) -> PreTrainedModel:
    return hf.Olmo2ForCausalLM(hf.Olmo2Config(**{name: size for name, size in sizes.items() if name != "head_dim"}))


VISION: Sizes = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
FAMILIES = (
    Family("llama", "Llama 3", ("RoPE llama3",), llama3),
    Family("llama4", "Llama 4, text part", ("chunk", "layers without RoPE", "queries scaled by position"), llama4),
    Family("mistral", "Mistral", ("window",), mistral),
    Family("mixtral", "Mixtral", ("window",), mixtral),
    Family("qwen2", "Qwen 2, Qwen 2.5", ("window",), qwen2),
    Family("qwen3", "Qwen 3", (), qwen3),
    Family("qwen3_moe", "Qwen 3, mixture of experts", (), qwen3_moe),
    Family("gemma2", "Gemma 2", ("window", "soft-cap", "capped logits"), gemma2),
    Family("gemma3_text", "Gemma 3, text only", ("window", "two RoPE bases"), gemma3),
    Family("gemma3", "Gemma 3, text part", ("window", "two RoPE bases", "RoPE linear"), gemma3_with_vision),
    Family("gpt_oss", "gpt-oss", ("window", "sinks", "RoPE yarn"), gpt_oss),
    Family("phi3", "Phi-3", ("window",), phi3),
    Family("olmo2", "OLMo 2", (), olmo2),
)


def family(name: str) -> Family:
    """The family of this name."""
    (found,) = (each for each in FAMILIES if each.name == name)
    return found


def family_target(path: Path, name: str, layers: int = 4, seed: int = 0) -> Path:
    """A random target of the family (float32, hidden size 64) with `tiny_tokenizer`, saved to `path`."""
    tokenizer = tiny_tokenizer()
    sizes: Sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = family(name).make(sizes)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
