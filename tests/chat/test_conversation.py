import json

import pytest

from eyas.base.errors import InputError
from eyas.chat.conversation import (
    Conversation,
    Message,
    ToolCall,
    Turn,
    parse_conversation,
    parse_messages,
    read_conversation_dir,
    read_conversations,
)

# design.md, section 4.
PROMPT = {
    "id": "gsm8k-train:17",
    "source": "gsm8k-train",
    "messages": [{"role": "user", "content": "..."}],
    "tags": {"language": "en", "task": "math"},
    "changed": {"PERSON": 1},
}
ANSWERED = {
    **PROMPT,
    "messages": [{"role": "user", "content": "é\u2028"}, {"role": "assistant", "content": "yes"}],
    "turns": [{"token_ids": [5, 7, 2], "loss_mask": [True, True, True], "finish": "stop"}],
}

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1'}}
CALLED = {
    **ANSWERED,
    "messages": [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "", "reasoning_content": "I add.", "tool_calls": [CALL]},
    ],
    "turns": [{"token_ids": [5], "loss_mask": [True], "finish": "stop", "ids": "rendered"}],
}


def test_reasoning_tool_calls_and_where_ids_come_from_are_kept():
    found = parse_conversation(json.dumps(CALLED).encode(), "x")
    assert found.to_json() == CALLED
    message = Message("assistant", "", reasoning="I add.", tool_calls=(ToolCall("c1", "add", '{"a": 1'),))
    assert found.messages[1] == message == parse_messages([message.to_json()], "x")[0]
    assert found.turns[0].ids_source == "rendered"
    assert parse_conversation(json.dumps(ANSWERED).encode(), "x").turns[0].ids_source == "generated"


def test_the_records_of_the_design_come_back_as_they_were(tmp_path):
    path = tmp_path / "part.jsonl"
    path.write_bytes(
        parse_conversation(json.dumps(PROMPT).encode(), "x").to_line()
        + parse_conversation(json.dumps(ANSWERED).encode(), "x").to_line()
    )
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == [PROMPT, ANSWERED]
    prompt, answered = read_conversations(path)
    assert prompt == Conversation(
        "gsm8k-train:17", "gsm8k-train", (Message("user", "..."),), {"language": "en", "task": "math"}, {"PERSON": 1}
    )
    assert answered.turns == (Turn((5, 7, 2), (True, True, True), "stop"),)
    assert list(read_conversation_dir(tmp_path)) == [prompt, answered]


def _calls(call):
    return {"messages": [{"role": "assistant", "content": "x", "tool_calls": [call]}]}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"extra": 1}, "unknown key 'extra'"),
        ({"id": 3}, "id must be a string"),
        ({"messages": []}, "messages is empty"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "messages.0.role must be one of 'system', 'user' or 'assistant'",
        ),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content must be a string"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "hex escape"),
        (
            {"messages": [*ANSWERED["messages"], {"role": "system", "content": "x"}]},
            "a system message is not the first",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "reasoning_content": "y"}]},
            "a message that is not of the assistant has reasoning_content",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]},
            "a message that is not of the assistant has reasoning_content or tool_calls",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "reasoning_content": 3}]},
            "messages.0.reasoning_content must be a string",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [3]}]},
            "messages.0.tool_calls.0 must be a JSON object",
        ),
        (_calls({**CALL, "type": "x"}), "messages.0.tool_calls.0.type must be one of 'function'"),
        (_calls({**CALL, "function": {"name": "x"}}), "messages.0.tool_calls.0.function has no 'arguments'"),
        (
            _calls({**CALL, "function": {"name": "x", "arguments": {}}}),
            "messages.0.tool_calls.0.function.arguments must be a string",
        ),
        ({"turns": [{**CALLED["turns"][0], "ids": "guessed"}]}, "turns.0.ids must be one of 'generated' or 'rendered'"),
        ({"tags": {"task": 3}}, "tags.task must be a string"),
        ({"changed": {"PERSON": -1}}, "changed.PERSON must be at least 0"),
        ({"turns": [*ANSWERED["turns"], *ANSWERED["turns"]]}, "2 turns for 1 assistant messages"),
        ({"turns": [{"token_ids": [1], "loss_mask": [], "finish": "stop"}]}, "1 token ids, but 0 entries in loss_mask"),
        ({"turns": [{"token_ids": [], "loss_mask": [], "finish": "stop"}]}, "a turn has no token ids"),
        (
            {"turns": [{"token_ids": [True], "loss_mask": [True], "finish": "stop"}]},
            "turns.0.token_ids.0 must be a whole number",
        ),
        (
            {"turns": [{"token_ids": [1], "loss_mask": [1], "finish": "stop"}]},
            "turns.0.loss_mask.0 must be true or false",
        ),
        (
            {"turns": [{"token_ids": [1], "loss_mask": [True], "finish": "eos"}]},
            "turns.0.finish must be one of 'stop' or 'length'",
        ),
    ],
)
def test_a_wrong_record_is_named_by_file_and_line(tmp_path, change, match):
    path = tmp_path / "part.jsonl"
    path.write_text(json.dumps(ANSWERED) + "\n" + json.dumps({**ANSWERED, **change}) + "\n")
    with pytest.raises(InputError, match=match) as caught:
        list(read_conversations(path))
    assert f"{path}:2" in str(caught.value)


def test_lines_and_files_that_are_none(tmp_path):
    path = tmp_path / "part.jsonl"
    path.write_text(json.dumps(PROMPT) + '\n{"id": "to')
    with pytest.raises(InputError, match=r"part.jsonl:2: it is not valid JSON"):
        list(read_conversations(path))
    path.write_text("[1]\n")
    with pytest.raises(InputError, match="the record must be a JSON object"):
        list(read_conversations(path))
    path.write_text('{"id": "x"}\n')
    with pytest.raises(InputError, match="the record has no 'source'"):
        list(read_conversations(path))
    with pytest.raises(InputError, match="No such file"):
        list(read_conversations(tmp_path / "none.jsonl"))
    with pytest.raises(InputError, match=r"has no \*.jsonl"):
        list(read_conversation_dir(tmp_path / "none"))
