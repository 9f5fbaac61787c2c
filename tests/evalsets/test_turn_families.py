"""The conversations of builtin:turns: the file is what its tool writes, and all answers are right."""

import gzip
import json
import re
from typing import Any

import pytest
from make_turns import FAMILIES, PER_FAMILY, TOOLS, write_records

from eyas.evalsets import TURNS

RECORDS = [json.loads(line) for line in gzip.decompress(TURNS.read_bytes()).decode().splitlines()]


def conversations(family: str) -> list[list[dict[str, Any]]]:
    return [record["messages"] for record in RECORDS if record["task"] == family]


def test_the_file_is_what_the_tool_writes() -> None:
    assert list(write_records()) == RECORDS, "run tools/make_turns.py"
    assert TURNS.stat().st_size < 200_000


@pytest.mark.parametrize("family", FAMILIES)
def test_conversations_differ(family: str) -> None:
    assert len({json.dumps(messages) for messages in conversations(family)}) == PER_FAMILY


def test_edits_are_python_and_contain_what_was_asked() -> None:
    for messages in conversations("edit"):
        assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2)
        assert 4 <= len(messages) <= 8
        before = messages[0]["content"].split("```python\n")[1]
        for request, answer in zip(messages[::2], messages[1::2], strict=True):
            source = answer["content"].removeprefix("```python\n").removesuffix("\n```")
            compile(source, "answer", "exec")
            assert source != before
            wanted = re.search(r"to (\w+)\.|comment '(.*?)'|parameter (\w+) with", request["content"])
            assert wanted is not None
            assert next(filter(None, wanted.groups())) in source
            before = source


def test_a_loop_of_tools_does_what_its_calls_say() -> None:
    """Each read returns the file with all replacements so far, which are made here again."""
    for messages in conversations("agent"):
        text = ""
        calls = 0
        for call, result in zip(messages[1:-1:2], messages[2:-1:2], strict=True):
            (wanted,) = call["tool_calls"]
            assert result["tool_call_id"] == wanted["id"]
            name, arguments = wanted["function"]["name"], json.loads(wanted["function"]["arguments"])
            (tool,) = [tool["function"] for tool in TOOLS if tool["function"]["name"] == name]
            assert list(arguments) == tool["parameters"]["required"]
            calls += 1
            if name == "read_file":
                assert text in ("", result["content"])
                text = result["content"]
            else:
                assert arguments["old"] in text
                text = text.replace(arguments["old"], arguments["new"])
                compile(text, "file", "exec")
        assert calls in (4, 6, 8)
        assert messages[-1]["role"] == "assistant"


def test_a_register_doubles_and_its_answers_are_quotes() -> None:
    sizes = []
    for messages in conversations("long_context"):
        entries = [line for line in messages[0]["content"].split("\n") if line.startswith("Entry ")]
        sizes.append(len(entries))
        asked = re.search(r"Repeat entry (\d+)", messages[0]["content"])
        assert asked is not None
        number = int(asked[1])
        assert messages[1]["content"] == entries[number - 1]
        quoted = messages[3]["content"].split("\n")
        assert str(len(quoted)) in messages[2]["content"]
        assert quoted == entries[number - 1 - len(quoted) : number - 1]
    assert sizes[:10] == [8 << number for number in range(10)]
