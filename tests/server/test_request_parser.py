"""The input of the chat template, read off a template that writes down everything it gets."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import TypeAdapter
from tests.tiny import tiny_tokenizer

from eyas.server.http_errors import ApiError
from eyas.server.openai_messages import Messages, Tool
from eyas.server.openai_requests import ChatRequest
from eyas.server.request_parser import RequestParser
from eyas.server.response_builder import TokenDecoder

ECHO_TEMPLATE = (
    "{% if tools %}tools={{ tools | tojson }} {% endif %}"
    "{% for m in messages %}[{{ m.role }}{{ ':' + m.name if m.name }} {{ m.content }}"
    "{% for call in m.tool_calls or [] %} {{ call.id }}={{ call.function.name }}"
    "({{ call.function.arguments | tojson }}){% endfor %}{{ ' for ' + m.tool_call_id if m.tool_call_id }}]{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": [2]}'}}


def parser_of(tokenizer):
    """A parser that has only a tokenizer of its target."""
    return RequestParser(cast(Any, SimpleNamespace(tokenizer=tokenizer)), 1024)


def render(messages, tools=(), tokenizer=None):
    tokenizer = tokenizer or tiny_tokenizer(ECHO_TEMPLATE)
    parsed = TypeAdapter(Messages).validate_python(messages)
    ids = parser_of(tokenizer).encode_messages(parsed, [Tool.model_validate(tool) for tool in tools])
    return tokenizer.decode(list(ids))


def test_tools_and_calls_reach_the_template():
    messages = [
        {"role": "user", "name": "Ann", "content": "1 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    tools = '[{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]'
    calls = '[user:Ann 1 + 2?][assistant  c1=add({"a": 1, "b": [2]})][tool 3 for c1]'
    tokenizer = tiny_tokenizer(ECHO_TEMPLATE)
    assert render(messages, [TOOL], tokenizer) == f"tools={tools} {calls}"
    assert render(messages, [], tokenizer) == calls


@pytest.mark.parametrize("arguments", ["{", "[1]", "3", "[" * 100_000])
def test_arguments_that_are_not_an_object_are_rejected(arguments):
    call = {**CALL, "function": {"name": "add", "arguments": arguments}}
    with pytest.raises(ApiError) as rejected:
        render([{"role": "assistant", "tool_calls": [call]}])
    assert rejected.value.body.error.param == "messages.0.tool_calls.0.function.arguments"


def test_a_template_without_tool_calls_rejects_them():
    with pytest.raises(ApiError) as rejected:
        render([{"role": "assistant", "tool_calls": [CALL]}], tokenizer=tiny_tokenizer())
    assert (rejected.value.status_code, rejected.value.body.error.param) == (400, "messages")


def test_a_plain_prompt_begins_as_its_tokenizer_wants():
    assert parser_of(tiny_tokenizer()).encode_prompt("ab") == tuple(tiny_tokenizer()("ab").input_ids)


# --- single tokens ---------------------------------------------------------------------------------------------------


def test_bytes_of_single_tokens():
    tokenizer = tiny_tokenizer()
    decoder = TokenDecoder(tokenizer)
    euro = tokenizer.encode("€", add_special_tokens=False)
    assert [decoder.decode(token).raw_bytes for token in euro] == [[0xE2], [0x82], [0xAC]]
    assert [decoder.decode(token).text for token in euro] == ["\ufffd"] * 3
    space = decoder.decode(tokenizer.encode(" ", add_special_tokens=False)[0])
    assert (space.text, space.raw_bytes) == (" ", [32])
    assert decoder.decode(tokenizer.encode("<|end|>", add_special_tokens=False)[0]).text == "<|end|>"


def test_bytes_of_a_sentencepiece_vocabulary():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {"<unk>": 0, "▁a": 1, "▁cat": 2, "<0xE2>": 3, "a": 4, "\ufffd": 5}
    backend = Tokenizer(models.Unigram([(word, 0.0) for word in vocab], unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    decoder = TokenDecoder(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert decoder.decode(2).text == " cat"  # the space is there, though a text never begins with it
    assert decoder.decode(2).raw_bytes == list(b" cat")
    assert decoder.decode(3).raw_bytes == [0xE2]
    assert decoder.decode(5).raw_bytes is None


THINKING_TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}{{ ' <' + m.reasoning_content + '|' + m.reasoning + '>' "
    "if m.reasoning_content }} {{ m.content }}]{% endfor %}"
    "{{ 'effort ' + reasoning_effort if reasoning_effort }}"
    "{% if enable_thinking is defined %}{{ ' thinks' if enable_thinking else ' is quick' }}{% endif %}"
)


def render_body(**keys):
    tokenizer = tiny_tokenizer(THINKING_TEMPLATE)
    body = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "Hi"}], **keys})
    return tokenizer.decode(list(parser_of(tokenizer).encode_messages(body.messages, (), body.template_variables)))


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_earlier_reasoning_reaches_the_template_under_both_names(name):
    assert render_body(messages=[{"role": "assistant", name: "Hm.", "content": "Yes"}]) == "[assistant <Hm.|Hm.> Yes]"
    assert render_body(messages=[{"role": "assistant", name: "Hm.", "content": None}]) == "[assistant <Hm.|Hm.> ]"


def test_variables_of_the_template():
    assert render_body() == "[user Hi]"
    assert render_body(chat_template_kwargs={"enable_thinking": False}) == "[user Hi] is quick"
    assert render_body(reasoning_effort="low") == "[user Hi]effort low thinks"
    assert render_body(reasoning_effort="none") == "[user Hi]effort none is quick"
    both = {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}
    assert render_body(**both) == "[user Hi]effort none thinks"


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "conversation", "tools", "self"])
def test_variables_that_eyas_sets_are_rejected(name):
    with pytest.raises(ApiError) as rejected:
        render_body(chat_template_kwargs={name: "x"})
    assert rejected.value.body.error.param == "chat_template_kwargs"
    assert name in rejected.value.body.error.message
