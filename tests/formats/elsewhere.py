"""The same head as other projects write it: built here tensor by tensor from their conventions (facts B.4-B.7)."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from eyas.model.head import Head, HeadConfig
from eyas.model.vocab import DraftVocab

LAYOUTS = ("official EAGLE", "SpecForge", "TorchSpec", "ModelOpt", "speculators", "vLLM")
LIST = "eagle_aux_hidden_state_layer_ids"


def flat_config(config: HeadConfig) -> dict[str, Any]:
    """What all but speculators write at the top."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": config.max_position_embeddings,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


def tensors_of(head: Head, vocab: DraftVocab, layer: str) -> dict[str, Tensor]:
    """Under the layer's prefix, with the offsets of the draft vocabulary."""
    tensors = {name.replace("midlayer.", layer): weight.detach().clone() for name, weight in head.state_dict().items()}
    return tensors | {"d2t": vocab.target_ids_V - torch.arange(vocab.size)}


def write(directory: Path, layout: str, head: Head, vocab: DraftVocab) -> Path:
    """A head directory in the words of one project."""
    directory.mkdir(parents=True)
    config, raw = head.config, flat_config(head.config)
    ids = [int(i) for i in config.aux_layer_ids]
    outputs = [i - 1 for i in ids]
    tensors = tensors_of(head, vocab, "midlayer.")
    if layout == "official EAGLE":  # a pickle, no layers, the sizes that Llama implies left out
        raw["architectures"] = ["LlamaForCausalLM"]
        del raw["head_dim"], raw["rope_scaling"]
        torch.save(tensors | {"t2d": vocab.t2d_W}, directory / "pytorch_model.bin")
    elif layout == "SpecForge":
        raw["eagle_config"] = {LIST: outputs, "use_aux_hidden_state": True}
        save_file(tensors | {"t2d": vocab.t2d_W}, directory / "model.safetensors")
    elif layout == "TorchSpec":  # target ids where others have offsets, an embedding, transformers 5, two shards
        raw["eagle_config"] = {LIST: outputs}
        raw["dtype"] = raw.pop("torch_dtype")
        raw["rope_parameters"] = {"rope_type": "default", "rope_theta": raw.pop("rope_theta")}
        del raw["rope_scaling"]
        tensors["d2t"] = vocab.target_ids_V.clone()
        tensors["embed_tokens.weight"] = torch.zeros(config.vocab_size, config.hidden_size)
        shards = (dict(list(tensors.items())[:5]), dict(list(tensors.items())[5:]) | {"t2d": vocab.t2d_W})
        index = {}
        for number, shard in enumerate(shards, 1):
            name = f"model-{number:05}-of-00002.safetensors"
            save_file(shard, directory / name)
            index |= dict.fromkeys(shard, name)
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    elif layout == "ModelOpt":  # layers.0, no t2d
        raw["eagle_config"] = {LIST: outputs, "use_last_layernorm": True, "next_layer_regular": True}
        save_file(tensors_of(head, vocab, "layers.0."), directory / "model.safetensors")
    elif layout == "vLLM":  # joined products, its own name for d2t, the prefix of its model
        raw[LIST] = ids
        joined = {f"model.{name}": tensor for name, tensor in tensors_of(head, vocab, "layers.0.").items()}
        for name, parts in (("self_attn.qkv_proj", "qkv"), ("mlp.gate_up_proj", ("gate", "up"))):
            room, place = name.split(".")[0], "model.layers.0."
            rows = [joined.pop(f"{place}{room}.{part}_proj.weight") for part in parts]
            joined[f"{place}{name}.weight"] = torch.cat(rows)
        joined["draft_id_to_target_id"] = joined.pop("model.d2t")
        save_file(joined, directory / "model.safetensors")
    else:
        assert layout == "speculators", layout
        keys = ("architectures", "draft_vocab_size", "tie_word_embeddings", "rope_theta", "rope_scaling", "torch_dtype")
        layer = {key: value for key, value in raw.items() if key not in keys}
        layer["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rope_theta}
        raw = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": config.draft_vocab_size,
            "norm_before_residual": config.norm_before_residual,
            "norm_before_fc": config.norm_before_fc,
            "norm_output": config.norm_output,
            LIST: ids,
            "target_hidden_size": None,
            "transformer_layer_config": layer,
            "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "some/target"}},
            "dtype": "float32",
        }
        save_file(tensors_of(head, vocab, "layers.0.") | {"t2d": vocab.t2d_W}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(raw))
    return directory
