"""Streaming text: what comes piece by piece is what the whole list of ids says."""

import pytest
from tests.tiny import tiny_tokenizer

from eyas.serve.text import UNFINISHED, Detokenizer


@pytest.mark.parametrize("text", ["plain words", "Gärten für Żółw", "雨が降る ☂️ 🦅🦅", "", "line\n\nbreak"])
def test_the_pieces_add_up(text):
    tokenizer = tiny_tokenizer()  # one token a byte: a character outside ASCII takes up to four
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.convert_tokens_to_ids("<|end|>")]
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in ids]
    assert "".join(pieces) + detokenizer.finish() == text
    assert not any(UNFINISHED in piece for piece in pieces), "no half character is shown"


def test_an_answer_that_ends_inside_a_character():
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("ab🦅", add_special_tokens=False)[:-1]
    detokenizer = Detokenizer(tokenizer)
    shown = "".join(detokenizer.push(token) for token in ids)
    assert shown == "ab"
    assert set(detokenizer.finish()) == {UNFINISHED}
