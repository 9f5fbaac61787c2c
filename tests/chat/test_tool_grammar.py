"""The grammar of calls for each family: it accepts what models write, and what it allows is read back as a call."""

import json
import random
from functools import cache
from typing import Any

import jsonschema_rs
import pytest
from tests.chat.call_writers import Calls, write
from tests.tiny import VOCAB_SIZE, tiny_tokenizer

from eyas.chat.tool_format import load_families
from eyas.chat.tool_grammar import CallRules, write_tool_grammar
from eyas.chat.tool_parser import ParsedText, ToolCallParser
from eyas.engine.grammar import Grammar, GrammarVocab

WORD = {"type": "string", "maxLength": 6}
SCHEMAS: dict[str, dict[str, Any]] = {
    "look_up": {
        "type": "object",
        "properties": {
            "text": WORD,
            "count": {"type": "integer", "minimum": -5, "maximum": 99},
            "share": {"type": "number", "minimum": 0, "maximum": 1},
            "flag": {"type": "boolean"},
            "color": {"type": "string", "enum": ["red", "dark red"]},
            "items": {"type": "array", "items": WORD, "maxItems": 2},
            "inner": {"type": "object", "properties": {"a": WORD}, "required": ["a"], "additionalProperties": False},
        },
        "required": ["text", "count"],
        "additionalProperties": False,
    },
    "go-far_2": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
FULL = {"text": "a b", "count": 7, "share": 0.5, "flag": True, "color": "red", "items": ["x", ""], "inner": {"a": "}"}}
ONE: Calls = [("look_up", FULL)]
TWO: Calls = [("look_up", {"text": "ä\n", "count": -5}), ("go-far_2", {})]
WRONG: dict[str, Calls] = {
    "name": [("look_down", FULL)],
    "type": [("look_up", {**FULL, "count": "x"})],
    "range": [("look_up", {**FULL, "count": 100})],
    "length": [("look_up", {**FULL, "text": "a b c d"})],
    "choice": [("look_up", {**FULL, "color": "blue"})],
    "inner type": [("look_up", {**FULL, "inner": {"a": 1}})],
    "missing": [("look_up", {"text": "a b"})],
    "unknown": [("go-far_2", {"text": "a b"})],
}
CONTENT = {"type": "object", "properties": {"n": {"enum": [5]}, "name": WORD}, "required": ["n"]}
DEEPSEEK = [f"<｜tool▁{text}｜>" for text in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")]
# The markers of each family that may be one token.
MARKERS = {
    "qwen_xml": ["<tool_call>", "</tool_call>"],
    "glm": ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    "hermes": ["<tool_call>", "</tool_call>"],
    "mistral": ["[TOOL_CALLS]", "[ARGS]"],
    "mistral_list": ["[TOOL_CALLS]"],
    "deepseek": DEEPSEEK,
    "deepseek_v3_1": DEEPSEEK,
    "kimi": [
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ],
    "harmony": ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|call|>"],
    "llama_json": [],
}
FAMILIES = {family.name: family for family in load_families()}
# Markers may be text, added tokens as Qwen's, or special tokens. Harmony's end of a call always ends an answer.
FORMS = [
    (family, form)
    for family, markers in MARKERS.items()
    for form in ("text", "added", "special")
    if form == "special" or (family != "harmony" and (markers or form == "text"))
]


class Model:
    """A vocabulary of bytes and the markers of a family."""

    def __init__(self, family: str, form: str) -> None:
        self.family = FAMILIES[family]
        self.tokenizer: Any = tiny_tokenizer()
        if form != "text":
            self.tokenizer.add_tokens(MARKERS[family], special_tokens=form == "special")
        self.one_call = family == "harmony"
        ends = self.tokenizer.convert_tokens_to_ids(["<|end|>", "<|call|>"] if self.one_call else ["<|end|>"])
        self.vocab = GrammarVocab(self.tokenizer, VOCAB_SIZE, ends)

    def accepts(self, grammar: Grammar, text: str) -> bool:
        """True if the grammar allows each token of the text, and the end behind it."""
        state = grammar.start()
        for token in self.tokenizer.encode(text, add_special_tokens=False):
            if not state.allow([0], [0])[0, token]:
                return False
            state.advance([token])
            if token in self.vocab.eos_ids:
                return True
        return any(bool(state.allow([0], [0])[0, token]) for token in self.vocab.eos_ids)

    def sample(self, grammar: Grammar, dice: random.Random) -> str:
        """Any answer that the grammar allows, each token equally likely."""
        state, ids = grammar.start(), []
        while not ids or ids[-1] not in self.vocab.eos_ids:
            ids.append(dice.choice(state.allow([0], [0])[0].nonzero()[:, 0].tolist()))
            state.advance(ids[-1:])
            assert len(ids) < 2000
        return self.tokenizer.decode(ids).removesuffix("<|end|>")

    def parse(self, text: str) -> ParsedText:
        parser = ToolCallParser(self.family.template, TOOLS)
        return parser.feed(text) + parser.finish()


make_model = cache(Model)


@cache
def make_grammar(model: Model, must_call: bool, is_single: bool, has_schema: bool = False) -> Grammar:
    rules = CallRules(TOOLS, must_call, is_single, CONTENT if has_schema else None)
    text = write_tool_grammar(model.family, rules, model.vocab.special_ids, model.vocab.eos_ids)
    return Grammar.lark(model.vocab, text, "the tools")


def test_every_family_with_a_grammar_is_tested():
    assert {name for name, family in FAMILIES.items() if family.call is not None} == set(MARKERS)


@pytest.mark.parametrize(("family", "form"), FORMS)
def test_the_grammar_accepts_what_models_write(family, form):
    model = make_model(family, form)
    many, single = make_grammar(model, True, False), make_grammar(model, True, True)
    assert model.accepts(many, write(family, ONE))
    assert model.accepts(single, write(family, ONE))
    assert model.accepts(many, write(family, TWO)) or model.one_call
    assert not model.accepts(single, write(family, TWO)) or model.one_call
    assert not model.accepts(many, "Hello.")
    assert not model.accepts(many, write(family, ONE)[:-1])


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("family", "form"), FORMS)
def test_the_grammar_refuses_calls_that_do_not_fit(family, form, wrong):
    model = make_model(family, form)
    for must_call in (True, False):
        grammar = make_grammar(model, must_call, False)
        assert model.accepts(grammar, write(family, ONE))
        assert not model.accepts(grammar, write(family, WRONG[wrong]))


@pytest.mark.parametrize(("family", "form"), FORMS)
def test_text_and_calls_where_both_are_allowed(family, form):
    model = make_model(family, form)
    auto, schema = make_grammar(model, False, False), make_grammar(model, False, False, has_schema=True)
    before, _, after = FAMILIES[family].content.partition("TEXT")
    assert model.accepts(auto, f"{before}Hello.\n{after}")
    for answer in ('{"n": 5}', '{"n": 5, "name": "look"}'):
        assert model.accepts(schema, f"{before}{answer}{after}")
    assert not model.accepts(schema, f"{before}Hello.{after}")
    assert model.accepts(schema, write(family, ONE))
    assert not model.accepts(schema, write(family, WRONG["type"]))
    if not before:
        assert model.accepts(auto, f"Let me see.\n{write(family, ONE)}")
        assert not model.accepts(auto, f"Let me see.\n{write(family, WRONG['type'])}")


@pytest.mark.parametrize(("family", "form"), FORMS)
def test_whatever_the_grammar_allows_is_read_back(family, form):
    model, dice = make_model(family, form), random.Random(f"{family}/{form}")
    many = make_grammar(model, True, False)
    counts = set()
    for _ in range(15):
        text = model.sample(many, dice)
        parsed = model.parse(text)
        assert parsed.calls, text
        assert parsed.content == "", text
        for call in parsed.calls:
            assert jsonschema_rs.is_valid(SCHEMAS[call.name], json.loads(call.arguments)), text
        counts.add(len(parsed.calls))
    assert counts == {1} if model.one_call else len(counts) > 1
