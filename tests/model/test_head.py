"""The head against the official numbers, Llama's RoPE, its own seed, and torch.compile."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from eyas.base.errors import InputError
from eyas.model.attention import DenseAttention, causal_mask, dense_attention
from eyas.model.head import Head, HeadConfig, Rope, apply_rope
from eyas.model.layer_ids import HFIndex
from eyas.model.target_info import TargetInfo

OFFICIAL = json.loads((Path(__file__).parent / "official_eagle3.json").read_text())
LAYERS = (HFIndex(2), HFIndex(4), HFIndex(5))
CONFIG = HeadConfig(
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    vocab_size=20,
    draft_vocab_size=11,
    max_position_embeddings=64,
    target_hidden_size=32,
    aux_layer_ids=LAYERS,
)


def formula(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The documented formula of official_eagle3.json."""
    total, values = sum(name.encode()), []
    for i in range(math.prod(shape)):
        x = math.sin(12.9898 * (i + 1) + 78.233 * total) * 43758.5453
        values.append(round(x - math.floor(x) - 0.5, 4))
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def official_head(dtype: torch.dtype) -> Head:
    head = Head.init(dataclasses.replace(CONFIG, **OFFICIAL["config"]), seed=0, dtype=dtype)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            value = formula(name, tuple(weight.shape))
            weight.copy_(1 + 0.5 * value if weight.ndim == 1 else 0.6 * value)
    return head


def unrolled_picture(num_rows: int, step: int) -> torch.Tensor:
    """Row t of step k sees step 0 up to t, and of the later steps only its own diagonal.

        step 0   step 1  step 2
    0   x . .    x . .   x . .
    1   x x .    . x .   . x .
    2   x x x    . . x   . . x
    """
    diagonal = torch.eye(num_rows, dtype=torch.bool)
    return torch.cat([causal_mask(num_rows, num_rows)[0]] + [diagonal] * step, -1)[None]


