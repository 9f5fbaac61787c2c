"""Tool calls of every family, however the text is cut, against text that this file writes by itself."""

import json
import random
import time
from collections.abc import Sequence

import pytest
from tests.chat.call_writers import Calls, write

from eyas.chat.tool_format import ToolFamily, load_families
from eyas.chat.tool_parser import ParsedText, ToolCallParser

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


def check_pieces(family: str, text: str, dice: random.Random, num_splits: int | None = None) -> ParsedText:
    """Asserts that a text gives the same in one piece, at each split, by character and in random pieces.

    num_splits: the number of splits, drawn at random; None for all.
    """
    whole = parse(FAMILIES[family], [text])
    places = range(len(text)) if num_splits is None else dice.choices(range(len(text)), k=num_splits)
    splits = [[cut] for cut in places]
    splits += [sorted(dice.choices(range(len(text) + 1), k=dice.randint(2, 9))) for _ in range(8)]
    for cuts in (*splits, range(len(text))):
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
        assert parse(FAMILIES[family], pieces) == whole, pieces
    return whole


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_is_cut_is_content_or_whole(family):
    """No end of the text makes a call that was not written, however the text before it came."""
    calls = [("look_up", {"count": 345}), ("look_up", {"text": "c"})]
    text, dice, counts = write(family, calls), random.Random(family), []
    length = len(write(family, calls[:1]))
    for end in range(1, len(text)):
        parsed = check_pieces(family, text[:end], dice, None if end <= length else 3)
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


# A lone beginning and a lone end of a call, which a model may write by mistake.
DEEPSEEK = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
STRAY = {
    "qwen_xml": ("<tool_call>", "</tool_call>"),
    "glm": ("<tool_call>", "</tool_call>"),
    "hermes": ("<tool_call>", "</tool_call>"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]"),
    "mistral_list": ("[TOOL_CALLS]", "]"),
    "deepseek": DEEPSEEK,
    "deepseek_v3_1": DEEPSEEK,
    "kimi": ("<|tool_call_begin|>", "<|tool_call_end|>"),
    "harmony": ("<|channel|>commentary to=", "<|call|>"),
    "gemma": ("<|tool_call>", "<tool_call|>"),
    "llama_json": ("<|python_tag|>", ";"),
    "lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "pythonic": ("<|python_start|>", "<|python_end|>"),
}
# In these families a call has no end of its own, so text behind it makes the call unreadable.
OPEN_ENDED = {"mistral", "mistral_list", "llama_json", "pythonic"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lone_marker_is_content(family):
    dice = random.Random(family)
    for marker in STRAY[family]:
        for text in (marker, f"{marker} Hm.", f"{marker}{marker}\n"):
            parsed = check_pieces(family, text, dice)
            assert (parsed.content, parsed.calls) == (text, ())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lone_marker_does_not_harm_a_call(family):
    call, dice, num_read = write(family, ONE), random.Random(family), 0
    for marker in STRAY[family]:
        for text in (f"{marker}\n{call}", f"{call}{marker}"):
            parsed = check_pieces(family, text, dice)
            if family in OPEN_ENDED and not parsed.calls:
                assert parsed.content == text
                continue
            num_read += 1
            assert calls_of(parsed) == ONE
            assert parsed.content == ("" if family in WHOLE else marker)
    assert num_read == 4 or (family in OPEN_ENDED and num_read > 0)


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
