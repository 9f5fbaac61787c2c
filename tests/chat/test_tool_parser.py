"""Tool calls of every family, however the text is cut, against text that this file writes by itself."""

import json
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from eyas.chat.tool_format import ToolFamily, load_families
from eyas.chat.tool_parser import ParsedText, ToolCallParser

Calls = Sequence[tuple[str, dict[str, Any]]]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "count": {"type": "integer"},
                    "share": {"type": "number"},
                    "flag": {"type": "boolean"},
                    "items": {"type": "array"},
                    "inner": {"type": "object"},
                    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                },
            },
        },
    }
    for name in ("look_up", "go.far-2")
]
ONE = [("look_up", {"text": "a b", "count": 3})]
CASES: dict[str, Calls] = {
    "one": ONE,
    "two": [*ONE, ("go.far-2", {"share": 0.5, "flag": True})],
    "three alike": ONE * 3,
    "no arguments": [("look_up", {})],
    "nested": [("look_up", {"inner": {"a": {"b": [1, {"c": None}]}}, "items": [[], {}, "x"]})],
    "unicode": [("look_up", {"text": "Grüße, 世界 🦅", "inner": {"ключ": "значение"}})],
    "braces and quotes": [("look_up", {"text": 'a "b" } ] { [ \\ <x> ; }', "count": -1})],
    "line breaks": [("look_up", {"text": "a\n\nb\tc"})],
    "either type": [("look_up", {"either": 7})],
}


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def tagged(arguments: dict[str, Any], template: str) -> str:
    values = {key: value if isinstance(value, str) else as_json(value) for key, value in arguments.items()}
    return "".join(template.format(key=key, value=value) for key, value in values.items())


def python_list(calls: Calls) -> str:
    written = (f"{name}({', '.join(f'{key}={value!r}' for key, value in a.items())})" for name, a in calls)
    return f"[{', '.join(written)}]"


def gemma_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma_value, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else as_json(value)


def named(calls: Calls, key: str = "arguments") -> list[str]:
    return [as_json({"name": name, key: arguments}) for name, arguments in calls]


def write(family: str, calls: Calls) -> str:
    """The calls as the models of a family write them (sources: facts about vLLM's and SGLang's parsers)."""
    if family == "hermes":
        return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in named(calls))
    if family == "qwen_xml":
        parts = [(name, tagged(a, "<parameter={key}>\n{value}\n</parameter>\n")) for name, a in calls]
        return "\n".join(f"<tool_call>\n<function={name}>\n{a}</function>\n</tool_call>" for name, a in parts)
    if family == "glm":
        parts = [(name, tagged(a, "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")) for name, a in calls]
        return "\n".join(f"<tool_call>{name}\n{a}</tool_call>" for name, a in parts)
    if family == "mistral":
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{as_json(a)}" for name, a in calls)
    if family == "mistral_list":
        return f"[TOOL_CALLS] [{', '.join(named(calls))}]"
    if family == "deepseek":
        one = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
        inner = "\n".join(one.format(name, as_json(a)) for name, a in calls)
        return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"
    if family == "deepseek_v3_1":
        one = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        return f"<｜tool▁calls▁begin｜>{''.join(one.format(n, as_json(a)) for n, a in calls)}<｜tool▁calls▁end｜>"
    if family == "kimi":
        one = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
        inner = "".join(one.format(name, i, as_json(a)) for i, (name, a) in enumerate(calls))
        return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"
    if family == "harmony":
        one = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>"
        return "<|start|>assistant".join(one.format(name, as_json(a)) for name, a in calls)
    if family == "gemma":
        return "".join(f"<|tool_call>call:{name}{gemma_value(a)}<tool_call|>" for name, a in calls)
    if family == "llama_json":
        return "; ".join(named(calls, "parameters"))
    if family == "lfm2":
        return f"<|tool_call_start|>{python_list(calls)}<|tool_call_end|>"
    assert family == "pythonic", family
    return python_list(calls)


FAMILIES = {family.name: family for family in load_families()}
# Families whose calls are the whole answer.
WHOLE = {"llama_json", "pythonic"}


def parse(family: ToolFamily, pieces: Sequence[str]) -> ParsedText:
    parser = ToolCallParser(family.template, TOOLS, python=family.python)
    parsed = ParsedText()
    for piece in pieces:
        parsed += parser.feed(piece)
    return parsed + parser.finish()


def calls_of(parsed: ParsedText) -> Calls:
    return [(call.name, json.loads(call.arguments)) for call in parsed.calls]


def without_sections(text: str) -> str:
    """The text without the markers of a section of calls, which are no part of the content."""
    for marker in ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"):
        text = text.replace(marker, "")
    return text.replace("<|tool_calls_section_begin|>", "").replace("<|tool_calls_section_end|>", "")