@pytest.mark.parametrize(("dtype", "packed"), [(torch.float32, False), (torch.float64, True)])
@torch.no_grad()
def test_seven_steps_equal_the_official_implementation(dtype: torch.dtype, packed: bool):
    head = official_head(dtype)
    if packed:
        head.pack_projections()
    embedding = 2 * formula("embed_tokens.weight", (20, 32)).to(dtype)
    ids_BT = torch.tensor([OFFICIAL["input_ids"]])
    T = ids_BT.shape[1]
    hidden = head.fuse_aux(torch.cat([4 * formula(f"aux.{i}", (1, T, 32)) for i in range(3)], -1).to(dtype))
    attend = DenseAttention()
    for k, (logits, out_sums) in enumerate(zip(OFFICIAL["logits"], OFFICIAL["out_sums"], strict=True)):
        ids_BT = F.pad(ids_BT[:, 1:], (0, 1))  # the official shift: token 0 comes in from the right
        positions_BT = torch.arange(T)[None] + k
        out = head.step(embedding[ids_BT], hidden, positions_BT, attend.set_visible(unrolled_picture(T, k)))
        torch.testing.assert_close(head.logits(out)[0].float(), torch.tensor(logits), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(out.sum(-1)[0].float(), torch.tensor(out_sums), atol=2e-5, rtol=1e-5)
        hidden = head.next_hidden(out)
    assert k == 6


def test_parameter_names_and_shapes_are_those_of_the_checkpoints():
    head = Head.init(dataclasses.replace(CONFIG, fc_norm=True), seed=0)
    shapes = {name: list(weight.shape) for name, weight in head.state_dict().items()}
    assert shapes == {
        "fc.weight": [32, 96],
        "midlayer.hidden_norm.weight": [32],
        "midlayer.input_layernorm.weight": [32],
        "midlayer.self_attn.q_proj.weight": [32, 64],
        "midlayer.self_attn.k_proj.weight": [16, 64],
        "midlayer.self_attn.v_proj.weight": [16, 64],
        "midlayer.self_attn.o_proj.weight": [32, 32],
        "midlayer.post_attention_layernorm.weight": [32],
        "midlayer.mlp.gate_proj.weight": [48, 32],
        "midlayer.mlp.up_proj.weight": [48, 32],
        "midlayer.mlp.down_proj.weight": [32, 48],
        "norm.weight": [32],
        "lm_head.weight": [11, 32],
        "fc_norm.0.weight": [32],
        "fc_norm.1.weight": [32],
        "fc_norm.2.weight": [32],
    }
    assert "fc_norm.0.weight" not in Head.init(CONFIG, seed=0).state_dict()


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_rope_equals_llama(theta: float):
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=1,
        head_dim=64,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    x_BNTH = torch.randn(2, 3, 5, 64, generator=torch.Generator().manual_seed(0))
    positions_BT = torch.tensor([[0, 1, 2, 100, 8000], [7, 7, 6, 5, 8191]])
    cos, sin = LlamaRotaryEmbedding(config)(x_BNTH, positions_BT)
    expected_BNTH, _ = apply_rotary_pos_emb(x_BNTH, x_BNTH, cos, sin)
    ours_BTNH = apply_rope(x_BNTH.transpose(1, 2), *Rope(64, theta)(positions_BT, torch.float32))
    torch.testing.assert_close(ours_BTNH.transpose(1, 2), expected_BNTH, atol=1e-6, rtol=1e-5)


def test_a_cast_does_not_reach_the_frequencies():
    """Through bfloat16 and back the angles are still those of float32."""
    positions_BT = torch.tensor([[5000]])
    cos, _ = Rope(64, 10000.0)(positions_BT, torch.float32)
    there_and_back, _ = Rope(64, 10000.0).bfloat16().float()(positions_BT, torch.float32)
    assert torch.equal(cos, there_and_back)


@torch.no_grad()
def test_the_switches_of_eagle_3_1():
    aux_BTL = torch.randn(1, 2, 96, generator=torch.Generator().manual_seed(0))
    out_BTD = torch.randn(1, 2, 32, generator=torch.Generator().manual_seed(1))
    plain = official_head(torch.float32)
    newer = Head.init(dataclasses.replace(CONFIG, fc_norm=True, norm_output=True), seed=0)
    newer.load_state_dict(plain.state_dict(), strict=False)
    for i, scale in enumerate((1.0, 2.0, 3.0)):
        newer.get_parameter(f"fc_norm.{i}.weight").fill_(scale)
    parts = aux_BTL.split(32, -1)
    normed = [p / (p.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * s for p, s in zip(parts, (1, 2, 3), strict=True)]
    torch.testing.assert_close(newer.fuse_aux(aux_BTL), torch.cat(normed, -1) @ plain.fc.weight.T)
    assert plain.next_hidden(out_BTD) is out_BTD
    torch.testing.assert_close(newer.next_hidden(out_BTD) @ plain.lm_head.weight.T, plain.logits(out_BTD))


def test_init_is_seeded_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    heads = [Head.init(CONFIG, seed).state_dict() for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    for name, weight in heads[0].items():
        assert torch.equal(weight, heads[1][name])
        if weight.ndim == 1:
            assert (weight == 1).all()
        else:
            assert not torch.equal(weight, heads[2][name])
            assert weight.std().item() == pytest.approx(0.02, rel=0.15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@torch.no_grad()
def test_packing_changes_no_value_and_follows_the_weights(dtype: torch.dtype):
    head, packed = official_head(dtype), official_head(dtype).pack_projections()
    rows = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    positions_BT = torch.arange(3)[None]
    tolerance = 0.1 if dtype == torch.bfloat16 else 1e-5

    def step(head: Head) -> torch.Tensor:
        return head.logits(head.step(rows, rows, positions_BT, DenseAttention()))

    first = step(packed)
    assert first.dtype == dtype
    torch.testing.assert_close(first, step(head), atol=tolerance, rtol=tolerance)
    for each in (head, packed):
        each.midlayer.self_attn.v_proj.weight.mul_(2)
    assert not torch.equal(first, step(packed))
    torch.testing.assert_close(step(packed), step(head), atol=tolerance, rtol=tolerance)
    assert packed.to(torch.float32).midlayer.self_attn.qkv_packed is None


def test_gradients_reach_every_parameter():
    head = official_head(torch.float32)
    rows = torch.randn(1, 3, 96, generator=torch.Generator().manual_seed(0))
    out = head.step(rows[..., :32], head.fuse_aux(rows), torch.arange(3)[None], DenseAttention())
    head.logits(out).square().sum().backward()
    for name, weight in head.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


@torch.no_grad()
def test_attention_as_an_argument_survives_compile():
    """One graph without breaks; the eager backend proves the capture, a real one would only change the speed."""
    head = official_head(torch.float32)
    rows = torch.randn(1, 3, 96, generator=torch.Generator().manual_seed(0))
    positions_BT = torch.arange(3)[None]

    def one_step(rows: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
        def attend(layer, q_BNTH, k_BGTH, v_BGTH, params):
            return dense_attention(q_BNTH, k_BGTH, v_BGTH, causal_mask(3, 3), params.scale)

        return head.logits(head.step(rows[..., :32], head.fuse_aux(rows), positions_BT, attend))

    compiled = torch.compile(one_step, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(rows, positions_BT), one_step(rows, positions_BT))


FACTS = TargetInfo(
    name="tiny",
    hidden_size=32,
    intermediate_size=48,
    vocab_size=20,
    num_layers=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_positions=64,
    rope_theta=10000.0,
    rope_type="default",
    rms_norm_eps=1e-5,
    bos_id=None,
    eos_ids=(1,),
    num_parameters=1,
)


def test_a_head_is_shaped_like_its_target():
    assert HeadConfig.for_target(FACTS, 11) == CONFIG
    assert HeadConfig.for_target(FACTS, 11, intermediate_size=96).intermediate_size == 96


@pytest.mark.parametrize("rope_type", ["llama3", "yarn", "linear"])
def test_a_head_turns_plainly_at_the_base_of_a_target_that_scales(rope_type: str):
    scaled = HeadConfig.for_target(dataclasses.replace(FACTS, rope_type=rope_type, rope_theta=500_000.0), 11)
    assert scaled == dataclasses.replace(CONFIG, rope_theta=500_000.0)


def test_a_target_that_gives_no_head_is_refused():
    with pytest.raises(InputError, match="has no rotary positions"):
        HeadConfig.for_target(dataclasses.replace(FACTS, rope_type=None, rope_theta=None), 11)
    with pytest.raises(InputError, match="feed-forward width"):
        HeadConfig.for_target(dataclasses.replace(FACTS, intermediate_size=None), 11)
