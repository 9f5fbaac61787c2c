"""What reaches the chat template, read off a template that writes down all it sees."""

import pytest
from pydantic import TypeAdapter
from tests.tiny import tiny_tokenizer

from eyas.base.errors import InputError
from eyas.server.chat_prompt import encode_chat, encode_text
from eyas.server.http_errors import ApiError
from eyas.server.openai_requests import Messages, Tool
from eyas.server.token_text import TokenDecoder

TELLING = (
    "{% if tools %}tools={{ tools | tojson }} {% endif %}"
    "{% for m in messages %}[{{ m.role }}{{ ':' + m.name if m.name }} {{ m.content }}"
    "{% for call in m.tool_calls or [] %} {{ call.id }}={{ call.function.name }}"
    "({{ call.function.arguments | tojson }}){% endfor %}{{ ' for ' + m.tool_call_id if m.tool_call_id }}]{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": [2]}'}}


def told(messages, tools=(), tokenizer=None):
    tokenizer = tokenizer or tiny_tokenizer(TELLING)
    parsed = TypeAdapter(Messages).validate_python(messages)
    return tokenizer.decode(list(encode_chat(parsed, [Tool.model_validate(tool) for tool in tools], tokenizer)))


def test_tools_and_calls_reach_the_template():
    messages = [
        {"role": "user", "name": "Ann", "content": "1 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    tools = '[{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]'
    calls = '[user:Ann 1 + 2?][assistant  c1=add({"a": 1, "b": [2]})][tool 3 for c1]'
    tokenizer = tiny_tokenizer(TELLING)
    assert told(messages, [TOOL], tokenizer) == f"tools={tools} {calls}"
    assert told(messages, [], tokenizer) == calls


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "3", "[" * 100_000])
def test_arguments_that_are_no_object_are_refused(arguments):
    call = {**CALL, "function": {"name": "add", "arguments": arguments}}
    with pytest.raises(ApiError) as refused:
        told([{"role": "assistant", "tool_calls": [call]}])
    assert refused.value.body.error.param == "messages.0.tool_calls.0.function.arguments"


def test_a_template_that_cannot_take_a_call_refuses():
    with pytest.raises(InputError, match="refuses"):
        told([{"role": "assistant", "tool_calls": [CALL]}], tokenizer=tiny_tokenizer())


def test_a_plain_prompt_begins_as_its_tokenizer_wants():
    assert encode_text("ab", tiny_tokenizer()) == tuple(tiny_tokenizer()("ab").input_ids)


# --- single tokens ---------------------------------------------------------------------------------------------------


def test_bytes_of_single_tokens():
    tokenizer = tiny_tokenizer()
    texts = TokenDecoder(tokenizer)
    euro = tokenizer.encode("€", add_special_tokens=False)
    assert [texts.decode(token).raw_bytes for token in euro] == [[0xE2], [0x82], [0xAC]]
    assert [texts.decode(token).text for token in euro] == ["\ufffd"] * 3
    space = texts.decode(tokenizer.encode(" ", add_special_tokens=False)[0])
    assert (space.text, space.raw_bytes) == (" ", [32])
    assert texts.decode(tokenizer.encode("<|end|>", add_special_tokens=False)[0]).text == "<|end|>"


def test_bytes_of_a_sentencepiece_vocabulary():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {"<unk>": 0, "▁a": 1, "▁cat": 2, "<0xE2>": 3, "a": 4, "\ufffd": 5}
    backend = Tokenizer(models.Unigram([(word, 0.0) for word in vocab], unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    texts = TokenDecoder(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert texts.decode(2).text == " cat"  # the space is there, though a text never begins with it
    assert texts.decode(2).raw_bytes == list(b" cat")
    assert texts.decode(3).raw_bytes == [0xE2]
    assert texts.decode(5).raw_bytes is None
