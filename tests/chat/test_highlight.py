import pytest
from tests.tiny import tiny_tokenizer

from eyas.chat.conversation import Conversation, Message
from eyas.chat.render import highlight_supervised, render


@pytest.fixture
def rendered():
    def make(answer):
        return render(
            Conversation("c", "c", (Message("user", "hi"), Message("assistant", answer)), {}), tiny_tokenizer()
        )[0]

    return make


def test_supervised_text_is_green(rendered):
    assert highlight_supervised(rendered("ü!"), tiny_tokenizer(), color=True) == (
        "<|begin|><|user|>hi<|end|><|assistant|>\x1b[32mü!<|end|>\x1b[0m"
    )


def test_without_colour_it_stands_in_brackets(rendered):
    assert (
        highlight_supervised(rendered("a\nb"), tiny_tokenizer(), color=False)
        == "<|begin|><|user|>hi<|end|><|assistant|>⟦a\nb<|end|>⟧"
    )


def test_a_conversation_cannot_steer_the_terminal(rendered):
    text = highlight_supervised(rendered("\x1b[2Jx\x9b"), tiny_tokenizer(), color=False)
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "␛[2Jx�" in text
