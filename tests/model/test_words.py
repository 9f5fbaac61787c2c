"""The words of a target without its weights are those of the target."""

import json

import pytest
import torch
from tests.tiny import tiny_target

from eyas.base.errors import InputError
from eyas.model.target import Target
from eyas.model.words import TargetWords


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_target(tmp_path_factory.mktemp("target"), layers=3)


def test_words_equal_those_of_the_loaded_target(directory):
    words, target = TargetWords.load(directory), Target.load(directory, torch.float32, layers=(1, 2, 3))
    assert words.digest == target.digest
    assert words.tokenizer_digest == target.tokenizer_digest
    assert words.template_digest == target.template_digest
    assert words.max_positions == target.facts.max_positions
    assert words.tokenizer.get_vocab() == target.tokenizer.get_vocab()


def test_no_weights_are_loaded(directory, monkeypatch):
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
    assert TargetWords.load(directory).max_positions == 512


def test_what_is_missing_is_named(directory, tmp_path):
    with pytest.raises(InputError, match="no directory"):
        TargetWords.load(tmp_path / "none")
    with pytest.raises(InputError, match="cannot be loaded"):
        TargetWords.load(tmp_path)
    broken = tiny_target(tmp_path / "target", layers=3)
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        if (broken / name).is_file():
            (broken / name).unlink()
    (broken / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    with pytest.raises(InputError, match="without a chat template"):
        TargetWords.load(broken)
