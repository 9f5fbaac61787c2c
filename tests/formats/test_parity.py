"""The second reader: against transformers' own parts, equal to ours where it must be, and away where a file lies."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny import tiny_target
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from eyas.formats.config import HeadMetadata
from eyas.formats.head_dir import StoredHead, read_head, write_head
from eyas.formats.parity import NUM_DRAFT_STEPS, ParityResult, TargetStates, compare_with_reference
from eyas.formats.reference_reader import ReferenceHead
from eyas.formats.sglang_vllm import ENGINE_FORMATS, write_engine_dir
from eyas.model.head import Head, HeadConfig
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab

NAMES = [engine.name for engine in ENGINE_FORMATS]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64}
VARIANTS = [
    {},
    {"fc_norm": True, "norm_output": True},
    {"norm_before_fc": True, "norm_output": True},
    {"norm_before_residual": True},
    {"rope_scaling": YARN},
    {"rope_scaling": LLAMA3},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(tiny_target(tmp_path_factory.mktemp("target"), layers=8), torch.float32)


@pytest.fixture(scope="module")
def text(target: Target) -> TargetStates:
    return TargetStates.capture(target, list(b"twice the falconer calls"))


def make(target: Target, directory: Path, **flags: object) -> StoredHead:
    """A random head that every input moves, written and read again."""
    config = dataclasses.replace(HeadConfig.for_target(target.info, 96), **flags)
    head = Head.init(config, 0)
    with torch.no_grad():
        for number, weight in enumerate(head.parameters()):
            weight.mul_(5 if weight.ndim == 2 else 1 + 0.1 * number)
    vocab = DraftVocab.from_counts(torch.arange(target.info.vocab_size) % 5, 96)
    write_head(directory, head, vocab, HeadMetadata("tiny", target.digest), torch.float32)
    return read_head(directory)


@pytest.mark.parametrize("flags", VARIANTS, ids=lambda flags: "-".join(flags) or "plain")
def test_what_is_exported_is_the_head(flags: dict[str, object], target: Target, text: TargetStates, tmp_path: Path):
    stored = make(target, tmp_path / "head", **flags)
    written = 0
    for engine in ENGINE_FORMATS:
        if engine.find_problem(stored.config, 8) is None:
            write_engine_dir(tmp_path / engine.name, engine, stored, "some/target", 3, target)
            found = compare_with_reference(tmp_path / engine.name, engine.name, stored, target, text)
            assert found.ok, (engine.name, found)
            assert (found.layers, len(found.steps)) == ([2, 4, 5], NUM_DRAFT_STEPS + 1)
            again = read_head(tmp_path / engine.name)
            assert again.config == stored.config
            assert torch.equal(again.vocab.d2t_V, stored.vocab.d2t_V)
            assert all(
                torch.equal(a, b) for a, b in zip(again.head.parameters(), stored.head.parameters(), strict=True)
            )
            written += 1
    assert written == (2 if "norm_before_residual" in flags else 3)


def test_the_states_are_those_of_transformers(target: Target, text: TargetStates):
    """Caught at the layers, and what eyas captures, are the entries of hidden_states."""
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(target.directory, dtype=torch.float32)
    with torch.no_grad():
        states = plain(text.ids_T[None], output_hidden_states=True).hidden_states
    for i in range(8):
        torch.testing.assert_close(text.states_TD[i], states[i][0], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(text.states_TD[8], states[8][0], atol=1e-2)  # before the norm, as the engines
    torch.testing.assert_close(text.aux_TL, torch.cat([text.states_TD[i] for i in (2, 4, 5)], -1))


@torch.no_grad()
def test_the_second_reader_by_parts_of_transformers(target: Target, text: TargetStates, tmp_path: Path):
    """Its first step, once more from transformers' norm, rotation and scaled dot product."""
    stored = make(target, tmp_path / "head", rope_scaling=YARN)
    write_engine_dir(tmp_path / "vllm", ENGINE_FORMATS[1], stored, "some/target", 3, target)
    theirs = ReferenceHead(tmp_path / "vllm", "vllm", 8)
    weights = theirs.tensors

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        made = LlamaRMSNorm(x.shape[-1], stored.config.rms_norm_eps)
        made.weight.copy_(weights[f"{name}.weight"])
        return made(x)

    rows = len(text.ids_T) - 1
    hidden = torch.cat([text.states_TD[i][:-1] for i in (2, 4, 5)], -1) @ weights["fc.weight"].T
    pair = torch.cat((norm(text.embeds_TD[1:], "layers.0.input_layernorm"), norm(hidden, "layers.0.hidden_norm")), -1)
    q, k, v = (
        (pair @ weights[f"layers.0.self_attn.{name}_proj.weight"].T).view(1, rows, -1, 16).transpose(1, 2)
        for name in "qkv"
    )
    rope = LlamaConfig(hidden_size=64, num_attention_heads=4, rope_parameters={**YARN, "rope_theta": 10000.0})
    q, k = apply_rotary_pos_emb(q, k, *LlamaRotaryEmbedding(rope)(pair[None], torch.arange(rows)[None]))
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out = hidden + mixed.transpose(1, 2).reshape(rows, -1) @ weights["layers.0.self_attn.o_proj.weight"].T
    x = norm(out, "layers.0.post_attention_layernorm")
    gate = torch.nn.functional.silu(x @ weights["layers.0.mlp.gate_proj.weight"].T)
    out = out + (gate * (x @ weights["layers.0.mlp.up_proj.weight"].T)) @ weights["layers.0.mlp.down_proj.weight"].T
    expected = norm(out, "norm") @ weights["lm_head.weight"].T
    states = theirs.fuse([text.states_TD[i][:-1] for i in theirs.layers])
    found, _ = theirs.forward(text.embeds_TD[1:], states, 0)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)


