"""The conversations with several answers: their texts never change, and their answers are right."""

import json
import re

import pytest

from eyas.base.provenance import digest_json
from eyas.evalsets import TURN_FAMILIES, example
from eyas.evalsets.families.files import TOOLS

FROZEN = {
    "long_context": "sha256:9a0afb5a1fda",
    "edit": "sha256:3ed06ddf7365",
    "agent": "sha256:7fed65b2f2b9",
}


def test_no_text_changes() -> None:
    # Results of one version can be compared with those of another.
    texts = {family: [example(family, "eval", i).messages for i in range(9)] for family in TURN_FAMILIES}
    assert {family: digest_json(some)[:19] for family, some in texts.items()} == FROZEN


@pytest.mark.parametrize("family", TURN_FAMILIES)
def test_indices_and_splits_differ(family: str) -> None:
    found = {json.dumps(example(family, split, i).messages) for split in ("train", "eval") for i in range(8)}
    assert len(found) == 16


def test_edits_are_python_and_contain_what_was_asked() -> None:
    for index in range(40):
        messages = example("edit", "eval", index).messages
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
    for index in range(40):
        messages = example("agent", "eval", index).messages
        text = None
        calls = 0
        for call, result in zip(messages[1:-1:2], messages[2:-1:2], strict=True):
            (wanted,) = call["tool_calls"]
            assert result["tool_call_id"] == wanted["id"]
            name, arguments = wanted["function"]["name"], json.loads(wanted["function"]["arguments"])
            (tool,) = [tool["function"] for tool in TOOLS if tool["function"]["name"] == name]
            assert list(arguments) == tool["parameters"]["required"]
            calls += 1
            if name == "read_file":
                assert text in (None, result["content"])
                text = result["content"]
            else:
                assert arguments["old"] in text
                text = text.replace(arguments["old"], arguments["new"])
                compile(text, "file", "exec")
        assert calls in (4, 6, 8)
        assert messages[-1]["role"] == "assistant"


def test_a_register_doubles_and_its_answers_are_quotes() -> None:
    sizes = []
    for index in range(10):
        messages = example("long_context", "eval", index).messages
        entries = [line for line in messages[0]["content"].split("\n") if line.startswith("Entry ")]
        sizes.append(len(entries))
        asked = re.search(r"entry (\d+)", messages[0]["content"].replace("Entry", ""))
        assert asked is not None
        number = int(asked[1])
        assert messages[1]["content"] == entries[number - 1]
        quoted = messages[3]["content"].split("\n")
        assert str(len(quoted)) in messages[2]["content"]
        assert quoted == entries[number - 1 - len(quoted) : number - 1]
    assert sizes == [8 << number for number in range(10)]
