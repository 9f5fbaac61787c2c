"""Any transformers causal LM as target: the same greedy tokens as generate, the right layers, clear refusals."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.model.tiny import FAMILIES, SIZES, make_model, save_target
from transformers import (
    AfmoeConfig,
    AfmoeForCausalLM,
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MiMoV2FlashConfig,
    MiMoV2FlashForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    NemotronConfig,
    NemotronForCausalLM,
    PreTrainedConfig,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from eyas.base.errors import EyasError, InputError
from eyas.model import hook
from eyas.model.attention import AttentionParams, DenseAttention
from eyas.model.attention_probe import AttentionShape, check_attention_config, probe_attention
from eyas.model.hook import register_attention
from eyas.model.target import Target, load_target_without_layers
from eyas.model.target_dir import resolve_target

GetDir = Callable[[str], Path]
PROMPT = torch.tensor([[5, 17, 230, 44, 44, 9, 120]])


def greedy(target: Target, prompt_BT: torch.Tensor, num_tokens: int) -> list[int]:
    """A plain cached loop; stops after an end token, as generate does."""
    attend, ids_BT, answer = DenseAttention(), prompt_BT, []
    for _ in range(num_tokens):
        positions_BT = torch.arange(attend.num_cached, attend.num_cached + ids_BT.shape[1])[None]
        out = target.forward(ids_BT, positions_BT, attend.set_visible(None))
        ids_BT = target.logits(out.hidden_BTD[:, -1]).argmax(-1, keepdim=True)
        answer.append(int(ids_BT))
        if answer[-1] in target.info.eos_ids:
            break
    return answer


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_generate(family: str, target_dir: GetDir):
    directory = target_dir(family)
    target = Target.load(directory, torch.float32)
    reference: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    expected = reference.generate(PROMPT, do_sample=False, max_new_tokens=32)[0, PROMPT.shape[1] :].tolist()
    assert greedy(target, PROMPT, 32) == expected
    assert len(set(expected)) > 8  # a model that repeats itself would prove little


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_layers_are_the_hidden_states_of_transformers(family: str, target_dir: GetDir):
    directory = target_dir(family)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="sdpa")
    out = reference(PROMPT, output_hidden_states=True)
    positions_BT = torch.arange(PROMPT.shape[1])[None]
    for layers in (None, (0, 3, 8), (1, 7, 8)):
        target = Target.load(directory, torch.float32, layers)
        ours = target.forward(PROMPT, positions_BT, DenseAttention(), want_aux=True)
        expected = torch.cat([out.hidden_states[i] for i in layers or (2, 4, 5)], -1)
        assert ours.aux_BTL is not None
        torch.testing.assert_close(ours.aux_BTL, expected, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(ours.hidden_BTD, out.hidden_states[8], atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(target.logits(ours.hidden_BTD), out.logits, atol=2e-5, rtol=1e-4)
    assert target.forward(PROMPT, positions_BT, DenseAttention()).aux_BTL is None
    assert torch.equal(target.embed(PROMPT), reference.get_input_embeddings()(PROMPT))


def test_rows_of_a_tree_equal_each_branch_alone(target_dir: GetDir):
    """After the prompt, rows a (root), b and c (children of a): each sees its own path and stands at its own depth."""
    target = Target.load(target_dir("llama"), torch.float32)
    T = PROMPT.shape[1]
    attend = DenseAttention()
    target.forward(PROMPT, torch.arange(T)[None], attend)
    past = torch.ones(3, T, dtype=torch.bool)
    tree = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    visible_BTS = torch.cat((past, tree), -1)[None]
    nodes_BT, positions_BT = torch.tensor([[11, 12, 13]]), torch.tensor([[T, T + 1, T + 1]])
    out = target.forward(nodes_BT, positions_BT, attend.set_visible(visible_BTS)).hidden_BTD
    for row, path in ((0, [11]), (1, [11, 12]), (2, [11, 13])):
        text = torch.cat((PROMPT, torch.tensor([path])), -1)
        alone = target.forward(text, torch.arange(text.shape[1])[None], DenseAttention()).hidden_BTD
        torch.testing.assert_close(out[0, row], alone[0, -1], atol=1e-5, rtol=1e-4)


def test_transformers_builds_no_mask(target_dir: GetDir, monkeypatch: pytest.MonkeyPatch):
    """Even for positions that look like packed rows, which would make transformers look for documents."""
    target = Target.load(target_dir("llama"), torch.float32)
    import transformers.masking_utils as masking

    def called(*_: object) -> None:
        raise AssertionError("transformers looked at the positions")

    monkeypatch.setattr(masking, "find_packed_sequence_indices", called)
    target.forward(PROMPT, torch.zeros_like(PROMPT), DenseAttention())


@pytest.mark.parametrize("family", FAMILIES)
def test_facts(family: str, target_dir: GetDir):
    target = Target.load(target_dir(family), torch.bfloat16)
    facts = target.info
    assert (facts.hidden_size, facts.intermediate_size, facts.vocab_size, facts.num_layers) == (48, 64, 300, 8)
    assert (facts.num_heads, facts.num_kv_heads, facts.head_dim, facts.max_positions) == (4, 2, 16, 256)
    assert (facts.rope_type, facts.eos_ids, facts.bos_id) == ("default", (299,), None)
    assert facts.num_parameters == sum(weight.numel() for weight in make_model(family).parameters())
    assert target.aux_layer_ids == (2, 4, 5)
    assert {weight.dtype for weight in target.model.parameters()} == {torch.bfloat16}
    assert not any(weight.requires_grad for weight in target.model.parameters())


def test_ends_of_what_is_not_whole(target_dir: GetDir, tmp_path: Path):
    shutil.copytree(target_dir("llama"), tmp_path / "copy")
    (tmp_path / "copy" / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match="cannot load"):
        load_target_without_layers(tmp_path / "copy")
    with pytest.raises(InputError, match="No directory"):
        load_target_without_layers(tmp_path / "nowhere")


def test_digests_follow_the_content(target_dir: GetDir, tmp_path: Path):
    directory = target_dir("llama")
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    first, second = Target.load(directory, torch.float32), Target.load(copy, torch.float32)
    assert first.digest == second.digest
    assert first.digest.startswith("sha256:")
    assert first.tokenizer_digest == second.tokenizer_digest
    assert first.template_digest == second.template_digest
    model = make_model("llama")
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1
    model.save_pretrained(copy)
    (copy / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    changed = Target.load(copy, torch.float32)
    assert changed.digest != first.digest
    assert changed.template_digest != first.template_digest
    assert len({first.digest, first.tokenizer_digest, first.template_digest}) == 3


@pytest.mark.parametrize(
    ("gone", "named"),
    [("config.json", "config.json"), ("model.safetensors", "safetensors"), ("tokenizer.json", "tokenizer")],
)
def test_missing_files_are_named(gone: str, named: str, target_dir: GetDir, tmp_path: Path):
    shutil.copytree(target_dir("llama"), tmp_path / "t")
    (tmp_path / "t" / gone).unlink()
    with pytest.raises(InputError, match=f"has no .*{named}"):
        Target.load(tmp_path / "t", torch.float32)


def test_other_weight_files_are_not_read(target_dir: GetDir, tmp_path: Path):
    """A pickle beside the configuration is no replacement for safetensors."""
    shutil.copytree(target_dir("llama"), tmp_path / "t")
    (tmp_path / "t" / "model.safetensors").unlink()
    torch.save(make_model("llama").state_dict(), tmp_path / "t" / "pytorch_model.bin")
    with pytest.raises(InputError, match="safetensors"):
        Target.load(tmp_path / "t", torch.float32)


def test_missing_template_is_refused_when_it_is_needed(target_dir: GetDir, tmp_path: Path):
    shutil.copytree(target_dir("llama"), tmp_path / "t")
    (tmp_path / "t" / "chat_template.jinja").unlink()
    target = Target.load(tmp_path / "t", torch.float32)
    with pytest.raises(InputError, match="chat template"):
        target.require_chat_template()
    assert Target.load(target_dir("llama")).require_chat_template().startswith("{% for")


def test_missing_directory():
    for name in ("/nowhere/at/all", "./nowhere", "nowhere", "nowhere/at-the-hub"):
        with pytest.raises(InputError, match="nowhere"):
            resolve_target(name)


def test_embedded_is_inside_the_package():
    assert resolve_target("embedded").parts[-3:] == ("eyas", "embedded", "target")


def test_damaged_and_incomplete_weights(target_dir: GetDir, tmp_path: Path):
    shutil.copytree(target_dir("llama"), tmp_path / "t")
    weights = tmp_path / "t" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(InputError, match="cannot load"):
        Target.load(tmp_path / "t", torch.float32)
    config = json.loads((tmp_path / "t" / "config.json").read_text())
    config["num_hidden_layers"] = 9
    shutil.copy(target_dir("llama") / "model.safetensors", weights)
    (tmp_path / "t" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"has no usable weights for model\.layers\.8"):
        Target.load(tmp_path / "t", torch.float32)


def test_code_from_a_model_directory_is_not_run(target_dir: GetDir, tmp_path: Path):
    shutil.copytree(target_dir("llama"), tmp_path / "t")
    config = json.loads((tmp_path / "t" / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"}}
    (tmp_path / "t" / "config.json").write_text(json.dumps(config))
    (tmp_path / "t" / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(InputError, match="cannot load"):
        Target.load(tmp_path / "t", torch.float32)
    assert not (tmp_path / "ran").exists()


def test_layers_out_of_range(target_dir: GetDir):
    with pytest.raises(InputError, match="has ids 0 to 8"):
        Target.load(target_dir("llama"), torch.float32, (2, 4, 9))


def refused(model: Any, directory: Path) -> str:
    with pytest.raises(InputError) as caught:
        Target.load(save_target(model, directory), torch.float32)
    return str(caught.value)


def test_what_no_rule_says_is_refused_with_the_reason(tmp_path: Path):
    granite = GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=4.0))
    assert "its logits differ by 3 of their size" in refused(granite, tmp_path / "a")
    gemma = Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, use_bidirectional_attention=True))
    assert "is bidirectional" in refused(gemma, tmp_path / "b")
    encoder = T5ForConditionalGeneration(T5Config(vocab_size=300, d_model=16, d_ff=16, d_kv=8, num_layers=1))
    assert "it has an encoder" in refused(encoder, tmp_path / "c")


def test_layers_that_keep_a_state_are_refused(tmp_path: Path):
    """By what the configuration announces, and by what a second forward shows: Falcon-H1 calls attention as all do."""
    linear = ["linear_attention"] * 7 + ["full_attention"]
    next_ = Qwen3NextForCausalLM(Qwen3NextConfig(**SIZES, layer_types=linear, num_experts=2, num_experts_per_tok=1))
    assert "layers of type linear_attention" in refused(next_, tmp_path)
    hybrid = FalconH1Config(**SIZES, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_n_groups=1)
    assert "results of layer 0" in probed(FalconH1ForCausalLM, hybrid)


def test_a_window_that_transformers_masks_but_does_not_announce_is_refused(tmp_path: Path):
    """Qwen 2 MoE builds the mask of a window and keeps it from its attention function."""
    window: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 2}
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    model = Qwen2MoeForCausalLM(Qwen2MoeConfig(**{**SIZES, **window, **experts}, shared_expert_intermediate_size=16))
    assert "row 32 does not see row 0" in refused(model, tmp_path)


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_forward_are_refused(rope_type: str):
    config = LlamaConfig(**SIZES)
    moving = {"rope_type": rope_type, "rope_theta": 10_000.0, "factor": 2.0}
    plain = {"rope_type": "default", "rope_theta": 10_000.0}
    for config.rope_parameters in (moving, {"full_attention": plain, "sliding_attention": moving}):
        with pytest.raises(InputError, match=f"its RoPE of type {rope_type} depends"):
            check_attention_config(config)


def test_a_family_with_attention_of_its_own_is_refused(tmp_path: Path):
    """Falcon here is written without transformers' attention interface."""
    assert "cannot load" in refused(
        FalconForCausalLM(FalconConfig(vocab_size=300, hidden_size=48, num_hidden_layers=8, num_attention_heads=4)),
        tmp_path,
    )