def fits(family: str, case: str) -> bool:
    """A Python call cannot have a name like go.far-2; Gemma quotes no key and has no quoted brace."""
    if family in ("lfm2", "pythonic"):
        return case != "two"
    return family != "gemma" or case != "unicode"


PAIRS = [(family, case) for family in FAMILIES for case in CASES if fits(family, case)]


@pytest.mark.parametrize(("family", "case"), PAIRS)
def test_calls_are_read_however_the_text_is_cut(family, case):
    calls, text = CASES[case], write(family, CASES[case])
    before = "" if family in WHOLE or family == "harmony" else "Let me see.\n\n"
    whole = parse(FAMILIES[family], [before + text])
    assert calls_of(whole) == calls
    assert whole.content == before.rstrip()
    for cut in range(len(before + text) + 1):
        assert parse(FAMILIES[family], [(before + text)[:cut], (before + text)[cut:]]) == whole, cut
    assert parse(FAMILIES[family], list(before + text)) == whole
    dice = random.Random(f"{family}/{case}")
    for _ in range(20):
        cuts = sorted(dice.choices(range(len(before + text)), k=dice.randint(1, 8)))
        pieces = [(before + text)[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
        assert parse(FAMILIES[family], pieces) == whole


@pytest.mark.parametrize("family", FAMILIES)
def test_text_without_a_call_is_content(family):
    for text in (
        "Hello.",
        " two  lines\n\nand <b>tags</b> {1} [2] ; \n",
        "",
        "\n",
        '{"answer": 3}',
        "<tool_cal",
        "[a]",
    ):
        if family == "harmony":
            text = f"<|channel|>final<|message|>{text}"
        parsed = parse(FAMILIES[family], list(text))
        assert parsed == parse(FAMILIES[family], [text])
        assert (parsed.content, parsed.calls) == (text.removeprefix("<|channel|>final<|message|>"), ())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("start", [0, 1, 20, 60])
@pytest.mark.parametrize("unit", [" ", "} ; ", "<", '{"name": '])
def test_long_texts_take_little_time(family, start, unit):
    """A weak model may write one character forever. Tried again at each place, 20,000 spaces took minutes."""
    text = write(family, ONE)[:start] + unit * (20_000 // len(unit))
    before_s = time.process_time()
    parse(FAMILIES[family], [text[i : i + 8] for i in range(0, len(text), 8)])
    assert time.process_time() - before_s < 3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_is_cut_is_content_or_whole(family):
    """No end of the text makes a call that was not written."""
    calls = [("look_up", {"text": "a b", "count": 345}), ("look_up", {"text": "c"})]
    text = write(family, calls)
    counts = []
    for end in range(1, len(text)):
        parsed = parse(FAMILIES[family], [text[:end]])
        read = calls_of(parsed)
        assert read == calls[: len(read)], text[:end]
        assert parsed.content or read or not without_sections(text[:end]), "nothing is lost"
        counts.append(len(read))
    if family not in ("mistral_list", "lfm2", "pythonic"):
        assert set(counts) >= {0, 1}


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if "json" in str(family.template)])
def test_a_call_that_cannot_be_read_is_content(family):
    good = write(family, ONE)
    for bad in (good.replace("3", ""), good.replace("3}", "NaN}"), good.replace("}", "}}", 1)):
        parsed = parse(FAMILIES[family], list(bad))
        assert parsed.calls == ()
        assert parsed.content == without_sections(bad)
        assert parse(FAMILIES[family], [bad]) == parsed


def test_a_bad_call_does_not_harm_the_next_one():
    text = f"<tool_call>\n{{bad</tool_call>\n{write('hermes', ONE)}\n</tool_call> Done.\n"
    parsed = parse(FAMILIES["hermes"], [text])
    assert calls_of(parsed) == ONE
    assert parsed.content == "<tool_call>\n{bad</tool_call></tool_call> Done.\n"
    assert parse(FAMILIES["hermes"], list(text)) == parsed


def test_other_spellings_of_harmony():
    before = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.look_up<|channel|>commentary json"
    parsed = parse(FAMILIES["harmony"], [before + '<|message|>{"count": 1}<|call|>'])
    assert calls_of(parsed) == [("look_up", {"count": 1})]
    assert (parsed.reasoning, parsed.content) == ("Hm.", "")


def test_half_a_surrogate_pair_stays_valid_json():
    (call,) = parse(FAMILIES["hermes"], ['<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>']).calls
    assert call.arguments == '{"a": "\\ud800"}'
    call.arguments.encode()
