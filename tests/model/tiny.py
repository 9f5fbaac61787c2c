"""Tiny random targets in Hugging Face format."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

CHAT_TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<end>{% endfor %}"
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # wide, so that greedy answers vary instead of repeating one token
    "bos_token_id": None,
    "eos_token_id": 299,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
FAMILIES = ("llama", "qwen3", "mistral")


def make_model(family: str, **changes: Any) -> Any:
    sizes = {**SIZES, **changes}
    torch.manual_seed(FAMILIES.index(family))
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes))
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**{"use_sliding_window": False, **sizes}))
    return MistralForCausalLM(MistralConfig(**{"sliding_window": None, **sizes}))


def save_target(model: Any, directory: Path) -> Path:
    """The model with a byte-level tokenizer and a chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)
    model.save_pretrained(directory)
    return directory