def probed(model_class: Any, config: PreTrainedConfig) -> str:
    register_attention()
    torch.manual_seed(0)
    model = model_class._from_config(config, attn_implementation="eyas").eval()
    with pytest.raises(InputError) as caught:
        probe_attention(model, 8)
    return str(caught.value)


def test_keys_and_values_of_different_sizes_are_refused():
    heads = {"num_key_value_heads": 4, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 8}
    experts = {"n_routed_experts": 2, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1}
    latent = DeepseekV3Config(**{**SIZES, **heads, **experts}, kv_lora_rank=16, q_lora_rank=16)
    assert "its values are of size 8, its keys of size 32" in probed(DeepseekV3ForCausalLM, latent)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"window": 21}, "row 20 does not see row 0"),
        ({"window": 19}, "row 19 sees row 0"),
        ({"window": None}, "does not see row 0"),
        ({"window": None, "chunk": 20}, "row 20 sees row 1,"),
        ({"softcap": None}, "results of layer 0"),
        ({"scale": 0.3}, "results of layer 0"),
    ],
)
def test_the_probe_finds_a_rule_that_is_not_the_models(change: dict[str, Any], said: str, monkeypatch: Any):
    """Gemma 2 with a window of 20, read wrongly. Five tokens would not show the window; its mask function does."""
    config = Gemma2Config(**SIZES, sliding_window=20, attn_logit_softcapping=0.5)
    monkeypatch.setattr(hook, "AttentionParams", lambda **kwargs: AttentionParams(**{**kwargs, **change}))
    assert said in probed(Gemma2ForCausalLM, config)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"chunk": 21}, "row 20 does not see row 0"),
        ({"chunk": None}, "does not see row 0"),
        ({"chunk": None, "window": 20}, "row 20 does not see row 1"),
    ],
)
def test_the_probe_finds_wrong_chunks(change: dict[str, Any], said: str, monkeypatch: Any):
    config = Llama4TextConfig(**SIZES, intermediate_size_mlp=64, num_local_experts=2, attention_chunk_size=20)
    monkeypatch.setattr(hook, "AttentionParams", lambda **kwargs: AttentionParams(**{**kwargs, **change}))
    assert said in probed(Llama4ForCausalLM, config)


