"""Block heads as other projects publish them: read into the same head, or refused by the name of their convention."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.formats.test_block_dir import CONFIG

from eyas.base.errors import InputError
from eyas.formats.config import is_head_config
from eyas.formats.head_dir import read_head
from eyas.model.block_head import BlockConfig, BlockHead

FIVE = BlockConfig(**{**CONFIG.__dict__, "aux_layer_ids": (2, 4, 6, 7, 9)})
SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
    "num_hidden_layers": 2, "vocab_size": 40, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}  # fmt: skip
DSPARK = {"block_size": 5, "mask_token_id": 39, "markov_rank": 3, "markov_head_type": "vanilla"}
CONFIDENCE = {"enable_confidence_head": True, "confidence_head_with_markov": True}


def deepspec() -> dict[str, Any]:
    """The keys of `deepspec.modeling.dspark.qwen3.config` over those of a Qwen 3 target (transformers 5)."""
    rope = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "attention_bias": False, "dtype": "float32"}
    window = {"use_sliding_window": False, "sliding_window": None, "layer_types": ["full_attention"] * 2}
    more = {"num_target_layers": 10, "num_anchors": 512, "target_layer_ids": [1, 3, 5, 6, 8], "model_type": "qwen3"}
    own = {"architectures": ["Qwen3DSparkModel"], "tie_word_embeddings": False}
    return SIZES | DSPARK | CONFIDENCE | rope | window | more | own


def sglang() -> dict[str, Any]:
    """The name of SGLang's class, and the keys once more in `dspark_config`."""
    flat = {key: value for key, value in deepspec().items() if key not in ("markov_rank", "mask_token_id")}
    nested = {"markov_rank": 3, "mask_token_id": 39, "target_layer_ids": [1, 3, 5, 6, 8]}
    return flat | {"architectures": ["DSparkDraftModel"], "dspark_config": nested}


def speculators() -> dict[str, Any]:
    """The sizes in `transformer_layer_config` without Qwen3Config's defaults; layers as transformers counts them."""
    nested = {key: value for key, value in SIZES.items() if key not in ("rms_norm_eps", "hidden_act")}
    nested |= {"model_type": "qwen3", "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    return DSPARK | CONFIDENCE | {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "speculators_config": {"algorithm": "dspark", "verifier": {"name_or_path": "some/target"}},
        "transformer_layer_config": nested,
        "aux_hidden_state_layer_ids": [2, 4, 6, 7, 9],
        "draft_vocab_size": 40,
        "sample_from_anchor": True,
        "dtype": "float32",
    }  # fmt: skip


LAYOUTS = {"DeepSpec": deepspec, "SGLang": sglang, "speculators": speculators}


def write(directory: Path, raw: dict[str, Any], prefix: str = "", config: BlockConfig = FIVE) -> BlockHead:
    head = BlockHead.init(config, 3)
    tensors = {f"{prefix}{name}": weight.detach().clone() for name, weight in head.state_dict().items()}
    tensors["lm_head.weight"] = torch.zeros(40, 16)
    (directory / "config.json").write_text(json.dumps(raw))
    save_file(tensors, directory / "model.safetensors")
    return head


@pytest.mark.parametrize("layout", LAYOUTS)
def test_published_layouts_are_the_same_head(layout: str, tmp_path: Path) -> None:
    raw = LAYOUTS[layout]()
    assert is_head_config(raw)
    head = write(tmp_path, raw, "model." if layout == "SGLang" else "")
    stored = read_head(tmp_path)
    assert stored.config == FIVE
    assert stored.layout == layout
    assert all(torch.equal(a, b) for a, b in zip(stored.head.parameters(), head.parameters(), strict=True))


def without(raw: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in keys}


MARKOV = (*DSPARK, *CONFIDENCE)


def z_lab() -> dict[str, Any]:
    """The keys of the heads that z-lab publishes: the mask token and the layers in `dflash_config`."""
    nested = {"mask_token_id": 39, "target_layer_ids": [1, 3, 5, 6, 8]}
    own = {"architectures": ["DFlashDraftModel"], "block_size": 6, "dflash_config": nested}
    return without(deepspec(), *MARKOV, "target_layer_ids", "num_anchors") | own


def speculators_dflash() -> dict[str, Any]:
    own = {"architectures": ["DFlashSpeculator"], "speculators_model_type": "dflash", "block_size": 6}
    return without(speculators(), *MARKOV, "sample_from_anchor") | own | {"mask_token_id": 39}


