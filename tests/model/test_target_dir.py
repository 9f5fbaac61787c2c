"""The words of a target without its weights are those of the target."""

import json

import pytest
import torch
from tests.tiny import VOCAB_SIZE, tiny_target, tiny_tokenizer

from eyas.base.errors import InputError
from eyas.model.target import Target
from eyas.model.target_dir import TargetDir
from eyas.model.vocab import required_ids


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_target(tmp_path_factory.mktemp("target"), layers=3)


def test_words_equal_those_of_the_loaded_target(directory):
    words, target = TargetDir.open(directory), Target.load(directory, torch.float32, layers=(1, 2, 3))
    assert words.digest == target.digest
    assert words.tokenizer_digest == target.tokenizer_digest
    assert words.template_digest == target.template_digest
    assert words.max_positions == target.info.max_positions
    assert words.tokenizer.get_vocab() == target.tokenizer.get_vocab()


def test_no_weights_are_loaded(directory, monkeypatch):
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
    assert TargetDir.open(directory).max_positions == 512


def test_what_is_missing_is_named(directory, tmp_path):
    with pytest.raises(InputError, match="No directory"):
        TargetDir.open(tmp_path / "none")
    with pytest.raises(InputError, match="cannot load"):
        TargetDir.open(tmp_path)
    broken = tiny_target(tmp_path / "target", layers=3)
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        if (broken / name).is_file():
            (broken / name).unlink()
    (broken / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    with pytest.raises(InputError, match="has no chat template"):
        TargetDir.open(broken)


def test_forced_tokens_are_those_of_the_template_and_those_that_were_generated():
    tokenizer = tiny_tokenizer(template="{{ '<|im_start|>' + messages[0]['content'] + '<|im_end|>' }}")
    start, stop, end, user = (tokenizer.get_vocab()[f"<|{name}|>"] for name in ("im_start", "im_end", "end", "user"))
    counts_W = torch.zeros(VOCAB_SIZE, dtype=torch.int64)
    counts_W[65] = 9  # a plain token is chosen by its count, not forced
    assert required_ids(tokenizer, (end,), counts_W) == tuple(sorted((start, stop, end)))
    counts_W[user] = 1
    assert required_ids(tokenizer, (), counts_W) == tuple(sorted((start, stop, user)))
    tokenizer.chat_template = None
    assert required_ids(tokenizer, (), counts_W) == (user,)
