"""Replies as the servers document them, and malformed ones."""

import pytest

from eyas.chat.conversation import Message, ToolCall
from eyas.data.answers.openai_protocol import ContentFilteredError, MalformedReplyError, parse_reply

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def reply(message=None, **choice):
    message = {"role": "assistant", "content": "yo"} if message is None else message
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop", **choice}]}


def test_ids_in_two_places():
    vllm = {**reply(token_ids=[5, 2]), "prompt_token_ids": [1, 3]}
    sglang = reply(token_ids=[5, 2], prompt_token_ids=[1, 3])
    assert parse_reply(vllm, 9) == parse_reply(sglang, 9)
    assert (parse_reply(vllm, 9).token_ids, parse_reply(vllm, 9).prompt_ids) == ([5, 2], [1, 3])
    none = parse_reply({**reply(token_ids=None), "prompt_token_ids": None}, 9)
    assert (none.token_ids, none.prompt_ids) == (None, None)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": None, "tool_calls": [CALL]}, Message("assistant", "", tool_calls=(ToolCall("c1", "add", "{}"),))),
        ({"content": "a", "tool_calls": None, "reasoning": "b"}, Message("assistant", "a", reasoning="b")),
        ({"content": "a", "reasoning_content": "b", "reasoning": None}, Message("assistant", "a", reasoning="b")),
        ({"content": "a", "reasoning_content": ""}, Message("assistant", "a")),
        ({"content": "\ud83d x \udc00"}, Message("assistant", "\ufffd x \ufffd")),
        ({"content": "\ud83d\ude00"}, Message("assistant", "\U0001f600")),
        ({}, Message("assistant", "")),
    ],
)
def test_messages(message, expected):
    assert parse_reply(reply(message), 9).message == expected


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "yo",
        {},
        {"choices": None},
        {"choices": {}},
        {"choices": [3]},
        reply(3),
        reply({"content": 3}),
        reply({"content": ["yo"]}),
        reply({"content": "yo", "tool_calls": 3}),
        reply({"content": "yo", "tool_calls": [3]}),
        reply({"content": "yo", "tool_calls": [{"function": {"arguments": "{}"}}]}),
        reply(finish_reason=None),
        reply(finish_reason="abort"),
        reply(finish_reason=["stop"]),
        reply(token_ids="5"),
        reply(token_ids=[5.0]),
        reply(token_ids=[True]),
        reply(token_ids=[-1]),
        reply(token_ids=[1] * 10),
    ],
)
def test_malformed_replies(value):
    with pytest.raises(MalformedReplyError):
        parse_reply(value, 9)


def test_a_filtered_answer():
    with pytest.raises(ContentFilteredError):
        parse_reply(reply(finish_reason="content_filter"), 9)
