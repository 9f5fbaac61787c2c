"""Exported block heads: the second reader finds the head's logits, and other ones where a file lies."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.drafters.blocks import SLOTS, every_token, random_block
from tests.tiny import tiny_target

from eyas.formats.config import HeadMetadata
from eyas.formats.head_dir import read_head, write_head
from eyas.formats.parity import ParityResult, TargetStates, compare_with_reference
from eyas.formats.sglang_vllm import BLOCK_FORMATS, engine_formats, sglang_flags, vllm_flags, write_engine_dir
from eyas.model.block_head import BlockHead
from eyas.model.target import Target

NAMES = [engine.name for engine in BLOCK_FORMATS]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(tiny_target(tmp_path_factory.mktemp("target"), layers=6), torch.float32, (1, 2, 4))


@pytest.fixture(scope="module")
def text(target: Target) -> TargetStates:
    return TargetStates.capture(target, list(b"twice the falconer calls"))


def export(head: BlockHead, target: Target, place: Path) -> dict[str, Path]:
    """Writes a head and its directories for all engines, and returns the directories by engine."""
    write_head(place / "head", head, every_token(target), HeadMetadata("tiny", target.digest), torch.float32)
    stored = read_head(place / "head")
    for engine in engine_formats(head.config):
        write_engine_dir(place / engine.name, engine, stored, "some/target", 1, target)
    return {engine.name: place / engine.name for engine in engine_formats(head.config)}


def compare(place: Path, engine: str, target: Target, text: TargetStates) -> ParityResult:
    return compare_with_reference(place / engine, engine, read_head(place / "head"), target, text)


def rewrite(directory: Path, **keys: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@pytest.mark.parametrize("engine", NAMES)
def test_what_is_exported_is_the_head(engine: str, target: Target, text: TargetStates, tmp_path: Path) -> None:
    head = random_block(target)
    directory = export(head, target, tmp_path)[engine]
    found = compare(tmp_path, engine, target, text)
    assert found.ok, found
    assert (found.layers, len(found.steps)) == ([1, 2, 4], SLOTS)
    again = read_head(directory)
    assert again.config == head.config
    assert all(torch.equal(a, b) for a, b in zip(again.head.parameters(), head.parameters(), strict=True))
    raw = json.loads((directory / "config.json").read_text())
    assert (raw["num_target_layers"], raw["num_anchors"]) == (6, 512)
    assert (raw["sample_from_anchor"], raw["is_causal"], raw["target_layer_ids"]) == (True, False, [0, 1, 3])
    copies = {"embed_tokens.weight", "lm_head.weight"} & set(load_file(directory / "model.safetensors"))
    assert len(copies) == (2 if engine == "deepspec" else 0)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_an_exported_dflash_head_is_the_head(engine: str, target: Target, text: TargetStates, tmp_path: Path) -> None:
    """The keys are those of z-lab: a block counts the anchor, and the layer ids are in dflash_config."""
    head = random_block(target, method="dflash")
    directories = export(head, target, tmp_path)
    assert set(directories) == {"sglang", "vllm"}
    found = compare(tmp_path, engine, target, text)
    assert found.ok, found
    assert (found.layers, len(found.steps)) == ([1, 2, 4], SLOTS)
    assert read_head(directories[engine]).config == head.config
    raw = json.loads((directories[engine] / "config.json").read_text())
    assert (raw["architectures"], raw["block_size"]) == (["DFlashDraftModel"], SLOTS + 1)
    assert raw["dflash_config"]["target_layer_ids"] == [0, 1, 3]
    assert (raw["sample_from_anchor"], raw["is_causal"], raw["num_target_layers"]) == (False, False, 6)
    names = set(load_file(directories[engine] / "model.safetensors"))
    assert not any("markov" in name or "confidence" in name or "embed" in name for name in names)
    for lie in ({"block_size": SLOTS}, {"dflash_config": raw["dflash_config"] | {"target_layer_ids": [1, 2, 4]}}):
        rewrite(directories[engine], **(raw | lie))
        with pytest.raises((AssertionError, RuntimeError)):
            assert compare(tmp_path, engine, target, text).ok
    rewrite(directories[engine], **(raw | {"sample_from_anchor": True}))
    with pytest.raises(ValueError, match="format of DFlash"):
        compare(tmp_path, engine, target, text)


LIES = {
    "the layers of the other count": {"target_layer_ids": [1, 2, 4]},
    "causal blocks": {"is_causal": True},
    "another mask token": {"mask_token_id": 5},
    "another base of RoPE": {"rope_theta": 5000.0},
    "the fill-in convention": {"sample_from_anchor": False},
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("engine", NAMES)
def test_a_file_that_lies_is_found_out(
    engine: str, lie: str, target: Target, text: TargetStates, tmp_path: Path
) -> None:
    rewrite(export(random_block(target), target, tmp_path)[engine], **LIES[lie])
    found = compare(tmp_path, engine, target, text)
    assert not found.ok
    assert max(found.steps) > 1e-2 * found.largest_logit


@pytest.mark.parametrize("tensor", ["confidence_head.proj.bias", "markov_head.markov_w1.weight", "lm_head.weight"])
def test_a_wrong_tensor_is_found_out(tensor: str, target: Target, text: TargetStates, tmp_path: Path) -> None:
    path = export(random_block(target), target, tmp_path)["deepspec"] / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {tensor: tensors[tensor] + 0.5}, path)
    assert not compare(tmp_path, "deepspec", target, text).ok


def test_the_flags_are_those_of_the_engines() -> None:
    chain = {"depth": 3, "top_k": 1, "nodes": 4}
    flags = sglang_flags(chain, "H", 7)
    assert flags is not None
    words = flags.split()
    assert dict(zip(words[::2], words[1::2], strict=True)) == {
        "--speculative-algorithm": "DSPARK",
        "--speculative-draft-model-path": "H",
        "--speculative-num-draft-tokens": "8",
    }
    flags = vllm_flags(chain, "H", 7)
    assert flags is not None
    told = json.loads(flags.removeprefix("--speculative-config '").removesuffix("'"))
    assert told == {
        "method": "dspark",
        "model": "H",
        "num_speculative_tokens": 7,
        "draft_sample_method": "probabilistic",
    }
    assert sglang_flags(None, "H", 7) is vllm_flags(None, "H", 7) is None
    flags = sglang_flags(chain, "H", 7, "dflash")
    assert flags is not None
    assert "--speculative-algorithm DFLASH" in flags
    assert "--speculative-num-draft-tokens 8" in flags
    flags = vllm_flags(chain, "H", 7, "dflash")
    assert flags is not None
    told = json.loads(flags.removeprefix("--speculative-config '").removesuffix("'"))
    assert told == {"method": "dflash", "model": "H", "num_speculative_tokens": 7}
