"""Any transformers causal LM as target: the same greedy tokens as generate, the right layers, clear refusals."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.model.tiny import FAMILIES, SIZES, make_model, save_target
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedConfig,
)

from eyas.base.errors import InputError
from eyas.model.attention import DenseAttend
from eyas.model.hook import register_attention
from eyas.model.probe import check_config, probe
from eyas.model.target import Target, resolve_target

GetDir = Callable[[str], Path]
PROMPT = torch.tensor([[5, 17, 230, 44, 44, 9, 120]])


def greedy(target: Target, prompt_BT: torch.Tensor, num_tokens: int) -> list[int]:
    """A plain cached loop; stops after an end token, as generate does."""
    attend, ids_BT, answer = DenseAttend(), prompt_BT, []
    for _ in range(num_tokens):
        positions_BT = torch.arange(attend.num_kept, attend.num_kept + ids_BT.shape[1])[None]
        out = target.forward(ids_BT, positions_BT, attend.see(None))
        ids_BT = target.logits(out.hidden_BTD[:, -1]).argmax(-1, keepdim=True)
        answer.append(int(ids_BT))
        if answer[-1] in target.facts.eos_ids:
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
        ours = target.forward(PROMPT, positions_BT, DenseAttend(), want_aux=True)
        expected = torch.cat([out.hidden_states[i] for i in layers or (2, 4, 5)], -1)
        assert ours.aux_BTL is not None
        torch.testing.assert_close(ours.aux_BTL, expected, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(ours.hidden_BTD, out.hidden_states[8], atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(target.logits(ours.hidden_BTD), out.logits, atol=2e-5, rtol=1e-4)
    assert target.forward(PROMPT, positions_BT, DenseAttend()).aux_BTL is None
    assert torch.equal(target.embed(PROMPT), reference.get_input_embeddings()(PROMPT))


def test_rows_of_a_tree_equal_each_branch_alone(target_dir: GetDir):
    """After the prompt, rows a (root), b and c (children of a): each sees its own path and stands at its own depth."""
    target = Target.load(target_dir("llama"), torch.float32)
    T = PROMPT.shape[1]
    attend = DenseAttend()
    target.forward(PROMPT, torch.arange(T)[None], attend)
    past = torch.ones(3, T, dtype=torch.bool)
    tree = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    visible_BTS = torch.cat((past, tree), -1)[None]
    nodes_BT, positions_BT = torch.tensor([[11, 12, 13]]), torch.tensor([[T, T + 1, T + 1]])
    out = target.forward(nodes_BT, positions_BT, attend.see(visible_BTS)).hidden_BTD
    for row, path in ((0, [11]), (1, [11, 12]), (2, [11, 13])):
        text = torch.cat((PROMPT, torch.tensor([path])), -1)
        alone = target.forward(text, torch.arange(text.shape[1])[None], DenseAttend()).hidden_BTD
        torch.testing.assert_close(out[0, row], alone[0, -1], atol=1e-5, rtol=1e-4)


def test_transformers_builds_no_mask(target_dir: GetDir, monkeypatch: pytest.MonkeyPatch):
    """Even for positions that look like packed rows, which would make transformers look for documents."""
    target = Target.load(target_dir("llama"), torch.float32)
    import transformers.masking_utils as masking

    def called(*_: object) -> None:
        raise AssertionError("transformers looked at the positions")

    monkeypatch.setattr(masking, "find_packed_sequence_indices", called)
    target.forward(PROMPT, torch.zeros_like(PROMPT), DenseAttend())


@pytest.mark.parametrize("family", FAMILIES)
def test_facts(family: str, target_dir: GetDir):
    target = Target.load(target_dir(family), torch.bfloat16)
    facts = target.facts
    assert (facts.hidden_size, facts.intermediate_size, facts.vocab_size, facts.num_layers) == (48, 64, 300, 8)
    assert (facts.num_heads, facts.num_kv_heads, facts.head_dim, facts.max_positions) == (4, 2, 16, 256)
    assert (facts.rope_type, facts.eos_ids, facts.bos_id) == ("default", (299,), None)
    assert facts.num_parameters == sum(weight.numel() for weight in make_model(family).parameters())
    assert target.aux_layer_ids == (2, 4, 5)
    assert {weight.dtype for weight in target.model.parameters()} == {torch.bfloat16}
    assert not any(weight.requires_grad for weight in target.model.parameters())


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
    with pytest.raises(InputError, match=f"without .*{named}"):
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
    with pytest.raises(InputError, match=r"without usable weights for model\.layers\.8"):
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
    with pytest.raises(InputError, match="0 to 8"):
        Target.load(target_dir("llama"), torch.float32, (2, 4, 9))


def refused(model: Any, directory: Path) -> str:
    with pytest.raises(InputError) as caught:
        Target.load(save_target(model, directory), torch.float32)
    return str(caught.value)


def test_families_that_need_more_are_refused_with_the_reason(tmp_path: Path):
    assert "sliding_window = 32" in refused(make_model("mistral", sliding_window=32), tmp_path / "a")
    qwen = make_model("qwen3", use_sliding_window=True, sliding_window=32, max_window_layers=4)
    assert "sliding_attention" in refused(qwen, tmp_path / "b")
    gemma = Gemma2ForCausalLM(Gemma2Config(**SIZES))
    assert "sliding_attention" in refused(gemma, tmp_path / "c")
    granite = GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=4.0))
    assert "scaled or capped" in refused(granite, tmp_path / "d")


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_forward_are_refused(rope_type: str):
    config = LlamaConfig(**SIZES)
    config.rope_parameters = {"rope_type": rope_type, "rope_theta": 10_000.0, "factor": 2.0}
    with pytest.raises(InputError, match=f"rotary positions of type {rope_type}"):
        check_config(config)


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
        probe(model, 8)
    return str(caught.value)


def test_the_probe_does_not_rely_on_the_configuration():
    """Each of these would pass a look at layer_types; what the layers hand over gives them away."""
    full: dict[str, Any] = {"layer_types": ["full_attention"] * 8}
    soft = Gemma2Config(**SIZES, **full, final_logit_softcapping=None)
    assert "softcap=50.0" in probed(Gemma2ForCausalLM, soft)
    capped = Gemma2Config(**SIZES, **full, attn_logit_softcapping=None)
    assert "scaled or capped" in probed(Gemma2ForCausalLM, capped)
    sinks = GptOssConfig(**SIZES, **full, num_local_experts=2, num_experts_per_tok=1)
    assert "s_aux" in probed(GptOssForCausalLM, sinks)
    heads = {"num_key_value_heads": 4, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 8}
    latent = DeepseekV3Config(**{**SIZES, **heads}, kv_lora_rank=16, q_lora_rank=16)
    assert "values of size 8 for keys of size" in probed(DeepseekV3ForCausalLM, latent)


def test_a_gemma_without_its_caps_is_plain(tmp_path: Path):
    full: dict[str, Any] = {"layer_types": ["full_attention"] * 8}
    torch.manual_seed(0)
    plain: Any = Gemma2ForCausalLM(
        Gemma2Config(**SIZES, **full, attn_logit_softcapping=None, final_logit_softcapping=None)
    ).eval()
    target = Target.load(save_target(plain, tmp_path), torch.float32)
    expected = plain.generate(PROMPT, do_sample=False, max_new_tokens=8)[0, PROMPT.shape[1] :].tolist()
    assert greedy(target, PROMPT, 8) == expected


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
