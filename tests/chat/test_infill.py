"""Prompts with a prefix and a suffix: one form for each family, found by its special tokens."""

import pytest
from tests.tiny import tiny_tokenizer

from eyas.base.errors import InputError
from eyas.chat.infill import Infill

FORMS = {
    "<|fim_prefix|>ab<|fim_suffix|>yz<|fim_middle|>",
    "<fim_prefix>ab<fim_suffix>yz<fim_middle>",
    "<｜fim▁begin｜>ab<｜fim▁hole｜>yz<｜fim▁end｜>",
    "▁<PRE>ab▁<SUF>yz▁<MID>",
    "[SUFFIX]yz[PREFIX]ab",
    "<[fim-suffix]>yz<[fim-prefix]>ab<[fim-middle]>",
}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_forms(form):
    markers = [part for part in form.replace("ab", "\n").replace("yz", "\n").split("\n") if part]
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": markers}, replace_extra_special_tokens=False)
    infill = Infill(tokenizer)

    def text_of(ids):
        return tokenizer.decode(list(ids))

    prefix = tokenizer.encode("ab", add_special_tokens=False)
    assert text_of(infill.encode(prefix, "yz")) == form
    assert sorted(text_of([token]) for token in infill.marker_ids) == sorted(markers)
    begin = tokenizer.encode("<|begin|>", add_special_tokens=False)
    assert text_of(infill.encode([*begin, *prefix], "yz")) == "<|begin|>" + form


def test_a_tokenizer_without_markers():
    with pytest.raises(InputError, match="no tokens for suffixes"):
        Infill(tiny_tokenizer())