SHIFT = {"sample_from_anchor": True, "block_size": 5}
RANK_0 = without(deepspec(), "markov_head_type", "confidence_head_with_markov")
RANK_0 |= {"markov_rank": 0, "enable_confidence_head": False}
DFLASH = {
    "z-lab": (z_lab(), "z-lab", True),
    "z-lab, of a target with one matrix": (z_lab() | {"tie_word_embeddings": True}, "z-lab", True),
    "z-lab, with keys without a value": (z_lab() | {"sample_from_anchor": None, "markov_rank": None}, "z-lab", True),
    "speculators": (speculators_dflash(), "speculators", True),
    "speculators, from the anchor": (speculators_dflash() | SHIFT, "speculators", False),
    "DeepSpec": (RANK_0, "DeepSpec", False),
}


@pytest.mark.parametrize("name", DFLASH)
def test_heads_without_a_correction_are_read_in_their_convention(name: str, tmp_path: Path) -> None:
    """z-lab and speculators publish fill-in slots, whose block counts the anchor; DeepSpec's own DFlash is shift."""
    raw, layout, fill_in = DFLASH[name]
    config = dataclasses.replace(FIVE, markov_rank=0, fill_in=fill_in)
    head = write(tmp_path, raw, config=config)
    assert is_head_config(raw)
    stored = read_head(tmp_path)
    assert (stored.config, stored.layout) == (config, layout)
    assert all(torch.equal(a, b) for a, b in zip(stored.head.parameters(), head.parameters(), strict=True))


@pytest.mark.parametrize("architecture", ["DFlash2DraftModel", "LiLiCorrDraftModel"])
def test_heads_with_other_layers_are_refused_by_name(architecture: str, tmp_path: Path) -> None:
    raw = z_lab() | {"architectures": [architecture]}
    assert is_head_config(raw)
    write(tmp_path, raw)
    with pytest.raises(InputError, match=f"is a {architecture}"):
        read_head(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"), [("attention_value_scale", 0.5), ("logit_scale", 2.0), ("output_multiplier", 0.25)]
)
def test_scales_that_engines_apply_are_refused(key: str, value: float, tmp_path: Path) -> None:
    raw = z_lab()
    raw["dflash_config"] |= {key: value}
    write(tmp_path, raw, config=dataclasses.replace(FIVE, markov_rank=0, fill_in=True))
    with pytest.raises(InputError, match=key):
        read_head(tmp_path)


def test_an_own_embedding_of_the_mask_token_is_refused(tmp_path: Path) -> None:
    write(tmp_path, z_lab(), config=dataclasses.replace(FIVE, markov_rank=0, fill_in=True))
    read_head(tmp_path)
    (tmp_path / "mask_embedding.pt").touch()
    with pytest.raises(InputError, match=r"mask_embedding\.pt replaces"):
        read_head(tmp_path)


FILL_IN = {
    "z-lab": z_lab() | {"markov_rank": 3},
    "speculators dspark": speculators() | {"sample_from_anchor": False},
    "nested": sglang() | {"dflash_config": {"sample_from_anchor": False}},
}
FILL_IN["early speculators"] = {k: v for k, v in speculators().items() if k != "sample_from_anchor"}


@pytest.mark.parametrize("name", FILL_IN)
def test_the_other_convention_is_refused_by_name_and_alone(name: str, tmp_path: Path) -> None:
    """The files fit a block head of eyas in all else, so that only the keys of the convention stop it."""
    write(tmp_path, FILL_IN[name])
    with pytest.raises(InputError, match="fill-in convention") as error:
        read_head(tmp_path)
    assert "shift convention" in error.value.fix
    assert "tensor" not in str(error.value), "one problem, not a list of keys that DFlash lacks"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"markov_head_type": "gated"}, "markov_head_type"),
        ({"enable_confidence_head": False}, "enable_confidence_head"),
        ({"draft_vocab_size": 32}, "all 40 tokens"),
        ({"markov_rank": 0}, "enable_confidence_head"),
        ({"markov_rank": -1}, "markov_rank"),
        ({"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids"),
    ],
)
def test_other_graphs_are_refused(keys: dict[str, Any], problem: str, tmp_path: Path) -> None:
    write(tmp_path, speculators() | keys)
    with pytest.raises(InputError, match=problem):
        read_head(tmp_path)
