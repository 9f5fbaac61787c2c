"""Prompts of later turns: from the answers of a file, or from those of the target."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tests.bench.tiny_pair import TinyPair
from transformers import AutoModelForCausalLM

from eyas.bench.config import BenchConfig
from eyas.bench.turns import ChatPrompt, ask_turns, conversation_id
from eyas.bench.workload import load_workload
from eyas.chat.conversation import Message, TemplateMessage
from eyas.chat.render import decode_ids, render_prompt
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(EMBEDDED)


CALL = {"id": "call1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "owl"}'}}
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}]


def user(text: str) -> Message:
    return Message("user", text)


def answer(text: str) -> Message:
    return Message("assistant", text)


def texts(prompt: ChatPrompt) -> list[str]:
    return [message.content for message in prompt.messages]


def shout(prompt: ChatPrompt) -> Message:
    return answer(f"{prompt.messages[-1].content}!")


def never(prompt: ChatPrompt) -> Message:
    raise AssertionError(prompt.id)


def test_the_targets_answers_become_the_history() -> None:
    chat = ChatPrompt("c", (Message("system", "s"), user("a"), user("b"), user("c")))
    prompts = list(ask_turns(chat, 9, shout))
    assert [texts(one) for one in prompts] == [["s", "a"], ["s", "a", "a!", "b"], ["s", "a", "a!", "b", "b!", "c"]]
    assert [(one.id, one.turn) for one in prompts] == [("c", 1), ("c/2", 2), ("c/3", 3)]
    assert {conversation_id(one.id, one.turn) for one in prompts} == {"c"}
    assert [texts(one) for one in ask_turns(chat, 1, never)] == [["s", "a"]]


def test_a_conversation_ends_where_the_target_has_no_answer() -> None:
    chat = ChatPrompt("c", (user("a"), user("b"), answer("given"), user("c")))
    assert [one.id for one in ask_turns(chat, 9, lambda prompt: None)] == ["c"]


def test_an_answer_before_the_first_question_is_dropped() -> None:
    chat = ChatPrompt("c", (Message("system", "s"), answer("hello"), user("a")))
    assert [texts(one) for one in ask_turns(chat, 9, never)] == [["s", "a"]]


def test_an_answer_of_two_messages_is_one_turn_of_the_id() -> None:
    chat = ChatPrompt("c", (user("a"), answer("x"), answer("y"), user("b")))
    second = list(ask_turns(chat, 9, never))[1]
    assert texts(second) == ["a", "x", "y", "b"]
    assert conversation_id(second.id, second.turn) == "c"


def test_answers_and_results_of_the_file_stay() -> None:
    result = TemplateMessage("tool", "a bird", extra_fields={"tool_call_id": "call1"})  # pyright: ignore[reportArgumentType]
    call = Message("assistant", "")
    chat = ChatPrompt("c", (user("a"), call, result, result, answer("x"), user("b"), answer("y")))
    prompts = list(ask_turns(chat, 9, never))
    assert [texts(one) for one in prompts] == [
        ["a"],
        ["a", "", "a bird", "a bird"],
        ["a", "", "a bird", "a bird", "x", "b"],
    ]


def written(path: Path, *records: Mapping[str, object]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_a_second_turn_follows_the_greedy_answer(pair: TinyPair, tmp_path: Path) -> None:
    """The answer is computed by transformers."""
    target = pair.target
    file = written(tmp_path / "p.jsonl", {"turns": ["some kites", "and owls"], "category": "birds"})
    prompts, _ = load_workload(BenchConfig(prompts=file, turns=4, max_tokens=12), None, target)
    first, second = prompts["birds"]
    model = AutoModelForCausalLM.from_pretrained(target.directory, dtype=torch.float32)
    ids = torch.tensor([first.ids])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
    text = decode_ids(out[0, len(first.ids) :].tolist(), target.tokenizer, skip_special_tokens=True)
    history = [user("some kites"), answer(text), user("and owls")]
    assert second.ids == tuple(render_prompt(history, target.tokenizer))
    assert (second.turn, second.id) == (2, f"{first.id}/2")
    alone, _ = load_workload(BenchConfig(prompts=file, max_tokens=12), None, target)
    assert alone == {"birds": [first]}


def test_a_file_with_tools(target: Target, tmp_path: Path) -> None:
    """Also in a logged request. An answer without text is one that the target writes."""
    messages = [
        {"role": "user", "content": "what is an owl?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call1", "content": "a bird"},
        {"role": "assistant", "content": ""},
    ]
    body = {"messages": messages, "tools": TOOLS}
    file = written(tmp_path / "p.jsonl", {"task": "a"} | body, {"task": "b", "body": body})
    prompts, _ = load_workload(BenchConfig(prompts=file, turns=4, max_tokens=4), None, target)
    assert {task: [one.turn for one in some] for task, some in prompts.items()} == {"a": [1, 2], "b": [1, 2]}
    assert prompts["a"][1].ids == prompts["b"][1].ids
    text = decode_ids(prompts["a"][1].ids, target.tokenizer)
    for part in ("look_up", "owl", "a bird"):
        assert part in text


def test_a_conversation_that_outgrows_the_context(pair: TinyPair, tmp_path: Path) -> None:
    """The turn that is too long is counted, and no later one is asked."""
    context = pair.target.info.max_positions
    file = written(tmp_path / "p.jsonl", {"turns": ["a", "word " * context, "b"]})
    prompts, num_too_long = load_workload(BenchConfig(prompts=file, turns=9, max_tokens=4), None, pair.target)
    assert ([one.turn for one in prompts["p"]], num_too_long) == ([1], 1)


@pytest.mark.parametrize("limit", [1, 3])
def test_builtin_turns(target: Target, limit: int) -> None:
    config = BenchConfig(prompts="builtin:turns", prompts_per_task=limit, turns=2, max_tokens=4)
    prompts, _ = load_workload(config, None, target)
    assert tuple(prompts) == ("long_context", "edit", "agent")
    assert [one.turn for one in prompts["agent"]][:2] == [1, 2]
    assert len({conversation_id(one.id, one.turn) for one in prompts["agent"]}) == limit