def changed_config(directory: Path, engine: str) -> None:
    """The layers of the other convention."""
    raw = json.loads((directory / "config.json").read_text())
    if engine == "sglang":
        raw["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [2, 4, 6]
    else:
        raw["eagle_aux_hidden_state_layer_ids"] = [1, 3, 4]
    (directory / "config.json").write_text(json.dumps(raw))


def changed_flag(directory: Path, engine: str) -> None:
    raw = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(raw | {"norm_output": True}))


def changed_d2t(directory: Path, engine: str) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize("change", [changed_config, changed_flag, changed_d2t])
@pytest.mark.parametrize("engine", ENGINE_FORMATS, ids=NAMES)
def test_a_file_that_lies_is_found_out(engine, change, target: Target, text: TargetStates, tmp_path: Path):
    stored = make(target, tmp_path / "head")
    write_engine_dir(tmp_path / engine.name, engine, stored, "some/target", 3, target)
    change(tmp_path / engine.name, engine.name)
    found: ParityResult = compare_with_reference(tmp_path / engine.name, engine.name, stored, target, text)
    assert not found.ok
    if change is changed_flag:
        assert found.steps[0] < 1e-4 * found.largest_logit < max(found.steps)  # seen by unrolling alone
    elif change is changed_d2t:
        assert not found.same_tokens
    else:
        assert found.steps[0] > 1e-2 * found.largest_logit


def test_what_no_engine_can_be_told(target: Target):
    plain = HeadConfig.for_target(target.info, 96)
    first = dataclasses.replace(plain, aux_layer_ids=(1, 2, 3))
    last = dataclasses.replace(plain, aux_layer_ids=(2, 4, 8))
    assert [engine.find_problem(plain, 8) for engine in ENGINE_FORMATS] == [None, None, None]
    assert [engine.find_problem(first, 8) is None for engine in ENGINE_FORMATS] == [False, True, True]
    assert [engine.find_problem(last, 8) is None for engine in ENGINE_FORMATS] == [False, False, False]