def test_layers_that_call_attention_twice_are_refused():
    assert "these call attention: [0, 0, 1, 1" in probed(DiffLlamaForCausalLM, DiffLlamaConfig(**SIZES))


def test_layers_of_different_shapes_are_refused():
    experts = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
    config = MiMoV2FlashConfig(**{**SIZES, **experts, "swa_num_key_value_heads": 4, "v_head_dim": 16})
    said = probed(MiMoV2FlashForCausalLM, config)
    assert "layers have different head shapes [(4, 2, 16, 16), (4, 4, 16, 16)]" in said


def test_positions_that_the_model_counts_itself_are_refused():
    class Counted(torch.nn.Embedding):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(torch.arange(input.shape[1])[None])

    register_attention()
    config = GPT2Config(vocab_size=300, n_embd=32, n_layer=8, n_head=2, n_positions=64)
    model = GPT2LMHeadModel._from_config(config, attn_implementation="eyas").eval()
    assert probe_attention(model, 8) == AttentionShape(2, 2, 16)
    model.transformer.wpe = Counted(64, 32)
    with pytest.raises(InputError, match="its embeddings differ"):
        probe_attention(model, 8)


def test_a_forward_that_breaks_off_is_refused():
    """Llama without positions of its own: whatever a family raises when it runs through us is a reason."""
    register_attention()
    model: Any = LlamaForCausalLM._from_config(LlamaConfig(**SIZES), attn_implementation="eyas").eval()
    plain = model.model.forward

    def without_positions(position_ids: object = None, **asked: Any) -> object:
        if position_ids is not None:
            raise ValueError("positions are mine")
        return plain(**asked)

    model.model.forward = without_positions
    with pytest.raises(InputError, match=r"its forward fails with eyas's attention \(ValueError\)"):
        probe_attention(model, 8)


