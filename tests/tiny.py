"""Small targets with a chat template: random weights, a byte-level tokenizer, no training."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

# The template of the embedded target.
EMBEDDED_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIAL = (
    "<|begin|>",
    "<|end|>",
    "<|pad|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
VOCAB_SIZE = 288  # 256 bytes, one merge, the special tokens, and rows that no text uses


def tiny_tokenizer(
    template: str | None = EMBEDDED_TEMPLATE, bos: str = "<|begin|>", eos: str = "<|end|>"
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer: one token a byte, but two line breaks are one token, as in many real vocabularies."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate([*letters, "ĊĊ"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("Ċ", "Ċ")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, pad_token="<|pad|>")
    fast.chat_template = template
    return fast


def tiny_target(path: Path, family: str = "llama", layers: int = 4, seed: int = 0) -> Path:
    """A random Llama, Qwen3 or Mistral with plain attention (float32, hidden size 48), saved to `path`.

    With `tiny_tokenizer`. Every family with what its attention asks for: `tests.model.families.family_target`.
    """
    import torch
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    tokenizer = tiny_tokenizer()
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,  # wide, so that greedy answers vary instead of repeating one token
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if family == "llama":
            model = LlamaForCausalLM(LlamaConfig(**sizes))
        elif family == "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(**sizes, use_sliding_window=False))
        else:
            assert family == "mistral", family
            model = MistralForCausalLM(MistralConfig(**sizes, sliding_window=None))
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
