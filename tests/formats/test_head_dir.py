"""A head directory goes there and back; every way to be wrong is named; fit with a target is told in words."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.base.errors import InputError
from eyas.base.provenance import StageInputs, finish_stage
from eyas.formats.config import HeadMetadata
from eyas.formats.fit import check_fit, require_fit
from eyas.formats.head_dir import read_head, write_head
from eyas.model.attention import DenseAttention
from eyas.model.head import DraftHead, Head, HeadConfig
from eyas.model.target_info import TargetInfo
from eyas.model.vocab import DraftVocab

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
    bos_id=0,
    eos_ids=(1, 2),
    num_parameters=1,
)
ORIGIN = HeadMetadata("tiny", "sha256:aa", trained_context=128, bos_id=0, eos_ids=(1, 2))
CONFIG = HeadConfig.for_target(FACTS, 11)
VOCAB = DraftVocab.from_counts(torch.arange(20) % 7, 11, (1,))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_head(tmp_path / "head", Head.init(CONFIG, 0), VOCAB, ORIGIN, torch.float32)
    return tmp_path / "head"


@torch.no_grad()
def logits(head: DraftHead) -> torch.Tensor:
    assert isinstance(head, Head)
    rows = torch.linspace(-1, 1, 2 * 96, dtype=head.fc.weight.dtype).view(1, 2, 96)
    return head.logits(head.step(rows[..., :32], head.fuse_aux(rows), torch.arange(2)[None], DenseAttention()))


def test_the_evaluation_of_a_head_comes_along(directory: Path):
    """From its own directory, or from its run directory if the head that was evaluated there is this one."""
    stored, run = read_head(directory), directory.parent
    assert stored.acceptance is None
    (run / "eval").mkdir()
    (run / "eval" / "acceptance.json").write_text('{"arms": {"tree8": {"by_depth": [0.5]}}}')
    assert read_head(directory).acceptance is None, "the evaluation is not finished"
    finish_stage(run / "eval", StageInputs("eval", "settings", {"head": stored.digest}), 0.0)
    assert read_head(directory).acceptance == {"arms": {"tree8": {"by_depth": [0.5]}}}
    write_head(directory, Head.init(CONFIG, 1), VOCAB, ORIGIN, torch.float32)
    assert read_head(directory).acceptance is None, "another head was evaluated"
    (directory / "acceptance.json").write_text('{"schema": 1}')
    assert read_head(directory).acceptance == {"schema": 1}
    (directory / "acceptance.json").write_text("[")
    with pytest.raises(InputError, match="is not valid JSON"):
        read_head(directory)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("newer", [False, True])
def test_there_and_back(dtype: torch.dtype, newer: bool, tmp_path: Path):
    config = dataclasses.replace(CONFIG, fc_norm=newer, norm_output=newer)
    head = Head.init(config, 3, dtype).pack_projections()  # packed weights share memory, which the file must not
    digest = write_head(tmp_path / "head", head, VOCAB, ORIGIN, dtype)
    stored = read_head(tmp_path / "head")
    assert (stored.config, stored.metadata, stored.digest) == (config, ORIGIN, digest)
    assert all(weight.requires_grad for weight in stored.head.parameters())
    assert torch.equal(logits(stored.head.pack_projections()), logits(head))
    assert torch.equal(stored.vocab.d2t_V, VOCAB.d2t_V)
    assert torch.equal(stored.vocab.t2d_W, VOCAB.t2d_W)
    assert next(read_head(tmp_path / "head", torch.float64).head.parameters()).dtype == torch.float64


def test_the_same_head_gives_the_same_bytes(tmp_path: Path):
    digests = {write_head(tmp_path / n, Head.init(CONFIG, 0), VOCAB, ORIGIN, torch.bfloat16) for n in ("a", "b")}
    other = write_head(tmp_path / "c", Head.init(CONFIG, 1), VOCAB, ORIGIN, torch.bfloat16)
    assert len(digests) == 1
    assert other not in digests


def test_config_is_what_the_engines_read(directory: Path):
    """Written out by hand from the conventions of SGLang and vLLM: ids literal at the top, one less when nested."""
    assert json.loads((directory / "config.json").read_text()) == {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "mlp_bias": False,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 64,
        "vocab_size": 20,
        "draft_vocab_size": 11,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": [1, 2],
        "target_hidden_size": 32,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True},
        "eyas": {
            "target_name": "tiny",
            "target_digest": "sha256:aa",
            "trained_context": 128,
            "tokenizer_digest": None,
            "template_digest": None,
        },
    }


def test_tensors_are_what_the_engines_read(directory: Path):
    tensors = load_file(directory / "model.safetensors")
    assert "embed_tokens.weight" not in tensors
    assert len(tensors) == 15
    assert tensors["d2t"].dtype == torch.int64
    assert tensors["t2d"].dtype == torch.bool
    hot_tokens = tensors["d2t"] + torch.arange(11)  # how SGLang reads d2t
    assert torch.equal(hot_tokens, tensors["t2d"].nonzero()[:, 0])


def test_a_newer_head_is_what_the_engines_read(tmp_path: Path):
    """EAGLE 3.1: a flag for each change, and one norm for each captured layer."""
    newer = dataclasses.replace(CONFIG, fc_norm=True, norm_output=True)
    head = Head.init(newer, 0)
    write_head(tmp_path, head, VOCAB, ORIGIN, torch.float32)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["fc_norm"], config["norm_output"], "use_aux_norm" in config) == (True, True, False)
    tensors = load_file(tmp_path / "model.safetensors")
    norms = {name: list(tensor.shape) for name, tensor in tensors.items() if name.startswith("fc_norm")}
    assert norms == {f"fc_norm.{i}.weight": [32] for i in range(3)}
    assert head.num_parameters == Head.init(CONFIG, 0).num_parameters + 3 * 32


def test_the_older_names_of_the_norms_are_read(tmp_path: Path):
    newer = dataclasses.replace(CONFIG, fc_norm=True)
    head = Head.init(newer, 0)
    with torch.no_grad():
        for i in range(3):
            head.get_parameter(f"fc_norm.{i}.weight").fill_(2.0 + i)
    write_head(tmp_path, head, VOCAB, ORIGIN, torch.float32)
    edit_config(tmp_path, use_aux_norm=True, fc_norm=False)
    tensors = load_file(tmp_path / "model.safetensors")
    for i, old in enumerate(("aux_norm_low", "aux_norm_mid", "aux_norm_high")):
        tensors[f"{old}.weight"] = tensors.pop(f"fc_norm.{i}.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    stored = read_head(tmp_path)
    assert stored.config == newer
    assert torch.equal(logits(stored.head), logits(head))


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["LlamaForCausalLMEagle"]}, "architectures"),
        ({"architectures": ["LlamaForCausalLM"], "draft_vocab_size": None}, "architectures"),
        ({"norm_before_residual": "yes"}, 'norm_before_residual is "yes"'),
        ({"model_type": "qwen3"}, 'model_type is "qwen3"'),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is true"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope_scaling"),
        ({"hidden_size": "32"}, 'hidden_size is "32"'),
        ({"draft_vocab_size": None}, "draft_vocab_size is missing"),
        ({"draft_vocab_size": 21}, r"vocabulary \(21\) is larger"),
        ({"num_attention_heads": 3}, "3 heads are not a multiple of its 2"),
        ({"rope_theta": -1}, "rope_theta is -1"),
        ({"fc_norm": 1}, "fc_norm is 1"),
        ({"use_aux_norm": "yes"}, 'use_aux_norm is "yes"'),
        ({"use_aux_norm": True}, r"no tensor fc_norm\.0\.weight"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}, r"\[1, 3, 4\] at the top level, \[1, 3, 4\] in eagle_config"),
        ({"eagle_aux_hidden_state_layer_ids": [5, 4, 2], "eagle_config": {}}, r"\[5, 4, 2\]"),
        ({"eagle_aux_hidden_state_layer_ids": None, "eagle_config": None}, "no eagle_aux"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2}},
            "rope_scaling.original_max_position_embeddings is missing",
        ),
        ({"fc_norm": True, "norm_before_fc": True}, "both fc_norm and norm_before_fc"),
        ({"torch_dtype": "int8"}, "no torch_dtype that eyas knows"),
        ({"eyas": {"target_digest": 5}}, "target_digest is 5"),
        ({"eyas": {"target_digset": "x"}}, "target_digset"),
        ({"eos_token_id": "end"}, 'eos_token_id is "end"'),
    ],
)
def test_wrong_configuration_is_named(changes: dict[str, object], named: str, directory: Path):
    edit_config(directory, **changes)
    with pytest.raises(InputError, match=named):
        read_head(directory)


@pytest.mark.parametrize("key", ["eagle_aux_hidden_state_layer_ids", "eagle_config"])
def test_one_list_of_layers_is_enough(key: str, directory: Path):
    edit_config(directory, **{key: None})
    assert read_head(directory).config.aux_layer_ids == (2, 4, 5)


def change_t2d(tensors: dict[str, torch.Tensor]) -> None:
    tensors["t2d"] = tensors["t2d"].roll(1)


def change_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["midlayer.mlp.up_proj.weight"][3, 3] = float("nan")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop("norm.weight"), "no tensor norm.weight"),
        (lambda t: (t.pop("d2t"), t.pop("t2d")), "no tensor d2t"),
        (lambda t: t.pop("lm_head.weight"), "a head with its own output matrix"),
        (lambda t: t.update({"layers.1.mlp.up_proj.weight": torch.zeros(3)}), "a draft of more than one layer"),
        (lambda t: t.update({"fc_norm.0.weight": torch.zeros(32)}), "without the flag fc_norm"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(32)}), "two tensors for norm.weight"),
        (lambda t: t.update({"fc.weight": torch.zeros(32, 64)}), r"fc.weight has shape \[32, 64\]"),
        (lambda t: t.update({"t2d": torch.zeros(19, dtype=torch.bool)}), r"t2d has shape \[19\]"),
        (change_t2d, "draft token 0 to target token"),
        (change_nan, "up_proj.weight has values that are not finite"),
    ],
)
def test_wrong_tensors_are_named(change: Callable[[dict[str, torch.Tensor]], object], named: str, directory: Path):
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(InputError, match=named):
        read_head(directory)


def test_missing_and_damaged_files(directory: Path, tmp_path: Path):
    with pytest.raises(InputError, match="nowhere"):
        read_head(tmp_path / "nowhere")
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(InputError, match="damaged"):
        read_head(directory)
    weights.unlink()
    with pytest.raises(InputError, match=r"model\.safetensors"):
        read_head(directory)
    (directory / "config.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        read_head(directory)


@pytest.mark.parametrize("rope_type", ["default", "llama3", "yarn", "linear"])
def test_a_fitting_pair_has_no_findings(rope_type: str, directory: Path):
    assert check_fit(read_head(directory), dataclasses.replace(FACTS, rope_type=rope_type), "sha256:aa") == []


@pytest.mark.parametrize(
    ("changes", "weight", "named"),
    [
        ({"hidden_size": 64}, "misfit", "hidden size 32"),
        ({"vocab_size": 24}, "misfit", "vocabulary size 20"),
        ({"num_layers": 4}, "misfit", "reads layers [2, 4, 5]"),
        ({"num_layers": 16}, "warning", "[2, 8, 13]"),
        ({"rope_theta": 500000.0}, "warning", "rope_theta 10000.0"),
        ({"rope_theta": 500000.0, "rope_type": "llama3"}, "warning", "target tiny has 500000.0 before scaling"),
        ({"rope_theta": None, "rope_type": None}, "warning", "target tiny has no rotary positions"),
        ({"max_positions": 128}, "warning", "max_position_embeddings 64"),
    ],
)
def test_what_does_not_fit_is_said(changes: dict[str, object], weight: str, named: str, directory: Path):
    stored, facts = read_head(directory), dataclasses.replace(FACTS, **changes)
    findings = check_fit(stored, facts)
    assert [finding.weight for finding in findings] == [weight]
    assert named in str(findings[0])
    if weight == "warning":
        assert require_fit(stored, facts) == findings
    else:
        with pytest.raises(InputError) as caught:
            require_fit(stored, facts)
        assert named in str(caught.value)


def test_another_target_of_the_same_size_is_a_warning(directory: Path):
    (finding,) = require_fit(read_head(directory), dataclasses.replace(FACTS, name="org/tuned"), "sha256:bb")
    assert finding.weight == "warning"
    assert "a target with digest sha256:aa, but target org/tuned has sha256:bb" in finding.problem


@pytest.mark.parametrize("name", ["tiny", "org/tiny", "memory://bucket/run/tiny/", "memory://bucket/run/target"])
def test_a_changed_target_of_the_same_name_is_a_misfit(name: str, directory: Path):
    """An uploaded target is called `target`, so its name says nothing."""
    with pytest.raises(InputError, match=r"a target with digest sha256:aa, but target .* has sha256:bb") as caught:
        require_fit(read_head(directory), dataclasses.replace(FACTS, name=name), "sha256:bb")
    assert "give a changed target another directory name" in str(caught.value)


def test_every_misfit_is_named_at_once(directory: Path):
    with pytest.raises(InputError, match=r"hidden size 32, .*vocabulary size 20") as caught:
        require_fit(read_head(directory), dataclasses.replace(FACTS, hidden_size=64, vocab_size=24))
    assert caught.value.exit_code == 2