def test_a_family_that_hands_our_arguments_to_nobody_is_refused():
    assert "do not pass keyword arguments on" in probed(NemotronForCausalLM, NemotronConfig(**SIZES))


def test_weights_that_are_not_finite_are_refused(tmp_path: Path):
    model = make_model("llama")
    with torch.no_grad():
        model.lm_head.weight[0, 0] = float("nan")
    assert "logits are not finite" in refused(model, tmp_path)


def test_sinks_that_are_dropped_are_found(monkeypatch: Any):
    config = GptOssConfig(**{**SIZES, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 32})
    monkeypatch.setattr(hook, "AttentionParams", lambda **kwargs: AttentionParams(**{**kwargs, "sinks_N": None}))
    assert "results of layer 0" in probed(GptOssForCausalLM, config)


def test_a_gemma_without_its_caps_is_plain(tmp_path: Path):
    full: dict[str, Any] = {"layer_types": ["full_attention"] * 8}
    torch.manual_seed(0)
    plain: Any = Gemma2ForCausalLM(
        Gemma2Config(**SIZES, **full, attn_logit_softcapping=None, final_logit_softcapping=None)
    ).eval()
    target = Target.load(save_target(plain, tmp_path), torch.float32)
    expected = plain.generate(PROMPT, do_sample=False, max_new_tokens=8)[0, PROMPT.shape[1] :].tolist()
    assert greedy(target, PROMPT, 8) == expected


