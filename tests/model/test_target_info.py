"""A target's sizes without its weights are those of the loaded target."""

import shutil

import pytest
import torch
from tests.model.families import family_target
from tests.tiny import tiny_target

from eyas.base.errors import InputError
from eyas.model.target import Target
from eyas.model.target_info import count_active_parameters, read_model_shape

# Four layers of hidden size 64; an expert has three matrices. Parameters that a token does not pass through:
IDLE = {
    "llama": 0,
    "mixtral": 4 * (4 - 2) * 3 * 64 * 64,  # two of four experts in each of four layers
    "qwen3_moe": 4 * (4 - 2) * 3 * 64 * 32,
    "llama4": 2 * (4 - 1) * 3 * 64 * 64,  # one of four experts in every second layer; the shared one is always used
}


@pytest.mark.parametrize("name", IDLE)
def test_a_configuration_says_what_the_loaded_target_says(name, tmp_path):
    directory = family_target(tmp_path / name, name)
    target = Target.load(directory, torch.float32, layers=(1, 2, 3))
    only = tmp_path / "only"
    only.mkdir()
    shutil.copy(directory / "config.json", only)
    blueprint = read_model_shape(str(only), None)
    names = ("hidden_size", "intermediate_size", "vocab_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
    for fact in (*names, "max_positions", "rope_theta", "num_parameters"):
        assert getattr(blueprint.info, fact) == getattr(target.info, fact), fact
    assert blueprint.active_parameters == count_active_parameters(target.model)
    assert blueprint.active_parameters == target.info.num_parameters - IDLE[name]


def test_a_configuration_that_is_there_goes_before_sizes_of_the_recipe(tmp_path):
    directory = tiny_target(tmp_path / "tiny")
    assert read_model_shape(str(directory), {"model_type": "llama", "hidden_size": 4096}).info.hidden_size == 48


def test_what_cannot_be_known_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"plan\.shape"):
        read_model_shape("nobody/has-this", None)
    with pytest.raises(InputError, match="model_type"):
        read_model_shape("nobody/has-this", {"model_type": "no such family"})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=str(tmp_path)):
        read_model_shape(str(tmp_path), None)
