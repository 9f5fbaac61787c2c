import pytest

from eyas.chat.conversation import Message, TemplateMessage, ToolCall
from eyas.data.sources.record_formats import ParsedRecord, RejectedRecord, describe_form, parse_record


def user(*texts):
    return tuple(Message("user", text) for text in texts)


@pytest.mark.parametrize(
    ("value", "shape", "messages", "num_answers"),
    [
        ({"question": "q", "answer": "a"}, "question", user("q"), 0),
        ({"task_id": 1, "prompt": "p"}, "prompt", user("p"), 0),
        ({"turns": ["one", "two"], "prompt": "p"}, "turns", user("one", "two"), 0),
        (
            {
                "messages": [
                    {"role": "developer", "content": "s"},
                    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                    {"role": "assistant", "content": None},
                    {"role": "user", "content": "c"},
                    {"role": "system", "content": "late"},
                    {"role": "assistant", "content": "thrown away"},
                ],
                "question": "not this one",
            },
            "messages",
            (Message("system", "s"), *user("a\nb", "c")),
            2,
        ),
        (
            {
                "conversations": [
                    {"from": "system", "value": "s"},
                    {"from": "human", "value": "a"},
                    {"from": "gpt", "value": "x"},
                    {"from": "human", "value": "b"},
                ]
            },
            "conversations",
            (Message("system", "s"), *user("a", "b")),
            1,
        ),
        ({"conversations": [{"role": "user", "content": "a"}]}, "conversations", user("a"), 0),
        ({"conversation": [{"role": "user", "content": "a"}], "redacted": False}, "conversation", user("a"), 0),
        ({"prompt": [{"role": "user", "content": "a"}], "chosen": []}, "prompt", user("a"), 0),
        ({"instruction": "i", "input": "n", "output": "o"}, "instruction", user("i\n\nn"), 0),
        ({"instruction": "i", "input": "", "output": "o"}, "instruction", user("i"), 0),
        ({"instruction": "i", "context": "n", "response": "o"}, "instruction", user("i\n\nn"), 0),
        ({"instruction": "fix", "before": "x = 1\n", "after": "x = 2\n"}, "instruction", user("fix\n\nx = 1\n"), 0),
        ({"text": "t", "label": 1}, "text", user("t"), 0),
        ({"role": "user", "text": "t"}, "messages", user("t"), 0),
        ({"from": "human", "value": "t", "id": 3}, "messages", user("t"), 0),
        ({"Question": "q", "Answer": "a"}, "question", user("q"), 0),
        ({"messages": None, "turns": [], "prompt": "p"}, "prompt", user("p"), 0),
        ({"user": "u", "assistant": "a"}, "user", user("u"), 0),
        ({"messages": "[{'role': 'user', 'content': 'it\\'s'}]"}, "messages", user("it's"), 0),
        ({"conversations": [["a", "x"], ["b", "y"]]}, "conversations", user("a", "b"), 2),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]}, "input", user("a"), 0),
        ({"prompt": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "prompt", user("a\nb"), 0),
        ({"row": {"question": "q"}, "row_idx": 0}, "log", user("q"), 0),
        ("t", "text", user("t"), 0),
        ({"custom_id": "1", "body": {"messages": [{"role": "user", "content": "a"}]}}, "log", user("a"), 0),
        ({"rendered": 5, "truncated": False, "body": {"prompt": "a"}}, "log", user("a"), 0),
    ],
)
def test_what_is_kept(value, shape, messages, num_answers):
    assert parse_record(value, keep_system=True) == ParsedRecord(shape, messages, num_answers)
    asked = tuple(message for message in messages if message.role == "user")
    assert parse_record(value) == ParsedRecord(shape, asked, num_answers)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "unknown_shape"),
        (3, "unknown_shape"),
        ({"body": {"request": {"body": {"prompt": "deep"}}}}, "unknown_shape"),
        ({"body": "{no json"}, "unknown_shape"),
        ({"text": None}, "not_text"),
        ({"instruction": 3}, "not_text"),
        ({"conversations": [{"from": "narrator", "value": "x"}]}, "unknown_shape"),
        ({"conversations": [{"from": "human", "value": "x"}, {"from": "tool", "value": "y"}]}, "tool_turns"),
        ({"messages": "x"}, "unknown_shape"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "unknown_shape"),
        ({"turns": "x"}, "unknown_shape"),
        ({"user": "bob", "level": "info", "message": "started"}, "unknown_shape"),
        ({"role": "assistant", "text": "an answer"}, "no_user_turn"),
        ({"data": {"x": 1}, "items": 3}, "unknown_shape"),
        ({"messages": "[broken"}, "unknown_shape"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, "not_text"),
        ({"history": [["a", "b"]], "instruction": "x", "input": {"y": 1}}, "not_text"),
        ({"turns": []}, "no_user_turn"),
        ({"prompt": " \n"}, "no_user_turn"),
        ({"messages": [{"role": "system", "content": "x"}, {"role": "assistant", "content": "y"}]}, "no_user_turn"),
        ({"question": 3}, "not_text"),
        ({"question": "\ud800"}, "not_text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "not_text"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}]}, "tool_turns"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [1]}]}, "tool_turns"),
    ],
)
def test_why_a_record_is_dropped(value, reason):
    dropped = parse_record(value)
    assert isinstance(dropped, RejectedRecord)
    assert dropped.reason == reason


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_answers_are_kept_where_they_are_wanted():
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "r"},
        {"role": "assistant", "content": "b"},
    ]
    call = Message("assistant", "", tool_calls=(ToolCall("1", "f", "{}"),))
    result = TemplateMessage("tool", "r", extra_fields={"tool_call_id": "1"})  # pyright: ignore[reportArgumentType]
    kept = (*user("a"), call, result, Message("assistant", "b"))
    assert parse_record({"messages": messages}, keep_answers=True) == ParsedRecord("messages", kept, 2)
    assert parse_record({"messages": messages}) == RejectedRecord("tool_turns", "messages")
    pairs = {"history": [{"user": "a", "bot": "b"}, {"user": "c", "bot": "d"}], "task": "t"}
    answers = [Message("assistant", text) for text in "bd"]
    kept = (*user("a"), answers[0], *user("c"), answers[1])
    assert parse_record(pairs, keep_answers=True) == ParsedRecord("history", kept, 2)
    assert parse_record(pairs) == ParsedRecord("history", user("a", "c"), 2)
    assert parse_record({"query": "q", "history": [["a", "b"]]}) == ParsedRecord("query", user("q"), 0)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "tool_calls": [{"name": "f"}]},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"from": "observation", "value": "r"},
    ],
)
def test_tools_in_another_form_are_dropped(message):
    messages = [{"role": "user", "content": "a"}, message]
    assert parse_record({"messages": messages}, keep_answers=True) == RejectedRecord("tool_turns", "messages")


def test_pictures_are_counted():
    parts = [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "a"}, {"type": "input_audio"}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": parts},
        {"role": "user", "content": "b"},
    ]
    assert parse_record({"messages": messages}) == ParsedRecord("messages", user("a", "b"), 1, num_pictures=2)


def test_what_a_form_is_called():
    assert describe_form({"id": 1, "frage": "secret"}) == "keys id, frage"
    assert describe_form(["secret"]) == "type list"
    heading = "my card 4111 1111 1111 1111 does not work"  # of a table without a header
    assert describe_form({heading: "x"} | dict.fromkeys("abcdef")) == "keys (a text), a, b, c, d, ..."
