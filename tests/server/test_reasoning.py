"""Thoughts in answers: separated from the text in messages and streams, whoever opened them."""

import json
from itertools import accumulate
from typing import Any

import pytest
from tests.tiny import VOCAB_SIZE, tiny_tokenizer

from eyas.chat.tool_format import ToolFormat
from eyas.chat.tool_grammar import CallRules, write_answer_grammar, write_tool_grammar
from eyas.engine.grammar import Grammar, GrammarVocab
from eyas.engine.request import Request, RequestOutput
from eyas.server.generation import OutputDelta
from eyas.server.openai_requests import ChatRequest
from eyas.server.openai_responses import PromptDetails, Usage
from eyas.server.response_builder import ChatResponseBuilder, ServedModel
from eyas.server.tool_use import find_tool_use

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
THINK = TURNS + "{# <think> </think> #}"
BRACKETS = TURNS + "{# [THINK] [/THINK] #}"
USAGE = Usage(
    prompt_tokens=1, completion_tokens=1, total_tokens=2, prompt_tokens_details=PromptDetails(cached_tokens=0)
)
LLAMA = """{{ tools | tojson }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.tool_calls %}
{%- set f = m.tool_calls[0].function %}{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% endif %}
{%- endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def make_builder(tokenizer: Any, **fields: Any) -> ChatResponseBuilder:
    body = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields})
    return ChatResponseBuilder(ServedModel("m", tokenizer, 0), False, find_tool_use(body, ToolFormat(tokenizer)))


def read(template: str, prompt: str, text: str, finish: Any, step: int | None):
    """The reasoning and content that a client reads. step: the characters of a chunk; None without a stream."""
    tokenizer = tiny_tokenizer(template)
    builder = make_builder(tokenizer)
    request = Request("a-0", tuple(tokenizer.encode(prompt)), 9, wants_text=True)
    if step is None:
        output = RequestOutput(request, text=text, finish_reason=finish)
        (choice,) = json.loads(builder.build_response([output], USAGE).json_bytes())["choices"]
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


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("template", "prompt", "pieces", "count"),
    [
        (THINK, "Hi", ["<think>", "Hm", ".", "</think>", "Yes", "."], 2),
        (THINK, "Hi<think>", ["Hm", ".", "</think>", "Yes"], 2),
        (THINK, "Hi<think>", ["Hm", "..."], 2),
        (THINK, "Hi", ["Yes", "."], 0),
        (TURNS, "Hi", ["Yes", "."], None),
    ],
)
def test_usage_counts_the_tokens_of_the_thoughts(template, prompt, pieces, count, is_streamed):
    tokenizer = tiny_tokenizer(template)
    builder = make_builder(tokenizer)
    request = Request("a-0", tuple(tokenizer.encode(prompt)), 9, wants_text=True)
    ends = list(accumulate(map(len, pieces)))
    output = RequestOutput(request, text="".join(pieces), text_ends=ends, finish_reason="stop")
    if is_streamed:
        for number, piece in enumerate(pieces, 1):
            finish = "stop" if number == len(pieces) else None
            builder.build_chunks(OutputDelta(0, (1,), piece, (), 0, finish), request, {})
        body = builder.build_usage_chunk(USAGE, [output])
    else:
        body = builder.build_response([output], USAGE)
    usage = json.loads(body.json_bytes())["usage"]
    assert usage.get("completion_tokens_details") == (None if count is None else {"reasoning_tokens": count})


@pytest.mark.parametrize("text", ["<think>Hm.</think>\n\n", "", "\n"])
def test_a_call_without_markers_is_found_behind_thoughts(text):
    tokenizer = tiny_tokenizer(LLAMA + "{# <think> </think> #}")
    answer = text + '{"name": "add", "parameters": {"a": 1}}'
    request = Request("a-0", tuple(tokenizer.encode("Hi")), 9, wants_text=True)
    for step in (1, 3, 100):
        builder = make_builder(tokenizer, tools=[TOOL])
        calls = []
        starts = range(0, len(answer), step)
        for start in starts:
            finish: Any = "stop" if start == starts[-1] else None
            for chunk in builder.build_chunks(
                OutputDelta(0, (1,), answer[start : start + step], (), 0, finish), request, {}
            ):
                calls += json.loads(chunk.json_bytes())["choices"][0]["delta"].get("tool_calls", [])
        assert [call["function"]["arguments"] for call in calls] == ["", '{"a": 1}']


def accepts(grammar: Grammar, ids: list[int]) -> bool:
    """True if the grammar allows the ids and then the end."""
    state = grammar.start()
    for token in ids:
        if not bool(state.allow([0], [0])[0, token]):
            return False
        state.advance([token])
    return any(bool(state.allow([0], [0])[0, token]) for token in grammar.vocab.eos_ids)


@pytest.mark.parametrize("form", ["text", "added", "special"])
@pytest.mark.parametrize(
    ("prompt", "answer", "is_allowed"),
    [
        ("Hi", "[THINK]Is {1}?[/THINK]BODY", True),
        ("Hi", "BODY", True),
        ("Hi", "Hm.[/THINK]BODY", False),
        ("Hi", "[THINK]Hm.BODY", False),
        ("Hi[THINK]", "Hm.[/THINK]BODY", True),
        ("Hi[THINK]", "BODY", False),
        ("Hi[THINK][/THINK]", "BODY", True),
        ("Hi[THINK][/THINK]", "[THINK]Hm.[/THINK]BODY", False),
    ],
)
def test_grammars_begin_behind_the_thoughts(prompt, answer, is_allowed, form):
    """Markers may be text, added tokens (Qwen's <think>) or special tokens (Mistral's [THINK])."""
    markers = ("<think>", "</think>") if form == "added" else ("[THINK]", "[/THINK]")
    tokenizer = tiny_tokenizer(LLAMA + f"{{# {markers[0]} {markers[1]} #}}")
    if form != "text":
        tokenizer.add_tokens(list(markers), special_tokens=form == "special")
    prompt, answer = (text.replace("[THINK]", markers[0]).replace("[/THINK]", markers[1]) for text in (prompt, answer))
    end: Any = tokenizer.convert_tokens_to_ids("<|end|>")
    vocab = GrammarVocab(tokenizer, VOCAB_SIZE + 2, [end])
    tool_format = ToolFormat(tokenizer)
    thoughts, opener = tool_format.answer_opener(tokenizer.encode(prompt))
    around = write_answer_grammar(thoughts, opener, vocab.special_ids) if thoughts else None
    assert tool_format.family is not None
    tools = write_tool_grammar(tool_format.family, CallRules([TOOL], True, True), vocab.special_ids, vocab.eos_ids)
    for grammar, body in (
        (Grammar.json_schema(vocab, PERSON, around), '{"age": 7}'),
        (Grammar.regex(vocab, "[0-9]/[0-9]", around), "1/2"),
        (Grammar.lark(vocab, tools, "the tools", around), '{"name": "add", "parameters": {}}'),
    ):
        ids = tokenizer.encode(answer.replace("BODY", body), add_special_tokens=False)
        assert accepts(grammar, ids) == is_allowed, body


def test_markers_that_are_special_tokens_reach_the_parser():
    tokenizer = tiny_tokenizer(BRACKETS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]", "[INST]"]})
    ids = [tokenizer.convert_tokens_to_ids(name) for name in ("[THINK]", "[/THINK]")]
    assert ToolFormat(tokenizer).marker_ids == set(ids)


def test_phases_of_the_tokens_of_an_answer():
    tokenizer = tiny_tokenizer(LLAMA + "{# <think> </think> #}")
    answer = 'Hm</think>{"name": "add", "parameters": {}}'
    ids = tokenizer.encode(answer, add_special_tokens=False)
    phases = ToolFormat(tokenizer).phases(tokenizer.encode("Hi<think>"), ids)
    assert phases == ["thoughts"] * 2 + ["content"] * len("</think>") + ["tool_call"] * (len(ids) - 10)
    assert ToolFormat(tiny_tokenizer()).phases([1], [70, 71]) == ["content", "content"]
