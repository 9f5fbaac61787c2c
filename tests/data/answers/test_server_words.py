import json

import pytest

from eyas.data.answers.server_words import LONGEST, message_of, shown

SECRET = "I am Zoë Quill (zoe@quill.example), card 4556-7375-8689-9855, Li."


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no"}}', "no"),
        (b'{"error": "no"}', "no"),
        (b'{"object": "error", "message": "no"}', "no"),
        (b'{"detail": [{"loc": ["body"], "msg": "no", "input": "secret"}, {"msg": "way"}]}', "no; way"),
        (b"<html>secret</html>", ""),
        (b"", ""),
        (b"[" * 100_000, ""),
        (b'{"error": {"code": 3}}', ""),
        (b'["x"]', ""),
    ],
)
def test_the_message_of_every_kind_of_server(body, message):
    assert message_of(body) == message


@pytest.mark.parametrize(
    "said",
    [
        SECRET,
        SECRET.upper(),
        repr(SECRET),
        json.dumps(SECRET),
        json.dumps(f"x\n{SECRET}"),
        "\\nZoë\\tQuill",
        "4556737586899855 and 4556 7375",
        "xQuillx and zoe%40quill.example and n73758689n",
        "Quil",
        "a" * 30 + "quill" + "a" * 30,
    ],
)
def test_nothing_of_the_prompt_comes_through(said):
    line = shown(said, [SECRET]).casefold()
    for word in ("zoë", "zoe", "quil", "4556", "7375", "8689", "9855", "\\bli\\b"):
        assert word not in line, line


def test_what_the_server_says_of_its_own_is_shown():
    said = "This model's maximum context length is 64 tokens.\n However, you requested 83 tokens, 71 in the prompt"
    prompt = "is the model's context 71? you requested the maximum length of tokens " * 9
    assert shown(said, [prompt]) == " ".join(said.replace("71", "...").split())


def test_long_messages_and_control_characters():
    assert len(shown("word " * 200, [])) <= LONGEST + 4
    assert shown("a\x1b[31m\x07b", []) == "a [31m b"
