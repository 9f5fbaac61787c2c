import json

import pytest

from eyas.chat.conversation import Message, ToolCall, Turn
from eyas.data.answers.journal import Journal, KeptAnswer, WithheldAnswer

FULL = KeptAnswer(
    Turn((5, 258), (True, True), "stop", "rendered"),
    Message("assistant", "é\u2028", reasoning="so", tool_calls=(ToolCall("c", "add", "{}"),)),
    {"PERSON": 1},
)
PLAIN = KeptAnswer(Turn((1,), (True,), "length"), Message("assistant", "a"))
EMPTY = KeptAnswer(Turn((), (), "stop"), Message("assistant", ""))
HELD = WithheldAnswer({"CARD": 2})


@pytest.fixture
def part(tmp_path):
    return tmp_path / "part-00000.jsonl"


def written(part, *answers):
    journal = Journal(part)
    journal.open()
    for number, answer in enumerate(answers):
        journal.add(f"q:{number}", number, answer)
    journal.close()
    return journal


def reopened(part):
    journal = Journal(part)
    journal.open()
    journal.close()
    return journal


def test_what_was_added_is_there_again(part):
    answers = (FULL, PLAIN, EMPTY, HELD)
    written(part, *answers)
    again = reopened(part)
    assert len(again) == 4
    assert tuple(again.get(f"q:{i}", i) for i in range(4)) == answers
    assert again.get("q:0", 1) is None


def test_a_withheld_answer_leaves_its_counts_alone(part):
    journal = written(part, HELD)
    assert json.loads(journal.path.read_bytes()) == {"id": "q:0", "turn": 0, "answer": {"private_counts": {"CARD": 2}}}


def test_a_second_answer_is_refused(part):
    journal = Journal(part)
    journal.open()
    journal.add("q:0", 0, PLAIN)
    with pytest.raises(AssertionError, match="answered twice"):
        journal.add("q:0", 0, FULL)
    journal.close()


def test_a_torn_line_is_cut_off_wherever_it_is_torn(part):
    path = written(part, PLAIN, FULL).path
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(first, len(whole)):
        path.write_bytes(whole[:length])
        assert len(reopened(part)) == 1
        assert path.read_bytes() == whole[:first]


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "null",
        '{"id": "q:9", "turn": 0}',
        '{"id": "q:9", "turn": 0, "answer": {"message": {"role": "assistant", "content": "x"}}}',
        '{"id": "q:9", "turn": 0, "answer": {"private_counts": {}, "message": {"role": "assistant", "content": "x"}}}',
        '{"id": "q:9", "turn": 0, "answer": {"message": 3, "turn": {"token_ids": [1], "loss_mask": [true], '
        '"finish": "stop"}}}',
        '{"id": "q:9", "turn": 0, "answer": {"message": {"role": "assistant", "content": "x"}, '
        '"turn": {"token_ids": [1], "loss_mask": [true], "finish": "eos"}}}',
    ],
)
def test_behind_a_line_that_is_no_answer_nothing_counts(part, line):
    path = written(part, PLAIN).path
    good = path.read_bytes()
    path.write_bytes(good + line.encode() + b"\n" + good.replace(b"q:0", b"q:7"))
    assert len(reopened(part)) == 1
    assert path.read_bytes() == good
