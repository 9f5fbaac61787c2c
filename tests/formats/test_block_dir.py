"""The directory of a block head: what is written is read again, and a head of another convention is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.base.errors import InputError
from eyas.formats.config import HeadMetadata, is_head_config
from eyas.formats.head_dir import read_head, write_head
from eyas.formats.sglang_vllm import engine_formats
from eyas.model.block_head import BlockConfig, BlockHead
from eyas.model.layer_ids import HFIndex
from eyas.model.vocab import DraftVocab

CONFIG = BlockConfig(
    hidden_size=16,
    intermediate_size=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    rms_norm_eps=1e-6,
    rope_theta=5e5,
    vocab_size=40,
    draft_vocab_size=40,
    max_position_embeddings=128,
    target_hidden_size=16,
    aux_layer_ids=(HFIndex(2), HFIndex(4), HFIndex(6)),
    num_layers=2,
    block_size=5,
    markov_rank=3,
    mask_id=39,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    vocab = DraftVocab.from_chosen(torch.ones(40, dtype=torch.bool))
    write_head(tmp_path, BlockHead.init(CONFIG, 0), vocab, HeadMetadata("some/target", eos_ids=(5,)), torch.float32)
    return tmp_path


def change(directory: Path, **keys: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_what_is_written_is_read_again(directory: Path) -> None:
    stored = read_head(directory)
    assert stored.config == CONFIG
    assert (stored.metadata.target_name, stored.metadata.eos_ids) == ("some/target", (5,))
    assert not stored.findings
    assert stored.vocab.size == 40
    for name, weight in BlockHead.init(CONFIG, 0).state_dict().items():
        assert torch.equal(stored.head.state_dict()[name], weight), name


def test_keys_and_tensors_are_those_of_deepspec(directory: Path) -> None:
    """Layer ids count the outputs of layers; the convention of the slots, the block and RoPE are written."""
    raw = json.loads((directory / "config.json").read_text())
    wanted = {"target_layer_ids": [1, 3, 5], "block_size": 5, "mask_token_id": 39, "rope_theta": 5e5, "markov_rank": 3}
    wanted |= {"sample_from_anchor": True, "is_causal": False, "architectures": ["Qwen3DSparkModel"]}
    assert {key: raw[key] for key in wanted} == wanted
    assert is_head_config(raw)
    shapes = {name: list(tensor.shape) for name, tensor in load_file(directory / "model.safetensors").items()}
    assert shapes["markov_head.markov_w1.weight"] == shapes["markov_head.markov_w2.weight"] == [40, 3]
    assert shapes["fc.weight"] == [16, 48]
    assert shapes["confidence_head.proj.weight"] == [1, 19]
    assert {"hidden_norm.weight", "norm.weight", "layers.1.self_attn.q_norm.weight"} <= set(shapes)
    assert not {"d2t", "lm_head.weight", "embed_tokens.weight"} & set(shapes)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"sample_from_anchor": False}, "fill-in convention"),
        ({"is_causal": True}, "is_causal"),
        ({"markov_head_type": "rnn"}, "markov_head_type"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types"),
        ({"target_layer_ids": [1, 3]}, "fc.weight"),
        ({"target_layer_ids": [-2, 3, 5]}, "target_layer_ids"),
        ({"dspark_bonus_anchor": True}, "fill-in convention"),
        ({"is_neox_style": False}, "is_neox_style"),
        ({"dspark_config": {"use_swa": True}}, "use_swa"),
        ({"target_layer_ids": None}, "target_layer_ids"),
        ({"mask_token_id": 40}, "mask token 40"),
        ({"markov_rank": 4}, "markov_w1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_graph_is_refused(directory: Path, keys: dict[str, Any], problem: str) -> None:
    change(directory, **keys)
    with pytest.raises(InputError, match=problem):
        read_head(directory)


def test_copies_of_the_targets_matrices_are_left_out(directory: Path) -> None:
    """DeepSpec's trainer stores them; eyas compares the embedding and uses the target's."""
    tensors = load_file(directory / "model.safetensors")
    rows_WD = torch.randn(40, 16)
    copies = {"model.embed_tokens.weight": rows_WD, "lm_head.weight": rows_WD.clone()}
    save_file(tensors | copies, directory / "model.safetensors")
    stored = read_head(directory)
    assert stored.embedding_WD is not None
    assert torch.equal(stored.embedding_WD, rows_WD)


def test_sglang_reads_no_embedding_and_no_engine_the_last_layer() -> None:
    """eyas takes layer n after the final norm and the engines before it; SGLang refuses the id -1 of the embedding."""
    last = dataclasses.replace(CONFIG, aux_layer_ids=(2, 4, 8))
    first = dataclasses.replace(CONFIG, aux_layer_ids=(0, 2, 3))
    assert {engine.name: engine.find_problem(CONFIG, 8) for engine in engine_formats(CONFIG)} == dict.fromkeys(
        ("sglang", "vllm", "deepspec")
    )
    assert [engine.name for engine in engine_formats(first) if engine.find_problem(first, 8)] == ["sglang"]
    assert all("layer 8" in str(engine.find_problem(last, 8)) for engine in engine_formats(last))


def test_a_head_that_reads_the_embedding_is_read_again(tmp_path: Path) -> None:
    """The embedding is hidden state 0, so DeepSpec's id is -1."""
    config = dataclasses.replace(CONFIG, aux_layer_ids=(0, 2, 3))
    every = DraftVocab.from_chosen(torch.ones(40, dtype=torch.bool))
    write_head(tmp_path, BlockHead.init(config, 0), every, HeadMetadata(), torch.float32)
    assert json.loads((tmp_path / "config.json").read_text())["target_layer_ids"] == [-1, 1, 2]
    assert read_head(tmp_path).config == config
