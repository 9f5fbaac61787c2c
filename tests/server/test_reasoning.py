"""Thoughts in answers: separated from the text in messages and streams, whoever opened them."""

import json
from typing import Any, cast

import pytest
from tests.tiny import tiny_tokenizer

from eyas.chat.tool_format import ToolFormat
from eyas.engine.grammar import Grammar
from eyas.engine.request import Request, RequestOutput
from eyas.server.generation import OutputDelta
from eyas.server.openai_requests import ChatRequest
from eyas.server.response_builder import ChatResponseBuilder, ServedModel
from eyas.server.tool_use import find_tool_use

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
THINK = TURNS + "{# <think> </think> #}"
BRACKETS = TURNS + "{# [THINK] [/THINK] #}"
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}


def read(template: str, prompt: str, text: str, finish: Any, step: int | None, grammar: Any = None):
    """The reasoning and content that a client reads. step: the characters of a chunk; None without a stream."""
    tokenizer = tiny_tokenizer(template)
    body = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
    builder = ChatResponseBuilder(ServedModel("m", tokenizer, 0), False, find_tool_use(body, ToolFormat(tokenizer)))
    request = Request("a-0", tuple(tokenizer.encode(prompt)), 9, wants_text=True, grammar=grammar)
    if step is None:
        output = RequestOutput(request, text=text, finish_reason=finish)
        (choice,) = json.loads(builder.build_response([output], cast(Any, USAGE)).json_bytes())["choices"]
        assert choice["finish_reason"] == finish
        message = choice["message"]
        assert message.get("reasoning_content") == message.get("reasoning")
        return message.get("reasoning_content"), message["content"]
    thoughts, content = "", ""
    pieces = [text[start : start + step] for start in range(0, len(text), step)]
    for number, piece in enumerate(pieces, 1):
        delta = OutputDelta(0, (1,), piece, (), 0, finish if number == len(pieces) else None)
        for chunk in builder.build_chunks(delta, request, {}):
            (choice,) = json.loads(chunk.json_bytes())["choices"]
            assert choice["delta"].get("reasoning") == choice["delta"].get("reasoning_content")
            thoughts += choice["delta"].get("reasoning", "")
            content += choice["delta"].get("content", "")
    assert choice["finish_reason"] == finish
    return thoughts or None, content or None


@pytest.mark.parametrize("step", [None, 1, 2, 7, 100])
@pytest.mark.parametrize(
    ("template", "prompt", "text", "finish", "thoughts", "content"),
    [
        (THINK, "Hi", "<think>\nHm. 1 < 2\n</think>\n\nYes <b>.", "stop", "Hm. 1 < 2", "Yes <b>."),
        (THINK, "Hi<think>\n", "Hm.\n</think>\n\nYes.", "stop", "Hm.", "Yes."),
        (THINK, "Hi<think>\n\n</think>\n\n", "Yes.", "stop", None, "Yes."),
        (THINK, "What is <think>?[assistant]", "A marker.", "stop", None, "A marker."),
        (THINK, "Hi<think>\n", "Hm, well", "length", "Hm, well", None),
        (THINK, "Hi", "<think>Hm, well", "length", "Hm, well", None),
        (THINK, "Hi", "Yes.", "stop", None, "Yes."),
        (BRACKETS, "Hi", "[THINK]Hm.[/THINK]Yes.", "stop", "Hm.", "Yes."),
        (TURNS, "Hi", "<think>Hm.</think>Yes.", "stop", None, "<think>Hm.</think>Yes."),
    ],
)
def test_thoughts_are_separated(template, prompt, text, finish, thoughts, content, step):
    assert read(template, prompt, text, finish, step) == (thoughts, content)


def test_an_answer_with_a_grammar_is_content_although_the_prompt_opens_the_thoughts():
    grammar = cast(Grammar, object())
    assert read(THINK, "Hi<think>\n", '{"a": 1}', "stop", None, grammar) == (None, '{"a": 1}')


def test_markers_that_are_special_tokens_reach_the_parser():
    tokenizer = tiny_tokenizer(BRACKETS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]", "[INST]"]})
    ids = [tokenizer.convert_tokens_to_ids(name) for name in ("[THINK]", "[/THINK]")]
    assert ToolFormat(tokenizer).marker_ids == set(ids)