def test_a_cap_that_is_dropped_is_found(monkeypatch: Any):
    monkeypatch.setattr("eyas.model.attention_probe.submodules.apply_softcap", lambda logits, cap: logits)
    assert "its logits differ" in probed(Gemma2ForCausalLM, Gemma2Config(**SIZES, final_logit_softcapping=5.0))


def test_a_family_that_views_what_attention_returns(tmp_path: Path):
    """Most families reshape it; this one needs it in one piece."""
    torch.manual_seed(0)
    model: Any = AfmoeForCausalLM(AfmoeConfig(**SIZES, num_experts=2, num_experts_per_tok=1, sliding_window=4)).eval()
    target = Target.load(save_target(model, tmp_path), torch.float32)
    expected = model.generate(PROMPT, do_sample=False, max_new_tokens=8)[0, PROMPT.shape[1] :].tolist()
    assert greedy(target, PROMPT, 8) == expected


def test_spread_over_all_devices(target_dir: GetDir):
    """On a machine with one device this is the same target."""
    pytest.importorskip("accelerate")
    spread, target = (Target.load(target_dir("llama"), torch.float32, device=device) for device in ("auto", "cpu"))
    assert greedy(spread, PROMPT.to(spread.model.device), 8) == greedy(target, PROMPT, 8)


def test_devices_that_are_not_there(target_dir: GetDir, monkeypatch: pytest.MonkeyPatch):
    """Said before the target is looked for."""
    monkeypatch.setitem(sys.modules, "accelerate", None)  # importing it fails
    missing = f"cuda:{torch.cuda.device_count()}"
    for name, told in (("auto", r"eyas\[large\]"), (missing, f"no device {missing}"), ("gpu", "cuda:N")):
        with pytest.raises(EyasError, match=told) as refused:
            Target.load(target_dir("llama") / "nowhere", torch.float32, device=name)
        assert refused.value.exit_code == 2


def test_mixtures_of_experts_and_tied_embeddings_are_fine(tmp_path: Path):
    sizes = {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
    torch.manual_seed(0)
    models: list[Any] = [
        MixtralForCausalLM(MixtralConfig(**sizes)),
        LlamaForCausalLM(LlamaConfig(**{**SIZES, "tie_word_embeddings": True})),
    ]
    for number, model in enumerate(models):
        target = Target.load(save_target(model, tmp_path / str(number)), torch.float32)
        reference = model.eval().generate(PROMPT, do_sample=False, max_new_tokens=8)[0, PROMPT.shape[1] :].tolist()
        assert greedy(target, PROMPT, 8) == reference
